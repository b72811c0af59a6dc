"""What ranks wait for, in words: true of sync and async operations, of subgroups, and of ranks that told nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.reporting.stories import Fate
from lightning_disttest.reporting.waiting import (
    Collective,
    describe_quiet,
    describe_state,
    describe_waiting,
    explain_deadlock,
)

if TYPE_CHECKING:
    from lightning_disttest.reporting.stories import RankStory
    from tests.unit.conftest import Make

MESH: dict[str, Any] = {"group": "3", "description": "mesh_dp", "members": (0, 2)}


def stacks(*frames: str) -> str:
    """Return stacks of the main thread, ``path:line function`` by ``path:line function``, the innermost first."""
    lines = ["Current thread (most recent call first):"]
    for frame in frames:
        place, _, function = frame.partition(" ")
        path, _, line = place.partition(":")
        lines.append(f'  File "{path}", line {line} in {function}')
    return "\n".join(lines) + "\n"


IN_ALL_REDUCE = stacks("/x/torch/distributed/distributed_c10d.py:5 all_reduce", "/home/test_it.py:7 test_it")


def told(make: Make, rank: int, *collectives: Collective, **more: Any) -> RankStory:
    """Return the story of a rank that is in the test and told what its groups did."""
    return make.waited(rank, "call", collectives=collectives, knows_collectives=True, **more)


# One operation, and one rank.


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "all_reduce, number 1 of the default group"),
        ({"tensors": ("float32 [2, 3]",)}, "all_reduce of float32 [2, 3], number 1 of the default group"),
        ({"tensors": ("int64 []", "int64 [1]")}, "all_reduce of int64 [], int64 [1], number 1 of the default group"),
        (MESH, "all_reduce, number 1 of the group 'mesh_dp'"),
        ({"group": "7", "description": "undefined"}, "all_reduce, number 1 of the group 7"),
    ],
)
def test_operation_in_words(make: Make, more: dict[str, Any], text: str) -> None:
    """An operation is told with its tensors, its number and its group, by the group's name or its description."""
    assert str(make.collective(**more)) == text


def test_operation_comes_back_from_json(make: Make) -> None:
    """Lists of JSON become tuples again, so that operations can be compared."""
    fields = {
        "name": "all_reduce",
        "group": "0",
        "description": "default_pg",
        "number": 1,
        "tensors": ["float32 [2]"],
        "pending": True,
        "point_to_point": False,
        "members": [0, 1],
    }

    assert Collective.from_fields(fields) == make.collective(tensors=("float32 [2]",))


@pytest.mark.parametrize(
    ("numbers", "torch_call", "text"),
    [
        ([1], "all_reduce", "waits in all_reduce, number 1 of the default group"),
        ([1], "", "has begun all_reduce, number 1 of the default group, which is not done"),
        (
            [1],
            "recv",
            "is in recv of torch.distributed, has begun all_reduce, number 1 of the default group, which is not done",
        ),
        (
            [1, 2],
            "all_reduce",
            "waits in all_reduce, number 2 of the default group, "
            "has begun all_reduce, number 1 of the default group, which is not done",
        ),
        ([], "recv", "is in recv of torch.distributed"),
        ([], "", ""),
    ],
    ids=["sync", "async", "async, then in recv", "async, then sync", "in recv", "nothing"],
)
def test_waiting_is_told_from_begun(make: Make, numbers: list[int], torch_call: str, text: str) -> None:
    """Only who is in the function of the last operation waits in it; an async one was begun, which is all we know."""
    assert describe_waiting([make.collective(number=number) for number in numbers], torch_call) == text


def test_operation_that_is_done_is_not_waited_for(make: Make) -> None:
    """A rank between two operations waits for none."""
    assert describe_waiting([make.collective(pending=False)]) == ""


def test_backward_pass_waits_for_its_gradients(make: Make) -> None:
    """In a backward pass the last operation that is not done is waited for; without one it is only said where it is."""
    assert (
        describe_waiting([make.collective()], in_backward=True) == "waits in all_reduce, number 1 of the default group"
    )
    assert describe_waiting([], in_backward=True) == "is in a backward pass of torch"


