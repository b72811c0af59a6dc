"""Starts the processes of a launcher, watches all of them at once, and ends them: knows no launcher by name."""

from __future__ import annotations

import multiprocessing.connection
import shutil
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.multiprocessing.spawn import ProcessContext, _wrap

from lightning_disttest.engine import processes, running_tests
from lightning_disttest.engine.context import current_rank
from lightning_disttest.engine.inspection import is_stopped
from lightning_disttest.engine.launched import LaunchedFiles, LaunchedFunction
from lightning_disttest.engine.launched_errors import make_error
from lightning_disttest.engine.output import are_complete
from lightning_disttest.reporting.launched import (
    LaunchedStory,
    LaunchFrame,
    describe_launch,
    list_failures,
    sort_causes,
)
from lightning_disttest.reporting.stories import Fate
from lightning_disttest.selection.limits import limit_of
from lightning_disttest.settings import SETTINGS, find_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lightning_disttest.errors import LaunchedRanksFailed
    from lightning_disttest.reporting.raised import RaisedError

TERM_S = 0.2
_KILL_S = 5.0
_STACKS_S = 0.5
_POLL_S = 0.1  # an error is told by a file, and the process that had it may not end by itself
_BEGIN_S = 10.0  # a process that is still starting when another one fails can not have told its own error yet
_EARLY_S = 1.0
_EARLY_PART = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """How long launched processes may run: until a time of the monotonic clock, or None; ``frame`` has the grace."""

    frame: LaunchFrame
    deadline: float | None


@dataclass(eq=False, slots=True)
class _Launched:
    """What is known of one process."""

    process: Any  # that of the context
    files: LaunchedFiles
    begun: float | None = None
    has_told: bool = False
    error: RaisedError | None = None
    ended: float | None = None

    @property
    def came_to_end(self) -> bool:
        return self.has_told and self.error is None

    @property
    def failed(self) -> float | None:
        """When it failed; None if it did not, as far as is known."""
        if self.error is not None:
            return self.error.moment
        if self.ended is not None and (not self.has_told or self.process.exitcode != 0):
            return self.ended
        return None

    def look(self) -> None:
        """Look how far it is; how the process ended before how the function did, which comes first."""
        now = time.monotonic()
        if self.ended is None and self.process.exitcode is not None:
            self.ended = now
        if self.begun is None and self.files.has_begun():
            self.begun = now
        if not self.has_told and self.files.has_told():
            self.error = self.files.told()
            self.has_told = True

    def story(self, unfinished: Fate) -> LaunchedStory:
        """Tell how it left its function; ``unfinished`` is what became of those that have not."""
        exitcode = self.process.exitcode if self.ended is not None else None
        return LaunchedStory(
            rank=self.files.rank,
            pid=self.process.pid,
            fate=self._fate(unfinished),
            error=self.error,
            begun=self.begun is not None,
            came_to_end=self.came_to_end,
            how="" if exitcode is None else processes.describe_exitcode(exitcode),
            exitcode=exitcode,
            moment=self.ended or 0.0,
            stacks=self.files.stacks(),
            is_stopped=self.ended is None and is_stopped(self.process.pid),
        )

    def _fate(self, unfinished: Fate) -> Fate:
        if self.failed is not None:
            return Fate.DIED
        if self.ended is not None or (self.came_to_end and unfinished is Fate.WAITED):
            return Fate.FINISHED
        return unfinished


