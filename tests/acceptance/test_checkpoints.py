"""Checkpoints that two ranks save load on one process, and those of one process on two ranks."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, run_pytest

HELPERS = """
    import lightning
    import torch

    class Net(lightning.LightningModule):
        def __init__(self, width=6):
            super().__init__()
            self.save_hyperparameters()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
            self.loaded = None

        def training_step(self, batch, batch_idx):
            return self.layers(batch).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        def train_dataloader(self):
            points = torch.randn(32, 4, generator=torch.Generator().manual_seed(3))
            return torch.utils.data.DataLoader(points, batch_size=8 // self.trainer.world_size)

        def on_train_start(self):
            self.loaded = state_of(self.trainer)

    def state_of(trainer):
        # Of the optimizer a copy: it goes on.
        optimizer = trainer.optimizers[0].state_dict()
        state = {k: {name: v.clone() for name, v in entry.items()} for k, entry in optimizer["state"].items()}
        return {
            "weights": {name: value.clone() for name, value in trainer.lightning_module.state_dict().items()},
            "optimizer": {"state": state, "param_groups": optimizer["param_groups"]},
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "learning rate": trainer.lr_scheduler_configs[0].scheduler.get_last_lr(),
        }

    def train(trainer_factory, seed, epochs, checkpoint=None):
        lightning.seed_everything(seed, verbose=False)
        trainer = trainer_factory(max_epochs=epochs, limit_train_batches=None)
        trainer.fit(Net(), ckpt_path=checkpoint)
        return trainer
"""
SAVE = """
    import pytest
    import torch
    from helpers import state_of, train

    @pytest.mark.parametrize("where", [
        pytest.param("two", marks=pytest.mark.distributed(2)),
        pytest.param("one"),
    ])
    def test_save(where, world, trainer_factory, pytestconfig):
        trainer = train(trainer_factory, 1, 2)
        assert trainer.global_step == 8
        trainer.save_checkpoint(pytestconfig.rootpath / f"{where}.ckpt")
        # What was saved is compared in the second run, in which another number of processes has loaded it.
        if world.is_rank_zero:
            torch.save(state_of(trainer), pytestconfig.rootpath / f"{where}.state")
        world.record("trained", state_of(trainer))
"""
LOAD = """
    import pytest
    import torch
    from helpers import Net, state_of, train

    def wanted(pytestconfig, saved):
        return torch.load(pytestconfig.rootpath / f"{saved}.state", weights_only=False)

    def assert_same(found, expected):
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=0, atol=0)
        assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
        torch.testing.assert_close(found["optimizer"]["state"], expected["optimizer"]["state"], rtol=0, atol=0)
        assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
        assert (found["step"], found["learning rate"]) == (expected["step"], expected["learning rate"])

    every_way = pytest.mark.parametrize("saved", [
        pytest.param("two", id="two to one"),
        pytest.param("one", id="one to two", marks=pytest.mark.distributed(2)),
        pytest.param("two", id="two to two", marks=pytest.mark.distributed(2, static=False)),
    ])

    @every_way
    def test_fit_goes_on(saved, world, trainer_factory, pytestconfig):
        trainer = train(trainer_factory, 5, 3, pytestconfig.rootpath / f"{saved}.ckpt")
        assert_same(trainer.lightning_module.loaded, wanted(pytestconfig, saved))
        assert trainer.global_step == 12
        world.record("loaded", trainer.lightning_module.loaded)
        world.record("went on", state_of(trainer), rtol=1e-4, atol=1e-6, one_process=True)

    @every_way
    def test_model_is_loaded(saved, world, pytestconfig):
        torch.manual_seed(5)
        net = Net.load_from_checkpoint(pytestconfig.rootpath / f"{saved}.ckpt")
        torch.testing.assert_close(dict(net.state_dict()), wanted(pytestconfig, saved)["weights"], rtol=0, atol=0)
        world.record("loaded", net, one_process=True)
