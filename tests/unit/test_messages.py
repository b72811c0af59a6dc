"""The messages between the processes: what is on the wire, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import messages, wire
from lightning_disttest.errors import ChannelBroken

if TYPE_CHECKING:
    from lightning_disttest.engine.messages import Message

WIRE: dict[str, tuple[str, ...]] = {
    "ForkRank": (
        "token",
        "rank",
        "world_size",
        "kind",
        "device",
        "backend",
        "store",
        "port",
        "environment",
        "replace_environment",
    ),
    "SignalRank": ("token", "signum", "group"),
    "RankForked": ("token", "pid"),
    "ForkFailed": ("token", "reason"),
    "RankEnded": ("token", "status"),
    "RunItem": ("index", "next_index", "tmp_path", "seed", "deadline", "limit"),
    "Retire": (),
    "RanksLaunched": ("pids", "problem"),
    "ConnectionGiven": ("problem",),
    "ServeConnection": (),
    "SpawnWarm": ("environment", "umask", "files"),
    "FilesPassed": (),
    "SignalProcess": ("signum",),
    "ProcessSpawned": ("pid", "problem"),
    "ProcessEnded": ("status",),
    "ReportMade": ("report",),
    "PhasePassed": ("when", "start", "stop", "duration"),
    "WarningRecorded": ("category", "message", "filename", "lineno", "when", "nodeid"),
    "ValueRecorded": ("name", "leaves", "rtol", "atol", "one_process"),
    "SuitePropertyRecorded": ("name", "value"),
    "LaunchRanks": ("environments",),
    "WarmProcessWanted": ("modules",),
    "PeerSignalled": ("pid", "signum"),
    "FaultAnnounced": ("what", "is_end", "exit_code"),
    "WhereTold": ("stack", "collectives"),
    "FixturesFailed": ("problems",),
    "ItemFinished": ("index", "intact"),
    "Interrupted": ("kind", "text", "returncode"),
    "JoinFailed": ("text",),
    "Retired": ("problems",),
}

SAMPLES: list[Message] = [
    messages.ForkRank(1, 0, 2, "static", "cpu", "gloo", "/tmp/store", 29500, {"RANK": "0", "NAME": "Zoë"}, False),
    messages.SignalRank(1, 15, True),
    messages.RankForked(1, 4711),
    messages.ForkFailed(1, "too many open files"),
    messages.RankEnded(1, 9),
    messages.RunItem(3, None, "/tmp/here", 2**32 - 1, 1234.5, 300.0),
    messages.Retire(),
    messages.RanksLaunched([1, 2], ""),
    messages.ConnectionGiven("it has ended"),
    messages.ServeConnection(),
    messages.SpawnWarm({"NAME": "Zo\udcebß"}, 0o22, 6),
    messages.FilesPassed(),
    messages.SignalProcess(15),
    messages.ProcessSpawned(4711, ""),
    messages.ProcessEnded(9),
    messages.ReportMade({"outcome": "passed", "sections": [["Captured stdout", "a\nb\x00\ud800"]]}),
    messages.PhasePassed("call", 1700000000.25, 1700000000.5, 0.25),
    messages.WarningRecorded("builtins:UserWarning", "look out", "test_it.py", 3, "runtest", "test_it.py::test"),
    messages.ValueRecorded("loss", [["loss", {"container": "list"}], ["loss[0]", 1.5]], 0.0, 0.5, True),
    messages.SuitePropertyRecorded("device", "Zoë's <GPU>"),
    messages.LaunchRanks([{"LOCAL_RANK": "1"}]),
    messages.WarmProcessWanted(["torch"]),
    messages.PeerSignalled(4711, 9),
    messages.FaultAnnounced("SIGKILL on rank 1 at step 3", True, -9),
    messages.FaultAnnounced("SIGSTOP on rank 1 at step 3", True, None),
    messages.WhereTold("Current thread", [{"name": "all_reduce", "tensors": ["float32 [2]"]}]),
    messages.FixturesFailed(["Traceback"]),
    messages.ItemFinished(3, True),
    messages.Interrupted("exit", "enough", 3),
    messages.JoinFailed("Traceback"),
    messages.Retired([]),
]


def test_wire_is_frozen() -> None:
    """Every message has the name and the fields, in order, that this test spells out."""
    assert {name: tuple(cls.__dataclass_fields__) for name, cls in messages.MESSAGES.items()} == WIRE


def test_samples_cover_every_message() -> None:
    """The samples of the round trip below leave no message out."""
    assert set(WIRE) == {type(sample).__name__ for sample in SAMPLES}


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_round_trip_returns_an_equal_message(message: Message) -> None:
    """What is decoded equals what was encoded."""
    assert message == wire.decode(wire.encode(message))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_wire_holds_one_flat_json_object(message: Message) -> None:
    """A message travels as a JSON object of its type and its fields, and nothing else."""
    name = type(message).__name__

    body = json.loads(wire.encode(message))

    assert body.pop("type") == name
    assert WIRE[name] == tuple(body)


def test_messages_can_not_be_changed() -> None:
    """A message is frozen: nobody can alter it between two processes."""
    message: Any = messages.RankForked(1, 2)

    with pytest.raises(AttributeError):
        message.pid = 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"type": "Nope", "pid": 1}', "'Nope'"),
        (b'{"token": 1}', "'type'"),
        (b'{"type": "RankForked", "token": 1}', "missing 1 required positional argument: 'pid'"),
        (b'{"type": "Retire", "extra": 1}', "unexpected keyword argument 'extra'"),
        (b"not json", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"[]", "cannot be interpreted"),
        (b'"text"', "no attribute 'pop'"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, problem: str) -> None:
    """An unknown type, a missing or additional field, and broken data are a broken channel, with the data shown."""
    with pytest.raises(ChannelBroken) as caught:
        wire.decode(data)

    assert str(caught.value).startswith(f"a channel between processes broke: not a message: {data!r} (")
    assert problem in str(caught.value)


def test_refusal_shows_no_more_than_the_start_of_the_data() -> None:
    """A megabyte of rubbish does not fill the terminal."""
    with pytest.raises(ChannelBroken) as caught:
        wire.decode(b"x" * 1_000_000)

    assert len(str(caught.value)) < 300


def test_objects_travel_as_their_repr() -> None:
    """A value that is not plain data, as user properties may be, arrives as text and is never pickled."""
    sent = messages.ReportMade({"user_properties": [["device", complex(1, 2)], ["raw", b"\x00"]]})

    received = wire.decode(wire.encode(sent))

    assert messages.ReportMade({"user_properties": [["device", "(1+2j)"], ["raw", "b'\\x00'"]]}) == received


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ({(1, 2): 3}, {"(1, 2)": 3}),
        ([{"a": {(1,): {2}}}, 1.5, None], [{"a": {"(1,)": "{2}"}}, 1.5, None]),
    ],
    ids=["keys", "deep"],
)
def test_keys_that_json_does_not_know_travel_as_their_repr(value: object, arrives: object) -> None:
    """A user property with a dict that JSON can not hold arrives with its keys as text, and the rest as it was."""
    sent = messages.ReportMade({"user_properties": [["name", value]], "sections": [["out", "text"]]})

    received = wire.decode(wire.encode(sent))

    assert messages.ReportMade({"user_properties": [["name", arrives]], "sections": [["out", "text"]]}) == received


def holds_itself(kind: str) -> object:
    """Return a list or a dict that is its own entry."""
    if kind == "list":
        entries: list[object] = []
        entries.append(entries)
        return entries
    values: dict[str, object] = {}
    values["self"] = values
    return values


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_value_that_holds_itself_does_not_stop_its_report(kind: str) -> None:
    """The report of a user property that holds itself comes through, with the rest of it as it was."""
    sent = messages.ReportMade({"user_properties": [["name", holds_itself(kind)]], "sections": [["out", "text"]]})

    received = wire.decode(wire.encode(sent))

    assert isinstance(received, messages.ReportMade)
    assert received.report["user_properties"][0][0] == "name"
    assert received.report["sections"] == [["out", "text"]]


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_value_that_holds_itself_is_cut_where_it_closes(kind: str) -> None:
    """A user property that holds itself arrives with its repr in the place where it does."""
    value = holds_itself(kind)

    received = wire.decode(wire.encode(messages.ReportMade({"user_properties": [["name", value]]})))

    cut = {"list": [repr(value)], "dict": {"self": repr(value)}}[kind]
    assert messages.ReportMade({"user_properties": [["name", cut]]}) == received


class Unspeakable:
    """An object whose repr fails, as that of a half-made one may."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no repr")


def test_value_without_a_repr_does_not_stop_its_report() -> None:
    """The report of a user property that can not even be shown comes through, as it does in a plain test."""
    sent = messages.ReportMade({"user_properties": [["name", Unspeakable()]], "sections": [["out", "text"]]})

    received = wire.decode(wire.encode(sent))

    assert isinstance(received, messages.ReportMade)
    assert received.report["sections"] == [["out", "text"]]
