"""The exception of a failure on ranks that other plugins see in the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import controller, outcomes, stand_ins
from lightning_disttest.errors import RanksFailed
from lightning_disttest.reporting.stories import EXCEPTIONS
from lightning_disttest.reporting.verdict import PhaseVerdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.conftest import Make


def described(make: Make, when: str, error: Exception) -> pytest.TestReport:
    """Return a failed report as it comes from a rank: with the description of its exception, as JSON leaves it."""
    report = make.failed(when, error)
    chain = [list(description) for description in stand_ins.describe_chain(error)]
    setattr(report, EXCEPTIONS, chain)
    return report


def seen_by_plugins(verdict: PhaseVerdict, report: pytest.TestReport) -> BaseException:
    """Return the exception that stands in the place of the ranks'."""
    return stand_ins.stand_in(outcomes.exceptions_of(verdict, report)).value


def test_plugins_see_the_exception_of_the_cause(make: Make) -> None:
    """Of several failed ranks it is the cause whose exception is passed on."""
    stories = [
        make.story(
            rank,
            make.report("setup"),
            described(make, "call", ValueError(str(rank)) if rank else KeyError("late")),
            make.report("teardown"),
            arrivals=(0, 9 - rank, 10),
        )
        for rank in range(3)
    ]

    found = seen_by_plugins(judge(stories)["call"], make.report("call", "failed", "merged"))

    assert isinstance(found, ValueError)
    assert str(found) == "2"


def test_plugins_see_a_death_by_its_summary_line(make: Make) -> None:
    """A rank that was killed left no exception; a peer's lost connection is not passed on in its place."""
    lost = described(make, "call", RuntimeError("Connection closed by peer"))
    stories = [
        make.died(0, "call", make.report("setup")),
        make.story(1, make.report("setup"), lost, make.report("teardown"), arrivals=(0, 5, 6)),
    ]

    found = seen_by_plugins(judge(stories)["call"], make.report("call", "failed", "rank 0 died in call\nmore"))

    assert isinstance(found, RanksFailed)
    assert f"{type(found).__name__}: {found}" == "RanksFailed: rank 0 died in call"


@pytest.mark.parametrize("verdict", [PhaseVerdict("failed", disagreement="the ranks disagree"), None])
def test_plugins_see_a_failure_without_an_exception_by_its_summary_line(
    make: Make, verdict: PhaseVerdict | None
) -> None:
    """Where no rank raised anything, as when they disagree or a strict xpass fails, the line is all there is."""
    if verdict is None:
        verdict = judge([make.story(0, make.report("setup"), make.strict_xpass(), make.report("teardown"))])["call"]
        assert verdict.troubles

    found = seen_by_plugins(verdict, make.report("call", "failed", "the line\nmore"))

    assert isinstance(found, RanksFailed)
    assert str(found) == "the line"


@pytest.mark.parametrize(
    ("options", "raised_here", "seen"),
    [
        ({"usepdb": False}, False, True),
        ({"usepdb": True}, False, False),
        ({"usepdb": True}, True, True),
        ({}, False, True),
        ({}, True, True),
    ],
    ids=["plain", "--pdb", "--pdb, a hook raised", "-p no:debugging", "-p no:debugging, a hook raised"],
)
def test_plugins_see_the_exception_whether_there_is_a_debugger_or_not(
    make: Make,
    make_item: Callable[..., pytest.Item],
    options: dict[str, bool],
    raised_here: bool,
    seen: bool,
) -> None:
    """Without pytest's debugging plugin there is no option ``usepdb`` at all; with ``--pdb`` there are no frames."""
    stories = [make.story(0, make.report("setup"), described(make, "call", KeyError("a")), make.report("teardown"))]
    verdict = judge(stories)["call"]
    outcome = outcomes.Outcome({"call": verdict}, stories, make.frame(1), [])
    call: Any = SimpleNamespace(excinfo=SimpleNamespace(value=OSError("of a hook")) if raised_here else None)
    it: Any = SimpleNamespace(_config=SimpleNamespace(option=SimpleNamespace(**options)))
    report = make.report("call")

    controller.Controller._put_in(it, report, call, make_item("test_it"), outcome, verdict)

    assert report.failed
    assert (call.excinfo is not None) == seen
    assert not seen or isinstance(call.excinfo.value, KeyError)
