"""What a Trainer or a Fabric changes is undone after its test, in plain tests too, and what a test leaves is told."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.acceptance.test_isolation import leaks_of
from tests.harness import Run, lines_with

STATE = """
    import os, signal, threading
    import pytest
    import torch
    import torch.distributed as dist
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch import seed_everything
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.utilities import rank_zero_only

    class Foreign(LightningEnvironment):
        def global_rank(self): return 3
        def set_global_rank(self, rank): pass

    def state():
        return {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn": torch.is_deterministic_algorithms_warn_only_enabled(),
            "benchmark": torch.backends.cudnn.benchmark,
            "variables": dict(os.environ, PYTEST_CURRENT_TEST=""),
            "rank": rank_zero_only.rank,
            "groups": list(dist.distributed_c10d._world.pg_names.values()),
            "handlers": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)],
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "seed": torch.initial_seed(),
            "number": torch.rand(1).item(),
        }

    def mistake_rank(make):
        if dist.is_initialized():
            with pytest.raises(ValueError, match="takes rank"):
                make(plugins=[Foreign()])
        else:
            make(strategy="ddp", plugins=[Foreign()])
        assert rank_zero_only.rank == 3

    def seed(make):
        seed_everything(5, workers=True)
        make().fit(BoringModel())

    def handle(make):
        make().fit(BoringModel())
        signal.signal(signal.SIGCONT, print)

    CASES = {
        "deterministic": lambda make: make(deterministic=True).fit(BoringModel()),
        "warn": lambda make: make(deterministic="warn").fit(BoringModel()),
        "benchmark": lambda make: make(benchmark=True).fit(BoringModel()),
        "ddp": lambda make: make(strategy="ddp").fit(BoringModel()),
        "loggers": lambda make: make(logger=True).fit(BoringModel()),
        "checkpoints": lambda make: make(enable_checkpointing=True).fit(BoringModel()),
        "rank": mistake_rank,
        "seed": seed,
        "handler": handle,
    }
    STEPS = [(case, step) for case in CASES for step in ("changes", "after")]
    FIRST = {}

    @pytest.mark.parametrize("world_size", [
        pytest.param(0, id="plain"), pytest.param(2, id="static", marks=pytest.mark.distributed(2)),
    ])
    @pytest.mark.parametrize(("case", "step"), STEPS, ids=[f"{case}-{step}" for case, step in STEPS])
    def test_state(case, step, world_size, trainer_factory):
        rank_zero_only.rank
        if step == "changes":
            FIRST[case] = state()
            CASES[case](trainer_factory)
        else:
            assert state() == FIRST[case]
"""
CASES = ["deterministic", "warn", "benchmark", "ddp", "loggers", "checkpoints", "rank", "seed", "handler"]

TOLD = """
    import os, threading
    import pytest
    import torch.distributed as dist
    from lightning.pytorch.demos.boring_classes import BoringModel

    STOP = threading.Event()
    standalone = pytest.mark.standalone

    def leave(name):
        os.environ[f"LEAKED_{name}"] = "1"
        threading.Thread(target=STOP.wait, name=f"thread of {name}", daemon=True).start()

    def test_trainer(trainer_factory):
        leave("trainer")

    def test_fabric(fabric_factory):
        leave("fabric")

    @pytest.fixture
    def fitted(trainer_factory):
        return trainer_factory()

    def test_fixture(fitted):
        leave("fixture")

    @standalone
    def test_standalone(trainer_factory):
        leave("standalone")

    @pytest.mark.distributed(2, static=False)
    def test_dynamic(trainer_factory):
        leave("dynamic")

    def test_no_factory():
        leave("nobody")

    TRIES = []

    @pytest.mark.flaky(reruns=1)
    def test_again(trainer_factory):
        assert "LEAKED_again" not in os.environ
        os.environ["LEAKED_again"] = "1"
        TRIES.append(1)
        assert len(TRIES) == 2

    def test_group(fabric_factory):
        fabric_factory(strategy="ddp").launch()
        dist.new_group([0])

    def test_what_is_left():
        left = {name for name in os.environ if name.startswith("LEAKED_")}
        assert left == {"LEAKED_nobody"}
        assert not dist.is_initialized()
        STOP.set()
        os.environ.pop("LEAKED_nobody")
