"""The fixture ``faults``: what people do to see how their code takes a lost, slow or failing rank."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

MODEL = """
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            return (self.layer(batch[:, :4]) - batch[:, 4:]).square().mean()

        def validation_step(self, batch, index):
            self.log("loss", self.training_step(batch, index), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def data(self):
            data = torch.rand(16, 5, generator=torch.Generator().manual_seed(1))
            return torch.utils.data.DataLoader(data, batch_size=4)

        train_dataloader = val_dataloader = data

    def arguments(tmp_path, *faults, **more):
        # Epochs of two steps: a checkpoint after step 2, 4, 6 and 8.
        checkpoints = ModelCheckpoint(dirpath=tmp_path, save_top_k=-1)
        return {"max_epochs": 4, "limit_val_batches": 0, "enable_checkpointing": True,
                "callbacks": [checkpoints, *faults]} | more

    def checkpoints_in(tmp_path):
        return sorted(path.name for path in tmp_path.glob("*.ckpt"))
"""

WORLDS = """
    import datetime, multiprocessing, os, signal, threading, time
    import pytest
    import torch
    import torch.distributed as dist
    from model import Model, arguments, checkpoints_in

    each_world = pytest.mark.parametrize("kind", [
        pytest.param("static", marks=pytest.mark.distributed(2)),
        pytest.param("dynamic", marks=pytest.mark.distributed(2, static=False)),
    ])

    @pytest.fixture(scope="module")
    def service(pytestconfig, world):
        yield
        if world.world_size == 2:
            with open(pytestconfig.rootpath / "ended.txt", "a") as file:
                file.write(f"{world.rank}\\n")

    @each_world
    @pytest.mark.parametrize("what", ["kill", "exit"])
    def test_checkpoint_before_a_death(trainer_factory, faults, tmp_path, what, kind, service):
        fault = getattr(faults, what)(1, step=3)
        with pytest.raises(RuntimeError, match="Connection|Broken pipe"):
            trainer_factory(**arguments(tmp_path, fault)).fit(Model())
        assert dist.get_rank() == 0
        assert checkpoints_in(tmp_path) == ["epoch=0-step=2.ckpt"]

    @pytest.mark.distributed(2)
    def test_next_in_a_new_world(world):
        world.barrier()

    @pytest.mark.distributed(3, timeout=40)
    def test_three_ranks(trainer_factory, faults, tmp_path, world):
        with pytest.raises(RuntimeError):
            trainer_factory(**arguments(tmp_path, faults.kill(1, step=3))).fit(Model())
        world.record("survivors agree", checkpoints_in(tmp_path))

    @pytest.mark.distributed(3, timeout=20)
    def test_wait_for_one_that_has_left(faults, world):
        faults.kill(1, hook="here").reach(hook="here")
        if world.rank == 0:
            with pytest.raises(RuntimeError, match="Connection"):
                dist.recv(torch.ones(1), src=2)

    @pytest.mark.standalone
    @pytest.mark.parametrize("rank", [0, 1])
    def test_standalone(trainer_factory, faults, tmp_path, rank):
        with pytest.raises(RuntimeError):
            fault = faults.kill(rank, step=3)
            trainer_factory(**arguments(tmp_path, fault), strategy="ddp", devices=2).fit(Model())
        assert checkpoints_in(tmp_path) == ["epoch=0-step=2.ckpt"]

    @pytest.mark.standalone
    def test_standalone_delay(trainer_factory, faults, tmp_path):
        fault = faults.delay("all", step=1, seconds=0.1)
        trainer_factory(**arguments(tmp_path, fault), strategy="ddp", devices=2).fit(Model())

    @pytest.mark.distributed(2)
    def test_delay(faults, world):
        faults.delay(1, hook="load", seconds=1.5).reach(hook="load")
        if world.rank == 0:
            with pytest.raises(TimeoutError):
                world.barrier(0.5)

    @pytest.mark.distributed(2)
    def test_stop_for_a_while(faults, world, trainer_factory, tmp_path):
        begin = time.monotonic()
        trainer_factory(**arguments(tmp_path, faults.stop(1, step=3, seconds=1))).fit(Model())
        world.barrier()
        assert time.monotonic() - begin > 1
        assert checkpoints_in(tmp_path)[-1] == "epoch=3-step=8.ckpt"

    @each_world
    def test_stop_for_ever(faults, kind):
        group = dist.new_group(timeout=datetime.timedelta(seconds=1))
        faults.stop(1, step=0).reach(step=0)
        with pytest.raises(RuntimeError, match="[Tt]imed? ?out"):
            dist.all_reduce(torch.ones(1), group=group)

    @pytest.mark.standalone
    def test_stop_for_ever_standalone(faults, trainer_factory, tmp_path):
        with pytest.raises(TimeoutError):
            from lightning_disttest.world import make_world
            fault = faults.stop(1, hook="after fit")
            trainer_factory(**arguments(tmp_path), strategy="ddp", devices=2).fit(Model())
            fault.reach(hook="after fit")
            make_world().barrier(0.5)

    @pytest.mark.distributed(2, static=False)
    def test_a_child_of_a_rank_does_not_speak_for_it(faults, world):
        fault = faults.kill(1, hook="child")
        child = multiprocessing.get_context("fork").Process(target=fault.reach, kwargs={"hook": "child"})
        child.start()
        child.join()
        assert child.exitcode == (-9 if world.rank == 1 else 0)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.distributed(2)
    def test_uncaught_in_another(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.kill(1, step=3))).fit(Model())

    @pytest.mark.distributed(2)
    def test_other_rank_fails(faults):
        faults.exit(1, hook="here", status=7).reach(hook="here")
        assert not "a checkpoint"

    @pytest.mark.distributed(2, timeout=3)
    def test_other_rank_hangs(faults):
        faults.kill(1, hook="here").reach(hook="here")
        threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_all_ranks(faults):
        faults.kill("all", hook="here").reach(hook="here")

    @pytest.mark.distributed(1)
    def test_world_of_one(faults):
        faults.stop(0, hook="here").reach(hook="here")

    @pytest.mark.distributed(2)
    def test_without_a_plan(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.distributed(2)
    def test_another_death_than_planned(faults, world):
        signal.signal(signal.SIGTERM, lambda *_: None)
        faults.kill(1, hook="here", signum=signal.SIGTERM).reach(hook="here")
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.distributed(2)
    def test_handled_signal(faults, world):
        heard = []
        before = signal.signal(signal.SIGTERM, lambda *_: heard.append(world.rank))
        faults.kill(1, hook="here", signum=signal.SIGTERM).reach(hook="here")
        signal.signal(signal.SIGTERM, before)
        assert heard == ([1] if world.rank == 1 else [])
        world.barrier()

    @pytest.mark.distributed(2)
    def test_rank_outside(faults):
        with pytest.raises(ValueError, match="rank=2 is not in the world of this test, which has the ranks 0 to 1"):
            faults.kill(2, step=3)

    @pytest.mark.distributed(2)
    def test_never(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.kill(1, step=100))).fit(Model())

    @pytest.mark.distributed(2)
    def test_never_in_hook(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.exit(0, step=2, hook="on_test_start"))).fit(Model())

    @pytest.mark.distributed(2)
    def test_never_and_failed(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.kill(1, step=100))).fit(Model())
        assert not "told"

    @pytest.mark.standalone
    def test_never_standalone(trainer_factory, faults, tmp_path):
        fault = faults.kill([1, 2], step=100)
        trainer_factory(**arguments(tmp_path, fault), strategy="ddp", devices=2).fit(Model())