def test_variants_of_an_operation_have_its_name(make: Make) -> None:
    """``all_gather_into_tensor`` is recorded as ``all_gather``; whoever is in the one waits in the other."""
    text = describe_waiting([make.collective("all_gather")], "all_gather_into_tensor")

    assert text == "waits in all_gather, number 1 of the default group"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"is_stopped": True, "stacks": IN_ALL_REDUCE}, "is stopped, by SIGSTOP or a debugger"),
        ({"is_silent": True}, "its interpreter does not answer: native code holds the GIL, or the machine is busy"),
        ({"stacks": IN_ALL_REDUCE}, "is in all_reduce of torch.distributed"),
        ({"stacks": stacks("/home/test_it.py:7 test_it")}, ""),
    ],
)
def test_state_of_a_rank(make: Make, more: dict[str, Any], text: str) -> None:
    """A stop comes first, then silence, then what it waits for; of a rank in its own code there is nothing to say."""
    assert describe_state(make.waited(0, "call", **more)) == text
    assert describe_state(make.timed_out(0, "call", **more)) == text


def test_dead_rank_has_no_state(make: Make) -> None:
    """A rank that died waits for nothing, though the stacks of its crash end in torch."""
    assert describe_state(make.died(0, "call", stacks=IN_ALL_REDUCE)) == ""


# A test that is quiet.


def test_quiet_test_tells_of_each_rank(make: Make) -> None:
    """Ranks are told with pid, phase, operation and place; one that is done or dead says so; then the explanation."""
    stories = [
        told(make, 0, make.collective(members=(0, 1, 2, 3, 4)), stacks=IN_ALL_REDUCE),
        told(make, 1, stacks=stacks("/home/test_it.py:9 test_it")),
        make.story(2, *make.passed()),
        make.died(3, "call", how="killed by SIGKILL\nmore"),
        make.waited(4, "start"),
    ]

    assert describe_quiet("test_it.py::test_it", 30.4, stories).splitlines() == [
        "disttest: no news for 30 s of test_it.py::test_it",
        "  rank 0 (pid 100): in call, waits in all_reduce, number 1 of the default group, "
        "at /home/test_it.py:7 in test_it",
        "  rank 1 (pid 101): in call, at /home/test_it.py:9 in test_it",
        "  rank 2 (pid 102): came to the end of the test",
        "  rank 3 (pid 103): killed by SIGKILL",
        "  rank 4 (pid 104): before setup",
        "  rank 0 called number 1 of the default group, all_reduce; not there: rank 1 (it has called none there).",
    ]


# Why nobody comes further.


@pytest.mark.parametrize(
    ("calls", "each"),
    [
        ((("all_reduce", ()), ("barrier", ())), "all_reduce on rank 0, barrier on rank 1"),
        (
            (("all_reduce", ("float32 [2]",)), ("all_reduce", ("float32 [3]",))),
            "all_reduce of float32 [2] on rank 0, all_reduce of float32 [3] on rank 1",
        ),
    ],
    ids=["operations", "shapes"],
)
def test_operations_that_differ_are_set_side_by_side(
    make: Make, calls: tuple[tuple[str, tuple[str, ...]], ...], each: str
) -> None:
    """Two ranks in the same number of a group with different operations or shapes can not come together."""
    stories = [
        told(make, rank, make.collective(name, 4, tensors=tensors)) for rank, (name, tensors) in enumerate(calls)
    ]

    text = f"The ranks do not call the same as number 4 of the default group: {each}."
    assert explain_deadlock(stories) == text


def test_scatter_has_tensors_on_its_source_alone(make: Make) -> None:
    """Where torch does not want tensors of one shape, different ones are no explanation."""
    tensors = (("float32 [2, 2]",), ())

    stories = [told(make, rank, make.collective("scatter", tensors=of_rank)) for rank, of_rank in enumerate(tensors)]

    assert explain_deadlock(stories) == ""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ([2], "rank 1 (its last one was number 2, all_reduce)"),
        ([], "rank 1 (it has called none there)"),
    ],
)
def test_rank_that_did_not_come_is_named(make: Make, other: list[int], why: str) -> None:
    """Who has not called what others began is named, with what it called last."""
    stories = [
        told(make, 0, make.collective(number=3)),
        told(make, 1, *(make.collective(number=number, pending=False) for number in other)),
    ]

    text = f"rank 0 called number 3 of the default group, all_reduce; not there: {why}."
    assert explain_deadlock(stories) == text


def test_rank_that_told_nothing_is_not_accused(make: Make) -> None:
    """Of a rank that did not answer, or whose torch could not tell, nobody knows what it has called."""
    assert explain_deadlock([told(make, 0, make.collective()), make.waited(1, "call")]) == ""


