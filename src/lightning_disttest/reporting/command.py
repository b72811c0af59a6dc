"""The command that runs one test again, alone, as it ran: without what selects other tests and what only reports."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_disttest.settings import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pytest

# Options that select tests, order them, distribute or repeat them, or say what is reported: with a value, and without.
_WITH_VALUE = frozenset(
    (
        "--code-highlight",
        "--color",
        "--count",
        "--cov-config",
        "--cov-context",
        "--cov-fail-under",
        "--cov-report",
        "--deselect",
        "--dist",
        "--disttest-progress",
        "--durations",
        "--durations-min",
        "--group",
        "--html",
        "--ignore",
        "--ignore-glob",
        "--junit-prefix",
        "--junit-xml",
        "--junitxml",
        "--last-failed-no-failures",
        "--lfnf",
        "--log-file",
        "--max-worker-restart",
        "--maxfail",
        "--maxprocesses",
        "--numprocesses",
        "--only-rerun",
        "--random-order-bucket",
        "--random-order-seed",
        "--report-log",
        "--rerun-except",
        "--reruns",
        "--reruns-delay",
        "--splits",
        "--tb",
        "--tx",
        "--verbosity",
        "-k",
        "-m",
        "-n",
        "-r",
    )
)
_WITHOUT_VALUE = frozenset(
    (
        "--cache-clear",
        "--cov-append",
        "--cov-branch",
        "--cov-reset",
        "--exitfirst",
        "--failed-first",
        "--ff",
        "--fold-skipped",
        "--full-trace",
        "--last-failed",
        "--lf",
        "--new-first",
        "--nf",
        "--no-cov",
        "--no-cov-on-fail",
        "--no-fold-skipped",
        "--no-header",
        "--no-summary",
        "--pdb",
        "--quiet",
        "--random-order",
        "--self-contained-html",
        "--showlocals",
        "--stepwise",
        "--stepwise-reset",
        "--stepwise-skip",
        "--sw",
        "--sw-reset",
        "--sw-skip",
        "--trace",
        "--verbose",
        "-l",
        "-q",
        "-qq",
        "-v",
        "-vv",
        "-vvv",
        "-x",
    )
)
_CLUSTER = re.compile(r"-[xqvls]{2,}$")
_CLUSTER_KEPT = "s"
_OPTIONAL_VALUE = "--cov"


def command_for(item: pytest.Item) -> str:
    """Return the command that runs an item again, from the folder in which pytest was started."""
    config: Any = item.config
    _, separator, name = item.nodeid.partition("::")
    program, *_ = getattr(config, "workerinput", {}).get("mainargv", sys.argv)
    started_by_name = Path(program).stem in ("pytest", "py.test")
    return command_alone(
        os.path.relpath(item.path, config.invocation_params.dir) + separator + name,
        ("pytest",) if started_by_name else ("python", "-m", "pytest"),
        [str(argument) for argument in config.invocation_params.args],
        set(map(str, config.option.file_or_dir)),
        {o.environment: os.environ[o.environment] for o in OPTIONS if os.environ.get(o.environment)},
    )


def command_alone(
    nodeid: str,
    program: Sequence[str],
    arguments: Sequence[str],
    selected: Collection[str],
    environment: Mapping[str, str],
) -> str:
    """Return a command line for a POSIX shell.

    Args:
        nodeid: the test, as it is named from the folder in which the command is to be run.
        program: how pytest was started: ``("pytest",)`` or ``("python", "-m", "pytest")``.
        arguments: the command line arguments of this run.
        selected: those of them that name files, folders or tests.
        environment: the variables by which options of this package were set.
    """
    kept = _without_selection(arguments, selected)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*assignments, shlex.join([*program, *kept, nodeid])])


def _without_selection(arguments: Sequence[str], selected: Collection[str]) -> list[str]:
    kept: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, _ = argument.partition("=")
        if name in _WITH_VALUE:
            if not equals and waiting:
                waiting.pop(0)
        elif name == _OPTIONAL_VALUE:
            if not equals and waiting and not waiting[0].startswith("-") and waiting[0] not in selected:
                waiting.pop(0)
        elif _CLUSTER.match(argument):
            kept += [f"-{letter}" for letter in argument[1:] if letter in _CLUSTER_KEPT]
        elif argument not in selected and name not in _WITHOUT_VALUE and not _is_short_with_value(argument):
            kept.append(argument)
    return kept


def _is_short_with_value(argument: str) -> bool:
    """Tell ``-kexpression``, ``-n2`` and ``-rA`` apart: a short option that has its value in the same word."""
    return argument[:2] in ("-k", "-m", "-n", "-r") and argument[:2] != argument and not argument.startswith("--")
