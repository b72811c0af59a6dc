"""Tests of ``train.py``: the same training code as a plain test and on two ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from examples.regression.train import OFFSET, SLOPES, LinearModel, PointsData
from lightning import Callback, seed_everything

if TYPE_CHECKING:
    from pathlib import Path

    from lightning import LightningModule, Trainer

    from lightning_disttest import TrainerFactory, World


class LossCurve(Callback):
    """Keeps the loss of each step, averaged over all ranks."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: object) -> None:  # noqa: ARG002
        """Add the loss of a step."""
        self.losses.append(trainer.strategy.reduce(outputs["loss"], reduce_op="mean").item())


def test_model_learns_the_plane(trainer_factory: TrainerFactory) -> None:
    """In one process, three epochs find the slopes and the offset that the points were made with."""
    seed_everything(1, verbose=False)
    model = LinearModel()
    trainer = trainer_factory(max_epochs=3, limit_train_batches=None, limit_val_batches=None)
    trainer.fit(model, datamodule=PointsData())
    torch.testing.assert_close(model.layer.weight.detach()[0], torch.tensor(SLOPES), atol=0.05, rtol=0)
    assert model.layer.bias.item() == pytest.approx(OFFSET, abs=0.05)
    assert trainer.callback_metrics["val_loss"] < 0.01


@pytest.mark.distributed(world_size=[1, 2])
def test_weights_are_equal_on_all_ranks(world: World, trainer_factory: TrainerFactory) -> None:
    """Each rank sees other points, and all ranks end with the same weights."""
    seed_everything(1, verbose=False)
    model = LinearModel()
    trainer = trainer_factory(max_epochs=3, limit_train_batches=None, limit_val_batches=None)
    trainer.fit(model, datamodule=PointsData())
    assert trainer.world_size == world.world_size
    assert trainer.callback_metrics["val_loss"] < 0.01
    world.record("weight", model.layer.weight)
    world.record("bias", model.layer.bias)


@pytest.mark.distributed(world_size=[2, 4])
def test_ranks_learn_what_one_process_learns(world: World, trainer_factory: TrainerFactory) -> None:
    """With the same points in each step, the losses of all steps and the weights are those of one process."""
    seed_everything(1, verbose=False)
    model = LinearModel()
    trainer = trainer_factory(max_epochs=3, limit_train_batches=None, callbacks=[curve := LossCurve()])
    trainer.fit(model, datamodule=PointsData(batch_size=16 // world.world_size, shuffle=False))
    world.record("training", {"losses": curve.losses, "weights": model}, rtol=1e-4, one_process=True)


@pytest.mark.distributed(2)
def test_ranks_share_the_points(world: World, trainer_factory: TrainerFactory) -> None:
    """The ranks divide the batches of an epoch among them: half of the batches each, none twice."""
    data = PointsData(size=64, batch_size=8)
    trainer = trainer_factory(limit_train_batches=None)
    trainer.fit(LinearModel(), datamodule=data)
    seen = [int(index) for index in trainer.train_dataloader.sampler]
    seen_by: list[list[int]] = [[] for _ in range(world.world_size)]
    dist.all_gather_object(seen_by, seen)
    assert len(seen) == 24
    assert sorted(index for indices in seen_by for index in indices) == list(range(48))


@pytest.mark.distributed(2)
def test_checkpoint_is_read_by_all_ranks(world: World, trainer_factory: TrainerFactory, tmp_path: Path) -> None:
    """Rank 0 writes the checkpoint into the folder that the ranks share, and every rank reads it back."""
    model = LinearModel(learning_rate=0.05)
    trainer = trainer_factory()
    trainer.fit(model, datamodule=PointsData())
    trainer.save_checkpoint(tmp_path / "linear.ckpt")
    loaded = LinearModel.load_from_checkpoint(tmp_path / "linear.ckpt", weights_only=True)
    torch.testing.assert_close(loaded.layer.weight, model.layer.weight)
    world.record("learning rate", loaded.learning_rate)
    world.record("files", sorted(path.name for path in tmp_path.iterdir()))
