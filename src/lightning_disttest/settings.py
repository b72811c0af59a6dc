"""The options of the plugin: one table, resolved once (option > environment > ini file > default)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lightning_disttest.errors import InvalidSetting

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

RankOutput = Literal["first", "failed", "all"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its command line flag, environment variable, ini name, kind and help text."""

    flag: str
    environment: str
    ini: str
    kind: Literal["switch", "seconds", "mebibytes", "choice", "names"]
    default: bool | float | str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def field(self) -> str:
        """Attribute name of the option in ``Settings``."""
        return self.flag.removeprefix("--disttest-").removeprefix("--").replace("-", "_")

    @property
    def names(self) -> str:
        """All ways to set the option, for texts: ``--tpu (PL_RUN_TPU_TESTS, ini disttest_tpu)``."""
        return f"{self.flag} ({self.environment}, ini {self.ini})"

    @property
    def dest(self) -> str:
        """Attribute name of the option in pytest's namespace."""
        return f"disttest_{self.field}"


OPTIONS = (
    Option(
        "--standalone",
        "PL_RUN_STANDALONE_TESTS",
        "disttest_standalone",
        "switch",
        False,
        "Run only standalone tests (mark 'standalone' or RunIf(standalone=True)), each in a fresh process.",
    ),
    Option(
        "--cuda-only",
        "RUN_ONLY_CUDA_TESTS",
        "disttest_cuda_only",
        "switch",
        False,
        "Run only tests that need CUDA GPUs (distributed with device='cuda', multigpu_static, multigpu_dynamic or "
        "RunIf(min_cuda_gpus=n)). With --standalone it is ignored, as in Lightning.",
    ),
    Option(
        "--tpu",
        "PL_RUN_TPU_TESTS",
        "disttest_tpu",
        "switch",
        False,
        "Run only TPU tests (mark 'tpu' or RunIf(tpu=True)); they fail if there is no TPU.",
    ),
    Option(
        "--multigpu-static",
        "DISTTEST_MULTIGPU_STATIC",
        "disttest_multigpu_static",
        "switch",
        False,
        "Run only tests in static worlds, whatever their device.",
    ),
    Option(
        "--multigpu-dynamic",
        "DISTTEST_MULTIGPU_DYNAMIC",
        "disttest_multigpu_dynamic",
        "switch",
        False,
        "Run only tests in dynamic worlds, whatever their device.",
    ),
    Option(
        "--disttest-require",
        "DISTTEST_REQUIRE",
        "disttest_require",
        "names",
        "",
        "Fail the tests that would be skipped because these are missing: GPUs (cuda), a TPU (tpu), or the switch of "
        "standalone tests (standalone). Several are separated by commas.",
        choices=("cuda", "tpu", "standalone"),
        metavar="cuda,tpu,standalone",
    ),
    Option(
        "--disttest-timeout",
        "DISTTEST_TIMEOUT",
        "disttest_timeout",
        "seconds",
        300.0,
        "Time limit in seconds of each test that runs on ranks, and of ranks that a plain test launches with "
        "multiprocessing; 0 means no limit. "
        "The timeout of a test's mark goes first; without this option, that of pytest-timeout is taken over.",
        metavar="S",
    ),
    Option(
        "--disttest-grace",
        "DISTTEST_GRACE",
        "disttest_grace",
        "seconds",
        0.5,
        "Seconds that the other ranks get to report their own errors after the first rank failed.",
        metavar="S",
    ),
    Option(
        "--disttest-progress",
        "DISTTEST_PROGRESS",
        "disttest_progress",
        "seconds",
        30.0,
        "Seconds without news of a test on ranks after which the terminal says where each of its ranks is, and again "
        "after twice as long; 0 means never.",
        metavar="S",
    ),
    Option(
        "--disttest-rank-output",
        "DISTTEST_RANK_OUTPUT",
        "disttest_rank_output",
        "choice",
        "failed",
        "Captured output shown for a failed test: of the rank that is the cause (first), "
        "of every failed rank (failed) or of all ranks (all).",
        choices=("first", "failed", "all"),
        metavar="first|failed|all",
    ),
    Option(
        "--disttest-strict-leaks",
        "DISTTEST_STRICT_LEAKS",
        "disttest_strict_leaks",
        "switch",
        False,
        "Fail a test that leaves changed state, threads or child processes behind in a static world, instead of "
        "warning of them.",
    ),
    Option(
        "--disttest-world-memory",
        "DISTTEST_WORLD_MEMORY",
        "disttest_world_memory",
        "mebibytes",
        1024.0,
        "Replace a static world between two tests when the memory of one of its ranks has grown by more than so many "
        "MiB since its first test; 0 means never.",
        metavar="MIB",
    ),
    Option(
        "--disttest-real-spawn",
        "DISTTEST_REAL_SPAWN",
        "disttest_real_spawn",
        "switch",
        False,
        "Let ddp_spawn start each of its processes from a new interpreter, also in standalone tests, where they start "
        "from one that has imported torch and Lightning already.",
    ),
    Option(
        "--disttest-warm-spawn-everywhere",
        "DISTTEST_WARM_SPAWN_EVERYWHERE",
        "disttest_warm_spawn_everywhere",
        "switch",
        False,
        "Start the processes of ddp_spawn from an interpreter that has imported torch and Lightning already, "
        "in plain tests too. --disttest-real-spawn goes first.",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved options of one run; times are in seconds, memory in MiB.

    ``given`` names the fields that somebody has set.
    """

    standalone: bool
    cuda_only: bool
    tpu: bool
    multigpu_static: bool
    multigpu_dynamic: bool
    require: frozenset[str]
    timeout: float
    grace: float
    progress: float
    rank_output: RankOutput
    strict_leaks: bool
    world_memory: float
    real_spawn: bool
    warm_spawn_everywhere: bool
    given: frozenset[str]


SETTINGS = pytest.StashKey[Settings]()


def add_options(parser: pytest.Parser) -> None:
    """Declare every option of the table on the command line and in the ini file."""
    group = parser.getgroup("disttest", "tests on ranks and in fresh processes (lightning_disttest)")
    for option in OPTIONS:
        described = f"{option.help} Also {option.environment} and the ini option {option.ini}."
        if option.kind == "switch":
            group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=described)
        else:
            text = f"{described} Default: {_plain(option.default) or 'none'}."
            legal = f" One of: {', '.join(option.choices)}." if option.kind == "choice" else ""
            group.addoption(option.flag, dest=option.dest, default=None, metavar=option.metavar, help=text + legal)
        parser.addini(option.ini, help=option.help, default="")


def resolve(
    config: pytest.Config, environ: Mapping[str, str] = os.environ, namespace: argparse.Namespace | None = None
) -> Settings:
    """Resolve all options of ``config``; ``namespace`` has the command line where pytest has not filled the config yet.

    Raises:
        InvalidSetting: if a value is not legal; the text names where the value came from.
    """
    namespace = config.option if namespace is None else namespace
    values: dict[str, Any] = {}
    given = set()
    for option in OPTIONS:
        value = _resolve_one(option, config, environ, namespace)
        values[option.field] = option.default if value is None else value
        if value is not None:
            given.add(option.field)
    values["require"] = frozenset(filter(None, str(values["require"]).split(",")))
    return Settings(**values, given=frozenset(given))


def find_option(field: str) -> Option:
    """Return the option of a field of ``Settings``."""
    return next(option for option in OPTIONS if option.field == field)


def _resolve_one(
    option: Option, config: pytest.Config, environ: Mapping[str, str], namespace: argparse.Namespace
) -> bool | float | str | None:
    sources = (
        (getattr(namespace, option.dest, None), f"the option {option.flag}"),
        (environ.get(option.environment) or None, f"the environment variable {option.environment}"),
        (config.getini(option.ini) or None, f"the ini option {option.ini}"),
    )
    for value, source in sources:
        if value is not None:
            return _parse(option, value, source)
    return None


def _parse(option: Option, value: bool | str, source: str) -> bool | float | str:
    if option.kind == "switch":
        return _parse_switch(option, value, source)
    if option.kind in ("seconds", "mebibytes"):
        return _parse_number(option, str(value), source)
    if option.kind == "names":
        return _parse_names(option, str(value), source)
    if value not in option.choices:
        raise InvalidSetting(option.ini, value, source, "one of " + ", ".join(option.choices))
    return value


def _parse_switch(option: Option, value: bool | str, source: str) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise InvalidSetting(option.ini, value, source, "1 or 0, true or false, yes or no, on or off")


def _parse_number(option: Option, value: str, source: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise InvalidSetting(option.ini, value, source, f"a number of {option.kind}, 0 or more")
    return number


def _parse_names(option: Option, value: str, source: str) -> str:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not set(names) <= set(option.choices):
        raise InvalidSetting(option.ini, value, source, ", ".join(option.choices) + ", or several of them with commas")
    return ",".join(names)


def _plain(value: bool | float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
