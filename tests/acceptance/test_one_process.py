"""The run of a test on one process, with which its values are compared: when there is one, and how it can fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with, read_junit, start_pytest, wait_until_gone, write_tests

HELPERS = """
    import json

    def note(request, world, **what):
        noted = {"test": request.node.name, "size": world.world_size, "rank": world.rank, **what}
        with open(request.config.rootpath / "notes", "a") as file:
            file.write(json.dumps(noted) + chr(10))
"""
RUNS = """
    import warnings
    import numpy
    import pytest
    import torch
    import torch.distributed as dist
    from helpers import note

    every_world = pytest.mark.parametrize("kind", [
        pytest.param("plain"),
        pytest.param("one static", marks=pytest.mark.distributed(1)),
        pytest.param("one dynamic", marks=pytest.mark.distributed(1, static=False)),
        pytest.param("static", marks=pytest.mark.distributed(2)),
        pytest.param("dynamic", marks=pytest.mark.distributed(3, static=False)),
    ])

    @pytest.fixture(scope="module")
    def wide(request, world):
        note(request, world, wide=True)
        return world.world_size

    @pytest.fixture
    def counted(request, world):
        note(request, world)

    @every_world
    def test_many_records(kind, world, counted):
        for name in "abc":
            world.record(name, torch.arange(3000.0), rtol=0.1, one_process=True)
        world.record("not compared", world.world_size)

    @pytest.mark.distributed(2)
    def test_not_asked_for(world, counted):
        world.record("x", 1)

    @pytest.mark.distributed(2)
    def test_surroundings(world, request, tmp_path, rank_tmp_path, wide):
        assert wide == world.world_size
        assert not list(tmp_path.iterdir()) and not list(rank_tmp_path.iterdir())
        dist.barrier()
        (tmp_path / str(world.rank)).touch()
        (rank_tmp_path / "file").touch()
        world.barrier()
        note(request, world, path=str(tmp_path), backend=world.backend, device=str(world.device))
        world.record("x", 1, one_process=True)

    @pytest.mark.distributed(2)
    def test_uses_random_numbers(world):
        torch.rand(5)
        world.record("torch", torch.rand(5))

    @pytest.mark.distributed(2)
    def test_random_numbers(world):
        world.record("initial weights", torch.nn.Linear(3, 3), one_process=True)
        numpy.random.seed(0)
        world.record("numpy", numpy.random.rand(3), one_process=True)

    @pytest.mark.distributed(2)
    def test_warns(world, record_property, record_testsuite_property):
        warnings.warn("look here")
        print("printed")
        record_property("seen", "value")
        record_testsuite_property("suite", "value")
        world.record("x", 1, one_process=True)

    @pytest.mark.distributed(2)
    @pytest.mark.xfail(reason="not yet")
    def test_xfail_that_passes(world):
        world.record("x", 1, one_process=True)

    @pytest.mark.distributed(2)
    @pytest.mark.xfail(reason="not yet")
    def test_xfail_that_fails(world, counted):
        world.record("x", 1, one_process=True)
        assert False

    @pytest.mark.distributed(2)
    @pytest.mark.xfail(reason="not yet")
    def test_xfail_that_differs(world):
        world.record("x", world.world_size, one_process=True)
"""


@pytest.fixture(scope="module")
def runs(run_once: RunOnce) -> Run:
    """Return one run of tests that agree with one process."""
    return run_once({"helpers.py": HELPERS, "test_runs.py": RUNS}, "-p", "no:randomly", "-rA")


def notes(run: Run, test: str) -> list[dict[str, Any]]:
    """Return what the processes of a test have noted."""
    return [entry for entry in json_lines(run.folder / "notes") if entry["test"] == test]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("plain", [1]), ("one static", [1]), ("one dynamic", [1]), ("static", [1, 2, 2]), ("dynamic", [1, 3, 3, 3])],
)
def test_one_run_for_all_records(runs: Run, kind: str, sizes: list[int]) -> None:
    """However many records ask for it, the test runs once more, on one process; in a world of one it does not."""
    name = f"test_many_records[{kind}]"
    found = [entry["size"] for entry in notes(runs, name)]

    assert runs.outcome(name) == "passed", runs.text(name)
    assert sorted(found) == sizes
    assert found.index(1) == len(sizes) - 1, "not after the ranks"


def test_no_run_that_is_not_asked_for(runs: Run) -> None:
    """A record without one_process, or a test that failed as expected, costs no run."""
    assert [entry["size"] for entry in notes(runs, "test_not_asked_for")] == [2, 2]
    assert [entry["size"] for entry in notes(runs, "test_xfail_that_fails")] == [2, 2]
    assert runs.outcome("test_xfail_that_fails") == "xfailed"


def test_surroundings_of_the_one_process(runs: Run) -> None:
    """It has a process group of the same kind, a folder of its own, and fixtures of wider scope of its own."""
    assert runs.outcome("test_surroundings") == "passed", runs.text("test_surroundings")
    alone = [entry for entry in notes(runs, "test_surroundings") if entry["size"] == 1]
    ranks = [entry for entry in notes(runs, "test_surroundings") if entry["size"] == 2]

    assert [entry["rank"] for entry in alone] == [0]
    assert (alone[0]["backend"], alone[0]["device"]) == ("gloo", "cpu")
    assert alone[0]["path"] not in {entry["path"] for entry in ranks}
    assert [entry["size"] for entry in notes(runs, "test_runs.py") if "wide" in entry] == [2, 2, 1]


@pytest.mark.parametrize(
    "name", ["test_random_numbers", "test_warns", "test_xfail_that_passes", "test_uses_random_numbers"]
)
def test_agreement_passes(runs: Run, name: str) -> None:
    """A test begins with the same state of torch's generator on one process; fixtures and marks work as on ranks."""
    assert runs.outcome(name) == "passed", runs.text(name)


