"""How long a test on ranks may take: of several limits the nearest one goes first."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.selection.limits import limit_of
from lightning_disttest.selection.marks import Plan
from tests.unit.test_settings import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_disttest.settings import Settings

mark = pytest.mark
# From the nearest to the farthest, each with a limit of its own.
SECONDS = {
    "our mark": 1.0,
    "mark of pytest-timeout": 2.0,
    "our option": 3.0,
    "option of pytest-timeout": 4.0,
    "environment of pytest-timeout": 5.0,
    "ini of pytest-timeout": 6.0,
}
OURS = {"our mark", "our option"}


class FakeConfig:
    """What is read of a config: whether pytest-timeout is there, its option and its line of the ini file."""

    def __init__(self, installed: bool = True, option: Any = None, ini: str = "") -> None:
        self.pluginmanager = SimpleNamespace(has_plugin=lambda name: installed and name == "timeout")
        self._option = option
        self._ini = ini

    def getoption(self, name: str, default: object = None) -> Any:
        """Return what the command line says."""
        assert name == "timeout"
        return default if self._option is None else self._option

    def getini(self, name: str) -> str:
        """Return what the ini file says; without pytest-timeout nobody has declared the name."""
        if name != "timeout" or not self.pluginmanager.has_plugin("timeout"):
            raise ValueError(f"unknown configuration value: {name!r}")
        return self._ini


class FakeItem:
    """What is read of an item: its config and the closest mark of a name."""

    def __init__(self, config: FakeConfig, *marks: pytest.MarkDecorator) -> None:
        self.config = config
        self._marks = [given.mark for given in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        """Return the mark of this name."""
        return next((given for given in self._marks if given.name == name), None)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)


def limit(
    config: FakeConfig,
    *marks: pytest.MarkDecorator,
    of_plan: float | None = None,
    settings: Settings = DEFAULTS,
) -> float:
    """Return the limit of a test on two ranks."""
    item: Any = FakeItem(config, *marks)
    return limit_of(item, Plan("static", 2, "cpu", "gloo", of_plan), settings)


def with_option(seconds: float) -> Settings:
    """Return settings in which somebody has set our limit."""
    return replace(DEFAULTS, timeout=seconds, given=frozenset({"timeout"}))


def limit_from(sources: Mapping[str, float], monkeypatch: pytest.MonkeyPatch, installed: bool = True) -> float:
    """Return the limit of a test for which these sources have one."""
    if "environment of pytest-timeout" in sources:
        monkeypatch.setenv("PYTEST_TIMEOUT", str(sources["environment of pytest-timeout"]))
    config = FakeConfig(
        installed, sources.get("option of pytest-timeout"), str(sources.get("ini of pytest-timeout", ""))
    )
    of_mark = sources.get("mark of pytest-timeout")
    return limit(
        config,
        *([] if of_mark is None else [mark.timeout(of_mark)]),
        of_plan=sources.get("our mark"),
        settings=with_option(sources["our option"]) if "our option" in sources else DEFAULTS,
    )


@pytest.mark.parametrize("nearest", SECONDS)
def test_nearest_limit_goes_first(monkeypatch: pytest.MonkeyPatch, nearest: str) -> None:
    """With all limits that are farther away beside it, each one holds."""
    names = list(SECONDS)
    present = {name: SECONDS[name] for name in names[names.index(nearest) :]}

    assert limit_from(present, monkeypatch) == SECONDS[nearest]


@pytest.mark.parametrize("only", SECONDS)
def test_each_limit_counts_alone(monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    """One limit is enough, wherever it stands."""
    assert limit_from({only: SECONDS[only]}, monkeypatch) == SECONDS[only]


def test_limit_of_ranks_that_a_plain_test_launches() -> None:
    """A test without a mark of ours has the next limit there is."""
    item: Any = FakeItem(FakeConfig(), mark.timeout(2))

    assert limit_of(item, None, with_option(3.0)) == 2.0
    assert limit_of(item, None, DEFAULTS) == 2.0


def test_without_any_limit_our_default_holds() -> None:
    """Nobody has set anything."""
    assert limit(FakeConfig()) == DEFAULTS.timeout


@pytest.mark.parametrize("only", SECONDS)
def test_without_pytest_timeout_its_limits_do_not_count(monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    """Where the plugin is switched off, so are its mark, its variable and its ini line; ours stay."""
    expected = SECONDS[only] if only in OURS else DEFAULTS.timeout

    assert limit_from({only: SECONDS[only]}, monkeypatch, installed=False) == expected


@pytest.mark.parametrize("source", SECONDS)
def test_zero_means_no_limit_from_every_source(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A 0 is a limit that somebody has set: what is farther away does not count."""
    names = list(SECONDS)
    present = {name: SECONDS[name] for name in names[names.index(source) :]} | {source: 0}

    assert limit_from(present, monkeypatch) == 0


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (mark.timeout(7), 7.0),
        (mark.timeout(7.5), 7.5),
        (mark.timeout("8"), 8.0),
        (mark.timeout(timeout=9), 9.0),
        (mark.timeout(9, "thread"), 9.0),
        (mark.timeout(9, func_only=True), 9.0),
        (mark.timeout(0), 0.0),
    ],
)
def test_mark_of_pytest_timeout_may_be_written_in_its_ways(given: pytest.MarkDecorator, seconds: float) -> None:
    """By position or name, as a number or as text, with other arguments: they hold for the whole test."""
    assert limit(FakeConfig(option=1.0), given, settings=with_option(2.0)) == seconds


@pytest.mark.parametrize("given", [mark.timeout(None), mark.timeout(timeout=None), mark.timeout(method="thread")])
def test_mark_of_pytest_timeout_without_a_limit_is_passed_over(given: pytest.MarkDecorator) -> None:
    """A mark that only chooses how to time leaves the limit to the run."""
    assert limit(FakeConfig(option=4.0), given) == 4.0
    assert limit(FakeConfig(option=4.0), given, settings=with_option(3.0)) == 3.0


def test_real_config_is_understood(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that are asked for are those of pytest-timeout, which is on in this very run."""
    plan = Plan("static", 2, "cpu", "gloo", None)
    monkeypatch.setattr(request.config.option, "timeout", 41.0)
    by_option = limit_of(request.node, plan, DEFAULTS)
    monkeypatch.setattr(request.config.option, "timeout", None)
    by_ini = limit_of(request.node, plan, DEFAULTS)

    assert by_option == 41.0
    assert by_ini == float(request.config.getini("timeout")) == 120.0
