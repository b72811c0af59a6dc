"""trainer_factory: quick and quiet Trainers, fitted to the world of the test."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

SOURCE = """
    import pytest
    import torch.distributed as dist

    WORLDS = [
        pytest.param(1, id="plain"),
        pytest.param(2, id="static", marks=pytest.mark.distributed(2)),
        pytest.param(2, id="dynamic", marks=pytest.mark.distributed(2, static=False)),
        pytest.param(1, id="standalone", marks=pytest.mark.standalone),
    ]

    def boring():
        from lightning.pytorch.demos.boring_classes import BoringModel
        return BoringModel()

    @pytest.mark.parametrize("size", WORLDS)
    def test_fit(trainer_factory, world, tmp_path, size):
        trainer = trainer_factory()
        trainer.fit(boring())
        assert trainer.state.finished
        assert trainer.world_size == size
        assert trainer.global_rank == world.rank
        assert trainer.global_step == 2
        assert str(trainer.default_root_dir) == str(tmp_path)
        assert trainer.logger is None
        assert list(tmp_path.iterdir()) == []
        world.record("weight", trainer.lightning_module.layer.weight)

    @pytest.mark.distributed(2)
    def test_two_trainers_in_one_world(trainer_factory):
        for steps in (1, 3):
            trainer = trainer_factory(limit_train_batches=steps)
            trainer.fit(boring())
            assert trainer.global_step == steps
        assert dist.is_initialized()

    @pytest.mark.distributed(2)
    def test_arguments_go_first(trainer_factory, tmp_path, world):
        trainer = trainer_factory(max_epochs=2, enable_checkpointing=True, strategy="ddp_find_unused_parameters_true")
        trainer.fit(boring())
        assert trainer.current_epoch == 2
        world.barrier()
        assert [path.name for path in tmp_path.rglob("*.ckpt")] == ["epoch=1-step=4.ckpt"]

    @pytest.mark.distributed(2)
    def test_wrong_devices(trainer_factory):
        trainer_factory(devices=4)

    def test_plain_defaults(trainer_factory):
        trainer = trainer_factory()
        assert (trainer.max_epochs, trainer.limit_train_batches, trainer.num_devices) == (1, 2, 1)
        assert trainer.strategy.root_device.type == "cpu"

    @pytest.mark.distributed(2, timeout=15)
    def test_fit_and_hang(trainer_factory, world):
        trainer_factory().fit(boring())
        if world.rank == 0:
            raise ValueError("after fit")
        dist.barrier()

    @pytest.mark.distributed(2, timeout=15)
    def test_fit_and_crash(trainer_factory, world):
        trainer_factory().fit(boring())
        if world.rank == 0:
            import ctypes
            ctypes.string_at(0)
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_the_other_package(world, tmp_path):
        import sys
        from lightning_disttest.strategies.trainer import TrainerMaker
        for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
            del sys.modules[name]
        import pytorch_lightning as pl
        from pytorch_lightning.demos.boring_classes import BoringModel
        trainer = TrainerMaker(tmp_path, world)()
        assert isinstance(trainer, pl.Trainer)
        trainer.fit(BoringModel())
        assert trainer.world_size == 2
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of tests that make Trainers."""
    return run_once({"test_trainers.py": SOURCE})


@pytest.mark.parametrize("world", ["plain", "static", "dynamic", "standalone"])
def test_one_body_in_every_world(run: Run, world: str) -> None:
    """The same test body trains as a plain test, in a static and a dynamic world, and standalone."""
    assert run.outcome(f"test_fit[{world}]") == "passed", run.text(f"test_fit[{world}]")


@pytest.mark.parametrize(
    "name",
    ["test_two_trainers_in_one_world", "test_arguments_go_first", "test_plain_defaults", "test_the_other_package"],
)
def test_factory(run: Run, name: str) -> None:
    """Many Trainers share a world, every argument can be given, and pytorch_lightning is served as well."""
    assert run.outcome(name) == "passed", run.text(name)


@pytest.mark.parametrize(
    ("name", "where"), [("test_fit_and_hang", "rank 1 of 2"), ("test_fit_and_crash", "rank 0 of 2")]
)
def test_stacks_survive_a_fit(run: Run, name: str, where: str) -> None:
    """After a fit, which resets the handlers of all signals, a rank that waits or crashes still shows its stack."""
    text = run.text(name).partition(where)[2]
    assert lines_with(text, "test_trainers.py", f"in {name}"), run.text(name)


def test_wrong_devices_are_a_clear_error(run: Run) -> None:
    """A number of devices that the world can not serve is an error that says what to change."""
    assert run.outcome("test_wrong_devices") == "failed"
    text = run.text("test_wrong_devices")
    assert "devices=4 does not fit this test, which runs on each rank of a world of 2" in text
    assert "Leave devices out" in text
