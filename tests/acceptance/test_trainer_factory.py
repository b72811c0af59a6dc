"""trainer_factory: quick and quiet Trainers, fitted to the world of the test."""

from __future__ import annotations

import importlib.util

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

STRATEGIES = """
    import pytest
    import torch
    import torch.distributed as dist
    from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, ModelParallelStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities import rank_zero_only

    static = pytest.mark.distributed(2)
    both = pytest.mark.parametrize("size", [
        pytest.param({}, id="static", marks=static),
        pytest.param({"devices": 2}, id="standalone", marks=pytest.mark.standalone),
    ])

    class Sharded(BoringModel):
        def configure_model(self):
            from torch.distributed.fsdp import fully_shard
            if not isinstance(self.layer.weight, dist.tensor.DTensor):
                fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    STRATEGIES = {
        "ddp": lambda: "ddp",
        "true": lambda: "ddp_find_unused_parameters_true",
        "false": lambda: "ddp_find_unused_parameters_false",
        "object": lambda: DDPStrategy(find_unused_parameters=True),
        "environment": lambda: DDPStrategy(cluster_environment=LightningEnvironment()),
        "accelerator": lambda: DDPStrategy(accelerator=CPUAccelerator()),
        "model parallel": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    }

    @both
    @pytest.mark.parametrize("name", STRATEGIES)
    def test_strategy(trainer_factory, world, size, name):
        strategy = STRATEGIES[name]()
        trainer = trainer_factory(strategy=strategy, **size)
        trainer.fit(Sharded() if name == "model parallel" else BoringModel())
        assert strategy in (trainer.strategy, name, f"ddp_find_unused_parameters_{name}")
        assert (trainer.world_size, trainer.global_rank) == (2, world.rank)
        assert rank_zero_only.rank == world.rank
        assert trainer.is_global_zero == (world.rank == 0)

    def foreign():
        class Foreign(LightningEnvironment):
            def global_rank(self): return 3
            def set_global_rank(self, rank): pass
        return Foreign()

    class Reserved(DDPStrategy):
        def __repr__(self): return "Reserved()"

    UNFIT = {
        "devices": lambda: {"devices": 4},
        "num_nodes": lambda: {"num_nodes": 2},
        "accelerator": lambda: {"accelerator": "gpu"},
        "spawn": lambda: {"strategy": "ddp_spawn"},
        "spawn variant": lambda: {"strategy": "ddp_spawn_find_unused_parameters_true"},
        "fork": lambda: {"strategy": "ddp_fork"},
        "notebook": lambda: {"strategy": "ddp_notebook_find_unused_parameters_false"},
        "object": lambda: {"strategy": Reserved(start_method="fork")},
        "single device": lambda: {"strategy": SingleDeviceStrategy("cpu")},
        "parallel devices": lambda: {"strategy": Reserved(parallel_devices=[torch.device("cpu")])},
        "environment": lambda: {"plugins": foreign()},
    }

    @static
    @pytest.mark.parametrize("name", UNFIT)
    def test_unfit(trainer_factory, name):
        trainer_factory(**UNFIT[name]())

    @static
    def test_after_a_refusal(trainer_factory, world):
        with pytest.raises(ValueError, match="takes rank"):
            trainer_factory(plugins=[foreign()])
        trainer = trainer_factory()
        trainer.fit(BoringModel())
        assert rank_zero_only.rank == trainer.global_rank == world.rank

    @static
    @pytest.mark.parametrize("strategy", ["fsdp", "dp", "no_such"])
    def test_errors_of_lightning(trainer_factory, strategy):
        trainer_factory(strategy=strategy)

    @pytest.mark.parametrize("size", [pytest.param({}, id="plain"), pytest.param({}, id="static", marks=static)])
    @pytest.mark.parametrize("kind", ["name", "object"])
    def test_deepspeed(trainer_factory, size, kind):
        strategy = "deepspeed_stage_2" if kind == "name" else DeepSpeedStrategy.__new__(DeepSpeedStrategy)
        trainer_factory(strategy=strategy, **size)

    FIT = [
        {"accelerator": "auto"}, {"accelerator": CPUAccelerator()}, {"devices": "auto"}, {"devices": -1},
        {"devices": "2"}, {"devices": [0, 1]}, {"num_nodes": 1}, {"strategy": "auto"},
        {"plugins": [LightningEnvironment()]}, {"plugins": TorchElasticEnvironment()},
    ]

    @static
    @pytest.mark.parametrize("number", range(len(FIT)))
    def test_arguments_that_fit(trainer_factory, world, number):
        trainer = trainer_factory(**FIT[number])
        trainer.fit(BoringModel())
        assert (trainer.world_size, trainer.global_rank) == (2, world.rank)
        plugins = FIT[number].get("plugins", [])
        given = plugins if isinstance(plugins, list) else [plugins]
        assert given in ([], [trainer.strategy.cluster_environment])

    @pytest.mark.standalone
    def test_rank_zero_before_the_trainer(trainer_factory, tmp_path):
        import os
        launched = int(os.environ.get("LOCAL_RANK", "0"))
        assert rank_zero_only.rank == launched
        for _ in range(2):
            trainer = trainer_factory(strategy="ddp", devices=2)
            trainer.fit(BoringModel())
            assert rank_zero_only.rank == trainer.global_rank == launched
            assert dist.get_world_size() == 2

    @both
    def test_checkpoints(trainer_factory, tmp_path, world, size):
        strategy = {"strategy": "ddp"} | size
        trainer = trainer_factory(enable_checkpointing=True, logger=True, **strategy)
        trainer.fit(BoringModel())
        expected = tmp_path / "lightning_logs" / "version_0"
        assert trainer.log_dir == str(expected)
        assert trainer.checkpoint_callback.dirpath == str(expected / "checkpoints")
        assert [path.name for path in (expected / "checkpoints").iterdir()] == ["epoch=0-step=2.ckpt"]
        path = tmp_path / "own.ckpt"
        trainer.save_checkpoint(path)
        model = BoringModel.load_from_checkpoint(path)
        world.record("weight", model.layer.weight)
        again = trainer_factory(max_epochs=2, **strategy)
        again.fit(BoringModel(), ckpt_path=path)
        assert (again.current_epoch, again.global_step) == (2, 4)
"""

