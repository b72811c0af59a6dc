"""A rank that waits for one that has come to the end of the test: found soon, whatever the time limit is."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

LIMIT_S = 60.0
SOURCE = """
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(2, timeout=60)

    def test_other_shape_of_loop(world):
        for _ in range(3 - world.rank):
            dist.all_reduce(torch.ones(2, 3))

    def test_barrier_on_one_rank(world):
        if world.rank == 1:
            dist.barrier()

    def test_barrier_of_the_world(world):
        if world.rank == 1:
            world.barrier()

    @pytest.mark.parametrize("end", ["passes", "fails"])
    def test_slow_rank(world, end):
        if world.rank == 1:
            time.sleep(2)  # through several looks at the ranks
            assert end == "passes"

    def test_slow_with_a_collective_that_nobody_waits_for(world):
        if world.rank == 1:
            dist.all_reduce(torch.ones(1), async_op=True)
            time.sleep(2)

    def test_after_it_another_one_in_its_place():
        if dist.get_rank() == 0:
            dist.barrier()

    @pytest.mark.xfail(reason="known")
    def test_no_expected_failure(world):
        if world.rank == 0:
            dist.barrier()

    @pytest.mark.distributed(3, static=False, timeout=60)
    def test_three():
        group = dist.new_group([1, 2])
        if dist.get_rank() == 1:
            dist.barrier()
        if dist.get_rank() == 2:
            dist.all_reduce(torch.ones(1), group=group)

    def test_last_is_healthy():
        dist.barrier()
"""
SHORT = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2, timeout=10)
    def test_short(world):
        if world.rank == 0:
            dist.barrier()
"""
_WAITED = "was still in call and waited for a rank that had come to the end of the test"


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of tests whose ranks part."""
    return run_once({"test_parting.py": SOURCE}, "--durations=0", "-vv")


def _seconds(run: Run, name: str) -> float:
    return sum(float(line.split("s ", 1)[0]) for line in lines_with(run.output, "s ", name) if line[:1].isdigit())


def test_rank_with_one_more_collective(run: Run) -> None:
    """The text names the collective, its number, and the rank that did not come, with its last one."""
    text = run.text("test_other_shape_of_loop")
    assert lines_with(text, "rank 0 of 2", _WAITED, "<- the cause")
    assert lines_with(text, "rank 0 called number 3 of the default group, all_reduce of float32 [2, 3]")
    assert lines_with(text, "not there: rank 1 (its last one was number 2, all_reduce of float32 [2, 3])")
    assert lines_with(text, "rank 1 of 2: came to the end of the test")


def test_rank_that_has_called_nothing(run: Run) -> None:
    """A rank that took no part at all is named as well."""
    text = run.text("test_barrier_on_one_rank")
    assert lines_with(text, "rank 1 called number 1 of the default group, barrier", "rank 0 (it has called none there)")


def test_barrier_of_the_world(run: Run) -> None:
    """So does the barrier of the fixture, which is none of torch's collectives."""
    text = run.text("test_barrier_of_the_world")
    assert lines_with(text, "rank 1 of 2", _WAITED, "<- the cause")
    assert lines_with(text, "waits in world.barrier()")


def test_it_does_not_take_the_time_limit(run: Run) -> None:
    """The verdict comes long before the limit of a minute."""
    assert run.outcome("test_barrier_on_one_rank") == "failed"
    assert _seconds(run, "test_barrier_on_one_rank") < LIMIT_S / 4


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_slow_rank[passes]", "passed"),
        ("test_slow_rank[fails]", "failed"),
        ("test_slow_with_a_collective_that_nobody_waits_for", "passed"),
    ],
)
def test_slow_rank_has_its_time(run: Run, name: str, outcome: str) -> None:
    """A rank that works is not taken for one that waits, and its own outcome counts."""
    assert run.outcome(name) == outcome
    assert "came to the end of the test" not in run.texts.get(name, "").partition("AssertionError")[0]


def test_collective_of_an_earlier_test(run: Run) -> None:
    """A collective that an earlier test left running takes the place of another one: that is named."""
    text = run.text("test_after_it_another_one_in_its_place")
    assert lines_with(
        text, "do not call the same as number 1", "barrier on rank 0", "all_reduce of float32 [1] on rank 1"
    )


def test_xfail_does_not_cover_it(run: Run) -> None:
    """It is like a time limit: no expected failure."""
    assert run.outcome("test_no_expected_failure") == "failed"


def test_all_that_wait_are_shown(run: Run) -> None:
    """A rank that waits for one that waits in vain is shown too, with its own group."""
    text = run.text("test_three")
    assert lines_with(text, "rank 1 of 3", _WAITED)
    assert lines_with(text, "rank 2 of 3", _WAITED)
    assert lines_with(text, "waits in all_reduce of float32 [1], number 1 of the group")


def test_next_test_has_a_healthy_world(run: Run) -> None:
    """The world is replaced."""
    assert run.outcome("test_last_is_healthy") == "passed"


def test_time_limit_is_not_waited_for(run_once: RunOnce) -> None:
    """A short limit is not waited for either, and is not what the report speaks of."""
    text = run_once({"test_short.py": SHORT}).text("test_short")
    assert lines_with(text, "rank 0 of 2", _WAITED, "<- the cause"), text
    assert "time limit" not in text
