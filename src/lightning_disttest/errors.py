"""Every error that this package raises, in one place: the constructors take facts and write the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class DisttestError(Exception):
    """Base of all errors of lightning_disttest."""


class UsageFault(DisttestError):
    """Base of mistakes of the user that end the run before it begins, as pytest's usage errors (exit code 4)."""


class InvalidMarks(UsageFault):
    """Raised after collection when tests carry marks that cannot be served."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        lines = [f"  {nodeid}: {problem}" for nodeid, problem in problems]
        plural = "s" if len(lines) != 1 else ""
        super().__init__(f"lightning_disttest: {len(lines)} test{plural} with invalid marks\n" + "\n".join(lines))


class InvalidSetting(UsageFault):
    """Raised when an option has a value that is not legal, wherever it came from."""

    def __init__(self, name: str, value: object, source: str, legal: str) -> None:
        super().__init__(f"lightning_disttest: {source} gives {name} the value {value!r}; legal is {legal}")


class MarkTooLate(DisttestError):
    """Raised for a test that got a mark while it was running, by ``request.applymarker`` in a fixture."""

    def __init__(self, nodeid: str, mark: str) -> None:
        super().__init__(
            f"{nodeid} got the mark {mark} from a fixture, while it was running in the pytest process already. Marks "
            "that say where a test runs must be there when collection ends: on the test, its class or module, or "
            "added in pytest_collection_modifyitems."
        )


class RequirementMissing(DisttestError):
    """Raised for a test that would be skipped for lack of something that must not be missing in this run.

    ``reason`` says what it lacks, ``option`` names the option that makes it a failure.
    """

    def __init__(self, nodeid: str, reason: str, option: str) -> None:
        super().__init__(f"{nodeid} cannot run here: {reason}. It is not skipped because of {option}.")


class InvalidCondition(DisttestError, TypeError):
    """Raised by ``RunIf`` for a keyword that it does not know, or a value that the keyword does not take."""

    def __init__(self, keyword: str, problem: str) -> None:
        super().__init__(f"RunIf: {keyword} {problem}")


class ConditionUnclear(DisttestError, RuntimeError):
    """Raised when a device could not be asked whether a condition of ``RunIf`` or a mark is met."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} could not be found out; the process that was asked said: {reason}")


class TmpdirSwitchedOff(UsageFault):
    """Raised when tests need ranks and pytest's tmpdir plugin is switched off."""

    def __init__(self) -> None:
        super().__init__(
            "lightning_disttest: tests on ranks and in fresh processes need pytest's tmpdir plugin, where their ranks "
            "meet and share files; leave out -p no:tmpdir"
        )


class UnsafeFork(DisttestError):
    """Raised for each test with ranks when this process can not be forked safely.

    ``culprits`` are the test modules that may have done it; None when no code of the user can be the reason.
    """

    def __init__(self, reason: str, culprits: Sequence[str] | None) -> None:
        text = f"ranks cannot be forked from this process: {reason}."
        if culprits is not None:
            where = (
                f"It happened while {', '.join(culprits)} was collected."
                if culprits
                else "No test module could be identified: a conftest, a plugin or the caller of pytest did it."
            )
            advice = "Move that work out of import time, into a fixture or a test, and ranks can be forked again."
            text = f"{text}\n{where}\n{advice}"
        super().__init__(text)


class RunTerminated(KeyboardInterrupt):
    """Raised in the pytest process by SIGTERM; no ``except Exception`` of a test is to swallow it.

    ``running`` are the tests that run, in this process or in workers of pytest-xdist, ``last`` is the last that ended.
    """

    def __init__(self, running: Sequence[str], last: str) -> None:
        after = f"between two tests, after {last}" if last else "before the first test"
        where = f"in {' and '.join(running)}" if running else after
        super().__init__(f"SIGTERM ended the run {where}")


class ZygoteLost(DisttestError):
    """Raised for each test with ranks after the process that ranks are forked from has ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"the process that ranks are forked from (pid {pid}) has ended, so no rank can be started any more; "
            "was it killed by hand or by the kernel (out of memory)? A new one can not be made in this run: it would "
            "be a copy of a process in which tests have run already. Run the remaining tests again."
        )


class RanksFailed(DisttestError):
    """Stands for a failure without an exception, where other plugins look at the exception of a test.

    Ranks that died, hung or disagree have none, nor has a strict xpass.
    """


class BenchmarkOnRanks(DisttestError):
    """Raised for each test on ranks that uses the ``benchmark`` fixture of pytest-benchmark while it measures."""

    def __init__(self) -> None:
        super().__init__(
            "it uses the fixture 'benchmark' of pytest-benchmark, whose results would stay on the ranks and be in no "
            "table. Run it with --benchmark-disable, which calls the function once, or benchmark in a plain test."
        )


class RankNotStarted(DisttestError):
    """Raised for a test whose ranks could not be started, for lack of descriptors, processes or memory."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(
            f"rank {rank} could not be started: {reason}. Each rank takes several file descriptors in the pytest "
            "process and one process of the machine; see ulimit -n and ulimit -u, or run fewer ranks at once."
        )