"""

HOOKS = (
    "setup",
    "on_fit_start",
    "on_train_start",
    "training_step",
    "on_train_batch_end",
    "on_validation_start",
    "validation_step",
    "on_train_epoch_end",
    "on_save_checkpoint",
    "on_train_end",
    "teardown",
)
# Of the LightningModule alone; what a callback hears of last before them.
BEFORE = {"training_step": "on_train_batch_start", "validation_step": "on_validation_batch_start"}

RAISED = """
    import lightning.pytorch as pl
    import pytest
    from model import Model, arguments

    HOOKS = [name for name, value in vars(pl.Callback).items() if callable(value) and not name.startswith("_")]

    class Notes(pl.Callback):
        def __init__(self, path):
            self.path = path

    def note(name):
        def hook(self, *args, **kwargs):
            with open(self.path, "a") as file:
                file.write(name + "\\n")
        return hook

    for name in HOOKS:
        if "state_dict" not in name:
            setattr(Notes, name, note(name))

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("hook", __HOOKS__)
    def test_raise(trainer_factory, faults, tmp_path, world, hook, pytestconfig):
        fault = faults.error(1, ZeroDivisionError(f"planned in {hook}"), hook=hook)
        settings = arguments(tmp_path, limit_val_batches=2, num_sanity_val_steps=0)
        notes = Notes(pytestconfig.rootpath / f"{hook}-{world.rank}.txt")
        trainer_factory(**settings | {"callbacks": [notes, *settings["callbacks"], fault]}).fit(Model())
