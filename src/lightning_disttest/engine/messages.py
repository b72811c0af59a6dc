"""The messages between controller, zygote and ranks: frozen, typed, plain data on the wire.

Four directions, one union each. A message travels as one JSON object ``{"type": name, ...fields}``, so nothing is
ever pickled and a field can only hold plain data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from lightning_disttest.errors import ChannelBroken


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
    """Rank to controller: the test called ``world.record(name, value)``."""

    name: str
    value: Any


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
class PeerSignalled:
    """Rank to controller: a launcher on this rank is about to signal a rank that it has launched."""

    pid: int
    signum: int


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
ToRank = RunItem | Retire | RanksLaunched
AboutItem = (
    ReportMade
    | PhasePassed
    | WarningRecorded
    | ValueRecorded
    | SuitePropertyRecorded
    | LaunchRanks
    | PeerSignalled
    | FixturesFailed
    | ItemFinished
    | Interrupted
    | JoinFailed
    | Retired
)
FromRank = AboutItem | WhereTold
Message = ToZygote | FromZygote | ToRank | FromRank

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
        ReportMade,
        PhasePassed,
        WarningRecorded,
        ValueRecorded,
        SuitePropertyRecorded,
        LaunchRanks,
        PeerSignalled,
        WhereTold,
        FixturesFailed,
        ItemFinished,
        Interrupted,
        JoinFailed,
        Retired,
    )
}
_DEEPEST = 20
_FIELDS = {name: tuple(field.name for field in fields(cls)) for name, cls in MESSAGES.items()}


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Values inside a report that are not plain data (``user_properties`` may hold anything) travel as their ``repr``.
    """
    name = type(message).__name__
    body = {field: getattr(message, field) for field in _FIELDS[name]}
    body["type"] = name
    try:
        return json.dumps(body, default=_safe_repr).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_to_plain(body, ())).encode()


def _to_plain(value: Any, path: tuple[int, ...]) -> Any:
    """Replace what JSON can not hold by its repr: odd keys, containers that hold themselves or go too deep.

    ``path`` are the ids of the containers around the value.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (dict, list, tuple)) and id(value) not in path and len(path) < _DEEPEST:
        inside = (*path, id(value))
        if isinstance(value, dict):
            return {k if isinstance(k, str) else _safe_repr(k): _to_plain(v, inside) for k, v in value.items()}
        return [_to_plain(entry, inside) for entry in value]
    return _safe_repr(value)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  whatever a user's __repr__ raises, the report has to travel
        return f"<{type(value).__name__} object, whose repr raised {type(error).__name__}>"


def decode(data: bytes) -> Message:
    """Return the message that ``data`` holds.

    Raises:
        ChannelBroken: if it is no message, or one with other fields than ours.
    """
    try:
        body = json.loads(data)
        message: Message = MESSAGES[body.pop("type")](**body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChannelBroken(f"not a message: {data[:80]!r} ({error})") from error
    return message
