"""Where and how often a test body runs: once per rank, in no process where it should not, with its own objects."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with, run_pytest

CONFTEST = """
    import json, os
    import pytest

    @pytest.fixture(autouse=True)
    def note(request, pytestconfig, world):
        with open(pytestconfig.rootpath / "bodies.jsonl", "a") as file:
            file.write(json.dumps([request.node.name, world.rank, os.getpid()]) + "\\n")
"""
TRAINERS = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    def trainer(folder, devices):
        from lightning.pytorch import Trainer
        return Trainer(strategy="ddp", devices=devices, accelerator="cpu", fast_dev_run=True, default_root_dir=folder,
                       enable_progress_bar=False, enable_model_summary=False)

    def boring():
        from lightning.pytorch.demos.boring_classes import BoringModel
        return BoringModel()

    def test_bystander_before(): pass

    def test_unmarked(tmp_path):
        trainer(tmp_path, 2).fit(boring())

    def test_bystander_after(): pass

    @pytest.mark.standalone
    def test_standalone(tmp_path, monkeypatch):
        monkeypatch.setenv("MASTER_PORT", os.environ["FREE_PORT"])
        fitted = trainer(tmp_path, 2)
        fitted.fit(boring())
        assert fitted.world_size == dist.get_world_size() == 2
        assert os.environ["MASTER_PORT"] == os.environ["FREE_PORT"]

    @pytest.mark.distributed(2)
    def test_results(trainer_factory, world):
        from lightning.pytorch.demos.boring_classes import BoringModel

        class Local(BoringModel):
            def __init__(self):
                super().__init__()
                self.double = lambda value: 2 * value

            def training_step(self, batch, batch_idx):
                self.log("loss", self.double(torch.tensor(1.5)), sync_dist=True)
                return super().training_step(batch, batch_idx)

        fitted = trainer_factory()
        fitted.fit(Local())
        assert fitted.state.finished
        assert fitted.callback_metrics["loss"] == 3

    def child(_, folder):
        (folder / "child").touch()

    @pytest.mark.distributed(2)
    def test_spawns(world, tmp_path):
        if world.rank == 0:
            torch.multiprocessing.spawn(child, args=(tmp_path,), nprocs=1)
        dist.barrier()
        assert (tmp_path / "child").exists()
"""
STATE = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    NAMES = {"north", "east", "south", "west"}
    LEFT = []
    WORLDS = [
        pytest.param("static", marks=pytest.mark.distributed(2)),
        pytest.param("dynamic", marks=pytest.mark.distributed(2, static=False)),
        pytest.param("standalone", marks=pytest.mark.standalone),
    ]

    class Number:
        value = 1

    def compute():
        return torch.nn.Linear(64, 64)(torch.randn(512, 64)).sum()

    def test_plain_leaves_all_sorts_of_things():
        Number.value = 2
        LEFT.append(type("Dynamic", (), {"lock": __import__("threading").Lock()})())
        os.environ["LEFT_BEHIND"] = "yes"
        torch.set_num_threads(4)
        compute()  # from now on this process has a pool of threads

    @pytest.mark.parametrize("kind", WORLDS)
    def test_ranks_are_clean(kind):
        assert (Number.value, LEFT, "LEFT_BEHIND" in os.environ) == (1, [], False)
        compute()

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("kind", WORLDS)
    def test_parameters(kind, name, world, request):
        world.record("what runs", (request.node.nodeid, name))
        assert name in NAMES