"""

PLAIN = """
    import os, time
    import lightning.pytorch as pl
    import pytest
    import torch
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException
    from model import Model, arguments, checkpoints_in

    each_launcher = pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])

    @each_launcher
    def test_resume(trainer_factory, faults, tmp_path, strategy):
        launch = {"strategy": strategy, "devices": 2}
        undisturbed, disturbed = Model(), Model()
        trainer_factory(**arguments(tmp_path / "undisturbed", **launch)).fit(undisturbed)
        with pytest.raises(ProcessExitedException):
            trainer_factory(**arguments(tmp_path, faults.kill(1, step=3), **launch)).fit(disturbed)
        assert checkpoints_in(tmp_path) == ["epoch=0-step=2.ckpt"]
        trainer = trainer_factory(**arguments(tmp_path, **launch))
        trainer.fit(disturbed, ckpt_path=tmp_path / "epoch=0-step=2.ckpt")
        assert torch.load(tmp_path / "epoch=3-step=8.ckpt", weights_only=True)["global_step"] == 8
        for name, weights in undisturbed.state_dict().items():
            assert torch.equal(weights, disturbed.state_dict()[name])
            assert not torch.equal(weights, Model().state_dict()[name])

    def test_error_in_a_launched_process(trainer_factory, faults, tmp_path):
        fault = faults.error(1, KeyError("planned"), hook="optimizer_step", step=2)
        with pytest.raises(ProcessRaisedException, match="KeyError: 'planned'"):
            trainer_factory(**arguments(tmp_path, fault), strategy="ddp_fork", devices=2).fit(Model())

    def test_stop_of_a_launched_process(trainer_factory, faults, tmp_path):
        begin = time.monotonic()
        fault = faults.stop([0, 1], step=1, seconds=0.5)
        trainer_factory(**arguments(tmp_path, fault), strategy="ddp_fork", devices=2).fit(Model())
        assert time.monotonic() - begin > 0.5

    def loop(fabric, fault):
        for step in range(5):
            fault.reach(step=step)
            fabric.barrier()

    def test_fabric(faults):
        from lightning.fabric import Fabric
        fabric = Fabric(accelerator="cpu", strategy="ddp_fork", devices=2)
        with pytest.raises(ProcessExitedException):
            fabric.launch(loop, faults.exit(1, step=3, status=5))

    @pytest.mark.parametrize("hook", ["training_step", "forward", "backward", "configure_optimizers", "state_dict"])
    def test_hook_in_this_process(trainer_factory, faults, tmp_path, hook):
        class Forward(Model):
            def forward(self, x):
                return self.layer(x)
            def training_step(self, batch, index):
                return self(batch[:, :4]).mean()
        model = Forward()
        planned = [faults.error(0, KeyError("first"), hook=hook), faults.error(0, KeyError("second"), hook=hook)]
        for word in ("first", "second"):
            with pytest.raises(KeyError, match=word):
                trainer_factory(**arguments(tmp_path, *planned)).fit(model)
            assert hook not in vars(model)
        trainer_factory(**arguments(tmp_path, *planned)).fit(model)
        assert hook not in vars(model)

    def test_other_package(faults):
        import pytorch_lightning
        from pytorch_lightning.demos.boring_classes import BoringModel
        quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        planned = faults.error(0, KeyError("planned"), step=1)
        trainer = pytorch_lightning.Trainer(callbacks=[planned], fast_dev_run=3, **quiet)
        with pytest.raises(KeyError, match="planned"):
            trainer.fit(BoringModel())
        assert trainer.global_step == 1

    @pytest.mark.parametrize("what", ["kill", "exit", "stop"])
    def test_refused(trainer_factory, faults, tmp_path, what):
        trainer_factory(**arguments(tmp_path, getattr(faults, what)(0, step=3))).fit(Model())

    def test_refused_in_a_loop(faults):
        faults.kill(0, hook="here").reach(hook="here")

    def test_misspelt_at_use(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.error(0, KeyError, hook="train_step"))).fit(Model())

    def test_never(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.error(0, KeyError, step=100))).fit(Model())

    def test_never_such_a_rank(trainer_factory, faults, tmp_path):
        trainer_factory(**arguments(tmp_path, faults.error(1, KeyError, step=3))).fit(Model())

    def test_never_launched(trainer_factory, faults, tmp_path):
        fault = faults.kill(1, step=100)
        trainer_factory(**arguments(tmp_path, fault), strategy="ddp_fork", devices=2).fit(Model())

    def test_never_used(faults):
        faults.delay("all", step=0, seconds=1)

    def test_never_and_failed(faults):
        faults.delay("all", step=0, seconds=1)
        assert not "told"

    @pytest.mark.xfail(reason="known")
    def test_never_and_xfailed(faults):
        faults.delay("all", step=0, seconds=1)
        assert not "told"

    def test_never_and_skipped(faults):
        faults.delay("all", step=0, seconds=1)
        pytest.skip("no data")