class ChannelBroken(DisttestError):
    """Raised when a channel ended in the middle of a message, or carried something that is no message.

    ``messages`` are those that arrived whole in the same read.
    """

    def __init__(self, problem: str, messages: Sequence[Any] = ()) -> None:
        self.messages = tuple(messages)
        super().__init__(f"a channel between processes broke: {problem}")


class CoverageNotRead(DisttestError, UserWarning):
    """Warning of a rank's file of coverage that can not be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the coverage of a rank is lost, its file {name} cannot be read: {reason}")


class WorldNotJoined(DisttestError):
    """Raised on a rank that could not join its process group."""

    def __init__(self, rank: int, world_size: int, backend: str, reason: str) -> None:
        super().__init__(
            f"rank {rank} could not join the {backend} world of {world_size}: {reason}. "
            "Is the backend built into this torch, and is the device there?"
        )


class GroupAlreadyExists(DisttestError, RuntimeError):
    """Raised by ``torch.distributed.init_process_group`` inside a world, which already has its group."""

    def __init__(self, nodeid: str, world_size: int, backend: str) -> None:
        super().__init__(
            f"{nodeid} called torch.distributed.init_process_group, but a distributed test runs in a process group "
            f"already ({backend}, world_size {world_size}). "
            "Remove the call; or mark the test with @pytest.mark.standalone to start without a group."
        )


class RelaunchRefused(DisttestError, RuntimeError):
    """Raised when a Trainer or Fabric is about to start pytest again for its other ranks (issue 4397 of Lightning)."""

    def __init__(self, nodeid: str, num_processes: int, advice: str) -> None:
        super().__init__(
            f"{nodeid}: this strategy would launch {num_processes - 1} more process(es) by running the current "
            f"command line, which is pytest itself, again. {advice}"
        )


class LaunchFailed(DisttestError, RuntimeError):
    """Raised in a standalone test when its further ranks could not be started."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the other ranks of this standalone test could not be started: {reason}")


class WarmInterpreterLost(DisttestError, RuntimeError):
    """Raised when the interpreter from which ``ddp_spawn`` starts its processes quickly does not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "no process could be started from the warm interpreter, in which torch and Lightning are imported already: "
            f"{reason}. With --disttest-real-spawn each process starts from a new interpreter, as without the plugin."
        )


class LaunchRefused(DisttestError, RuntimeError):
    """Raised when a Trainer or Fabric is about to launch processes inside a world, which has its ranks already."""

    def __init__(self, nodeid: str, num_processes: int, world_size: int) -> None:
        super().__init__(
            f"{nodeid}: this strategy would launch {num_processes} process(es), but the test is distributed and runs "
            f"on {world_size} rank(s) with a process group already. Let the Trainer use these (trainer_factory, or "
            "strategy='ddp'); or have it launch its own in a plain test, without the mark, or in one marked "
            "@pytest.mark.standalone."
        )


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One failed rank of those that a Trainer or Fabric has launched.

    ``exception`` is the name of the exception's type, ``text`` what it says and ``traceback`` all of it; they are
    empty if the rank died or hung without one. ``how`` is how it ended, in words.
    """

    rank: int
    pid: int
    exception: str
    text: str
    traceback: str
    how: str


class LaunchedRanksFailed(DisttestError):
    """Raised by a Trainer or Fabric that has launched processes (``ddp_spawn``, ``ddp_fork``), if any of them failed.

    What is raised is also a ``torch.multiprocessing.ProcessRaisedException`` if the cause is an exception of a rank,
    else a ``ProcessExitedException``. ``ranks`` are those that failed, in order; ranks that only waited are none.
    """

    def __init__(self, text: str, ranks: Iterable[RankFailure]) -> None:
        super().__init__(text)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.ranks)


_CHANGE_SIZE = "change world_size in the test's mark"


