"""The messages between controller, zygote, ranks and the warm interpreter: frozen, typed, plain data.

Six directions, one union each. How they travel is in ``wire``: a field can only hold what JSON can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ForkRank:
    """Controller to zygote: fork a rank. The rank's ends of its files travel with it (see ``output.RankFiles``)."""

    token: int
    rank: int
    world_size: int
    kind: str
    device: str
    backend: str
    store: str
    port: int
    environment: dict[str, str]
    replace_environment: bool


@dataclass(frozen=True, slots=True)
class SignalRank:
    """Controller to zygote: send a signal to a rank, or to its whole process group."""

    token: int
    signum: int
    group: bool


@dataclass(frozen=True, slots=True)
class RankForked:
    """Zygote to controller: the rank has this pid."""

    token: int
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """Zygote to controller: the rank could not be forked."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class RankEnded:
    """Zygote to controller: the rank was reaped; ``status`` is that of ``os.waitpid``."""

    token: int
    status: int


@dataclass(frozen=True, slots=True)
class RunItem:
    """Controller to rank: run the item with this index in ``session.items``.

    ``next_index`` is the item planned next for this world (None: fixtures of every scope end with this item).
    ``seed`` is for random choices that all ranks must make alike. The time limit of the item is ``limit`` seconds
    (0: it has none), which are over at ``deadline`` of the monotonic clock; the controller watches it.
    """

    index: int
    next_index: int | None
    tmp_path: str
    seed: int
    deadline: float | None = None
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Retire:
    """Controller to rank: end open fixtures, run exit handlers, leave."""


@dataclass(frozen=True, slots=True)
class RanksLaunched:
    """Controller to rank: the answer to ``LaunchRanks``; ``problem`` is empty if the ranks were started."""

    pids: list[int]
    problem: str


@dataclass(frozen=True, slots=True)
class ConnectionGiven:
    """Controller to rank: the answer to ``WarmProcessWanted``. The connection travels with it; or why there is none."""

    problem: str


@dataclass(frozen=True, slots=True)
class ServeConnection:
    """Controller to the warm interpreter: somebody wants a process. An end of the connection travels with it."""


@dataclass(frozen=True, slots=True)
class SpawnWarm:
    """To the warm interpreter: fork a process in this environment; its ``files`` descriptors come before or with it."""

    environment: dict[str, str]
    umask: int
    files: int


@dataclass(frozen=True, slots=True)
class FilesPassed:
    """To the warm interpreter: some of the files of the process that will be asked for; they travel with it."""


@dataclass(frozen=True, slots=True)
class SignalProcess:
    """To the warm interpreter: send a signal to the process of this connection."""

    signum: int


@dataclass(frozen=True, slots=True)
class ProcessSpawned:
    """From the warm interpreter: the process has this pid; or why there is none."""

    pid: int
    problem: str


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """From the warm interpreter: the process was reaped; ``status`` is that of ``os.waitpid``."""

    status: int


@dataclass(frozen=True, slots=True)
class ReportMade:
    """Rank to controller: one report of pytest, made serialisable by pytest itself."""

    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PhasePassed:
    """Rank to controller: a phase passed and there is nothing more to tell of it; times are in seconds.

    Such messages may wait in the rank for the next other one: a message of their own for each phase would wake the
    controller eight times per test. Which phase a rank is in stands in its file of progress (see ``output``).
    """

    when: str
    start: float
    stop: float
    duration: float


@dataclass(frozen=True, slots=True)
class WarningRecorded:
    """Rank to controller: one warning that pytest recorded."""

    category: str
    message: str
    filename: str
    lineno: int
    when: str
    nodeid: str


@dataclass(frozen=True, slots=True)
class ValueRecorded:
    """Rank to controller: the test called ``world.record``; ``leaves`` are pairs of a path and what is there."""

    name: str
    leaves: list[list[Any]]
    rtol: float
    atol: float
    one_process: bool


@dataclass(frozen=True, slots=True)
class SuitePropertyRecorded:
    """Rank to controller: a fixture called ``record_testsuite_property(name, value)``."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class LaunchRanks:
    """Rank to controller: a launcher wants further ranks, one per environment, for the item that runs."""

    environments: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class WarmProcessWanted:
    """Rank to controller: a launcher wants a connection to the interpreter that has imported ``modules``."""

    modules: list[str]


