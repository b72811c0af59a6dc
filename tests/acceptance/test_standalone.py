"""Standalone tests: each in a fresh process, with ranks that a Trainer or Fabric launches, in one pytest run."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with

RUNIF = """
    import os
    import pytest

    def RunIf(standalone):
        unmet = os.getenv("PL_RUN_STANDALONE_TESTS", "0") != "1"
        return pytest.mark.skipif(unmet, reason="Requires: [Standalone execution]", standalone=True)
"""

SELECTION = """
    import json, os
    import pytest
    from runif import RunIf

    @pytest.fixture(autouse=True)
    def note(request, pytestconfig):
        with open(pytestconfig.rootpath / "notes.jsonl", "a") as file:
            file.write(json.dumps([request.node.name, os.getpid()]) + "\\n")

    def test_plain(): pass

    @pytest.mark.distributed(2)
    def test_static(): pass

    @pytest.mark.standalone
    def test_marked_1():
        os.environ["LEAK"] = "1"

    @pytest.mark.standalone
    def test_marked_2():
        assert "LEAK" not in os.environ

    @RunIf(standalone=True)
    def test_run_if(): pass

    @pytest.mark.standalone
    @pytest.mark.skip(reason="never")
    def test_never(): pass

    @RunIf(standalone=True)
    class TestClass:
        def test_method(self): pass
"""

LAUNCH = """
    import os, sys
    import pytest
    import torch
    import torch.distributed as dist
    import lightning.fabric, lightning.pytorch, lightning.pytorch.demos.boring_classes
    import pytorch_lightning, pytorch_lightning.demos.boring_classes

    def fit(package, **kwargs):
        import importlib
        pl = importlib.import_module(package)
        boring = importlib.import_module(f"{package}.demos.boring_classes")
        trainer = pl.Trainer(
            strategy="ddp", devices=2, accelerator="cpu", max_epochs=1, limit_train_batches=2,
            limit_val_batches=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, **kwargs,
        )
        trainer.fit(boring.BoringModel())
        return trainer

    @pytest.mark.standalone
    @pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
    def test_trainer(package, tmp_path, world):
        trainer = fit(package)
        assert (trainer.world_size, dist.get_world_size(), world.world_size) == (2, 2, 2)
        assert trainer.global_rank == dist.get_rank() == int(os.environ["LOCAL_RANK"]) == world.rank
        weights = [torch.empty_like(trainer.lightning_module.layer.weight) for _ in range(2)]
        dist.all_gather(weights, trainer.lightning_module.layer.weight.data)
        assert torch.equal(*weights)
        (tmp_path / str(dist.get_rank())).touch()
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == 2

    @pytest.mark.standalone
    @pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
    def test_fabric(package):
        import importlib
        fabric_package = pytest.importorskip(package)
        fabric = fabric_package.Fabric(strategy="ddp", devices=2, accelerator="cpu")
        fabric.launch()
        assert (fabric.world_size, dist.get_world_size()) == (2, 2)
        total = fabric.all_reduce(torch.tensor(float(fabric.global_rank)), reduce_op="sum")
        assert total == 1

    @pytest.mark.standalone
    def test_launched_rank_fails():
        fit("lightning.pytorch")
        assert dist.get_rank() == 0, "the launched rank fails after fit"

    @pytest.mark.standalone
    def test_launched_rank_dies():
        fit("lightning.pytorch")
        if dist.get_rank() == 1:
            os._exit(0)
        dist.barrier()

    @pytest.mark.standalone
    def test_two_fits_share_the_ranks():
        first = fit("lightning.pytorch")
        second = fit("lightning.pytorch")
        assert first.global_rank == second.global_rank

    from unittest import mock

    @mock.patch.dict(os.environ, os.environ.copy(), clear=True)
    @pytest.mark.standalone
    def test_environment_copied_at_import():
        assert fit("lightning.pytorch").global_rank == dist.get_rank()
        assert dist.get_world_size() == 2

    @pytest.mark.standalone
    def test_command_line_names_this_test(request):
        path, _, name = sys.argv[1].partition("::")
        assert (path, name) == (str(request.path), "test_command_line_names_this_test")
        assert len(sys.argv) == 2
        import __main__
        assert __main__.__spec__.name == "pytest.__main__"

    @pytest.mark.standalone
    def test_observer_is_not_started():
        import threading
        fit("lightning.pytorch")
        assert not [thread for thread in threading.enumerate() if thread.name == "child-process-observer"]
"""

UNMARKED = """
    import os, subprocess
    from unittest import mock
    import pytest

    def make(devices):
        import lightning.pytorch as pl
        return pl.Trainer(strategy="ddp", devices=devices, accelerator="cpu", max_epochs=1, limit_train_batches=1,
                          limit_val_batches=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False)

    def boring():
        from lightning.pytorch.demos.boring_classes import BoringModel
        return BoringModel()

    def test_two_devices():
        make(2).fit(boring())

    def test_fabric():
        from lightning.fabric import Fabric
        Fabric(strategy="ddp", devices=2, accelerator="cpu").launch()

    def test_mocked_popen():
        from lightning.fabric.plugins.environments import LightningEnvironment
        from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
        with mock.patch.dict(os.environ), mock.patch("subprocess.Popen") as popen:
            launcher = _SubprocessScriptLauncher(LightningEnvironment(), num_processes=3, num_nodes=1)
            launcher._call_children_scripts()
            assert popen.call_count == 2