def test_rank_outside_of_a_group_is_not_missed(make: Make) -> None:
    """Only members of a group can be missing in it."""
    group = {**MESH, "members": (0, 2)}
    stories = [told(make, 0, make.collective(**group)), told(make, 1), told(make, 2)]

    text = "rank 0 called number 1 of the group 'mesh_dp', all_reduce; not there: rank 2 (it has called none there)."
    assert explain_deadlock(stories) == text


def test_groups_of_one_description_are_not_mixed_up(make: Make) -> None:
    """The rows of a mesh have one description; what another row does is no explanation."""
    rows = [{**MESH, "group": "3", "members": (0, 1)}, {**MESH, "group": "4", "members": (2, 3)}]
    stories = [
        told(make, 0, make.collective("all_reduce", **rows[0])),
        told(make, 1, make.collective("all_reduce", **rows[0])),
        told(make, 2, make.collective("barrier", **rows[1])),
        told(make, 3, make.collective("barrier", **rows[1])),
    ]

    assert explain_deadlock(stories) == ""


def test_two_groups_in_two_orders_are_both_told(make: Make) -> None:
    """The classic: each rank waits in another group for the other one."""
    stories = [
        told(make, 0, make.collective(**{**MESH, "members": (0, 1)})),
        told(make, 1, make.collective("barrier")),
    ]

    assert explain_deadlock(stories).splitlines() == [
        "rank 0 called number 1 of the group 'mesh_dp', all_reduce; not there: rank 1 (it has called none there).",
        "rank 1 called number 1 of the default group, barrier; not there: rank 0 (it has called none there).",
    ]


def test_async_operations_are_compared_by_number(make: Make) -> None:
    """A rank may be further than another without having waited: the first number that is not done is compared."""
    ahead = [make.collective("broadcast", 2), make.collective("all_reduce", 3)]

    differing = explain_deadlock([told(make, 0, *ahead), told(make, 1, make.collective("barrier", 2))])
    alike = explain_deadlock([told(make, 0, *ahead), told(make, 1, make.collective("broadcast", 2))])

    assert differing == (
        "The ranks do not call the same as number 2 of the default group: broadcast on rank 0, barrier on rank 1."
    )
    assert alike == ""


def test_rank_that_is_further_has_called_it(make: Make) -> None:
    """A source of a broadcast may be done and further: it has called what the others are in."""
    stories = [
        told(make, 0, make.collective("barrier", 5)),
        told(make, 1, make.collective("broadcast", 4)),
        told(make, 2, make.collective("barrier", 3, pending=False)),
    ]

    assert explain_deadlock(stories) == (
        "ranks 0-1 called number 4 of the default group, broadcast; "
        "not there: rank 2 (its last one was number 3, barrier)."
    )


def test_ranks_of_which_the_same_is_said_are_named_together(make: Make) -> None:
    """A line about a large world stays one that can be read."""
    barrier, broadcast = make.collective("barrier", 2), make.collective("broadcast", 2)
    earlier = make.collective("barrier", 1, pending=False)
    late = [told(make, rank, earlier) for rank in (1, 2)]
    never = [told(make, rank) for rank in (3, 4)]
    members = make.collective("all_reduce", **{**MESH, "members": tuple(range(5))})

    differ = [told(make, rank, one) for rank, one in enumerate((barrier, broadcast, broadcast, barrier))]
    assert explain_deadlock(differ).endswith(": barrier on ranks 0, 3, broadcast on ranks 1-2.")
    assert explain_deadlock([told(make, 0, barrier), *late]).endswith(
        "; not there: ranks 1-2 (their last one was number 1, barrier)."
    )
    assert explain_deadlock([told(make, 0, members), *never]).endswith(
        "; not there: ranks 3-4 (they have called none there)."
    )


def test_sends_and_receives_explain_nothing(make: Make) -> None:
    """Their numbers are those of a pair of ranks, and can not be compared over a group."""
    stories = [
        told(make, 0, make.collective("send", 1, point_to_point=True)),
        told(make, 1, make.collective("recv", 1, point_to_point=True)),
    ]

    assert explain_deadlock(stories) == ""


def test_nothing_pending_explains_nothing(make: Make) -> None:
    """Ranks that wait in no operation hang in something else, wherever their groups are."""
    stories = [told(make, rank, make.collective(number=rank + 1, pending=False)) for rank in range(2)]

    assert explain_deadlock(stories) == ""
    assert {story.fate for story in stories} == {Fate.WAITED}