class LaunchedProcesses(ProcessContext):
    """The processes of one launch; stands in for what torch returns when it has started processes."""

    def __init__(self, launched: Sequence[_Launched], folder: str, limits: Limits) -> None:
        super().__init__([one.process for one in launched], [one.files.error_file for one in launched])  # type: ignore[no-untyped-call]
        self._launched = launched
        self._folder = folder
        self._limits = limits
        self._all_well = False

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all processes have ended well; return False if that is not so after ``timeout`` seconds.

        Whatever ends the wait ends the processes, but that timeout.

        Raises:
            LaunchedRanksFailed: if a process failed, after the others had the grace (or ``grace_period`` seconds) to
                tell their own errors; or if the time limit was reached.
        """
        __tracebackhide__ = True
        if self._all_well:
            return True
        failure = None
        try:
            grace = self._limits.frame.grace if grace_period is None else grace_period
            fate = self._watch(None if timeout is None else time.monotonic() + timeout, grace)
            if fate is None:
                return False
            self._all_well = fate is Fate.FINISHED and all(one.failed is None for one in self._launched)
            if not self._all_well:
                failure = self._tell(fate)
        except BaseException:
            self.end()
            raise
        self.end()
        if failure is not None:
            raise failure
        return True

    def end(self) -> None:
        """End all processes that are left, with what they have started, and reap them; remove the files."""
        left = [one.process for one in self._launched if one.process.exitcode is None]
        offspring = [child for process in left for child in processes.descendants(process.pid)]
        try:
            for process in left:
                process.terminate()
            _wait_for(left, TERM_S)
        finally:
            for process in left:
                if process.exitcode is None:
                    process.kill()
            for one in self._launched:
                one.process.join(_KILL_S)
            processes.kill_all(offspring)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self, until: float | None, grace: float) -> Fate | None:
        """Watch the processes until they have ended or are to be ended; return what that means for those left.

        None if that is not so at the time ``until``.
        """
        while True:
            for one in self._launched:
                one.look()
            living = [one for one in self._launched if one.ended is None]
            if not living:
                return Fate.FINISHED
            now = time.monotonic()
            hurry = self._grace_ends(grace)
            if hurry is not None and now >= hurry:
                return Fate.WAITED
            if self._limits.deadline is not None and now >= self._limits.deadline:
                return Fate.TIMED_OUT
            if until is not None and now >= until:
                return None
            moments = [moment for moment in (hurry, self._limits.deadline, until) if moment is not None]
            pause = min([_POLL_S, *(moment - now for moment in moments)])
            multiprocessing.connection.wait([one.process.sentinel for one in living], pause)

    def _grace_ends(self, grace: float) -> float | None:
        """Return when the grace is over; for a process that begins after the failure it counts from there."""
        failures = [one.failed for one in self._launched if one.failed is not None]
        if not failures:
            return None
        first = min(failures)
        living = [one for one in self._launched if one.ended is None]
        if any(one.begun is None for one in living):
            return first + max(grace, _BEGIN_S)
        return max([first, *(one.begun for one in living if one.begun is not None)]) + grace

    def _tell(self, fate: Fate) -> LaunchedRanksFailed:
        """Make the one error of all processes; ends those that are left, after their stacks were taken."""
        self._take_stacks()
        for one in self._launched:
            one.look()
        stories = [one.story(fate) for one in self._launched]  # before the signals, which may be what they tell next
        text = describe_launch(stories, self._limits.frame)
        failures = list_failures(stories, self._limits.frame)
        cause = sort_causes(stories)[0]
        self.end()
        raised = cause.error is not None and not cause.error.exits
        exitcode = None if raised else self.processes[cause.rank].exitcode or 0
        return make_error(text, failures, cause.rank, cause.pid, exitcode)

    def _take_stacks(self) -> None:
        """Have those that have not told how they ended write their stacks, and wait a moment for that."""
        asked = [one for one in self._launched if one.ended is None and one.error is None and one.files.has_begun()]
        asked = [one for one in asked if not is_stopped(one.process.pid)]
        for one in asked:
            processes.signal_process(one.process.pid, processes.STACKS_SIGNAL)
        until = time.monotonic() + _STACKS_S
        while not all(are_complete(one.files.stacks()) for one in asked) and time.monotonic() < until:
            time.sleep(0.002)


def start_processes(
    function: Callable[..., object], args: Iterable[Any], nprocs: int, context: Any, limits: Limits
) -> LaunchedProcesses:
    """Start ``function(rank, *args)`` in ``nprocs`` processes of a multiprocessing ``context``.

    If one cannot be started, for example because it cannot be pickled, the others are ended, and its error is raised.
    """
    folder = tempfile.mkdtemp(prefix="disttest-launched-")
    launched: list[_Launched] = []
    try:
        for rank in range(nprocs):
            files = LaunchedFiles(folder, rank)
            process = context.Process(
                target=_wrap, args=(LaunchedFunction(function, folder), rank, args, files.error_file), daemon=False
            )
            process.start()
            launched.append(_Launched(process, files))
        return LaunchedProcesses(launched, folder, limits)
    except BaseException:
        LaunchedProcesses(launched, folder, limits).end()
        raise


def limits_now() -> Limits:
    """Return the limits of what the running test launches now; outside of tests there is no time limit."""
    test = running_tests.current()
    if test is None:
        return Limits(LaunchFrame(float(find_option("grace").default), 0.0, 0.0), None)
    settings = test.item.config.stash[SETTINGS]
    rank = current_rank()
    if rank is not None:
        seconds, deadline = rank.limit, rank.deadline
    else:
        seconds = limit_of(test.item, None, settings)
        deadline = test.begun + seconds if seconds else None
    # Others watch the same limit, pytest-timeout or the controller: what is to be told has to be told before.
    early = min(_EARLY_S, seconds * _EARLY_PART)
    frame = LaunchFrame(settings.grace, seconds, early)
    return Limits(frame, None if deadline is None else deadline - early)


def _wait_for(left: Sequence[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    for process in left:
        process.join(max(0.0, until - time.monotonic()))
