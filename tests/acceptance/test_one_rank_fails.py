"""One rank fails or takes another way while the others wait for it: the failure is told, and the run goes on."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

# The limit is far from what these tests take, and near enough to tell who has waited for it.
SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    WORLDS = [
        pytest.param("static", marks=pytest.mark.distributed(2, timeout=15)),
        pytest.param("dynamic", marks=pytest.mark.distributed(2, static=False, timeout=15)),
    ]
    every_world = pytest.mark.parametrize("kind", WORLDS)

    @every_world
    def test_training_step(kind, trainer_factory, world):
        from lightning.pytorch.demos.boring_classes import BoringModel

        class Model(BoringModel):
            def training_step(self, batch, batch_idx):
                if self.trainer.global_rank == 1 and batch_idx == 1:
                    raise ValueError("bad batch")
                return super().training_step(batch, batch_idx)

        trainer_factory().fit(Model())

    @pytest.mark.standalone(timeout=30)
    def test_training_step_standalone(tmp_path):
        from lightning.pytorch import Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel

        class Model(BoringModel):
            def training_step(self, batch, batch_idx):
                if self.trainer.global_rank == 1 and batch_idx == 1:
                    raise ValueError("bad batch")
                return super().training_step(batch, batch_idx)

        trainer = Trainer(strategy="ddp", devices=2, accelerator="cpu", fast_dev_run=2, default_root_dir=tmp_path,
                          enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Model())

    @every_world
    def test_after_a_collective(kind, world):
        found = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(found, torch.ones(1))
        if world.rank == 1:
            raise ValueError("after all_gather")
        dist.all_gather(found, torch.ones(1))

    @every_world
    def test_only_rank_0_asserts(kind, world):
        if world.rank == 0:
            assert [1, 2] == [1, 3]
        dist.barrier()

    @every_world
    def test_leaves_a_raises_block(kind, world):
        if world.rank == 0:
            with pytest.raises(ValueError):
                raise ValueError("only here")
            raise KeyError("rank 0 goes on")
        with pytest.raises(ValueError):
            dist.barrier()

    @pytest.fixture
    def barrier_at_the_end():
        yield
        dist.barrier()

    @every_world
    def test_barrier_in_teardown(kind, world, barrier_at_the_end):
        assert world.rank != 1, "before the end"
        dist.all_reduce(torch.ones(1))

    @every_world
    def test_breakpoint(kind, world):
        if world.rank == 1:
            breakpoint()
        dist.barrier()

    @every_world
    def test_afterwards(kind):
        dist.barrier()
"""
SESSION = """
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(2, timeout=8)

    @pytest.fixture(scope="session", autouse=True)
    def group():
        yield
        dist.barrier()
        dist.destroy_process_group()

    def test_fails(world):
        assert world.rank != 1, "only rank 1"
        dist.barrier()

    def test_next(): dist.barrier()

    def test_last(): dist.barrier()
"""
# The rank that fails, and how.
FAILURES = {
    "test_training_step": (1, "ValueError: bad batch"),
    "test_after_a_collective": (1, "ValueError: after all_gather"),
    "test_only_rank_0_asserts": (0, "assert [1, 2] == [1, 3]"),
    "test_leaves_a_raises_block": (0, "KeyError: 'rank 0 goes on'"),
    "test_barrier_in_teardown": (1, "AssertionError: before the end"),
}


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run in which one rank fails in many ways."""
    return run_once({"test_fails.py": SOURCE})


@pytest.mark.parametrize("test", FAILURES)
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_the_failure_is_told(run: Run, test: str, kind: str) -> None:
    """The rank that failed is the cause, with its error; nobody has waited for the time limit."""
    rank, error = FAILURES[test]
    text = run.text(f"{test}[{kind}]")
    assert run.outcome(f"{test}[{kind}]") == "failed", run.output
    assert lines_with(text, f"rank {rank} of 2", "failed in call", "<- the cause"), text
    assert error in text
    assert "time limit" not in text


def test_the_failure_of_a_launched_rank_is_told(run: Run) -> None:
    """A rank that Lightning's launcher has started, and that fails in training_step, is the cause."""
    text = run.text("test_training_step_standalone")
    assert run.outcome("test_training_step_standalone") == "failed"
    assert lines_with(text, "rank 1 of 2", "<- the cause"), text
    assert "ValueError: bad batch" in text
    assert "time limit" not in text


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_debugger_without_a_terminal_ends(run: Run, kind: str) -> None:
    """breakpoint() on one rank, which has no terminal, fails the test at once and leaves nobody stuck."""
    text = run.text(f"test_breakpoint[{kind}]")
    assert run.outcome(f"test_breakpoint[{kind}]") == "failed"
    assert lines_with(text, "rank 1 of 2", "failed in call", "<- the cause"), text
    assert "time limit" not in text


@pytest.mark.parametrize("name", ["test_afterwards[static]", "test_afterwards[dynamic]"])
def test_the_run_goes_on(run: Run, name: str) -> None:
    """The tests after a failure pass."""
    assert run.outcome(name) == "passed", run.text(name)


def test_a_session_fixture_that_ends_with_a_barrier(run_once: RunOnce) -> None:
    """A session fixture with a barrier and destroy at its end keeps no other test from running after a failure."""
    run = run_once({"test_session.py": SESSION})
    assert run.outcome("test_fails").startswith("failed"), run.output
    text = run.text("test_fails")
    assert "AssertionError: only rank 1" in text
    assert lines_with(text, "rank 0 of 2", "was still in call when the grace of 0.5 s was over"), text
    assert [run.outcome(name) for name in ("test_next", "test_last")] == ["passed", "passed"], run.output
