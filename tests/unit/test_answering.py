"""The thread of a rank that tells where it is: what it picks of the flight recorder, when it starts, what ends it."""

from __future__ import annotations

import os
import queue
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import answering, processes
from lightning_disttest.engine.answering import select_entries

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 10.0
Told = tuple[str, "list[dict[str, Any]] | None"]


class Asked:
    """A rank's answers, and the pipe by which it is asked."""

    def __init__(self) -> None:
        self.ask_end, self._ask = os.pipe()
        self.told: queue.Queue[Told] = queue.Queue()

    def tell(self, stack: str, collectives: list[dict[str, Any]] | None) -> None:
        """Take an answer."""
        self.told.put((stack, collectives))

    def ask(self) -> Told:
        """Ask, and return the answer."""
        os.write(self._ask, b"?")
        return self.told.get(timeout=LIMIT_S)

    def close(self) -> None:
        """Ask no more."""
        os.close(self._ask)


@pytest.fixture
def asked() -> Iterator[Asked]:
    """Return a pipe for questions and a queue for answers."""
    asked = Asked()
    yield asked
    asked.close()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Put a module in the place of c10d whose flight recorder is empty."""
    module = types.ModuleType("torch._C._distributed_c10d")
    setattr(module, "_dump_fr_trace_json", lambda: b'{"version": "2.10"}')  # noqa: B010  a test double
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def entry(number: int, *, retired: bool = True, group: str = "0", pg_id: int = 0, **more: Any) -> dict[str, Any]:
    """Return an entry as torch writes it."""
    return {
        "process_group": [group, "default_pg" if group == "0" else "undefined"],
        "pg_id": pg_id,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "gloo:all_reduce",
        "is_p2p": False,
        "retired": retired,
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        **more,
    }


def numbers(entries: list[dict[str, Any]]) -> list[tuple[str, int, bool]]:
    """Return group, number and pending of what was selected."""
    return [(found["group"], found["number"], found["pending"]) for found in select_entries(entries)]


def test_fields_of_an_entry() -> None:
    """An entry is told without its backend, in the dtypes of Python, with the members of its group."""
    [found] = select_entries([entry(4, retired=False, group="7")], {"7": [0, 2]})

    assert found == {
        "name": "all_reduce",
        "group": "7",
        "description": "undefined",
        "number": 4,
        "tensors": ["float32 [2, 3]"],
        "pending": True,
        "point_to_point": False,
        "members": [0, 2],
    }


def test_dtypes_without_another_name_are_written_small() -> None:
    """BFloat16 is bfloat16; an operation without tensors has none."""
    found = select_entries([entry(1, input_dtypes=["BFloat16"]), entry(2, pg_id=0, input_dtypes=[], input_sizes=[])])
    other = select_entries([entry(1, input_dtypes=["BFloat16"])])

    assert found[0]["tensors"] == []
    assert other[0]["tensors"] == ["bfloat16 [2, 3]"]


def test_send_has_the_number_of_its_pair() -> None:
    """Sends and receives are numbered apart from collectives."""
    [found] = select_entries([entry(0, is_p2p=True, p2p_seq_id=5, profiling_name="nccl:send 0->1")])

    assert (found["name"], found["number"], found["point_to_point"]) == ("send 0->1", 5, True)


def test_last_of_each_group_and_all_that_is_pending() -> None:
    """What is done matters only if nothing came after it in its group; what is pending always does, in order."""
    entries = [
        entry(1),
        entry(2, retired=False),
        entry(3),
        entry(1, group="1", pg_id=1),
        entry(2, group="1", pg_id=1, retired=False),
    ]

    assert numbers(entries) == [("0", 3, False), ("0", 2, True), ("1", 2, True)]


def test_of_many_pending_ones_the_first_and_the_last() -> None:
    """The first are what others may wait for, the last is what the rank may wait in."""
    entries = [entry(number, retired=False) for number in range(1, 11)]

    assert [number for _, number, _ in numbers(entries)] == [1, 2, 9, 10]


def test_group_that_was_made_again_hides_the_older_one() -> None:
    """After destroy_process_group and a new init numbers begin anew under the same name."""
    assert numbers([entry(57, retired=False), entry(1, pg_id=4)]) == [("0", 1, False)]


def test_torch_without_a_recorder_can_not_tell(recorder: types.ModuleType) -> None:
    """Before its JSON form, and in a build without distributed, there is nothing to read."""
    assert answering.recorded_collectives() == []

    del recorder._dump_fr_trace_json

    with pytest.raises(LookupError, match="no flight recorder"):
        answering.recorded_collectives()


def test_thread_answers_and_ends_with_the_pipe(asked: Asked, recorder: types.ModuleType) -> None:
    """It says at once that it will answer, answers with the stack of the main thread, and is not among the threads."""
    before = threading.enumerate()
    answering.answer_questions(asked.ask_end, asked.tell)
    assert asked.told.get(timeout=LIMIT_S) == ("", [])

    stack, collectives = asked.ask()

    assert stack.startswith("Current thread (most recent call first):\n")
    assert "in test_thread_answers_and_ends_with_the_pipe\n" in stack
    assert stack.endswith("\n")
    assert collectives == []
    assert threading.enumerate() == before
    assert recorder is sys.modules[recorder.__name__]


@pytest.mark.parametrize("problem", [RuntimeError("no dump"), KeyError("entries")], ids=repr)
def test_failing_recorder_takes_nothing_but_itself(
    asked: Asked, recorder: types.ModuleType, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder that fails, does not end the thread: the stack is told all the same."""

    def fail() -> bytes:
        raise problem

    monkeypatch.setattr(recorder, "_dump_fr_trace_json", fail)
    answering.answer_questions(asked.ask_end, asked.tell)
    asked.told.get(timeout=LIMIT_S)

    answers = [asked.ask(), asked.ask()]

    assert [collectives for _, collectives in answers] == [None, None]
    assert all("in test_failing_recorder" in stack for stack, _ in answers)