"""


@pytest.fixture(scope="module")
def worlds(run_once: RunOnce) -> Run:
    """Return a run of faults on ranks."""
    return run_once({"model.py": MODEL, "test_worlds.py": WORLDS}, "--basetemp=base")


@pytest.fixture(scope="module")
def raised(run_once: RunOnce) -> Run:
    """Return a run of exceptions in each hook."""
    return run_once({"model.py": MODEL, "test_raised.py": RAISED.replace("__HOOKS__", repr(HOOKS))})


@pytest.fixture(scope="module")
def plain(run_once: RunOnce) -> Run:
    """Return a run of faults in plain tests and the processes that they launch."""
    return run_once({"model.py": MODEL, "test_plain.py": PLAIN})


@pytest.mark.parametrize(
    "name",
    [
        "test_checkpoint_before_a_death[kill-static]",
        "test_checkpoint_before_a_death[exit-static]",
        "test_checkpoint_before_a_death[kill-dynamic]",
        "test_checkpoint_before_a_death[exit-dynamic]",
        "test_next_in_a_new_world",
        "test_three_ranks",
        "test_wait_for_one_that_has_left",
        "test_standalone[0]",
        "test_standalone[1]",
    ],
)
def test_other_ranks_decide_after_a_death(worlds: Run, name: str) -> None:
    """A rank that ends as planned fails nothing: the others catch the error of torch and look at what is left."""
    assert worlds.outcome(name) == "passed", worlds.text(name)


def test_wider_fixtures_end_on_the_ranks_that_are_left(worlds: Run) -> None:
    """A static world in which a rank was killed is retired in order: rank 0 ends its module fixture, in four tests."""
    assert (worlds.folder / "ended.txt").read_text().split() == ["0"] * 4


def test_folder_of_a_killed_rank_is_in_that_of_the_run(worlds: Run) -> None:
    """A rank that is killed can not remove the folder of its faults: pytest does, as it is in the run's own."""
    assert list((worlds.folder / "base").glob("disttest-faults-*")) != []


