"""The options of the plugin: one table, resolved once (option > environment > ini file > default)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
    kind: Literal["switch", "seconds", "choice"]
    default: bool | float | str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def dest(self) -> str:
        """Attribute name of the option in pytest's namespace."""
        return "disttest_" + self.flag.removeprefix("--disttest-").removeprefix("--").replace("-", "_")


OPTIONS = (
    Option(
        "--standalone",
        "PL_RUN_STANDALONE_TESTS",
        "disttest_standalone",
        "switch",
        False,
        "Run only standalone tests (mark 'standalone' or Lightning's RunIf(standalone=True)), each in a fresh process.",
    ),
    Option(
        "--disttest-timeout",
        "DISTTEST_TIMEOUT",
        "disttest_timeout",
        "seconds",
        300.0,
        "Time limit in seconds of each test that runs on ranks; 0 means no limit. "
        "The timeout of a test's mark goes first.",
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
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved options of one run; times are in seconds."""

    standalone: bool
    timeout: float
    grace: float
    rank_output: RankOutput


SETTINGS = pytest.StashKey[Settings]()


def add_options(parser: pytest.Parser) -> None:
    """Declare every option of the table on the command line and in the ini file."""
    group = parser.getgroup("disttest", "tests on ranks and in fresh processes (lightning_disttest)")
    for option in OPTIONS:
        described = f"{option.help} Also {option.environment} and the ini option {option.ini}."
        if option.kind == "switch":
            group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=described)
        else:
            text = f"{described} Default: {_plain(option.default)}."
            legal = f" One of: {', '.join(option.choices)}." if option.choices else ""
            group.addoption(option.flag, dest=option.dest, default=None, metavar=option.metavar, help=text + legal)
        parser.addini(option.ini, help=option.help, default="")


def resolve(
    config: pytest.Config, environ: Mapping[str, str] = os.environ, namespace: argparse.Namespace | None = None
) -> Settings:
    """Resolve all options of ``config``; ``namespace`` has the command line where pytest has not filled the config yet.

    Raises:
        InvalidSetting: if a value is not legal; the text names where the value came from.
    """
    given = config.option if namespace is None else namespace
    values = {option.dest: _resolve_one(option, config, environ, given) for option in OPTIONS}
    return Settings(
        standalone=bool(values["disttest_standalone"]),
        timeout=float(values["disttest_timeout"]),
        grace=float(values["disttest_grace"]),
        rank_output=values["disttest_rank_output"],  # type: ignore[arg-type]
    )


def _resolve_one(
    option: Option, config: pytest.Config, environ: Mapping[str, str], given: argparse.Namespace
) -> bool | float | str:
    sources = (
        (getattr(given, option.dest, None), f"the option {option.flag}"),
        (environ.get(option.environment) or None, f"the environment variable {option.environment}"),
        (config.getini(option.ini) or None, f"the ini option {option.ini}"),
    )
    for value, source in sources:
        if value is not None:
            return _parse(option, value, source)
    return option.default


def _parse(option: Option, value: bool | str, source: str) -> bool | float | str:
    if option.kind == "switch":
        return _parse_switch(option, value, source)
    if option.kind == "seconds":
        return _parse_seconds(option, str(value), source)
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


def _parse_seconds(option: Option, value: str, source: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidSetting(option.ini, value, source, "a number of seconds, 0 or more")
    return seconds


def _plain(value: bool | float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