@pytest.fixture
def c10d(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Put a module in the place of torch's that makes groups, and notes it."""
    module = types.ModuleType(answering._C10D)
    module.__dict__["made"] = []
    module.__dict__[answering._MAKER_OF_GROUPS] = module.__dict__["made"].append
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_answers_begin_with_the_first_group(asked: Asked, c10d: types.ModuleType) -> None:
    """A process without a group has no thread of ours; the first group starts it, and the second no other."""
    answering.answer_once_grouped(asked.ask_end, asked.tell)
    assert asked.told.empty()

    for name in ("first", "second"):
        getattr(c10d, answering._MAKER_OF_GROUPS)(name)

    assert c10d.__dict__["made"] == ["first", "second"]
    assert asked.told.get(timeout=LIMIT_S) == ("", [])
    assert asked.told.empty()


def test_child_of_a_rank_does_not_answer(asked: Asked, c10d: types.ModuleType) -> None:
    """A process that the test forks has the channel of the rank: it must not speak in its name."""
    answering.answer_once_grouped(asked.ask_end, asked.tell)

    def child() -> int:
        getattr(c10d, answering._MAKER_OF_GROUPS)("child")
        return 0 if asked.told.empty() and c10d.__dict__["made"] == ["child"] else 1

    assert processes.wait_for_end(processes.fork(child), LIMIT_S) == 0


def test_torch_without_the_maker_of_groups_is_left_alone(asked: Asked, c10d: types.ModuleType) -> None:
    """If torch makes its groups otherwise one day, ranks do not answer, and nothing breaks."""
    del c10d.__dict__[answering._MAKER_OF_GROUPS]

    answering.answer_once_grouped(asked.ask_end, asked.tell)

    assert not hasattr(c10d, answering._MAKER_OF_GROUPS)
    assert asked.told.empty()