"""


@pytest.fixture(scope="module")
def plain(run_once: RunOnce) -> Run:
    """Return a run without the flag."""
    return run_once({"runif.py": RUNIF, "test_selection.py": SELECTION}, "-v")


@pytest.fixture(scope="module", params=["environment", "option"])
def selected(run_once: RunOnce, request: pytest.FixtureRequest) -> Run:
    """Return a run with the flag, given by Lightning's variable or by the option."""
    files = {"runif.py": RUNIF, "test_selection.py": SELECTION}
    if request.param == "option":
        return run_once(files, "--standalone")
    return run_once(files, env={"PL_RUN_STANDALONE_TESTS": "1"})


@pytest.fixture(scope="module")
def launched(run_once: RunOnce) -> Run:
    """Return a run of standalone tests that launch ranks."""
    return run_once({"test_launch.py": LAUNCH})


def test_without_the_flag(plain: Run) -> None:
    """Without the flag everything runs, and Lightning's RunIf(standalone=True) skips as ever."""
    assert plain.returncode == 0, plain.output
    skipped = {name for name, outcome in plain.outcomes.items() if outcome == "skipped"}
    assert skipped == {"test_run_if", "test_never", "TestClass::test_method"}
    assert "Requires: [Standalone execution]" in plain.text("test_run_if")


def test_with_the_flag(selected: Run) -> None:
    """With the flag only standalone tests run, by our mark or Lightning's; the rest is deselected, not lost."""
    assert selected.returncode == 0, selected.output
    assert set(selected.outcomes) == {"test_marked_1", "test_marked_2", "test_run_if", "TestClass::test_method"}
    assert set(selected.outcomes.values()) == {"passed"}
    assert "4 passed, 3 deselected" in selected.output


def test_each_in_a_fresh_process(selected: Run) -> None:
    """Every standalone test has a process of its own, in which no other test has run."""
    pids = [pid for _, pid in json_lines(selected.folder / "notes.jsonl")]
    assert len(pids) == len(set(pids)) == 4


def test_nothing_ran_is_a_failure(run_once: RunOnce) -> None:
    """A run with the flag in which no standalone test was executed ends with 1 and says so."""
    run = run_once({"test_none.py": "def test_plain(): pass"}, "--standalone")
    assert run.returncode == 1
    assert "nothing ran" in run.output


def test_nothing_to_run_is_fine_when_only_collecting(run_once: RunOnce) -> None:
    """--collect-only with the flag is not a failed run."""
    source = "import pytest\n@pytest.mark.standalone\ndef test_it(): pass\n"
    run = run_once({"test_one.py": source}, "--standalone", "--collect-only")
    assert run.returncode == 0, run.output


@pytest.mark.parametrize(
    "name",
    [
        "test_trainer[lightning.pytorch]",
        "test_trainer[pytorch_lightning]",
        "test_fabric[lightning.fabric]",
        "test_two_fits_share_the_ranks",
        "test_environment_copied_at_import",
        "test_command_line_names_this_test",
        "test_observer_is_not_started",
    ],
)
def test_launching_works(launched: Run, name: str) -> None:
    """A Trainer or Fabric in a standalone test gets its other ranks, whatever package it comes from."""
    assert launched.outcome(name) == "passed", launched.text(name)


def test_launching_works_for_the_fabric_package(launched: Run) -> None:
    """The package lightning_fabric is served too, where it is installed by itself."""
    assert launched.outcome("test_fabric[lightning_fabric]") in ("passed", "skipped")
    if launched.outcome("test_fabric[lightning_fabric]") == "skipped":
        assert "could not import 'lightning_fabric'" in launched.text("test_fabric[lightning_fabric]")


def test_failure_of_a_launched_rank_fails_the_test(launched: Run) -> None:
    """An assertion that fails on the launched rank after fit fails the test, with that rank named."""
    assert launched.outcome("test_launched_rank_fails") == "failed"
    text = launched.text("test_launched_rank_fails")
    assert lines_with(text, "rank 1 of 2", "failed in call", "<- the cause")
    assert "the launched rank fails after fit" in text


def test_death_of_a_launched_rank_fails_the_test(launched: Run) -> None:
    """A launched rank that leaves with status 0 in the middle of the test fails it."""
    assert launched.outcome("test_launched_rank_dies") == "failed"
    text = launched.text("test_launched_rank_dies")
    assert lines_with(text, "rank 1 of 2", "died in call: exited with status 0", "<- the cause")


def test_unmarked_relaunch_is_refused(run_once: RunOnce) -> None:
    """A strategy that would start pytest again in an unmarked test gets an error that names the mark to use."""
    run = run_once({"test_unmarked.py": UNMARKED})
    assert run.outcome("test_two_devices") == "failed"
    for name in ("test_two_devices", "test_fabric"):
        text = run.text(name)
        assert f"RelaunchRefused: test_unmarked.py::{name}: " in text
        assert "@pytest.mark.standalone" in text
        assert "@pytest.mark.distributed(world_size=2)" in text
    assert run.outcome("test_mocked_popen") == "passed", run.text("test_mocked_popen")


def test_standalone_timeout(run_once: RunOnce) -> None:
    """The time limit of the mark ends a standalone test and all of its ranks."""
    source = """
        import threading
        import pytest
        from lightning.fabric import Fabric

        @pytest.mark.standalone(timeout=3)
        def test_it():
            fabric = Fabric(strategy="ddp", devices=2, accelerator="cpu")
            fabric.launch()
            if fabric.global_rank == 1:
                threading.Event().wait()
    """
    run = run_once({"test_limit.py": source})
    assert run.outcome("test_it") == "failed"
    assert lines_with(run.text("test_it"), "rank 1 of 2", "time limit of 3 s")