class WorldMismatch(DisttestError, ValueError):
    """Raised by ``trainer_factory`` and ``fabric_factory`` when their arguments do not fit the world of the test.

    ``reason`` completes "it ...", ``advice`` completes "or ..." with what can be done instead.
    """

    def __init__(
        self, argument: str, value: object, world_size: int, reason: str = "", advice: str = _CHANGE_SIZE
    ) -> None:
        because = f": it {reason}" if reason else ""
        super().__init__(
            f"{argument}={value!r} does not fit this test, which runs on each rank of a world of {world_size}"
            f"{because}. Leave {argument} out, or {advice}."
        )


class BarrierTimeout(DisttestError, TimeoutError):
    """Raised by ``world.barrier`` when not all ranks arrived within its limit; times are in seconds."""

    def __init__(self, rank: int, waited: float, limit: float, reason: str) -> None:
        super().__init__(
            f"rank {rank} waited {waited:.1f} s (limit {limit:g} s) in world.barrier() for the other ranks: {reason}"
        )


class NotRecordable(DisttestError, TypeError):
    """Raised by ``world.record`` for a value that can not be compared; ``path`` is the part of it that can not."""

    def __init__(self, name: str, path: str, reason: str) -> None:
        super().__init__(f"world.record({name!r}, ...) can not record {path}: {reason}")


class InvalidTolerance(DisttestError, ValueError):
    """Raised by ``world.record`` for a tolerance that is no finite number of 0 or more."""

    def __init__(self, name: str, argument: str, value: object) -> None:
        super().__init__(
            f"world.record({name!r}, ...): {argument} is {value!r}; it has to be a finite number, 0 or more"
        )


class OneProcessRefused(DisttestError, RuntimeError):
    """Raised by ``world.record(..., one_process=True)`` in a standalone test."""

    def __init__(self, name: str, nodeid: str) -> None:
        super().__init__(
            f"{nodeid} called world.record({name!r}, ..., one_process=True) in a standalone test, whose body decides "
            "itself on how many processes it runs. Mark the test with @pytest.mark.distributed(world_size) and leave "
            "the devices to trainer_factory; or record the value without one_process."
        )


class MissingPackage(DisttestError, ImportError):
    """Raised by a fixture that needs a package which is not installed."""

    def __init__(self, what: str, packages: Iterable[str]) -> None:
        super().__init__(f"{what} needs one of these packages, and none is installed: {', '.join(packages)}")


class LeakWarning(DisttestError, pytest.PytestWarning):
    """Warning of what a test has left behind in its process.

    ``what`` completes "the test ...", ``done`` says what became of it.
    """

    def __init__(self, what: str, done: str) -> None:
        super().__init__(f"the test {what}; {done}. Undo it at the end of the test or of its fixture")


class StateLeaked(DisttestError):
    """Stands for the failure of a test that has left something behind in its process: pytest shows its text.

    ``place`` names the process, ``reused`` says whether other tests run in it, ``leaks`` are pairs as for
    ``LeakWarning``, ``reason`` is what makes them a failure.
    """

    def __init__(self, nodeid: str, place: str, reused: bool, leaks: Sequence[tuple[str, str]], reason: str) -> None:
        lines = [f"  - it {what}; {done}" for what, done in leaks]
        found = ", where the next test would find it" if reused else ""
        super().__init__(
            f"{nodeid} left something behind {place}{found}:\n"
            + "\n".join(lines)
            + "\nUndo it at the end of the test or of its fixture (monkeypatch undoes variables and the working "
            "directory). What several tests share belongs into a fixture of wider scope. It is an error and no "
            f"warning because of {reason}."
        )


class FaultMisused(DisttestError, ValueError):
    """Raised by the fixture ``faults`` and by what it returns for arguments that make no sense."""


class FaultRefused(DisttestError):
    """Raised instead of a fault that would end or stop pytest itself; ``what`` is the verb for that."""

    def __init__(self, fault: str, what: str) -> None:
        super().__init__(
            f"the fault {fault} would {what} pytest itself: this test runs in the pytest process, and so does this "
            'Trainer or loop. Have the Trainer start processes of its own (strategy="ddp_spawn" or "ddp_fork"), or '
            "mark the test with @pytest.mark.distributed(world_size) or @pytest.mark.standalone."
        )


class FaultNeverHappened(DisttestError):
    """Stands for the failure of a test whose faults did not happen: pytest shows its text.

    ``faults`` are pairs: the fault as it was planned, and why it did not happen.
    """

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"the fault {fault} never happened: {reason}" for fault, reason in faults))