@pytest.mark.parametrize(
    "name",
    [
        "test_delay",
        "test_standalone_delay",
        "test_stop_for_a_while",
        "test_stop_for_ever[static]",
        "test_stop_for_ever[dynamic]",
        "test_stop_for_ever_standalone",
        "test_handled_signal",
    ],
)
def test_slow_and_stopped_ranks(worlds: Run, name: str) -> None:
    """A delayed rank and one that goes on end as usual; one that is stopped for ever is ended when the others are."""
    assert worlds.outcome(name) == "passed", worlds.text(name)


def test_errors_of_the_other_ranks_count(worlds: Run) -> None:
    """An error that another rank does not catch is the failure; the planned end is shown beside it, not as a cause."""
    text = worlds.text("test_uncaught_in_another")
    assert worlds.outcome("test_uncaught_in_another") == "failed"
    assert lines_with(text, "rank 0 of 2", "lost its connection to a peer in call <- the cause")
    own = lines_with(text, "rank 1 of 2", "was ended by the test's own fault (SIGKILL on rank 1 at step 3), in call")
    assert len(own) == 1, text
    assert "cause" not in own[0]

    text = worlds.text("test_other_rank_fails")
    assert lines_with(text, "rank 0 of 2", "failed in call <- the cause"), text
    assert lines_with(text, "rank 1 of 2", "(exit with status 7 on rank 1 in here)"), text

    text = worlds.text("test_other_rank_hangs")
    assert lines_with(text, "rank 0 of 2", "was still in call at the time limit of 3 s <- the cause"), text


@pytest.mark.parametrize(
    ("name", "fault"),
    [("test_all_ranks", "ended by the test's own fault (SIGKILL on rank 0 in here)"), ("test_world_of_one", "SIGSTOP")],
)
def test_nobody_left_is_a_failure(worlds: Run, name: str, fault: str) -> None:
    """If the fault leaves no rank, nobody can say how the test ends: it fails and says so."""
    assert worlds.outcome(name) == "failed"
    nobody = "and no rank is left that could come to the end of the test"
    assert lines_with(worlds.text(name), "rank 0", fault, nobody), worlds.text(name)


@pytest.mark.parametrize(
    "name",
    ["test_without_a_plan", "test_another_death_than_planned", "test_a_child_of_a_rank_does_not_speak_for_it"],
)
def test_death_without_a_plan_is_a_failure(worlds: Run, name: str) -> None:
    """A death that was not planned, or another than was, fails the test; so does one that only a child announced."""
    assert worlds.outcome(name) == "failed"
    assert lines_with(worlds.text(name), "rank 1 of 2", "died in call: killed by SIGKILL", "<- the cause")


def test_rank_outside_of_the_world_is_an_error(worlds: Run) -> None:
    """A fault for a rank that the world has not is refused at once, and is no fault that never happened."""
    assert worlds.outcome("test_rank_outside") == "passed", worlds.text("test_rank_outside")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_never", "rank 1: Failed: the fault kill(rank=1, step=100) never happened: training ended at step 8"),
        (
            "test_never_in_hook",
            "the fault exit(rank=0, step=2, hook='on_test_start') never happened: training ended at step 8, and "
            "on_test_start was not called from step 2 on",
        ),
        ("test_never_standalone", "the fault kill(rank=[1, 2], step=100) never happened: training ended at step 8"),
        ("test_never_standalone", "the fault kill(rank=[1, 2], step=100) never happened: there was no rank 2"),
    ],
)
def test_fault_that_never_happened_on_ranks(worlds: Run, name: str, text: str) -> None:
    """A fault that did not happen is an error at the end of the test, on the rank that it was planned for."""
    assert worlds.outcome(name) == "error", worlds.text(name)
    assert text in worlds.text(name)


