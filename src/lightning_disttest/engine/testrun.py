"""One test on one world: send it to the ranks, listen until all are done, a grace is over, or the time is up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import processes, pytest_bridge
from lightning_disttest.engine.messages import (
    FixturesFailed,
    Interrupted,
    ItemFinished,
    JoinFailed,
    LaunchRanks,
    PhasePassed,
    RanksLaunched,
    ReportMade,
    Retire,
    Retired,
    RunItem,
    ValueRecorded,
    WarningRecorded,
)
from lightning_disttest.engine.rank import STACKS_SIGNAL
from lightning_disttest.engine.supervisor import Ended, Event, RankHandle, Silenced, Supervisor
from lightning_disttest.errors import ZygoteLost
from lightning_disttest.reporting.stories import Fate, RankStory, is_subreport, is_xfailed

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from lightning_disttest.engine.worlds import World, WorldPool

_STACKS_S = 0.25
_LEAVE_S = 10.0


@dataclass(eq=False, slots=True)
class _Progress:
    """How far one rank is in the test that runs."""

    handle: RankHandle
    reports: list[pytest.TestReport] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    records: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    retired: bool = False
    dead: bool = False
    how: str = ""
    end_arrival: int = 0
    stacks: str = ""
    last_output: str = ""

    @property
    def done(self) -> bool:
        return self.finished or self.dead


@dataclass(frozen=True, slots=True)
class TestRecord:
    """All that was observed of one test; ``exit`` is set when ``pytest.exit`` was called on a rank.

    ``inherited`` are problems of fixtures that the previous test of this world had left open.
    """

    __test__ = False

    stories: tuple[RankStory, ...]
    warnings: tuple[tuple[int, WarningRecorded], ...]
    exit: tuple[int, Interrupted] | None
    inherited: tuple[str, ...]


class TestRun:
    """Runs one test on one world and observes its ranks; what the observations mean is decided in ``reporting``."""

    __test__ = False

    def __init__(
        self,
        supervisor: Supervisor,
        pool: WorldPool,
        world: World,
        message: RunItem,
        grace: float,
        config: pytest.Config,
    ) -> None:
        self._supervisor = supervisor
        self._pool = pool
        self._world = world
        self._message = message
        self._config = config
        self._grace = grace
        self._ranks = [_Progress(handle) for handle in world.ranks]
        self._warnings: list[tuple[int, WarningRecorded]] = []
        self._exit: tuple[int, Interrupted] | None = None
        self._inherited: list[str] = []
        self._first_trouble: float | None = None
        self._arrival = 0

    def run(self, deadline: float | None) -> TestRecord:
        """Run the test until ``deadline`` (a time of the monotonic clock; None: without limit)."""
        for progress in self._ranks:
            progress.handle.files.begin_test()
            progress.handle.send(self._message)
        in_time = self._listen(lambda: all(progress.done for progress in self._ranks), deadline)
        unfinished = [progress for progress in self._ranks if not progress.done]
        if unfinished:
            self._take_stacks(unfinished)
        if self._world.spec.kind != "static" and not unfinished:
            self._let_leave(deadline)
        self._settle()
        fate = Fate.WAITED if in_time else Fate.TIMED_OUT
        stories = tuple(_story(progress, fate) for progress in self._ranks)
        return TestRecord(stories, tuple(self._warnings), self._exit, tuple(self._inherited))

    def _listen(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Listen until ``done`` or the grace is over; return False if the deadline came first."""
        while True:
            self._read_inboxes()
            if done():
                return True
            now = time.monotonic()
            grace_end = None if self._first_trouble is None else self._first_trouble + self._grace
            if grace_end is not None and now >= grace_end:
                return True
            if deadline is not None and now >= deadline:
                return False
            limits = [limit - now for limit in (grace_end, deadline) if limit is not None]
            self._supervisor.poll(min(limits) if limits else None)

    def _read_inboxes(self) -> None:
        for progress in list(self._ranks):
            while progress.handle.inbox:
                arrival, moment, event = progress.handle.inbox.popleft()
                self._arrival = arrival
                if self._take(progress, event, arrival) and self._first_trouble is None:
                    self._first_trouble = moment

    def _take(self, progress: _Progress, event: Event, arrival: int) -> bool:
        """Note an event; return whether the other ranks should now hurry."""
        if isinstance(event, PhasePassed):
            progress.reports.append(pytest_bridge.passed_report(event))
            progress.arrivals.append(arrival)
        elif isinstance(event, ReportMade):
            report = pytest_bridge.revive_report(self._config, event.report)
            progress.reports.append(report)
            progress.arrivals.append(arrival)
            # A skip and an expected failure leave the others alone in their collectives just as a failure does.
            return report.failed or (report.skipped and not is_subreport(report)) or is_xfailed(report)
        elif isinstance(event, ItemFinished):
            progress.finished = True
            self._world.healthy &= event.intact
        elif isinstance(event, WarningRecorded):
            self._warnings.append((progress.handle.rank, event))
        elif isinstance(event, ValueRecorded):
            progress.records[event.name] = event.value
        elif isinstance(event, FixturesFailed):
            self._inherited += [f"rank {progress.handle.rank}:\n{text}" for text in event.problems]
        elif isinstance(event, LaunchRanks):
            self._launch(progress.handle, event)
        elif isinstance(event, Retired):
            progress.retired = True
        else:
            return self._take_end(progress, event, arrival)
        return False

    def _take_end(self, progress: _Progress, event: Event, arrival: int) -> bool:
        self._world.healthy = False
        if isinstance(event, Ended) and progress.retired and event.status == 0:
            return False
        if not progress.dead:
            progress.dead = not isinstance(event, Silenced)
            progress.end_arrival = arrival
            progress.how = _describe_end(event)
            if isinstance(event, Interrupted) and event.kind == "exit":
                self._exit = (progress.handle.rank, event)
        return True

    def _launch(self, handle: RankHandle, event: LaunchRanks) -> None:
        try:
            grown = [self._pool.grow(self._world, environment) for environment in event.environments]
        except (ZygoteLost, ValueError) as error:
            handle.send(RanksLaunched([], str(error)))
            return
        for new in grown:
            new.send(self._message)
            self._ranks.append(_Progress(new))
        self._supervisor.wait_until(lambda: all(new.pid for new in grown), _STACKS_S)
        handle.send(RanksLaunched([new.pid for new in grown], ""))

    def _take_stacks(self, unfinished: list[_Progress]) -> None:
        """Ask the ranks that are still in the test for their stacks, and read their last output."""
        for progress in unfinished:
            progress.handle.files.forget_stacks()
            self._supervisor.signal(progress.handle, STACKS_SIGNAL, group=False)
        self._supervisor.wait_until(
            lambda: all(p.handle.status is not None or _complete(p.handle.files.stacks()) for p in unfinished),
            _STACKS_S,
        )

    def _let_leave(self, deadline: float | None) -> None:
        """Let the ranks of a world that is used once end by themselves, so that their exit statuses count."""
        leaving = [progress for progress in self._ranks if progress.finished and not progress.dead]
        for progress in leaving:
            progress.handle.send(Retire())
        limit = time.monotonic() + _LEAVE_S
        self._first_trouble = None
        self._listen(
            lambda: all(progress.handle.status is not None for progress in leaving),
            limit if deadline is None else min(limit, deadline),
        )
        for progress in leaving:
            if progress.handle.status is None:
                progress.dead = True
                progress.how = "did not leave after the test and was killed"

    def _settle(self) -> None:
        for progress in self._ranks:
            if progress.how or not progress.finished:
                progress.end_arrival = progress.end_arrival or self._arrival + 1
                progress.stacks = progress.handle.files.stacks()
                progress.last_output = progress.handle.files.last_output()
                self._world.healthy = False
            elif any(not report.passed and not _is_plain_skip(report) for report in progress.reports):
                self._world.healthy = False