"""


@pytest.fixture(scope="module")
def saved_and_loaded(run_once: RunOnce) -> tuple[Run, Run]:
    """Return a run that saves checkpoints, and a second one in the same folder that loads them."""
    saving = run_once({"helpers.py": HELPERS, "test_save.py": SAVE, "test_load.py": LOAD}, "test_save.py")
    return saving, run_pytest(saving.folder, "test_load.py")


def test_checkpoints_are_saved(saved_and_loaded: tuple[Run, Run]) -> None:
    """On two ranks and on one process, and the two ranks agree on what was saved."""
    saving, _ = saved_and_loaded
    assert saving.outcomes == {"test_save[two]": "passed", "test_save[one]": "passed"}, saving.output


@pytest.mark.parametrize("way", ["two to one", "one to two", "two to two"])
@pytest.mark.parametrize("test", ["test_fit_goes_on", "test_model_is_loaded"])
def test_checkpoints_are_loaded(saved_and_loaded: tuple[Run, Run], test: str, way: str) -> None:
    """Weights, state of the optimizer, learning rate and step are those that were saved, and the training goes on."""
    _, loading = saved_and_loaded
    assert loading.outcome(f"{test}[{way}]") == "passed", loading.text(f"{test}[{way}]")


SHARDED = """
    import pytest
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros

    WHOLE = torch.arange(5 * 3, dtype=torch.float32).reshape(5, 3)

    def sharded(world, value):
        return distribute_tensor(value, init_device_mesh("cpu", (world.world_size,)), [Shard(0)])

    def load(world, path):
        found = {"weight": sharded(world, torch.zeros(5, 3)), "step": torch.zeros(1)}
        dcp.load(found, checkpoint_id=path)
        assert isinstance(found["weight"], DTensor)
        whole = found["weight"].full_tensor()
        torch.testing.assert_close(whole, WHOLE if float(found["step"]) == 1 else 2 * WHOLE, rtol=0, atol=0)
        world.record("whole", whole)
        world.record("step", found["step"])
        return found

    @pytest.mark.distributed(2)
    def test_two_save(world, pytestconfig):
        weight = sharded(world, WHOLE)
        assert weight.to_local().shape[0] == (3 if world.rank == 0 else 2)
        dcp.save({"weight": weight, "step": torch.ones(1)}, checkpoint_id=pytestconfig.rootpath / "of two")

    @pytest.mark.distributed(1)
    def test_one_loads_and_saves(world, pytestconfig):
        found = load(world, pytestconfig.rootpath / "of two")
        assert found["weight"].to_local().shape == (5, 3)
        doubled = {"weight": found["weight"] * 2, "step": found["step"] + 1}
        dcp.save(doubled, checkpoint_id=pytestconfig.rootpath / "of one")

    @pytest.mark.distributed(2)
    def test_two_load(world, pytestconfig):
        found = load(world, pytestconfig.rootpath / "of one")
        assert float(found["step"]) == 2
        assert found["weight"].to_local().shape[0] == (3 if world.rank == 0 else 2)

    @pytest.mark.distributed(2)
    def test_a_sharded_tensor_is_refused(world):
        world.record("weight", {"layer": sharded(world, WHOLE)})
"""
SHARDED_TESTS = ["test_two_save", "test_one_loads_and_saves", "test_two_load"]


@pytest.fixture(scope="module")
def sharded(run_once: RunOnce) -> list[Run]:
    """Return the runs that save and load a sharded tensor, one after the other in one folder."""
    first = run_once({"test_sharded.py": SHARDED}, "-k", "test_two_save or refused")
    return [first, *(run_pytest(first.folder, "-k", name) for name in SHARDED_TESTS[1:])]


@pytest.mark.parametrize("name", SHARDED_TESTS)
def test_sharded_checkpoints(sharded: list[Run], name: str) -> None:
    """Saved by two ranks, each with its part, loaded by one as a whole, saved by it, and loaded by two."""
    run = sharded[SHARDED_TESTS.index(name)]
    assert run.outcome(name) == "passed", run.text(name)


def test_a_sharded_tensor_is_refused(sharded: list[Run]) -> None:
    """Its whole value is had by a collective: nothing that record could do without waiting for other ranks."""
    text = sharded[0].text("test_a_sharded_tensor_is_refused")

    assert sharded[0].outcome("test_a_sharded_tensor_is_refused") == "failed"
    assert "world.record('weight', ...) can not record weight['layer']: it is a DTensor" in text, text
    assert "Record what full_tensor() has returned, called on all ranks" in text, text