def test_failed_test_tells_only_its_failure_on_ranks(worlds: Run) -> None:
    """A body that failed may not have come to the fault: nothing is said of it."""
    assert worlds.outcome("test_never_and_failed") == "failed"
    assert "never happened" not in worlds.text("test_never_and_failed")


@pytest.mark.parametrize("hook", HOOKS)
def test_exception_in_each_hook(raised: Run, hook: str) -> None:
    """The exception comes from rank 1 alone, in that hook: after all that goes before it and before all else."""
    name = f"test_raise[{hook}]"
    assert raised.outcome(name) == "failed"
    text = raised.text(name)
    assert lines_with(text, "rank 1 of 2", "failed in call <- the cause"), text
    assert text.count(f"ZeroDivisionError: planned in {hook}") >= 1
    heard = (raised.folder / f"{hook}-1.txt").read_text().split()
    assert heard[-2:] == [BEFORE.get(hook, hook), "on_exception"]
    assert heard.count(BEFORE.get(hook, hook)) == 1


@pytest.mark.parametrize(
    "name",
    [
        "test_resume[ddp_spawn]",
        "test_resume[ddp_fork]",
        "test_error_in_a_launched_process",
        "test_stop_of_a_launched_process",
        "test_fabric",
        *(f"test_hook_in_this_process[{hook}]" for hook in ("training_step", "forward", "backward", "state_dict")),
        "test_hook_in_this_process[configure_optimizers]",
        "test_other_package",
    ],
)
def test_plain_tests(plain: Run, name: str) -> None:
    """Faults happen in processes that a Trainer or Fabric launches, and, if they harm nobody else, in pytest's own."""
    assert plain.outcome(name) == "passed", plain.text(name)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("test_refused[kill]", "the fault kill(rank=0, step=3) would kill pytest itself"),
        ("test_refused[exit]", "the fault exit(rank=0, step=3) would end pytest itself"),
        ("test_refused[stop]", "the fault stop(rank=0, step=3) would stop pytest itself"),
        ("test_refused_in_a_loop", "the fault kill(rank=0, hook='here') would kill pytest itself"),
    ],
)
def test_pytest_itself_is_spared(plain: Run, name: str, fault: str) -> None:
    """What would end or stop the pytest process is refused with advice, and that is all that is said."""
    assert plain.outcome(name) == "failed", plain.text(name)
    assert fault in plain.text(name)
    assert 'strategy="ddp_spawn" or "ddp_fork"' in plain.text(name)
    assert "never happened" not in plain.text(name)


def test_misspelt_hook_is_found_by_the_trainer(plain: Run) -> None:
    """A name that could be one of a user's loop is refused by a Trainer, with the names that are near."""
    assert plain.outcome("test_misspelt_at_use") == "failed"
    assert "hook='train_step' is no hook that a Trainer calls; did you mean" in plain.text("test_misspelt_at_use")
    assert "'training_step'" in plain.text("test_misspelt_at_use")


@pytest.mark.parametrize(
    ("name", "outcome", "text"),
    [
        ("test_never", "error", "the fault error(rank=0, step=100) never happened: training ended at step 8"),
        ("test_never_such_a_rank", "error", "the fault error(rank=1, step=3) never happened: there was no rank 1"),
        ("test_never_launched", "error", "the fault kill(rank=1, step=100) never happened: training ended at step 8"),
        (
            "test_never_used",
            "error",
            "the fault delay(rank='all', step=0) never happened: no Trainer had it among its callbacks, and no loop "
            "called its reach()",
        ),
        ("test_never_and_failed", "failed", ""),
        ("test_never_and_xfailed", "xfailed", ""),
        ("test_never_and_skipped", "skipped", ""),
    ],
)
def test_fault_that_never_happened_in_plain_tests(plain: Run, name: str, outcome: str, text: str) -> None:
    """It is told in plain tests and of launched processes too, unless the body has failed or skipped."""
    assert plain.outcome(name) == outcome, plain.text(name)
    assert text in plain.text(name)
    assert bool(text) == ("never happened" in plain.text(name))