"""
FIXTURES = """
    import os
    import pytest
    import torch.distributed as dist
    from lightning.pytorch.demos.boring_classes import BoringModel

    @pytest.fixture(scope="module")
    def shared():
        os.environ["OF_THE_MODULE"] = "1"
        yield
        del os.environ["OF_THE_MODULE"]

    @pytest.fixture(scope="module")
    def group():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()

    @pytest.fixture
    def folder(tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def test_patch_before(monkeypatch, folder, trainer_factory):
        monkeypatch.setenv("PATCHED", "1")
        trainer_factory().fit(BoringModel())

    def test_patch_after(trainer_factory, folder, monkeypatch, shared):
        monkeypatch.setenv("PATCHED", "1")
        trainer_factory().fit(BoringModel())

    def test_wider_scope_stays(shared):
        assert os.environ["OF_THE_MODULE"] == "1"
        assert "PATCHED" not in os.environ

    def test_group_of_the_module(group, trainer_factory):
        trainer_factory(strategy="ddp").fit(BoringModel())

    def test_group_stays(group, trainer_factory):
        assert dist.is_initialized()

    def test_end_of_wider_scope(shared, trainer_factory):
        trainer_factory()
"""
ENDS = """
    import pytest
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

    ENDED = []
    both = pytest.mark.parametrize("bases", [
        pytest.param((SingleDeviceStrategy, "cpu"), id="plain"),
        pytest.param((DDPStrategy,), id="static", marks=pytest.mark.distributed(2)),
    ])

    @both
    def test_bad_ends(trainer_factory, bases):
        class Bad(bases[0]):
            def teardown(self):
                ENDED.append(self.number)
                raise RuntimeError(f"bad end of number {self.number}")

        for number in range(3):
            trainer_factory(strategy=Bad(*bases[1:])).strategy.number = number
        raise LookupError("the failure of the test itself")

    def test_all_were_ended():
        assert ENDED == [2, 1, 0]
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run in which leaks are warnings."""
    files = {"test_state.py": STATE, "test_told.py": TOLD, "test_fixtures.py": FIXTURES, "test_ends.py": ENDS}
    return run_once(files)


@pytest.fixture(scope="module")
def strict(run_once: RunOnce) -> Run:
    """Return one run in which leaks are errors."""
    return run_once({"test_told.py": TOLD, "test_fixtures.py": FIXTURES}, "--disttest-strict-leaks")


@pytest.mark.parametrize("world", ["plain", "static"])
@pytest.mark.parametrize("case", CASES)
def test_state_is_as_before(run: Run, case: str, world: str) -> None:
    """What Trainers set, in the process and in the environment, the next test does not find."""
    for step in ("changes", "after"):
        name = f"test_state[{case}-{step}-{world}]"
        assert run.outcome(name) == "passed", run.text(name)
    said = leaks_of(run).get(f"test_state[{case}-changes-{world}]", [])
    told = ["changed the handler of SIGCONT; it was set back" + (" (ranks 0-1)" if world == "static" else "")]
    assert said == (told if case == "handler" else [])


@pytest.mark.parametrize(
    ("name", "fate"),
    [
        ("trainer", "that stays so in the tests after it"),
        ("fabric", "that stays so in the tests after it"),
        ("fixture", "that stays so in the tests after it"),
        ("standalone", "that ends with the process of the test"),
        ("dynamic", "that ends with the process of the test (ranks 0-1)"),
    ],
)
def test_leaks_are_told_of(run: Run, name: str, fate: str) -> None:
    """A test that uses a factory, itself or by a fixture, is told of what it left and of what becomes of that."""
    ranks = " (ranks 0-1)" if name == "dynamic" else ""
    assert leaks_of(run).get(f"test_{name}") == [
        f"left the thread 'thread of {name}' running; {fate}",
        f"set the environment variable LEAKED_{name}; it was removed{ranks}",
    ]


def test_each_try_is_looked_at(run: Run) -> None:
    """A test that a plugin runs again finds nothing of its first try, and is told of what each has left."""
    assert run.outcome("test_again") == "passed", run.text("test_again")
    assert leaks_of(run).get("test_again") == ["set the environment variable LEAKED_again; it was removed"] * 2


def test_only_tests_with_a_factory_are_looked_at(run: Run) -> None:
    """Another plain test may leave what it likes; groups of a plain test are destroyed, and only its own is told of."""
    leaks = leaks_of(run)
    assert "test_no_factory" not in leaks
    assert "test_group" not in leaks
    assert run.outcome("test_what_is_left") == "passed", run.text("test_what_is_left")


@pytest.mark.parametrize(
    "name",
    [
        "test_patch_before",
        "test_patch_after",
        "test_wider_scope_stays",
        "test_group_of_the_module",
        "test_group_stays",
        "test_end_of_wider_scope",
    ],
)
def test_fixtures_are_respected(strict: Run, name: str) -> None:
    """What other fixtures change, and undo at their end, before or after the factory, is no leak, and stays so long."""
    assert strict.outcome(name) == "passed", strict.text(name)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("test_trainer", "test_told.py::test_trainer left something behind in the pytest process, where the next test"),
        ("test_standalone", "test_told.py::test_standalone left something behind on rank 0:"),
        ("test_dynamic", "test_told.py::test_dynamic left something behind on rank 1 of 2:"),
    ],
)
def test_strict_leaks_are_errors(strict: Run, name: str, place: str) -> None:
    """With --disttest-strict-leaks what is left is an error that names the process."""
    assert strict.outcome(name) == "error"
    assert lines_with(strict.text(name), place), strict.text(name)


@pytest.mark.parametrize("world", ["plain", "static"])
def test_bad_ends_hide_nothing(run: Run, world: str) -> None:
    """When Trainers fail at their end, all are ended, and the test's own failure is told beside what they raised."""
    name = f"test_bad_ends[{world}]"
    assert run.outcome(name) == "failed+error"
    assert lines_with(run.text(name), "LookupError: the failure of the test itself")
    for number in range(3):
        assert lines_with(run.text(name), f"RuntimeError: bad end of number {number}"), run.text(name)
    assert run.outcome("test_all_were_ended") == "passed", run.text("test_all_were_ended")
