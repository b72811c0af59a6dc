"""How far one rank is in the test that runs, how it ended, and its story, which is judged in ``reporting``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightning_disttest.engine import processes
from lightning_disttest.engine.inspection import NOT_LOOKED_AT, Sight
from lightning_disttest.engine.messages import Interrupted, JoinFailed
from lightning_disttest.engine.supervisor import Ended, RankHandle, Silenced
from lightning_disttest.reporting.stories import PHASES, Fate, RankStory, is_subreport

if TYPE_CHECKING:
    import pytest

    from lightning_disttest.engine.messages import FaultAnnounced
    from lightning_disttest.reporting.leaves import Recorded

End = Ended | Silenced | Interrupted | JoinFailed


@dataclass(eq=False, slots=True)
class Progress:
    """How far one rank is in the test that runs."""

    handle: RankHandle
    reports: list[pytest.TestReport] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    records: dict[str, Recorded] = field(default_factory=dict)
    finished: bool = False
    retired: bool = False
    dead: bool = False
    how: str = ""
    unreported: str = ""
    only_silent: bool = False
    ended_by: str = ""
    announced: FaultAnnounced | None = None  # the test wants this rank to end
    planned: bool = False  # and it did
    leaving: bool = False
    stage: str = ""
    end_arrival: int = 0
    sight: Sight = NOT_LOOKED_AT  # at the end of the test, if it had not finished it
    stacks: str = ""
    last_output: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing more is awaited of it."""
        return self.finished or self.dead or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the test has stopped it for ever."""
        return self.announced is not None and self.announced.exit_code is None


def unreported(progress: Progress, *, setup_only: bool) -> str:
    """Return the first phase of a finished rank of which no report came: a hook on the rank may have swallowed it."""
    reported = {str(report.when): report.passed for report in progress.reports if not is_subreport(report)}
    has_call = reported.get("setup", False) and not setup_only
    expected = PHASES if has_call else ("setup", "teardown")
    return next((phase for phase in expected if phase not in reported), "")


def story_of(progress: Progress, unfinished: Fate, sight: Sight) -> RankStory:
    """Return what a rank did; ``unfinished`` is what became of it if it has not left the test by itself."""
    fate = _fate(progress, unfinished)
    return RankStory(
        rank=progress.handle.rank,
        pid=progress.handle.pid,
        fate=fate,
        phase=progress.stage,
        reports=tuple(progress.reports),
        arrivals=tuple(progress.arrivals),
        end_arrival=progress.end_arrival,
        how=_how(progress, fate),
        last_output=progress.last_output,
        stacks=progress.stacks or sight.stacks,
        native_stacks=sight.native_stacks,
        collectives=sight.collectives,
        knows_collectives=sight.knows_collectives,
        is_stopped=sight.is_stopped,
        is_silent=sight.is_silent,
        unreported=progress.unreported,
        records=progress.records,
    )


def _how(progress: Progress, fate: Fate) -> str:
    if fate is Fate.PLANNED and progress.announced is not None:
        done = "stopped" if progress.stopped else "ended"
        return f"was {done} by the test's own fault ({progress.announced.what})"
    return progress.ended_by or progress.how


def _fate(progress: Progress, unfinished: Fate) -> Fate:
    if (progress.planned or progress.stopped) and not progress.finished:
        return Fate.PLANNED
    if progress.how and (progress.dead or not progress.finished):
        return Fate.WAITED if progress.ended_by else Fate.DIED
    return Fate.FINISHED if progress.finished else unfinished


def describe_end(event: End) -> str:
    """Return what to say of the end of a rank; the first line stands for itself."""
    match event:
        case Ended():
            return processes.describe_status(event.status)
        case Silenced():
            return "closed its channel to pytest" + (f" ({event.problem})" if event.problem else "")
        case JoinFailed():
            return f"could not join its world\n{event.text}"
        case Interrupted(kind="exit"):
            return f"called pytest.exit: {event.text}"
        case Interrupted(kind="keyboard"):
            return f"KeyboardInterrupt was raised\n{event.text}"
        case Interrupted(kind="idle"):
            return f"raised an exception\n{event.text}"
        case _:
            return f"an internal error of pytest\n{event.text}"


def is_planned(event: End, announced: FaultAnnounced | None) -> bool:
    """Tell whether a rank ended as it had announced. One that was stopped can do nothing, so any end of it is."""
    if announced is None or not isinstance(event, Ended):
        return False
    return announced.exit_code is None or os.waitstatus_to_exitcode(event.status) == announced.exit_code
