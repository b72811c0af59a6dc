"""The run of a test on one process: when it is wanted, and what it makes of a test that has passed on its ranks."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from lightning_disttest.engine import one_process, pytest_bridge
from lightning_disttest.engine.messages import RunItem
from lightning_disttest.engine.one_process import is_wanted, judge_one_process
from lightning_disttest.engine.worlds import WorldSpec
from lightning_disttest.reporting.leaves import Recorded

if TYPE_CHECKING:
    from lightning_disttest.reporting.stories import RankStory
    from lightning_disttest.reporting.verdict import PhaseVerdict
    from tests.unit.conftest import Make


def recorded(value: float, **how: Any) -> dict[str, Recorded]:
    """Return the record of one number."""
    return {"loss": Recorded({"loss": value}, **how)}


@pytest.mark.parametrize(
    ("size", "asking", "wanted"),
    [(2, [], False), (2, [0, 1], True), (3, [2], True), (1, [0], False)],
    ids=["nobody asks", "all ask", "one asks", "a world of one"],
)
def test_when_it_is_wanted(make: Make, size: int, asking: list[int], wanted: bool) -> None:
    """One rank that asks is enough: that the others did not is a difference, and found before."""
    stories = [make.story(rank, records=recorded(1.0, one_process=rank in asking)) for rank in range(size)]

    assert is_wanted(stories) == wanted
    assert not is_wanted([make.story(rank) for rank in range(size)])


def judged(make: Make, *alone: RankStory) -> PhaseVerdict:
    """Return the verdict of a test whose two ranks have recorded 1.0, with a tolerance of a tenth."""
    how = {"one_process": True, "atol": 0.1}
    ranks = [make.story(rank, *make.passed(), records=recorded(1.0, **how)) for rank in range(2)]
    return judge_one_process(ranks, alone, make.frame())


@pytest.mark.parametrize(("value", "outcome"), [(1.0, "passed"), (1.05, "passed"), (1.5, "failed")])
def test_its_values_are_compared_with_the_tolerance(make: Make, value: float, outcome: str) -> None:
    """The one process need not give a tolerance, or ask for itself."""
    verdict = judged(make, make.story(0, *make.passed(), records=recorded(value)))

    assert verdict.outcome == outcome
    assert ("    one process  1.5" in verdict.disagreement) == (outcome == "failed")


def test_its_own_failure_is_told(make: Make) -> None:
    """With where it was, its traceback and its output."""
    output: dict[str, Any] = {"sections": [("Captured stdout call", "hello")]}
    failed = make.failed("call", ValueError("too few"), **output)
    alone = make.story(0, make.report("setup"), failed, make.report("teardown", **output), arrivals=(0, 1, 2))
    verdict = judged(make, alone)
    lines = verdict.disagreement.splitlines()

    assert verdict.outcome == "failed"
    assert lines[0] == "the run on one process failed in call: ValueError: too few"
    assert lines[1].startswith("The test has passed on its ranks;")
    assert "E   ValueError: too few" in lines
    assert lines[-2:] == ["---- Captured stdout call (one process) ----", "hello"]


def test_its_death_is_told(make: Make) -> None:
    """It is no rank among others."""
    lines = judged(make, make.died(0, "call", make.report("setup"))).disagreement.splitlines()

    assert lines[0] == "the run on one process failed in call: the fresh process died in call: killed by SIGKILL"
    assert lines[2] == "______ the fresh process (pid 100): died in call: killed by SIGKILL ______"


@pytest.mark.parametrize(
    ("report", "first"),
    [
        ("skipped", "the run on one process was skipped: too few"),
        ("xfailed", "the run on one process failed as expected (known)"),
    ],
)
def test_what_is_no_pass_is_a_failure(make: Make, report: str, first: str) -> None:
    """Its values are there, but nobody knows what they are worth."""
    reports = {"skipped": make.skipped("call", "too few"), "xfailed": make.xfailed("call", ValueError("too few"))}
    alone = make.story(0, make.report("setup"), reports[report], make.report("teardown"), arrivals=(0, 1, 2))
    verdict = judged(make, alone)

    assert verdict.outcome == "failed"
    assert verdict.disagreement.splitlines()[0] == first


def test_it_has_the_time_limit_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rank is told of a new deadline: that of the ranks may be over when it begins."""
    messages: list[RunItem] = []

    class Run:
        def __init__(self, *given: Any) -> None:
            messages.append(given[3])

        def run(self) -> Any:
            return SimpleNamespace(stories=[make.story(0, *make.passed())], seconds=1.0)

    monkeypatch.setattr(one_process, "TestRun", Run)
    monkeypatch.setattr(pytest_bridge, "retain_tmp_path", lambda *_: None)
    world: Any = MagicMock()
    over = time.monotonic() - 1
    frame = replace(make.frame(2), timeout=60.0)
    spec = WorldSpec("static", 2, "cpu", "gloo")
    alone = one_process.OneProcess(world, world, world, world)

    verdict, seconds = alone.run(world, spec, RunItem(0, 1, "/tmp/it", 0, over, 60.0), [make.story(0)], frame)

    assert (verdict.outcome, seconds) == ("passed", 1.0)
    assert messages[0].next_index is None
    assert messages[0].deadline is not None
    assert messages[0].deadline > over + 60
