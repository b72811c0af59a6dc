"""What the ranks made of one item: their verdicts, and how the controller's own reports and exceptions show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lightning_disttest.engine import pytest_bridge, stand_ins
from lightning_disttest.errors import RanksFailed
from lightning_disttest.reporting.stories import EXCEPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from lightning_disttest.reporting.merge import Frame
    from lightning_disttest.reporting.stories import RankStory
    from lightning_disttest.reporting.verdict import PhaseVerdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ranks made of one item."""

    verdicts: dict[str, PhaseVerdict]
    stories: Sequence[RankStory]
    frame: Frame
    properties: list[tuple[str, object]]

    @property
    def passed(self) -> bool:
        """Whether no phase failed or was skipped."""
        return all(verdict.outcome == "passed" for verdict in self.verdicts.values())

    def after_one_process(self, verdict: PhaseVerdict, seconds: float) -> Outcome:
        """Return what is made of it after the run on one process, which took ``seconds`` and may have failed."""
        verdicts = self.verdicts | ({} if verdict.outcome == "passed" else {"call": verdict})
        return replace(self, verdicts=verdicts, frame=replace(self.frame, seconds_on_one=seconds))


def hidden_failure(outcome: Outcome, when: str) -> PhaseVerdict | None:
    """Return the failure of ranks that an exception of a hook would hide: after setup there will be no call."""
    phases = ("setup", "call") if when == "setup" else (when,)
    verdicts = [outcome.verdicts[phase] for phase in phases if phase in outcome.verdicts]
    return next((verdict for verdict in verdicts if verdict.outcome == "failed"), None)


def exceptions_of(verdict: PhaseVerdict, report: pytest.TestReport) -> list[stand_ins.Description]:
    """Describe the exception that is the cause; a rank that died or hung has none, there the summary line is one."""
    cause = verdict.troubles[0].report if verdict.troubles else None
    chain: list[stand_ins.Description] = getattr(cause, EXCEPTIONS, [])
    return chain or [(stand_ins.name_of(RanksFailed), pytest_bridge.summary_line(report))]
