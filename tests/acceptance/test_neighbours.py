"""Other plugins and other runs: pytest-xdist, pytest-rerunfailures, two runs at once, and plain runs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, run_pytest, write_tests

SOURCE = """
    import os, signal
    import pytest
    import torch.distributed as dist

    def test_plain(): pass

    @pytest.mark.parametrize("number", range(6))
    @pytest.mark.distributed(2)
    def test_static(number): dist.barrier()

    @pytest.mark.distributed(2)
    def test_fails(world):
        assert world.rank == 0
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_killed(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_skips(): pytest.skip("no")

    @pytest.fixture
    def bad():
        raise RuntimeError("bad")

    @pytest.mark.distributed(2)
    def test_error(bad): pass

    @pytest.mark.distributed(2)
    @pytest.mark.xfail
    def test_xfails(world): assert world.rank == 0

    @pytest.mark.distributed(2, static=False)
    def test_dynamic(): dist.barrier()

    @pytest.mark.standalone
    def test_standalone(): pass

    @pytest.mark.standalone
    def test_standalone_fails(): assert False
"""

FLAKY = """
    import json, os
    import pytest
    import torch.distributed as dist

    MARKS = {
        "static": pytest.mark.distributed(2),
        "dynamic": pytest.mark.distributed(2, static=False),
        "standalone": pytest.mark.standalone,
    }

    @pytest.mark.parametrize("kind", [pytest.param(kind, marks=mark) for kind, mark in MARKS.items()])
    def test_once(kind, world, pytestconfig):
        failing = world.world_size - 1
        flag = pytestconfig.rootpath / f"flag-{kind}"
        with open(pytestconfig.rootpath / "bodies.jsonl", "a") as file:
            file.write(json.dumps([kind, world.rank, os.getpid(), os.getppid()]) + "\\n")
        if world.rank == failing and not flag.exists():
            flag.touch()
            raise RuntimeError("the first time")

    def test_controller(pytestconfig):
        (pytestconfig.rootpath / "controller").write_text(str(os.getpid()))
"""


@pytest.fixture(scope="module")
def plain(run_once: RunOnce) -> Run:
    """Return a run without other plugins."""
    return run_once({"test_some.py": SOURCE}, "-p", "no:xdist", "-p", "no:rerunfailures")


def test_xdist_gives_the_same_outcomes(run_once: RunOnce, plain: Run) -> None:
    """With two workers every test has the outcome that it has alone."""
    run = run_once({"test_some.py": SOURCE}, "-n", "2")
    assert run.outcomes == plain.outcomes
    assert run.returncode == plain.returncode == 1


def test_reruns_change_no_final_outcome(run_once: RunOnce, plain: Run) -> None:
    """With reruns, a test that fails every time still fails."""
    run = run_once({"test_some.py": SOURCE}, "--reruns", "1")
    # pytest-rerunfailures leaves an entry without an outcome for each run that was repeated.
    failing = [name for name, outcome in plain.outcomes.items() if outcome in ("failed", "error")]
    assert {name: run.outcomes[name] for name in failing} == {n: f"passed+{plain.outcomes[n]}" for n in failing}
    assert {n: o for n, o in run.outcomes.items() if n not in failing} == {
        n: o for n, o in plain.outcomes.items() if n not in failing
    }
    assert f"{len(failing)} rerun" in run.output


def test_two_runs_at_once(tmp_path: Path, plain: Run) -> None:
    """Two runs at once do not disturb each other."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write_tests(folder, {"test_some.py": SOURCE})
    with ThreadPoolExecutor() as executor:
        runs = list(executor.map(run_pytest, folders))
    assert [run.outcomes for run in runs] == [plain.outcomes] * 2


@pytest.mark.parametrize("extra", [(), ("-n", "2")])
def test_a_flaky_test_passes_on_its_rerun(run_once: RunOnce, extra: tuple[str, ...]) -> None:
    """A test that fails once on one rank passes on its rerun, and its body runs on ranks only."""
    run = run_once({"test_flaky.py": FLAKY}, "--reruns", "1", *extra)
    assert run.returncode == 0, run.output
    assert "4 passed, 3 rerun" in run.output
    bodies = json_lines(run.folder / "bodies.jsonl")
    controller = int((run.folder / "controller").read_text())
    assert controller not in [pid for _, _, pid, _ in bodies]
    assert [sum(kind == name for kind, *_ in bodies) for name in ("static", "dynamic", "standalone")] == [4, 4, 2]


def test_plain_runs_are_left_alone(run_once: RunOnce) -> None:
    """A run without distributed tests forks nothing, imports no torch, and shows no line of ours."""
    source = """
        import sys

        def test_plain():
            assert "torch" not in sys.modules
            assert "lightning_disttest.engine.controller" not in sys.modules
    """
    run = run_once({"test_plain.py": source})
    assert run.returncode == 0, run.output
    assert "disttest:" not in run.output


def test_torch_has_its_threads_back(run_once: RunOnce) -> None:
    """Plain tests compute with torch's own number of threads, with and without distributed tests beside them."""
    plain = """
        import os
        import torch

        def test_threads():
            assert torch.get_num_threads() == int(os.environ["EXPECTED"])
    """
    static = """
        import pytest

        @pytest.mark.distributed(2)
        def test_static(): pass
    """
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    env = {"EXPECTED": subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}
    alone = run_once({"test_plain.py": plain}, env=env)
    beside = run_once({"test_plain.py": plain, "test_static.py": static}, env=env)
    assert (alone.returncode, beside.returncode) == (0, 0), alone.output + beside.output


def test_other_plugins_see_one_outcome(run_once: RunOnce) -> None:
    """A conftest's makereport wrapper sees the merged report of each phase, once."""
    conftest = """
        import json
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            from lightning_disttest.engine.context import current_rank
            if current_rank() is None:
                with open(item.config.rootpath / "seen.jsonl", "a") as file:
                    file.write(json.dumps([item.name, report.when, report.outcome]) + "\\n")
            return report
    """
    source = """
        import pytest

        @pytest.mark.distributed(2)
        def test_it(world):
            assert world.rank == 0
    """
    run = run_once({"conftest.py": conftest, "test_it.py": source})
    expected = [["test_it", "setup", "passed"], ["test_it", "call", "failed"], ["test_it", "teardown", "passed"]]
    assert json_lines(run.folder / "seen.jsonl") == expected


def test_reporting_hooks_run_in_the_controller_only(run_once: RunOnce) -> None:
    """No reporting hook of a conftest runs in a rank."""
    conftest = """
        import os

        CONTROLLER = os.getpid()

        def note(config):
            with open(config.rootpath / "pids", "a") as file:
                file.write(f"{os.getpid() == CONTROLLER}\\n")

        def pytest_configure(config):
            global CONFIG
            CONFIG = config

        def pytest_runtest_logstart(nodeid, location): note(CONFIG)
        def pytest_runtest_logreport(report): note(CONFIG)
        def pytest_runtest_logfinish(nodeid, location): note(CONFIG)
        def pytest_warning_recorded(warning_message): note(CONFIG)
        def pytest_exception_interact(node, call, report): note(CONFIG)
    """
    source = """
        import warnings
        import pytest

        @pytest.mark.distributed(2)
        def test_it(world):
            warnings.warn("seen")
            assert world.rank == 0
    """
    run = run_once({"conftest.py": conftest, "test_it.py": source})
    assert set((run.folder / "pids").read_text().split()) == {"True"}


def test_grouping(run_once: RunOnce) -> None:
    """Plain tests come first, in their order; then static tests by world, dynamic and standalone tests."""
    source = """
        import pytest

        @pytest.mark.standalone
        def test_alone(): pass
        @pytest.mark.distributed(2)
        def test_two(): pass
        def test_plain_b(): pass
        @pytest.mark.distributed(2, static=False)
        def test_dynamic(): pass
        @pytest.mark.distributed(3)
        def test_three(): pass
        @pytest.mark.distributed(2)
        def test_two_more(): pass
        def test_plain_a(): pass
    """
    run = run_once({"test_order.py": source}, "--collect-only", "-q")
    names = [line.partition("::")[2] for line in run.output.splitlines() if "::" in line]
    assert names == [
        "test_plain_b",
        "test_plain_a",
        "test_two",
        "test_two_more",
        "test_three",
        "test_dynamic",
        "test_alone",
    ]
