"""The lines of the table for pytest's own options."""

from __future__ import annotations

from tests.compatibility.lines import Line, common_outcomes, without
from tests.harness import Run


def _stops_after_the_first_failure(run: Run) -> None:
    assert run.returncode == 1
    failed = [name for name, outcome in run.outcomes.items() if outcome == "failed"]
    assert failed == ["test_fails[static]"]
    assert "stopping after 1 failures" in run.output


def _runs_what_the_expression_names(run: Run) -> None:
    assert common_outcomes(run) == without("test_skips", "test_plain")
    assert "4 deselected" in run.output


OPTIONS = (
    Line(
        name="`-x`",
        on_ranks="stops after the first test that failed on any rank",
        arguments=("-x",),
        common={"test_plain": "passed", "test_passes[static]": "passed", "test_fails[static]": "failed"},
        check=_stops_after_the_first_failure,
    ),
    Line(
        name="`-k`",
        on_ranks="selects tests on ranks by name",
        arguments=("-k", "passes or fails"),
        common=without("test_skips", "test_plain"),
        check=_runs_what_the_expression_names,
    ),
)