def test_a_difference_is_no_expected_failure(runs: Run) -> None:
    """The mark xfail covers failures of the body."""
    assert runs.outcome("test_xfail_that_differs") == "failed"
    assert "    one process  1\n" in runs.text("test_xfail_that_differs")


def test_nothing_is_told_twice(runs: Run) -> None:
    """Warnings, output and properties of the run on one process are those of the ranks again."""
    assert runs.output.count("UserWarning: look here") == 1
    assert lines_with(runs.output, "UserWarning: look here (ranks 0-1)")
    assert runs.output.count("\nprinted\n") == 1
    (junit,) = runs.folder.glob("junit-*.xml")
    assert junit.read_text().count('name="seen"') == 1
    assert junit.read_text().count('name="suite"') == 1
    assert junit.read_text().count('name="test_warns"') == 1


FAILS = """
    import os, signal, threading
    import pytest

    def on_one(world):
        world.record("x", 1, one_process=True)
        return world.world_size == 1

    @pytest.fixture
    def broken_alone(world):
        assert world.world_size > 1, "no such setup"

    @pytest.fixture
    def left_alone(world):
        yield
        assert world.world_size > 1, "no such end"

    @pytest.mark.distributed(2)
    def test_raises(world):
        print("printed by", world.world_size)
        if on_one(world):
            raise ValueError("too few")

    @pytest.mark.distributed(2)
    def test_setup(world, broken_alone):
        on_one(world)

    @pytest.mark.distributed(2)
    def test_teardown(world, left_alone):
        on_one(world)

    @pytest.mark.distributed(2)
    def test_skips(world):
        if on_one(world):
            pytest.skip("needs two")

    @pytest.mark.distributed(2)
    def test_xfails(world):
        if on_one(world):
            pytest.xfail("needs two")

    @pytest.mark.distributed(2)
    def test_dies(world):
        if on_one(world):
            os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.distributed(2, timeout=2)
    def test_hangs(world):
        if on_one(world):
            threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_exits(world):
        if on_one(world):
            os._exit(0)

    @pytest.mark.distributed(2)
    def test_records_nothing(world):
        if world.world_size == 2:
            world.record("x", 1, one_process=True)

    @pytest.mark.distributed(2)
    def test_passes(world):
        on_one(world)

    @pytest.mark.standalone
    def test_standalone(world):
        on_one(world)
"""


@pytest.fixture(scope="module")
def fails(run_once: RunOnce) -> Run:
    """Return one run of tests that pass on their ranks and do not on one process."""
    return run_once({"test_fails.py": FAILS}, "--durations=0", "-vv")


@pytest.mark.parametrize(
    ("name", "first", "more"),
    [
        ("test_raises", "the run on one process failed in call: ValueError: too few", "printed by 1"),
        ("test_setup", "the run on one process failed in setup: AssertionError: no such setup", "def broken_alone"),
        ("test_teardown", "the run on one process failed in teardown: AssertionError: no such end", "def left_alone"),
        ("test_skips", "the run on one process was skipped: needs two", ""),
        ("test_xfails", "the run on one process failed as expected (needs two)", ""),
        ("test_dies", "the run on one process failed in call: the fresh process died in call: killed by SIGKILL", ""),
        ("test_hangs", "the run on one process failed in call: the fresh process was still in call", "in test_hangs"),
        ("test_exits", "the run on one process failed in call: the fresh process died in call: exited with", ""),
        ("test_records_nothing", "the ranks recorded other values than one process does:", "  (not recorded)"),
    ],
)
def test_what_goes_wrong_on_one_process_is_told(fails: Run, name: str, first: str, more: str) -> None:
    """The test fails, once, and its text begins with the run that it was, followed by that run's own traceback."""
    text = fails.text(name).strip()

    assert fails.outcome(name) == "failed"
    assert text.startswith(first), text
    assert more in text, text
    assert name == "test_records_nothing" or "The test has passed on its ranks; world.record(" in text


def test_standalone_tests_are_refused(fails: Run) -> None:
    """There the body decides on the number of processes."""
    assert fails.outcome("test_standalone") == "failed"
    assert "OneProcessRefused: test_fails.py::test_standalone called world.record('x'" in fails.text("test_standalone")