def _story(progress: _Progress, unfinished: Fate) -> RankStory:
    ended = bool(progress.how) and (progress.dead or not progress.finished)
    fate = Fate.DIED if ended else Fate.FINISHED if progress.finished else unfinished
    return RankStory(
        rank=progress.handle.rank,
        pid=progress.handle.pid,
        fate=fate,
        phase=progress.handle.files.stage(),
        reports=tuple(progress.reports),
        arrivals=tuple(progress.arrivals),
        end_arrival=progress.end_arrival,
        how=progress.how,
        last_output=progress.last_output,
        stacks=progress.stacks,
        records=progress.records,
    )


def _describe_end(event: Event) -> str:
    if isinstance(event, Ended):
        return processes.describe_status(event.status)
    if isinstance(event, Silenced):
        return "closed its channel to pytest" + (f" ({event.problem})" if event.problem else "")
    if isinstance(event, JoinFailed):
        return f"could not join its world\n{event.text}"
    assert isinstance(event, Interrupted)
    if event.kind == "exit":
        return f"called pytest.exit: {event.text}"
    what = "KeyboardInterrupt was raised" if event.kind == "keyboard" else "an internal error of pytest"
    return f"{what}\n{event.text}"


def _is_plain_skip(report: pytest.TestReport) -> bool:
    return report.skipped and not is_xfailed(report)


def _complete(stacks: str) -> bool:
    """Tell whether faulthandler has written the last thread, which is the one that runs the test."""
    return "(most recent call first)" in stacks and stacks.endswith("\n") and "Current thread" in stacks
