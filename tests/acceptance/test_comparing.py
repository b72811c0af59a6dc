"""The ranks of a world give what one process gives, by one line in a test; and what a rank's end makes of values."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

# A small network of the kinds of layers that work on each example alone; the batches of all ranks together are those
# of one process.
NET = """
    import lightning
    import pytest
    import torch
    import torch.distributed as dist
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader, TensorDataset

    GLOBAL_BATCH = 8

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.GELU(), torch.nn.Flatten(),
                torch.nn.Linear(4 * 4 * 4, 3),
            )
            self.losses, self.gradients = [], []

        def training_step(self, batch, batch_idx):
            images, labels = batch
            loss = torch.nn.functional.cross_entropy(self.layers(images), labels)
            self.log("loss", loss, sync_dist=True)
            return loss

        def on_before_optimizer_step(self, optimizer):
            self.gradients.append({name: p.grad.clone() for name, p in self.named_parameters()})

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.losses.append(float(self.trainer.callback_metrics["loss"]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

        def train_dataloader(self):
            examples = torch.Generator().manual_seed(2)
            images = torch.randn(48, 1, 6, 6, generator=examples)
            labels = torch.randint(3, (48,), generator=examples)
            return DataLoader(TensorDataset(images, labels), batch_size=GLOBAL_BATCH // self.trainer.world_size)

    def train(trainer_factory, **how):
        lightning.seed_everything(1, verbose=False)
        net = Net()
        trainer_factory(max_epochs=2, limit_train_batches=None, use_distributed_sampler=True, **how).fit(net)
        return {"losses": net.losses, "gradients": net.gradients, "weights": net}
"""
TRAINING = (
    NET
    + """
    @pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
    @pytest.mark.distributed(world_size=[2, 4])
    def test_training(world, trainer_factory):
        found = train(trainer_factory)
        assert len(found["losses"]) == 12
        world.record("training", found, rtol=1e-4, atol=1e-6, one_process=True)

    @pytest.mark.distributed(2, static=False)
    def test_training_dynamic(world, trainer_factory):
        world.record("training", train(trainer_factory), rtol=1e-4, atol=1e-6, one_process=True)

    def sums_and_does_not_divide(_, bucket):
        dist.all_reduce(bucket.buffer())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def does_nothing(_, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    class Hooked(DDPStrategy):
        # Lightning registers hooks on GPUs only.
        def __init__(self, hook):
            super().__init__()
            self.hook = hook

        def configure_ddp(self):
            super().configure_ddp()
            self.model.register_comm_hook(None, self.hook)

    @pytest.mark.distributed(2)
    def test_gradients_are_not_divided(world, trainer_factory):
        found = train(trainer_factory, strategy=Hooked(sums_and_does_not_divide))
        world.record("training", found, rtol=1e-4, atol=1e-6, one_process=True)

    @pytest.mark.distributed(2)
    def test_gradients_are_not_reduced(world, trainer_factory):
        found = train(trainer_factory, strategy=Hooked(does_nothing))
        world.record("training", found, rtol=1e-4, atol=1e-6, one_process=True)

    @pytest.mark.distributed(2)
    def test_a_parameter_is_left_out(world, trainer_factory):
        class Careless(DDPStrategy):
            def configure_ddp(self):
                self.model._ddp_params_and_buffers_to_ignore = ["layers.4.bias"]
                super().configure_ddp()

        found = train(trainer_factory, strategy=Careless())
        world.record("weights", found["weights"], rtol=1e-4, atol=1e-6, one_process=True)

    @pytest.mark.distributed(2)
    def test_another_batch_size(world, trainer_factory, monkeypatch):
        monkeypatch.setitem(globals(), "GLOBAL_BATCH", 8 * world.world_size)
        world.record("losses", train(trainer_factory)["losses"], rtol=1e-4, one_process=True)
"""
)


@pytest.fixture(scope="module")
def training(run_once: RunOnce) -> Run:
    """Return one run of tests that compare the training on several ranks with that on one process."""
    return run_once({"test_training.py": TRAINING}, "--disttest-timeout=60")


@pytest.mark.parametrize(
    "name", ["test_training[world_size=2]", "test_training[world_size=4]", "test_training_dynamic"]
)
def test_ranks_train_as_one_process_does(training: Run, name: str) -> None:
    """Losses of all steps, gradients and final weights of two and of four ranks are those of one process."""
    assert training.outcome(name) == "passed", training.text(name)


def test_gradients_that_are_not_divided_are_found(training: Run) -> None:
    """All ranks agree with each other; only the one process shows that they are wrong together."""
    text = training.text("test_gradients_are_not_divided")

    assert training.outcome("test_gradients_are_not_divided") == "failed"
    assert text.strip().startswith("the ranks recorded other values than one process does:\n")
    assert lines_with(text, "training['gradients'][0]['layers.0.weight'] (torch.float32, shape [4, 1, 3, 3])"), text
    assert lines_with(text, "    ranks 0-1    ["), text
    assert lines_with(text, "    one process  ["), text
    assert lines_with(text, " 36 of 36 differ, by up to ", "(relative: 1), rtol=0.0001, atol=1e-06"), text


def test_gradients_that_are_not_reduced_are_found(training: Run) -> None:
    """The ranks differ from each other already: the table is of them alone."""
    text = training.text("test_gradients_are_not_reduced")

    assert training.outcome("test_gradients_are_not_reduced") == "failed"
    assert text.strip().startswith("the ranks recorded different values:\n")
    assert lines_with(text, "training['gradients'][0]['layers.0.weight'] (torch.float32, shape [4, 1, 3, 3])"), text
    assert lines_with(text, "    rank 1  ["), text
    assert not lines_with(text, "one process"), text


def test_a_parameter_that_is_left_out_is_found(training: Run) -> None:
    """It differs by itself, and with it all that was trained beside it."""
    text = training.text("test_a_parameter_is_left_out")

    assert training.outcome("test_a_parameter_is_left_out") == "failed"
    assert lines_with(text, "weights['layers.4.bias'] (torch.float32, shape [3])"), text


def test_other_data_are_found(training: Run) -> None:
    """A test that forgets to divide the batch by the number of ranks is told where its losses differ."""
    text = training.text("test_another_batch_size")

    assert training.outcome("test_another_batch_size") == "failed"
    assert lines_with(text, "    one process  [") or lines_with(text, "    one process  a list of"), text


ENDINGS = """
    import os, signal, threading
    import pytest
    import torch

    every_world = pytest.mark.parametrize("kind", [
        pytest.param("static", marks=pytest.mark.distributed(2, timeout=10)),
        pytest.param("dynamic", marks=pytest.mark.distributed(2, static=False, timeout=10)),
    ])
    every_end = pytest.mark.parametrize("end", ["killed", "raises", "skips"])

    def leave(end):
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "skips":
            pytest.skip("only here")
        raise ValueError("only here")

    @every_world
    @every_end
    def test_before(kind, end, world):
        if world.rank == 1:
            leave(end)
        world.record("x", torch.full((3000,), float(world.rank)), one_process=True)

    @every_world
    @every_end
    def test_after(kind, end, world):
        world.record("x", torch.full((3000,), float(world.rank)), one_process=True)
        if world.rank == 1:
            leave(end)

    @pytest.mark.distributed(2, timeout=2)
    def test_hangs_before(world):
        if world.rank == 1:
            threading.Event().wait()
        world.record("x", world.rank, one_process=True)

    @pytest.mark.distributed(2, timeout=2)
    def test_hangs_after(world):
        world.record("x", world.rank, one_process=True)
        if world.rank == 1:
            threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_next(world):
        world.record("x", torch.ones(3000), one_process=True)
"""


@pytest.fixture(scope="module")
def endings(run_once: RunOnce) -> Run:
    """Return one run of tests in which a rank leaves before or after it has recorded a value."""
    return run_once({"test_endings.py": ENDINGS})


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("end", ["killed", "raises", "skips"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_a_rank_is_the_failure(endings: Run, when: str, end: str, kind: str) -> None:
    """Nobody waits for a rank that is gone, and its values, and those of others, are not compared."""
    name = f"test_{when}[{end}-{kind}]"
    told = {
        "killed": "died in call: killed by SIGKILL <- the cause",
        "raises": "ValueError: only here",
        "skips": "rank 1: skipped in call (only here)",
    }
    assert endings.outcome(name) == "failed"
    assert told[end] in endings.text(name), endings.text(name)
    assert "recorded different values" not in endings.text(name)
    assert "one process" not in endings.text(name)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rank_that_hangs_is_the_failure(endings: Run, when: str) -> None:
    """The time limit ends it, and the other rank has not waited for it."""
    text = endings.text(f"test_hangs_{when}")

    assert endings.outcome(f"test_hangs_{when}") == "failed"
    assert lines_with(text, "rank 1 of 2", "was still in call at the time limit of 2 s"), text
    assert lines_with(text, "rank 0 of 2: came to the end of the test"), text
    assert "recorded different values" not in text


def test_the_next_test_is_compared(endings: Run) -> None:
    """After all of them."""
    assert endings.outcome("test_next") == "passed", endings.text("test_next")


LARGE = """
    import resource
    import pytest
    import torch

    MEGABYTE = 1024  # of what ru_maxrss counts

    @pytest.fixture(scope="module")
    def model():
        # Ten million parameters, forty megabytes.
        torch.manual_seed(0)
        return torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(10)))

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE

    @pytest.mark.distributed(2)
    def test_equal(world, model):
        before = peak()
        world.record("model", model, rtol=1e-4)
        assert peak() - before < 20

    @pytest.mark.distributed(2)
    def test_differs_little(world, model):
        model[9].weight.data.fill_(1 + 1e-5 * world.rank)
        world.record("model", model, rtol=1e-4)

    @pytest.mark.distributed(2)
    def test_differs(world, model):
        model[9].weight.data.fill_(1)[999, 999] += world.rank
        world.record("model", model, rtol=1e-4)
"""
PEAKS = """
    import os, resource
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = yield
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if "RANK" not in os.environ:  # in the pytest process, not in ranks
            (item.config.rootpath / f"grown-{item.name}").write_text(str(grown / 1024))
        return result
"""


def test_a_large_model_is_cheap(run_once: RunOnce) -> None:
    """Equal models are not read by the pytest process; of others it holds what it compares, and no copy of all."""
    run = run_once({"test_large.py": LARGE, "conftest.py": PEAKS}, "--basetemp=base")
    grown = {name: float((run.folder / f"grown-{name}").read_text()) for name in run.outcomes}

    assert run.outcomes == {"test_equal": "passed", "test_differs_little": "passed", "test_differs": "failed"}
    assert lines_with(run.text("test_differs"), "    rank 1  [999, 999] = 2.0"), run.text("test_differs")
    assert "1 of 1000000 differ, by up to 1 (relative: 1), rtol=0.0001, atol=0" in run.text("test_differs")
    assert grown["test_equal"] < 20, grown
    assert max(grown.values()) < 120, grown
    assert list((run.folder / "base").rglob("values")) == []