"""
WORKING = {
    "test_bystander_before": "a plain test before",
    "test_bystander_after": "a plain test after",
    "test_standalone": "a Trainer that launches at a port which the test has chosen",
    "test_results": "a local class with a lambda, and asserts on metrics of the real Trainer",
    "test_spawns": "torch.multiprocessing.spawn in a rank",
}


@pytest.fixture(scope="module")
def trainers(run_once: RunOnce) -> Run:
    """Return a run in which Trainers launch ranks, or are kept from it, beside plain tests."""
    with socket.socket() as reserved:  # torch's store can bind this port, and nobody is given it who asks for any
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        files = {"conftest.py": CONFTEST, "test_trainers.py": TRAINERS}
        return run_once(files, env={"FREE_PORT": str(reserved.getsockname()[1])})


@pytest.fixture(scope="module")
def state(run_once: RunOnce) -> Run:
    """Return a run of plain tests that change their process, and of tests with parameters from a set."""
    return run_once({"conftest.py": CONFTEST, "test_state.py": STATE}, env={"PYTHONHASHSEED": "random"})


def _ranks_of(folder: Path) -> Counter[str]:
    """Return how many processes ran each test; that each was another process is checked."""
    lines = json_lines(folder / "bodies.jsonl")
    assert len({(name, pid) for name, _, pid in lines}) == len(lines)
    return Counter(name for name, _, _ in lines)


def test_each_body_runs_once_per_rank(trainers: Run) -> None:
    """Strategies that launch ranks start no test again: plain ones run once, the others once on each rank."""
    assert _ranks_of(trainers.folder) == {
        "test_bystander_before": 1,
        "test_unmarked": 1,
        "test_bystander_after": 1,
        "test_standalone": 2,
        "test_results": 2,
        "test_spawns": 2,
    }


def test_a_launch_without_a_mark_is_refused(trainers: Run) -> None:
    """A Trainer that would start pytest again is an error of its own test, which names the marks to use."""
    assert trainers.outcome("test_unmarked") == "failed"
    assert lines_with(trainers.text("test_unmarked"), "RelaunchRefused", "test_trainers.py::test_unmarked")
    assert "@pytest.mark.standalone" in trainers.text("test_unmarked")


@pytest.mark.parametrize("name", WORKING)
def test_what_works(trainers: Run, name: str) -> None:
    """These pass in one run with all the others."""
    assert trainers.outcome(name) == "passed", f"{WORKING[name]}:\n{trainers.text(name)}"


@pytest.mark.parametrize("kind", ["static", "dynamic", "standalone"])
def test_ranks_have_nothing_of_plain_tests(state: Run, kind: str) -> None:
    """Ranks see neither what plain tests have left in their process nor its threads, and can compute."""
    assert state.outcome("test_plain_leaves_all_sorts_of_things") == "passed"
    assert next(iter(state.outcomes)) == "test_plain_leaves_all_sorts_of_things"
    assert state.outcome(f"test_ranks_are_clean[{kind}]") == "passed", state.text(f"test_ranks_are_clean[{kind}]")


@pytest.mark.parametrize("kind", ["static", "dynamic", "standalone"])
def test_ranks_agree_on_parameters(state: Run, kind: str) -> None:
    """Parameters from a set have the same ids, the same values and the same order on all ranks."""
    names = {f"test_parameters[{kind}-{name}]" for name in ("north", "east", "south", "west")}
    assert {name: state.outcome(name) for name in names} == dict.fromkeys(names, "passed"), state.output
    assert {_ranks_of(state.folder)[name] for name in names} == ({1} if kind == "standalone" else {2})


@pytest.mark.parametrize(
    "arguments",
    [("test_two.py::test_b",), ("-k", "test_b"), ("-m", "not slow and standalone")],
    ids=["id", "name", "mark"],
)
def test_one_test_alone(run_once: RunOnce, arguments: tuple[str, ...]) -> None:
    """One standalone test, named by its id, a part of its name or an expression of several words, runs alone."""
    source = """
        import sys
        import pytest

        @pytest.mark.slow
        @pytest.mark.standalone
        def test_a(): pass

        @pytest.mark.standalone
        def test_b(request):
            assert sys.argv[1:] == [f"{request.path}::test_b"]  # what runs the command line again runs this test

        def test_plain(): pass
    """
    run = run_once({"conftest.py": CONFTEST, "test_two.py": source}, "-W", "ignore", *arguments)
    assert run.outcomes == {"test_b": "passed"}, run.output
    assert [name for name, _, _ in json_lines(run.folder / "bodies.jsonl")] == ["test_b"]


def test_a_failed_test_runs_alone_by_the_id_that_is_shown(run_once: RunOnce) -> None:
    """The id in the summary of a failed run, given to pytest, runs that test on its ranks, and it fails alike."""
    source = """
        import pytest

        @pytest.mark.distributed(2, static=False)
        @pytest.mark.parametrize("value", ["a b", "c"])
        def test_fails(value, world):
            assert world.rank == 0 or value == "c"
    """
    first = run_once({"test_fails.py": source}, env={"COLUMNS": "200"})
    (line,) = lines_with(first.output, "FAILED ")
    nodeid = line.removeprefix("FAILED ").partition(" - ")[0]
    again = run_pytest(first.folder, nodeid)
    assert again.outcomes == {"test_fails[a b]": "failed"}, again.output
    assert lines_with(again.text("test_fails[a b]"), "rank 1 of 2", "failed in call")