LOGGERS = """
    from importlib.util import find_spec
    import pytest
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    ranks = pytest.mark.parametrize("ranks", [
        pytest.param(2, marks=pytest.mark.distributed(2)), pytest.param(3, marks=pytest.mark.distributed(3))
    ])
    KINDS = {
        "default": lambda folder: True,
        "csv": CSVLogger,
        "tensorboard": TensorBoardLogger,
        "both": lambda folder: [TensorBoardLogger(folder), CSVLogger(folder)],
    }
    if find_spec("tensorboard") is None:
        del KINDS["tensorboard"], KINDS["both"]

    def write(trainer):
        for logger in trainer.loggers:
            logger.log_metrics({"loss": 1.0}, step=0)
            logger.save()

    @ranks
    @pytest.mark.parametrize("kind", KINDS)
    def test_slow_ranks(trainer_factory, world, tmp_path, ranks, kind):
        for turn in range(ranks):
            if turn == world.rank:  # those before have made their Trainers, and rank 0 its folders, long ago
                made = [trainer_factory(logger=KINDS[kind](tmp_path)) for _ in range(2)]
                if world.is_rank_zero:
                    for trainer in made:
                        write(trainer)
                    assert len(list(tmp_path.rglob("version_*"))) == 2
            world.barrier()
        assert [[logger.version for logger in trainer.loggers] for trainer in made] == [
            [version] * len(trainer.loggers) for version, trainer in enumerate(made)
        ]
        world.record("folder", made[1].log_dir)

    @ranks
    def test_quick_last_rank(trainer_factory, world, tmp_path, ranks):
        for turn in reversed(range(ranks)):
            if turn == world.rank:
                trainer = trainer_factory(logger=True)
                write(trainer)
            world.barrier()
        assert trainer.logger.version == 0

    @ranks
    def test_only_some_ranks(trainer_factory, world, tmp_path, ranks):
        if not world.is_rank_zero:
            assert trainer_factory(logger=True).logger.version == 0
        world.barrier()
        assert trainer_factory(logger=CSVLogger(tmp_path, version=7)).logger.version == 7
        assert trainer_factory(logger=CSVLogger(tmp_path, name="other")).logger.version == 0

    @ranks
    def test_earlier_versions(trainer_factory, world, tmp_path, ranks):
        if world.is_rank_zero:
            (tmp_path / "lightning_logs" / "version_4").mkdir(parents=True)
        world.barrier()
        trainer = trainer_factory(logger=True)
        trainer.fit(BoringModel())
        assert trainer.logger.version == 5
        assert trainer.log_dir == str(tmp_path / "lightning_logs" / "version_5")

    def test_unused_loggers_write_nothing(trainer_factory, tmp_path, request):
        for kind in KINDS.values():
            trainer_factory(logger=kind(tmp_path))
        request.config.stash["folder"] = tmp_path

    def test_nothing_was_written(request):
        assert list(request.config.stash["folder"].iterdir()) == []

    def test_what_was_logged_is_written(trainer_factory, tmp_path, request):
        logger = CSVLogger(tmp_path)
        trainer_factory(logger=logger)
        logger.log_metrics({"loss": 0.25}, step=0)
        request.config.stash["folder"] = tmp_path

    def test_it_was_written(request):
        (path,) = request.config.stash["folder"].rglob("metrics.csv")
        assert "0.25" in path.read_text()
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


needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard, which is not installed"
)
STRATEGY_NAMES = ["ddp", "true", "false", "object", "environment", "accelerator", "model parallel"]
UNFIT = {
    "devices": "devices=4 does not fit this test, which runs on each rank of a world of 2. Leave devices out, or "
    "change world_size in the test's mark.",
    "num_nodes": "num_nodes=2 does not fit this test",
    "accelerator": "accelerator='gpu' does not fit this test",
    "spawn": "strategy='ddp_spawn' does not fit this test, which runs on each rank of a world of 2: it launches "
    "processes of its own. Leave strategy out, or use it in a plain test or in one marked standalone, which start with "
    "one process.",
    "spawn variant": "strategy='ddp_spawn_find_unused_parameters_true' does not fit this test, which runs on each rank "
    "of a world of 2: it launches processes of its own.",
    "fork": "strategy='ddp_fork' does not fit",
    "notebook": "strategy='ddp_notebook_find_unused_parameters_false' does not fit",
    "object": "strategy=Reserved() does not fit this test, which runs on each rank of a world of 2: it launches",
    "single device": "a world of 2: it makes a world of 1. Leave strategy out",
    "parallel devices": "strategy=Reserved() does not fit this test, which runs on each rank of a world of 2: it has "
    "the devices of 1. Leave strategy out",
    "environment": "a world of 2: it takes rank 1 for rank 3. Leave plugins out, or let it have the ranks of the "
    "world.",
}
ERRORS_OF_LIGHTNING = {
    "fsdp": "ValueError: The strategy `fsdp` requires a GPU accelerator",
    "dp": "ValueError: You selected an invalid strategy name: `strategy='dp'`",
    "no_such": "ValueError: You selected an invalid strategy name: `strategy='no_such'`",
}


@pytest.fixture(scope="module")
def strategies(run_once: RunOnce) -> Run:
    """Return one run of tests that give strategies, in which what a test leaves is an error."""
    return run_once({"test_strategies.py": STRATEGIES, "test_loggers.py": LOGGERS}, "--disttest-strict-leaks")


@pytest.mark.parametrize("world", ["static", "standalone"])
@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_strategies_train(strategies: Run, name: str, world: str) -> None:
    """What gloo and CPUs can do trains in a world and standalone, with the right ranks, and leaves nothing."""
    assert strategies.outcome(f"test_strategy[{name}-{world}]") == "passed", strategies.text(
        f"test_strategy[{name}-{world}]"
    )


@pytest.mark.parametrize("name", UNFIT)
def test_what_a_world_cannot_serve(strategies: Run, name: str) -> None:
    """What does not fit the world is an error that says why, and what to do."""
    assert strategies.outcome(f"test_unfit[{name}]") == "failed"
    text = strategies.text(f"test_unfit[{name}]")
    assert lines_with(text, "WorldMismatch: ", UNFIT[name]), text


@pytest.mark.parametrize("strategy", ERRORS_OF_LIGHTNING)
def test_errors_of_lightning_come_through(strategies: Run, strategy: str) -> None:
    """What Lightning refuses, it refuses in its own words."""
    assert strategies.outcome(f"test_errors_of_lightning[{strategy}]") == "failed"
    text = strategies.text(f"test_errors_of_lightning[{strategy}]")
    assert lines_with(text, ERRORS_OF_LIGHTNING[strategy]), text


@pytest.mark.parametrize("world", ["plain", "static"])
@pytest.mark.parametrize("kind", ["name", "object"])
def test_deepspeed_is_skipped(strategies: Run, kind: str, world: str) -> None:
    """Where DeepSpeed is not installed, a test of it is skipped for that reason, at the line of the test."""
    name = f"test_deepspeed[{kind}-{world}]"
    assert strategies.outcome(name) == "skipped"
    shown = "deepspeed_stage_2" if kind == "name" else "DeepSpeedStrategy"
    reason = f"the strategy {shown} needs the package deepspeed, which is not installed"
    assert lines_with(strategies.text(name), "test_strategies.py", reason), strategies.text(name)


@pytest.mark.parametrize(
    "name",
    [
        "test_after_a_refusal",
        *(f"test_arguments_that_fit[{number}]" for number in range(10)),
        "test_rank_zero_before_the_trainer",
        "test_checkpoints[static]",
        "test_checkpoints[standalone]",
    ],
)
def test_ranks_and_files(strategies: Run, name: str) -> None:
    """Ranks know which one they are, write checkpoints to one folder and load them, before and after a launch."""
    assert strategies.outcome(name) == "passed", strategies.text(name)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "kind",
    [
        "default",
        "csv",
        pytest.param("tensorboard", marks=needs_tensorboard),
        pytest.param("both", marks=needs_tensorboard),
    ],
)
def test_slow_ranks_log_to_the_same_version(strategies: Run, kind: str, ranks: int) -> None:
    """A rank that comes when rank 0 has made its folders has the same versions, one after the other."""
    name = f"test_slow_ranks[{kind}-{ranks}]"
    assert strategies.outcome(name) == "passed", strategies.text(name)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["test_quick_last_rank", "test_only_some_ranks", "test_earlier_versions"])
def test_versions_need_no_other_rank(strategies: Run, name: str, ranks: int) -> None:
    """Whoever comes first decides, nobody waits, and versions that are there already are not used."""
    assert strategies.outcome(f"{name}[{ranks}]") == "passed", strategies.text(f"{name}[{ranks}]")


@pytest.mark.parametrize(
    "name",
    [
        "test_unused_loggers_write_nothing",
        "test_nothing_was_written",
        "test_what_was_logged_is_written",
        "test_it_was_written",
    ],
)
def test_only_used_loggers_are_finalized(strategies: Run, name: str) -> None:
    """At its end a test writes what its loggers hold, and makes no files for those that hold nothing."""
    assert strategies.outcome(name) == "passed", strategies.text(name)