def test_one_outcome_each(fails: Run) -> None:
    """The run goes on after each of them, and its end is that of any run with failures."""
    assert fails.outcome("test_passes") == "passed"
    assert sorted(set(fails.outcomes.values())) == ["failed", "passed"]
    assert lines_with(fails.output, "10 failed, 1 passed"), fails.output
    assert fails.returncode == 1


def test_the_time_on_one_process_counts(fails: Run) -> None:
    """The two seconds that the one process hung are part of the duration of the test."""
    (line,) = lines_with(fails.output, "s call ", "test_fails.py::test_hangs")
    assert float(line.split("s ")[0]) >= 2.0


SUBTESTS = """
    import pytest

    @pytest.mark.distributed(2)
    def test_fails_alone(world, subtests):
        with subtests.test("inside"):
            assert world.world_size == 2, "too few in here"
        world.record("x", 1, one_process=True)

    @pytest.mark.distributed(2)
    def test_passes_alone(world, subtests):
        with subtests.test("inside"):
            world.record("x", 1, one_process=True)
"""


@pytest.mark.skipif(int(pytest.__version__.split(".")[0]) < 9, reason="pytest has subtests since 9.0")
def test_subtests(run_once: RunOnce) -> None:
    """Those of the one process are part of its text, and are not counted beside those of the ranks."""
    run = run_once({"test_subtests.py": SUBTESTS})
    text = run.text("test_fails_alone").strip()

    assert (run.outcome("test_fails_alone"), run.outcome("test_passes_alone")) == ("failed", "passed")
    assert text.startswith("the run on one process failed in call: contains 1 failed subtest"), text
    assert "AssertionError: too few in here" in text
    assert lines_with(run.output, "1 failed, 1 passed in"), run.output


FLAKY = """
    import pytest

    @pytest.mark.distributed(2)
    def test_flaky(world, pytestconfig):
        first = pytestconfig.rootpath / "first"
        world.record("x", 1 if first.exists() else world.world_size, one_process=True)
        if world.world_size == 1:
            first.touch()

    @pytest.mark.distributed(2)
    def test_differs(world):
        world.record("x", world.world_size, one_process=True)

    @pytest.mark.distributed(2)
    def test_last(world):
        world.record("x", 1, one_process=True)
"""


def test_reruns_and_an_end_at_the_first_failure(run_once: RunOnce) -> None:
    """A rerun is one of the ranks and of one process; -x ends the run after a test that differs."""
    run = run_once({"test_flaky.py": FLAKY}, "--reruns", "1", "-x")

    assert "test_last" not in run.outcomes
    assert lines_with(run.output, "1 failed, 1 passed, 2 rerun"), run.output


def test_workers(run_once: RunOnce) -> None:
    """Under pytest-xdist each worker makes its own runs."""
    run = run_once({"test_flaky.py": FLAKY, "test_runs.py": RUNS, "helpers.py": HELPERS}, "-n", "2")

    wanted = {"test_flaky": "failed", "test_differs": "failed", "test_last": "passed"}
    assert {name: run.outcome(name) for name in wanted} == wanted
    assert run.outcome("test_many_records[dynamic]") == "passed"
    assert sorted(entry["size"] for entry in notes(run, "test_many_records[dynamic]")) == [1, 3, 3, 3]


FOLDERS = """
    import pytest
    import torch

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("passes", [True, False])
    def test_writes(world, tmp_path, passes):
        (tmp_path / "file").touch()
        world.record("x", torch.zeros(3000), one_process=True)
        assert passes or world.world_size == 2
"""


def test_folders_go_with_the_tests(run_once: RunOnce, tmp_path: Path) -> None:
    """The policy of pytest for tmp_path holds for both runs, and no file of a large value is left."""
    base = tmp_path / "base"
    options = ("-o", "tmp_path_retention_policy=failed", f"--basetemp={base}")
    run = run_once({"test_folders.py": FOLDERS}, *options)

    assert run.outcome("test_writes[True]") == "passed"
    assert run.outcome("test_writes[False]") == "failed"
    left = {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}
    assert left == {"test_writes_False_0/file", "test_writes_False_0-one-process/file"}


INTERRUPTED = """
    import threading
    import pytest
    import torch

    @pytest.mark.distributed(2)
    def test_waits(world, pytestconfig):
        world.record("x", torch.zeros(3000), one_process=True)
        if world.world_size == 1:
            (pytestconfig.rootpath / "ready").touch()
            threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_never(): pass
"""


def test_ctrl_c_on_one_process(tmp_path: Path) -> None:
    """It ends the run in order, with the one process, and leaves no file of a value."""
    write_tests(tmp_path, {"test_it.py": INTERRUPTED})
    deadline = time.monotonic() + 60
    with start_pytest(tmp_path, f"--basetemp={tmp_path / 'base'}") as running:
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(running.process.pid, signal.SIGINT)
        output, _ = running.process.communicate(timeout=60)
        assert wait_until_gone(running.stamp) == []

    assert running.process.returncode == 2, output
    assert "KeyboardInterrupt" in output
    assert read_junit(running.junit)[0].get("test_never") is None
    assert [path for path in (tmp_path / "base").rglob("*") if path.is_file() and "values" in path.parts] == []
