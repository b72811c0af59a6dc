"""Worlds that serve many tests: they are made once, do not grow, and end whatever a test has done to its group."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with

SOURCE = """
    import json, os, resource
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("number", range(300))
    def test_many(number, world, pytestconfig):
        total = torch.ones(1000)
        dist.all_reduce(total)
        assert total[0] == 2
        with open(pytestconfig.rootpath / f"used-{world.rank}.jsonl", "a") as file:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            file.write(json.dumps([number, os.getpid(), most]) + "\\n")

    @pytest.fixture(scope="session")
    def group_that_one_rank_destroys(world):
        yield
        if world.rank == 0:
            dist.destroy_process_group()
        else:
            dist.barrier()  # for which rank 0 does not come

    @pytest.mark.distributed(4, timeout=3)
    def test_four(group_that_one_rank_destroys): dist.barrier()

    @pytest.mark.distributed(4, timeout=3)
    @pytest.mark.skip(reason="so the fixture stays open until the world retires")
    def test_never(group_that_one_rank_destroys): pass
"""
FAILED = """
    import pytest

    LEFT = []
    pytestmark = pytest.mark.distributed(2)

    def test_1_breaks():
        LEFT.append("something")
        assert LEFT == []

    def test_2_next():
        assert LEFT == []
"""
TIMED_OUT = """
    import time
    import pytest
    import torch
    import torch.distributed as dist
    from lightning_disttest.errors import BarrierTimeout

    pytestmark = pytest.mark.distributed(2)

    def test_1_expects_it(world, tmp_path):
        if world.rank == 0:
            with pytest.raises(BarrierTimeout):
                world.barrier(0.2)
            (tmp_path / "over").touch()
        while not (tmp_path / "over").exists():
            time.sleep(0.01)

    def test_2_next(world):
        world.barrier()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
"""
GPUS = """
    import pytest

    def pytest_configure(config):
        import torch
        from lightning_disttest.selection import requirements

        requirements.count_gpus = lambda: 2
        torch.cuda.set_device = lambda _: None  # there is none: the ranks compute on the CPU
"""
SIZES = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed([2, 4], device="cuda", backend="gloo")
    def test_sizes(world_size):
        assert dist.get_world_size() == world_size
"""
_KB_THAT_A_WORLD_MAY_GROW = 20_000


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return a run of many tests in one world, and of one in a world that ends badly."""
    return run_once({"test_many.py": SOURCE})


@pytest.mark.parametrize("rank", [0, 1])
def test_three_hundred_tests_in_one_world(run: Run, rank: int) -> None:
    """The world is made once, and its ranks need little more memory after 300 tests than after 20."""
    lines = json_lines(run.folder / f"used-{rank}.jsonl")
    assert [number for number, _, _ in lines] == list(range(300))
    assert len({pid for _, pid, _ in lines}) == 1
    assert lines[-1][2] - lines[20][2] < _KB_THAT_A_WORLD_MAY_GROW


def test_the_end_of_a_world_has_a_limit(run: Run) -> None:
    """A world of four that hangs when its group is destroyed is ended, and is an error of its last test."""
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.output
    assert "301 passed, 1 skipped, 1 error" in run.output
    assert lines_with(run.output, "ERROR", "test_many.py::test_four")


def test_a_failed_world_is_not_used_again(run_once: RunOnce) -> None:
    """What a test has left behind on all of its ranks, before it failed there, is not seen by the next one."""
    run = run_once({"test_broken.py": FAILED})
    assert run.outcomes == {"test_1_breaks": "failed", "test_2_next": "passed"}, run.output


def test_only_the_sizes_that_do_not_fit_are_skipped(run_once: RunOnce) -> None:
    """Of several world sizes those are skipped for which there are too few GPUs, with both numbers."""
    run = run_once({"conftest.py": GPUS, "test_sizes.py": SIZES})
    assert run.outcomes == {"test_sizes[world_size=2]": "passed", "test_sizes[world_size=4]": "skipped"}, run.output
    assert "needs 4 GPUs, 2 found" in run.text("test_sizes[world_size=4]")


def test_world_is_replaced_after_a_barrier_in_vain(run_once: RunOnce) -> None:
    """Gloo closes its connections at the time-out that a test expects; the next test gets a world with new ones."""
    run = run_once({"test_timed_out.py": TIMED_OUT})
    assert run.outcome("test_1_expects_it") == "passed", run.text("test_1_expects_it")
    assert run.outcome("test_2_next") == "passed", run.text("test_2_next")
