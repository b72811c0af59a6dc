"""fabric_factory: Fabrics that are fitted to the world of the test, and gone after it."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

SOURCE = """
    import functools, threading
    import pytest
    import torch
    import torch.distributed as dist
    from lightning.fabric.loggers import CSVLogger
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

    static = pytest.mark.distributed(2)

    def step(fabric, layer=None):
        layer = layer or torch.nn.Linear(4, 1)
        model = fabric.setup_module(layer)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        loss = model(torch.full((2, 4), 1.0 + fabric.global_rank)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        return model

    WORLDS = [
        pytest.param(1, id="plain"),
        pytest.param(1, id="one", marks=pytest.mark.distributed(1)),
        pytest.param(2, id="static", marks=static),
        pytest.param(2, id="dynamic", marks=pytest.mark.distributed(2, static=False)),
        pytest.param(1, id="standalone", marks=pytest.mark.standalone),
    ]

    @pytest.mark.parametrize("size", WORLDS)
    def test_defaults(fabric_factory, world, size):
        fabric = fabric_factory()
        before = dist.is_initialized() and dist.distributed_c10d._get_default_group()
        fabric.launch()
        assert (fabric.world_size, fabric.global_rank) == (size, world.rank)
        assert fabric.device.type == "cpu"
        assert (dist.is_initialized() and dist.distributed_c10d._get_default_group()) is before
        model = step(fabric)
        world.record("weight", model.weight)
        assert fabric.all_reduce(torch.tensor(1.0 + world.rank), reduce_op="sum") == sum(range(1, size + 1))
        assert fabric.launch(lambda fabric, number: number + fabric.global_rank, 5) == 5 + world.rank

    @pytest.mark.standalone
    def test_standalone_ddp(fabric_factory, world):
        first = fabric_factory(strategy="ddp", devices=2)
        first.launch()
        assert (first.world_size, first.global_rank) == (2, world.rank)
        second = fabric_factory(strategy="ddp", devices=2)
        second.launch()
        world.record("weight", step(second).weight)
        assert dist.get_world_size() == 2

    @static
    @pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_true", DDPStrategy], ids=str)
    def test_strategies(fabric_factory, world, strategy):
        fabric = fabric_factory(strategy=strategy if isinstance(strategy, str) else strategy())
        fabric.launch()
        world.record("weight", step(fabric).weight)

    def shard(module, mesh):
        from torch.distributed.fsdp import fully_shard
        return fully_shard(module, mesh=mesh["data_parallel"])

    @pytest.mark.parametrize("size", [
        pytest.param({}, id="static", marks=static),
        pytest.param({"devices": 2}, id="standalone", marks=pytest.mark.standalone),
    ])
    def test_model_parallel(fabric_factory, size):
        strategy = ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1)
        fabric = fabric_factory(strategy=strategy, **size)
        fabric.launch()
        assert type(step(fabric).weight).__name__ == "DTensor"

    @static
    def test_fsdp(fabric_factory):
        fabric_factory(strategy="fsdp")

    @static
    @pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook", DDPStrategy(start_method="spawn")])
    def test_launchers(fabric_factory, strategy):
        fabric_factory(strategy=strategy)

    @static
    def test_given_environment(fabric_factory):
        own = LightningEnvironment()
        fabric = fabric_factory(plugins=own)
        assert fabric.strategy.cluster_environment is own
        fabric.launch()

    @pytest.mark.parametrize("ranks", [pytest.param(None, id="plain"), pytest.param(2, id="static", marks=static)])
    def test_deepspeed(fabric_factory, ranks):
        fabric_factory(strategy="deepspeed")

    @static
    @pytest.mark.parametrize("number", [0, 1])
    def test_logger(fabric_factory, tmp_path, world, number):
        for version in (0, 1):
            fabric = fabric_factory(loggers=CSVLogger(tmp_path))
            assert fabric.logger.version == version
            fabric.launch()
            fabric.log("loss", 0.5)
        world.barrier()
        assert fabric.logger.version == 1

    def test_group_of_a_plain_test(fabric_factory):
        fabric = fabric_factory(strategy="ddp")
        fabric.launch()
        assert dist.is_initialized()
        step(fabric)

    def test_group_is_gone():
        assert not dist.is_initialized()
        assert "child-process-observer" not in [thread.name for thread in threading.enumerate()]

    @static
    def test_the_other_package(world, tmp_path):
        import sys
        from lightning_disttest.strategies.fabric import FabricMaker
        for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
            del sys.modules[name]
        import lightning_fabric
        fabric = FabricMaker(tmp_path, world)()
        assert isinstance(fabric, lightning_fabric.Fabric)
        fabric.launch()
        assert fabric.world_size == 2
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of tests that make Fabrics, in which what a test leaves is an error."""
    return run_once({"test_fabrics.py": SOURCE}, "--disttest-strict-leaks")


@pytest.mark.parametrize("world", ["plain", "one", "static", "dynamic", "standalone"])
def test_one_body_in_every_world(run: Run, world: str) -> None:
    """A Fabric has the ranks that are there, starts none, makes no second group, and its ranks learn the same."""
    assert run.outcome(f"test_defaults[{world}]") == "passed", run.text(f"test_defaults[{world}]")


@pytest.mark.parametrize(
    "name",
    [
        "test_standalone_ddp",
        "test_strategies[ddp]",
        "test_strategies[ddp_find_unused_parameters_true]",
        "test_strategies[<class 'lightning.fabric.strategies.ddp.DDPStrategy'>]",
        "test_model_parallel[static]",
        "test_model_parallel[standalone]",
        "test_given_environment",
        "test_logger[0]",
        "test_logger[1]",
        "test_group_of_a_plain_test",
        "test_group_is_gone",
        "test_the_other_package",
    ],
)
def test_factory(run: Run, name: str) -> None:
    """Strategies and plugins can be given, ranks log to one folder, and nothing is left."""
    assert run.outcome(name) == "passed", run.text(name)


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook", "strategy3"])
def test_launchers_are_refused(run: Run, strategy: str) -> None:
    """In a world a strategy that launches processes of its own is an error that says where it can be used."""
    name = f"test_launchers[{strategy}]"
    assert run.outcome(name) == "failed"
    text = (
        "which runs on each rank of a world of 2: it launches processes of its own. Leave strategy out, or use it in a"
    )
    assert lines_with(run.text(name), "WorldMismatch: strategy=", text), run.text(name)


def test_error_of_lightning_comes_through(run: Run) -> None:
    """What Lightning can not do on a CPU is its own error, on all ranks alike."""
    assert run.outcome("test_fsdp") == "failed"
    assert lines_with(run.text("test_fsdp"), "ValueError: You selected the FSDP strategy but FSDP is only available on")
    assert "ranks 0-1 of 2" in run.text("test_fsdp")


@pytest.mark.parametrize("world", ["plain", "static"])
def test_deepspeed_is_skipped(run: Run, world: str) -> None:
    """Where DeepSpeed is not installed, a test of it is skipped for that reason."""
    assert run.outcome(f"test_deepspeed[{world}]") == "skipped"
    assert "needs the package deepspeed, which is not installed" in run.text(f"test_deepspeed[{world}]")