@dataclass(frozen=True, slots=True)
class PeerSignalled:
    """Rank to controller: a launcher on this rank is about to signal a rank that it has launched."""

    pid: int
    signum: int


@dataclass(frozen=True, slots=True)
class FaultAnnounced:
    """Rank to controller: a fault that the test has planned happens on this rank, now.

    ``what`` is the fault in words, such as "SIGKILL on rank 1 at step 3". ``is_end``: the rank does not go on after it.
    ``exit_code`` is how its process will then end, a signal as a negative number; None if it will be stopped.
    """

    what: str
    is_end: bool
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class WhereTold:
    """Rank to controller, when asked where it is: the stack of its main thread, in the form of faulthandler.

    ``collectives`` is what its process groups did last, as fields of ``reporting.waiting.Collective``; None if it
    could not tell. Without a stack it is no answer, but says that this rank will answer.
    """

    stack: str
    collectives: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class FixturesFailed:
    """Rank to controller: fixtures that the previous item had left open failed to end; ``problems`` are tracebacks."""

    problems: list[str]


@dataclass(frozen=True, slots=True)
class ItemFinished:
    """Rank to controller: every phase was reported.

    ``intact``: the default process group is still there, and nothing that the test has left keeps the rank from more.
    """

    index: int
    intact: bool


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Rank to controller: the run of an item was left by an exception that pytest does not turn into a report.

    ``kind`` is ``exit`` (pytest.exit), ``keyboard`` (KeyboardInterrupt), ``idle`` (anything, outside of items)
    or ``internal`` (anything else).
    """

    kind: str
    text: str
    returncode: int | None


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """Rank to controller: the rank could not join its world; made by the controller if it could not even start."""

    text: str


@dataclass(frozen=True, slots=True)
class Retired:
    """Rank to controller: about to leave; ``problems`` are tracebacks of fixtures that failed to end."""

    problems: list[str]


ToZygote = ForkRank | SignalRank
FromZygote = RankForked | ForkFailed | RankEnded
ToRank = RunItem | Retire | RanksLaunched | ConnectionGiven
ToWarmInterpreter = ServeConnection | SpawnWarm | FilesPassed | SignalProcess
FromWarmInterpreter = ProcessSpawned | ProcessEnded
AboutItem = (
    ReportMade
    | PhasePassed
    | WarningRecorded
    | ValueRecorded
    | SuitePropertyRecorded
    | LaunchRanks
    | WarmProcessWanted
    | PeerSignalled
    | FaultAnnounced
    | FixturesFailed
    | ItemFinished
    | Interrupted
    | JoinFailed
    | Retired
)
FromRank = AboutItem | WhereTold
Message = ToZygote | FromZygote | ToRank | FromRank | ToWarmInterpreter | FromWarmInterpreter

MESSAGES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        ForkRank,
        SignalRank,
        RankForked,
        ForkFailed,
        RankEnded,
        RunItem,
        Retire,
        RanksLaunched,
        ConnectionGiven,
        ServeConnection,
        SpawnWarm,
        FilesPassed,
        SignalProcess,
        ProcessSpawned,
        ProcessEnded,
        ReportMade,
        PhasePassed,
        WarningRecorded,
        ValueRecorded,
        SuitePropertyRecorded,
        LaunchRanks,
        WarmProcessWanted,
        PeerSignalled,
        FaultAnnounced,
        WhereTold,
        FixturesFailed,
        ItemFinished,
        Interrupted,
        JoinFailed,
        Retired,
    )
}
