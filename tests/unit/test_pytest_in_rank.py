"""What a rank puts on its reports before it sends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine import hypothesis_seed
from lightning_disttest.engine.pytest_in_rank import Recorder
from lightning_disttest.reporting.stories import EXCEPTIONS


def report_with(call: pytest.CallInfo[None], report: pytest.TestReport, note: str = "") -> pytest.TestReport:
    """Return the report of a phase as a rank sends it; ``note`` is that of a Hypothesis test."""
    outbox: Any = None
    config: Any = None
    item: Any = SimpleNamespace(stash=pytest.Stash())
    if note:
        item.stash[hypothesis_seed.SEED_NOTE] = note
    hook = Recorder(config, outbox).pytest_runtest_makereport(item, call)
    next(hook)
    with pytest.raises(StopIteration) as stopped:
        hook.send(report)
    sent: pytest.TestReport = stopped.value.value
    return sent


def fail() -> None:
    """Fail as a test does."""
    raise ValueError("boom")


@pytest.mark.parametrize("outcome", ["failed", "skipped", "passed"])
def test_rank_describes_the_exception_of_a_failed_phase(outcome: str) -> None:
    """A failed report has the exception with it, one that failed as expected or passed has none."""
    call = pytest.CallInfo.from_call(fail if outcome != "passed" else lambda: None, "call")
    report: Any = pytest.TestReport("t", ("", None, ""), {}, "passed", None, "call")
    report.outcome = outcome

    sent = report_with(call, report, "the seed")

    assert sent is report
    expected = [("builtins:ValueError", "boom")] if outcome == "failed" else None
    assert getattr(sent, EXCEPTIONS, None) == expected
    assert sent.sections == ([("Hypothesis", "the seed")] if outcome == "failed" else [])


def test_rank_says_nothing_of_examples_that_a_test_has_not() -> None:
    """Only a Hypothesis test has a section of its own."""
    report = pytest.TestReport("t", ("", None, ""), {}, "failed", "text", "call")

    assert report_with(pytest.CallInfo.from_call(fail, "call"), report).sections == []


def test_rank_has_nothing_to_describe_of_a_failure_without_an_exception() -> None:
    """A strict xpass fails a body that raised nothing."""
    call = pytest.CallInfo.from_call(lambda: None, "call")
    report = pytest.TestReport("t", ("", None, ""), {}, "failed", "[XPASS(strict)] known", "call")

    assert not hasattr(report_with(call, report), EXCEPTIONS)
