"""Tests of ``copy_task.py``: a callback in one process and on two ranks, and a Trainer that launches its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from examples.sequence.copy_task import CopyModel, GrowLength, make_rows
from lightning import Trainer, seed_everything

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_disttest import TrainerFactory, World


def test_rows_hold_the_symbols_and_as_many_go_signs() -> None:
    """An input has the symbols in its first half and only the "go" sign in its second."""
    inputs, rows = make_rows(count=3, length=5, seed=0)
    assert inputs.shape == (3, 10)
    assert torch.equal(inputs[:, :5], rows)
    assert set(inputs[:, 5:].flatten().tolist()) == {4}


@pytest.mark.parametrize(("goal", "lengths"), [(0.0, [1, 2, 3]), (2.0, [1, 1, 1])])
def test_rows_grow_when_the_goal_is_reached(trainer_factory: TrainerFactory, goal: float, lengths: list[int]) -> None:
    """A goal that is always reached makes rows longer after every epoch; one that can not be reached never does."""
    grow = GrowLength(goal)
    trainer = trainer_factory(max_epochs=3, callbacks=[grow], reload_dataloaders_every_n_epochs=1)
    trainer.fit(CopyModel())
    assert grow.lengths == lengths


@pytest.mark.distributed(2)
def test_ranks_grow_together(world: World, trainer_factory: TrainerFactory) -> None:
    """The ranks see different rows and still decide alike, because they decide on the accuracy over all ranks."""
    seed_everything(3, verbose=False)
    grow = GrowLength(goal=0.9)
    trainer = trainer_factory(
        max_epochs=8, limit_train_batches=None, callbacks=[grow], reload_dataloaders_every_n_epochs=1
    )
    trainer.fit(CopyModel())
    assert grow.lengths[-1] > 1
    world.record("lengths", grow.lengths)


@pytest.mark.standalone
def test_trainer_launches_its_own_ranks(tmp_path: Path) -> None:
    """``Trainer(strategy="ddp", devices=2)`` starts its second process, and both end with equal weights."""
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=2,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = CopyModel()
    trainer.fit(model)
    assert dist.get_world_size() == 2
    weights = [torch.zeros_like(model.head.weight) for _ in range(2)]
    dist.all_gather(weights, model.head.weight.detach())
    assert torch.equal(weights[0], weights[1])
