"""One test on one world: send it to the ranks, listen until all are done, a grace is over, or the time is up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from lightning_disttest.engine import pytest_bridge, requests
from lightning_disttest.engine.inspection import NOT_LOOKED_AT, look_at, look_into
from lightning_disttest.engine.messages import (
    FaultAnnounced,
    FixturesFailed,
    Interrupted,
    ItemFinished,
    JoinFailed,
    LaunchRanks,
    PeerSignalled,
    PhasePassed,
    ReportMade,
    Retire,
    Retired,
    RunItem,
    SuitePropertyRecorded,
    ValueRecorded,
    WarmProcessWanted,
    WarningRecorded,
)
from lightning_disttest.engine.patience import Patience
from lightning_disttest.engine.progress import (
    End,
    Progress,
    describe_end,
    is_planned,
    story_of,
    unreported,
)
from lightning_disttest.engine.supervisor import Ended, Event, Silenced, Supervisor
from lightning_disttest.engine.worlds import describe_staying
from lightning_disttest.reporting.leaves import Recorded
from lightning_disttest.reporting.stories import Fate, RankStory, is_subreport, is_xfailed
from lightning_disttest.reporting.waiting import describe_quiet, waits_in_vain

if TYPE_CHECKING:
    import pytest

    from lightning_disttest.engine.worlds import LiveWorld, WorldPool
    from lightning_disttest.settings import Settings

_LEAVE_S = 10.0
_SKIP_GRACE_S = 5.0
_SUSPICION_S = 0.5  # a rank that others have left behind is found after twice that


@dataclass(frozen=True, slots=True)
class TestRecord:
    """All that was observed of one test in ``seconds``; ``exit`` is set when ``pytest.exit`` was called on a rank.

    ``properties`` are those of the whole run that its fixtures recorded, with the rank that did.
    ``inherited`` are problems of fixtures that the previous test of this world had left open.
    """

    __test__ = False

    stories: tuple[RankStory, ...]
    warnings: tuple[tuple[int, WarningRecorded], ...]
    properties: tuple[tuple[int, SuitePropertyRecorded], ...]
    exit: tuple[int, Interrupted] | None
    inherited: tuple[str, ...]
    seconds: float


class TestRun:
    """Runs one test on one world and observes its ranks; what the observations mean is decided in ``reporting``."""

    __test__ = False

    def __init__(
        self,
        supervisor: Supervisor,
        pool: WorldPool,
        world: LiveWorld,
        message: RunItem,
        settings: Settings,
        item: pytest.Item,
    ) -> None:
        self._supervisor = supervisor
        self._pool = pool
        self._world = world
        self._message = message
        self._item = item
        self._setup_only = bool(item.config.getoption("setuponly", False))
        self._grace = settings.grace
        self._patience = Patience(settings.progress, time.monotonic())
        self._suspicion = Patience(_SUSPICION_S, time.monotonic())
        self._suspected = False
        self._ranks = [Progress(handle) for handle in world.ranks]
        self._warnings: list[tuple[int, WarningRecorded]] = []
        self._properties: list[tuple[int, SuitePropertyRecorded]] = []
        self._exit: tuple[int, Interrupted] | None = None
        self._inherited: list[str] = []
        self._hurry_until: float | None = None
        self._arrival = 0

    def run(self) -> TestRecord:
        """Run the test, at most until the deadline that its ranks are told of as well."""
        begin = time.monotonic()
        for progress in self._ranks:
            progress.handle.files.begin_test()
            progress.handle.send(self._message)
        fate = self._listen(self._message.deadline)
        unfinished = [progress for progress in self._ranks if not progress.done]
        for progress in self._ranks:
            progress.stage = progress.handle.files.stage()  # the signal for stacks may break off what a rank waits in
        if unfinished:
            self._look_into(unfinished, hung=fate is Fate.TIMED_OUT)
        self._end_stopped()
        if (self._world.spec.kind != "static" or self._has_planned_end) and not unfinished:
            self._let_leave()
        self._settle()
        stories = tuple(story_of(progress, fate, progress.sight) for progress in self._ranks)
        return TestRecord(
            stories=stories,
            warnings=tuple(self._warnings),
            properties=tuple(self._properties),
            exit=self._exit,
            inherited=tuple(self._inherited),
            seconds=time.monotonic() - begin,
        )

    def _look_into(self, unfinished: list[Progress], *, hung: bool) -> None:
        seen = look_at(self._supervisor, [progress.handle for progress in unfinished])
        sights = look_into(self._supervisor, seen, hung=hung)
        for progress in unfinished:
            progress.sight = sights[progress.handle]

    def _listen(self, deadline: float | None) -> Fate:
        """Listen until all ranks are done or are to be ended; return what that means for those that are not done."""
        while True:
            self._read_inboxes()
            if all(progress.done for progress in self._ranks):
                return Fate.FINISHED
            self._let_go()
            now = time.monotonic()
            if self._hurry_until is not None and now >= self._hurry_until:
                return Fate.WAITED
            if deadline is not None and now >= deadline:
                return Fate.TIMED_OUT
            if quiet := self._patience.is_over(now):
                self._tell_where_ranks_are(quiet)
                continue  # there may be news in the inboxes by now
            waits = [self._hurry_until, deadline, self._patience.ends]
            if self._hurry_until is None and not self._has_planned_end and any(p.finished for p in self._ranks):
                if self._suspicion.is_over(now) and self._are_stranded():
                    if self._suspected:  # a rank that was only not scheduled since is gone by the second look
                        return Fate.STRANDED
                    self._suspected = True
                waits.append(self._suspicion.ends)
            moments = [moment for moment in waits if moment is not None]
            self._supervisor.poll(max(0.0, min(moments) - now) if moments else None)

    def _are_stranded(self) -> bool:
        """Tell whether all ranks that are left wait, and at least one for a rank that is through with the test."""
        sights = look_at(self._supervisor, [progress.handle for progress in self._ranks if not progress.dead])
        for progress in self._ranks:
            progress.sight = sights.get(progress.handle, NOT_LOOKED_AT)
        stories = [story_of(progress, Fate.WAITED, progress.sight) for progress in self._ranks]
        left = [story for story in stories if story.fate is Fate.WAITED]
        finished = [story for story in stories if story.fate is Fate.FINISHED]
        return all(story.waits_for_others for story in left) and any(waits_in_vain(s, finished) for s in left)

    def _tell_where_ranks_are(self, seconds: float) -> None:
        """Show on the terminal where the ranks are."""
        for progress in self._ranks:
            progress.stage = progress.handle.files.stage()
        sights = look_at(self._supervisor, [progress.handle for progress in self._ranks if not progress.done])
        stories = [story_of(p, Fate.WAITED, sights.get(p.handle, NOT_LOOKED_AT)) for p in self._ranks]
        pytest_bridge.show_line(self._item.config, describe_quiet(self._item.nodeid, seconds, stories))

    def _read_inboxes(self) -> None:
        for progress in list(self._ranks):
            while progress.handle.inbox:
                arrival, moment, event = progress.handle.inbox.popleft()
                self._arrival = arrival
                if not isinstance(event, PhasePassed):  # may have waited in the rank until now
                    self._patience.take_news(moment)
                    self._suspicion.take_news(moment)
                    self._suspected = False
                grace = self._take(progress, event, arrival)
                if grace is not None:
                    end = moment + grace
                    self._hurry_until = end if self._hurry_until is None else min(end, self._hurry_until)

    def _take(self, progress: Progress, event: Event, arrival: int) -> float | None:  # noqa: C901  a case per event
        """Note an event; return the seconds that the other ranks still get because of it, None: as many as before."""
        match event:
            case PhasePassed():
                self._add_report(progress, pytest_bridge.passed_report(event), arrival)
            case ReportMade():
                report = pytest_bridge.revive_report(self._item.config, event.report)
                self._add_report(progress, report, arrival)
                return self._grace_after(report)
            case ItemFinished():
                assert event.index == self._message.index, "the rank ran another item"
                progress.finished = True
                self._world.healthy &= event.intact
            case WarningRecorded():
                self._warnings.append((progress.handle.rank, event))
            case ValueRecorded():
                progress.records[event.name] = Recorded(dict(event.leaves), event.rtol, event.atol, event.one_process)
            case SuitePropertyRecorded():
                self._properties.append((progress.handle.rank, event))
            case FixturesFailed():
                self._inherited += [f"rank {progress.handle.rank}:\n{text}" for text in event.problems]
            case LaunchRanks():
                new = requests.launch(self._supervisor, self._pool, self._world, progress.handle, event, self._message)
                self._ranks += [Progress(handle) for handle in new]
            case WarmProcessWanted():
                requests.give_connection(progress.handle, event)
            case PeerSignalled():
                self._note_signal(progress, event)
            case FaultAnnounced():
                progress.announced = event if event.is_end else None
                self._world.healthy = False  # a peer may have given up a collective, and its connections with it
            case Retired():
                progress.retired = True
                problems = self._world.problems if self._has_planned_end else self._inherited
                problems += [f"rank {progress.handle.rank}:\n{text}" for text in event.problems]
            case Ended() | Silenced() | Interrupted() | JoinFailed():
                return self._take_end(progress, event, arrival)
            case _:
                _never(event)
        return None

    def _note_signal(self, sender: Progress, event: PeerSignalled) -> None:
        for progress in self._ranks:
            if progress.handle.pid == event.pid:
                progress.ended_by = f"was ended by its launcher on rank {sender.handle.rank}"

    def _add_report(self, progress: Progress, report: pytest.TestReport, arrival: int) -> None:
        progress.reports.append(report)
        progress.arrivals.append(arrival)

    def _grace_after(self, report: pytest.TestReport) -> float | None:
        """Return the seconds that the other ranks get after a report.

        A skip and an expected failure leave the others alone in their collectives just as a failure does. But a skip
        is no sign of trouble by itself: slower ranks get time to skip as well.
        """
        if report.failed or is_xfailed(report):
            return self._grace
        if report.skipped and not is_subreport(report):
            return max(self._grace, _SKIP_GRACE_S)
        return None

    def _take_end(self, progress: Progress, event: End, arrival: int) -> float | None:
        self._world.healthy = False
        if isinstance(event, Ended) and progress.retired and event.status == 0:
            return None
        if isinstance(event, Silenced) and (progress.announced is not None or progress.leaving):
            return None  # its end is still to come
        if progress.announced is not None and is_planned(event, progress.announced):
            progress.dead = progress.planned = True
            return None
        if not progress.how or progress.only_silent:
            progress.how = describe_end(event)
            progress.end_arrival = progress.end_arrival or arrival
            progress.only_silent = isinstance(event, Silenced)
            if isinstance(event, Interrupted) and event.kind == "exit":
                self._exit = (progress.handle.rank, event)
        # A rank that was interrupted still ends its fixtures.
        progress.dead |= isinstance(event, (Ended, JoinFailed))
        return self._grace

    def _let_leave(self) -> None:
        """Let the ranks of a world that is used once end by themselves, so that their exit statuses count.

        The time limit is that of the test; to leave they have a limit of their own, and no rank hurries the others.
        """
        leaving = [progress for progress in self._ranks if progress.finished and not progress.dead]
        for progress in leaving:
            progress.handle.send(Retire())
        self._supervisor.wait_until(lambda: all(p.handle.status is not None for p in leaving), _LEAVE_S)
        self._read_inboxes()
        staying = [progress for progress in leaving if progress.handle.status is None]
        self._supervisor.take_stacks([progress.handle for progress in staying])
        for progress in staying:
            progress.dead = True
            progress.how = describe_staying(_LEAVE_S)
            progress.stage = "exit"

    @property
    def _has_planned_end(self) -> bool:
        return any(progress.planned or progress.stopped for progress in self._ranks)

    def _let_go(self) -> None:
        """Have ranks leave that are through with the test, once another has ended as planned.

        Ranks that wait for them hear then, as they would hear it of a program that ends, that nobody will come.
        """
        if any(progress.planned for progress in self._ranks):
            for progress in self._ranks:
                if progress.finished and not progress.leaving:
                    progress.leaving = True
                    progress.handle.send(Retire())

    def _end_stopped(self) -> None:
        stopped = [progress.handle for progress in self._ranks if progress.stopped and progress.handle.status is None]
        if stopped:
            self._supervisor.end(stopped, 0.0)
            self._read_inboxes()

    def _settle(self) -> None:
        for progress in self._ranks:
            if progress.finished:
                progress.stage = "exit"
                progress.unreported = unreported(progress, setup_only=self._setup_only)
            if progress.how or progress.unreported or not progress.finished:
                progress.end_arrival = progress.end_arrival or self._arrival + 1
                progress.stacks = progress.handle.files.stacks()  # also those of a crash
                progress.last_output = progress.handle.files.last_output()
                self._world.healthy = False
            elif any(not report.passed and not _is_plain_skip(report) for report in progress.reports):
                self._world.healthy = False


def _never(event: NoReturn) -> NoReturn:
    """Make mypy find an event that no case takes."""
    raise AssertionError(f"unexpected {event!r}")


def _is_plain_skip(report: pytest.TestReport) -> bool:
    return report.skipped and not is_xfailed(report)
