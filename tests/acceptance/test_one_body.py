"""One test body trains alike as a plain test, on the ranks of a world, launched by its strategy, and spawned."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run

WAYS = {"plain": 1, "static": 2, "dynamic": 2, "standalone": 2, "spawn": 2}
EPOCHS = 3
# Two ranks add the same numbers as one process in another order: a few units in the last place of float32.
TOLERANCE = 1e-5

SOURCE = """
    import json, multiprocessing
    import pytest
    import torch
    from lightning.pytorch import Callback, LightningModule
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    EPOCHS, BATCH = 3, 8

    every_way = pytest.mark.parametrize("way", [
        pytest.param({}, id="plain"),
        pytest.param({}, id="static", marks=pytest.mark.distributed(2)),
        pytest.param({}, id="dynamic", marks=pytest.mark.distributed(2, static=False)),
        pytest.param({"strategy": "ddp", "devices": 2}, id="standalone", marks=pytest.mark.standalone),
        pytest.param({"strategy": "ddp_spawn", "devices": 2}, id="spawn"),
    ])

    def make_layer():
        layer = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(layer.weight, 0.1)
        torch.nn.init.zeros_(layer.bias)
        return layer

    def loader(ranks, rank):
        points = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(points, points.sum(1, keepdim=True))
        sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=False)
        return DataLoader(data, batch_size=BATCH // ranks, sampler=sampler)

    def leave_group():
        # torch: a spawned process that exits with a group, whose threads may still free objects of Python, may abort.
        if multiprocessing.parent_process() is not None:
            torch.distributed.destroy_process_group()

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = make_layer()

        def train_dataloader(self):
            return loader(self.trainer.world_size, self.trainer.global_rank)

        def training_step(self, batch, batch_idx):
            points, sums = batch
            loss = torch.nn.functional.mse_loss(self.layer(points), sums)
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.02)

    class Losses(Callback):
        def __init__(self, path):
            self.path, self.losses = path, []

        def on_train_epoch_end(self, trainer, model):
            self.losses.append(float(trainer.callback_metrics["loss"]))
            if trainer.is_global_zero:
                self.path.write_text(json.dumps([trainer.world_size, trainer.global_step, self.losses]))

        def teardown(self, trainer, model, stage):
            leave_group()

    @every_way
    def test_trainer(way, trainer_factory, request, pytestconfig):
        losses = Losses(pytestconfig.rootpath / f"trainer-{request.node.callspec.id}.json")
        trainer = trainer_factory(max_epochs=EPOCHS, limit_train_batches=None, callbacks=[losses], **way)
        trainer.fit(Model())
        assert trainer.state.finished

    def train(fabric, path):
        layer = make_layer()
        model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.02))
        batches = fabric.setup_dataloaders(loader(fabric.world_size, fabric.global_rank))
        losses, steps = [], 0
        for _ in range(EPOCHS):
            total = torch.zeros(())
            for points, sums in batches:
                loss = torch.nn.functional.mse_loss(model(points), sums)
                optimizer.zero_grad()
                fabric.backward(loss)
                optimizer.step()
                total += loss.detach() / len(batches)
                steps += 1
            losses.append(float(fabric.all_reduce(total, reduce_op="mean")))
        if fabric.is_global_zero:
            path.write_text(json.dumps([fabric.world_size, steps, losses]))
        del model, optimizer, loss
        leave_group()
        return losses

    @every_way
    def test_fabric(way, fabric_factory, request, pytestconfig):
        fabric = fabric_factory(**way)
        losses = fabric.launch(train, pytestconfig.rootpath / f"fabric-{request.node.callspec.id}.json")
        assert len(losses) == EPOCHS
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of both bodies in every way."""
    return run_once({"test_bodies.py": SOURCE})


def losses_of(run: Run, kind: str, way: str) -> tuple[int, int, list[float]]:
    """Return what a body noted: the number of ranks, of steps, and the loss of each epoch."""
    ranks, steps, losses = json.loads((run.folder / f"{kind}-{way}.json").read_text())
    return ranks, steps, losses


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["trainer", "fabric"])
def test_body_runs_in_every_way(run: Run, kind: str, way: str) -> None:
    """The body passes on as many ranks as the way has, and takes the same number of steps."""
    assert run.outcome(f"test_{kind}[{way}]") == "passed", run.text(f"test_{kind}[{way}]")
    ranks, steps, losses = losses_of(run, kind, way)
    assert (ranks, steps, len(losses)) == (WAYS[way], EPOCHS * 8, EPOCHS)


@pytest.mark.parametrize("kind", ["trainer", "fabric"])
def test_losses_are_equal(run: Run, kind: str) -> None:
    """With the same global batches, each epoch has the same loss in every way; and the model learns."""
    plain = losses_of(run, kind, "plain")[2]
    assert plain[0] > 1.5 * plain[1] > 2 * plain[2] > 0
    for way in WAYS:
        assert losses_of(run, kind, way)[2] == pytest.approx(plain, rel=TOLERANCE, abs=0), way


def test_nothing_is_said_of_what_they_leave(run: Run) -> None:
    """In no way does a Trainer or a Fabric leave something for which its test would be blamed."""
    assert "LeakWarning" not in run.output, run.output


def test_trainer_and_fabric_learn_alike(run: Run) -> None:
    """A Trainer and a Fabric that train the same have the same losses."""
    assert losses_of(run, "fabric", "plain")[2] == pytest.approx(losses_of(run, "trainer", "plain")[2], rel=TOLERANCE)
