"""The command that runs one test again, alone, as it ran: without what selects other tests and what only reports."""

from __future__ import annotations

import itertools
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Options that select, order, distribute or repeat tests, stop the run, or say what is reported.
_LEFT_OUT = """
    --cache-clear --co --code-highlight --collect-only --color --count --cov --cov-append --cov-branch --cov-config
    --cov-context --cov-fail-under --cov-report --cov-reset --deselect --dist --disttest-progress --durations
    --durations-min --exitfirst --failed-first --ff --fold-skipped --force-short-summary --full-trace --group --html
    --ignore --ignore-glob --junit-prefix --junit-xml --junitprefix --junitxml --last-failed --last-failed-no-failures
    --lf --lfnf --log-file --log-file-mode --max-worker-restart --maxfail --maxprocesses --new-first --nf --no-cov
    --no-cov-on-fail --no-fold-skipped --no-header --no-showlocals --no-summary --numprocesses --only-rerun --pastebin
    --pdb --quiet --random-order --random-order-bucket --random-order-seed --report-log --rerun-except --reruns
    --reruns-delay --self-contained-html --show-capture --showlocals --splits --stepwise --stepwise-reset
    --stepwise-skip --sw --sw-reset --sw-skip --tb --trace --tx --verbose --verbosity --xfail-tb -d -f -k -l -m -n -q -r
    -v -x
"""
_SEPARATOR = "--"


def command_alone(
    nodeid: str,
    program: Sequence[str],
    arguments: Sequence[str],
    arity: Mapping[str, str],
    environment: Mapping[str, str],
) -> str:
    """Return a command line for a POSIX shell.

    Args:
        nodeid: the test, as it is named from the folder in which the command is to be run.
        program: how pytest was started: ``("pytest",)`` or ``("python", "-m", "pytest")``.
        arguments: the command line arguments of this run; of these, files, folders and tests are left out.
        arity: for each option that takes values how many: ``1``, ``?``, ``*`` or ``+``, as argparse has it.
        environment: the variables by which options of this package were set.
    """
    left_out = set(_LEFT_OUT.split())
    assignments = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    kept = [word for name, words in _options(arguments, arity) if name not in left_out for word in words]
    # The test goes first: behind an option whose value may be left out it would be taken for that.
    return " ".join([*assignments, shlex.join([*program, nodeid, *kept])])


def _options(arguments: Sequence[str], arity: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option by its name, with its words; short ones that share a word are taken apart."""
    waiting = list(arguments)
    while waiting and (word := waiting.pop(0)) != _SEPARATOR:
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            yield name, [word, *([] if equals else _values(waiting, arity.get(name, "")))]
        elif word.startswith("-") and word != "-":
            yield from _short_options(word, waiting, arity)


def _short_options(word: str, waiting: list[str], arity: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for position in range(1, len(word)):
        name, rest = f"-{word[position]}", word[position + 1 :]
        if takes := arity.get(name, ""):
            yield name, [f"{name}{rest}"] if rest else [name, *_values(waiting, takes)]
            return
        yield name, [name]


def _values(waiting: list[str], takes: str) -> list[str]:
    """Take the values of an option from the words that follow it."""
    if takes.isdigit():
        values = waiting[: int(takes)]
    else:
        plain = itertools.takewhile(lambda word: not word.startswith("-"), waiting)
        values = list(itertools.islice(plain, {"": 0, "?": 1}.get(takes)))
    del waiting[: len(values)]
    return values
