"""Odd but legal ways to run pytest: each works with tests on ranks, or says clearly that it can not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with, run_pytest, write_tests

SOURCE = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2)
    def test_passes(tmp_path_factory): dist.barrier()

    @pytest.mark.distributed(2)
    def test_fails(world):
        print("printed")
        assert world.rank == 0

    @pytest.mark.standalone
    def test_alone(): pass
"""


@pytest.mark.parametrize("plugin", ["capture", "logging", "debugging"])
def test_plugin_that_is_switched_off_changes_no_outcome(run_once: RunOnce, plugin: str) -> None:
    """Without a plugin of pytest that ranks reach into, every test has its outcome."""
    run = run_once({"test_some.py": SOURCE}, "-p", f"no:{plugin}")
    assert run.outcomes == {"test_passes": "passed", "test_fails": "failed", "test_alone": "passed"}, run.output
    assert run.returncode == 1


def test_no_tmpdir_plugin(run_once: RunOnce) -> None:
    """Without pytest's tmpdir plugin, which ranks need to meet, the run ends with a usage error that says so."""
    run = run_once({"test_some.py": SOURCE.replace("tmp_path_factory", "")}, "-p", "no:tmpdir")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.output
    assert "leave out -p no:tmpdir" in run.output


def test_setup_without_bodies(run_once: RunOnce) -> None:
    """A run that executes no bodies on purpose is no run in which nothing ran."""
    run = run_once({"test_some.py": SOURCE}, "--setup-only", "--standalone")
    assert run.returncode == 0, run.output


def test_bad_marks_under_xdist(run_once: RunOnce) -> None:
    """Invalid marks fail the tests of a pytest-xdist run with their text; no worker is replaced."""
    source = """
        import pytest

        @pytest.mark.distributed(0)
        def test_bad(): pass

        def test_fine(): pass
    """
    run = run_once({"test_bad.py": source}, "-n", "2")
    assert set(run.outcomes.values()) == {"error"}
    assert "world_size must be a whole number of 1 or more, not 0" in run.text("test_bad")
    assert "replacing crashed worker" not in run.output


def test_conftests_of_other_folders_keep_out(run_once: RunOnce) -> None:
    """Hooks of a conftest run for the tests of its own folder only, in the controller and in ranks."""
    conftest = """
        import pytest

        def pytest_runtest_setup(item):
            pytest.skip("this folder only")
    """
    source = """
        import pytest

        @pytest.mark.distributed(2)
        def test_in_{name}(): pass
    """
    files = {
        "a/conftest.py": conftest,
        "a/test_a.py": source.format(name="a"),
        "b/test_b.py": source.format(name="b"),
    }
    run = run_once(files)
    assert run.outcomes == {"test_in_a": "skipped", "test_in_b": "passed"}, run.output


def test_threads_that_the_suite_chose(run_once: RunOnce) -> None:
    """A number of threads that a conftest sets holds in plain tests and in ranks."""
    conftest = """
        import torch

        torch.set_num_threads(1)
    """
    source = """
        import pytest
        import torch

        def test_plain(): assert torch.get_num_threads() == 1

        @pytest.mark.distributed(1)
        def test_rank(): assert torch.get_num_threads() == 1

        @pytest.mark.distributed(1)
        def test_rank_can_change_it():
            torch.set_num_threads(2)
            assert torch.get_num_threads() == 2
    """
    run = run_once({"conftest.py": conftest, "test_threads.py": source})
    assert run.returncode == 0, run.output


def test_a_slow_skip_is_a_skip(run_once: RunOnce) -> None:
    """Ranks that all skip may do so at different times."""
    source = """
        import time
        import pytest

        @pytest.mark.distributed(2)
        def test_skips(world):
            if world.rank == 1:
                time.sleep(1)
            pytest.skip("everywhere")
    """
    run = run_once({"test_skips.py": source})
    assert run.outcomes == {"test_skips": "skipped"}, run.output


def test_a_rank_that_hangs_while_it_joins(run_once: RunOnce) -> None:
    """A rank that never joins its world is shown with its stack at the time limit."""
    conftest = """
        import threading

        def pytest_collection_finish(session):
            import torch.distributed as dist
            genuine = dist.FileStore

            def stuck(path, size):
                if size == 2:
                    threading.Event().wait()
                return genuine(path, size)

            dist.FileStore = stuck
    """
    source = """
        import pytest

        @pytest.mark.distributed(2, timeout=1)
        def test_never_joins(): pass
    """
    run = run_once({"conftest.py": conftest, "test_join.py": source})
    assert run.outcomes == {"test_never_joins": "error"}, run.output
    text = run.text("test_never_joins")
    assert lines_with(text, "ranks 0-1 of 2", "were still before setup at the time limit of 1 s")
    assert lines_with(text, "conftest.py", "in stuck")


def test_too_few_descriptors_are_a_clear_error(tmp_path: Path) -> None:
    """When the process has no room for the files of the ranks, the test says so and the run goes on."""
    source = """
        import os, resource
        import pytest

        def pytest_limit():
            used = max(int(name) for name in os.listdir("/proc/self/fd"))
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 14, hard))

        def test_a_limit():
            pytest_limit()

        @pytest.mark.distributed(8)
        def test_needs_many(): pass

        @pytest.mark.distributed(1)
        def test_needs_few(): pass
    """
    write_tests(tmp_path, {"test_files.py": source})
    run = run_pytest(tmp_path)
    assert run.outcome("test_needs_many") == "error", run.output
    text = run.text("test_needs_many")
    assert "could not be started" in text
    assert "ulimit -n" in text
    assert run.outcome("test_needs_few") == "passed", run.output


FAULTS = """
    import os, signal, threading
    import pytest

    def strike(world, fault):
        if world.rank == world.world_size - 1:
            if fault == "exit":
                os._exit(0)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

    @pytest.fixture
    def faulty(world, request):
        fault, place = request.param
        if place == "setup":
            strike(world, fault)
        yield
        if place == "teardown":
            strike(world, fault)
"""
MARKS = {
    "static": "distributed(2, timeout=1.5)",
    "dynamic": "distributed(2, static=False, timeout=1.5)",
    "standalone": "standalone(timeout=1.5)",
}
PLACES = ("setup", "teardown")
ENDS = {
    "exit": "died in {}: exited with status 0",
    "kill": "died in {}: killed by SIGKILL",
    "hang": "was still in {} at the time limit of 1.5 s",
}


def _struck(kind: str, fault: str, place: str) -> str:
    """Return a test that is struck in a fixture, and one that runs next."""
    return f"""
    @pytest.mark.parametrize("faulty", [{(fault, place)}], indirect=True)
    @pytest.mark.{MARKS[kind]}
    def test_{kind}_{fault}_{place}(faulty): pass

    @pytest.mark.{MARKS[kind]}
    def test_after_{kind}_{fault}_{place}(): pass
    """


@pytest.fixture(scope="module")
def struck(run_once: RunOnce) -> Run:
    """Return a run in which ranks of all kinds of tests are struck in fixtures."""
    tests = [_struck(kind, fault, place) for kind in MARKS for fault in ENDS for place in PLACES]
    return run_once({"test_faults.py": FAULTS + "".join(tests)})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", ENDS)
@pytest.mark.parametrize("kind", MARKS)
def test_faults_around_the_body(struck: Run, place: str, fault: str, kind: str) -> None:
    """A rank that dies or hangs in a fixture is an error of its test, and the next test passes."""
    name = next(name for name in struck.outcomes if name.startswith(f"test_{kind}_{fault}_{place}["))
    assert "error" in struck.outcome(name), struck.output
    assert struck.outcome(f"test_after_{kind}_{fault}_{place}") == "passed"
    assert ENDS[fault].format(place) in struck.text(name)
    if fault == "hang":
        assert lines_with(struck.text(name), "test_faults.py", "in strike")


def test_python_is_the_one_of_the_suite(run_once: RunOnce) -> None:
    """Ranks run the interpreter that runs pytest, with its import path."""
    source = """
        import json, sys
        import pytest

        @pytest.mark.parametrize("_", [None, pytest.param(1, marks=pytest.mark.distributed(1))])
        def test_it(_, pytestconfig):
            with open(pytestconfig.rootpath / "python", "a") as file:
                file.write(json.dumps([sys.executable, sys.path]) + "\\n")
    """
    run = run_once({"test_python.py": source, "conftest.py": "import sys\nsys.path.insert(0, '/of/the/conftest')\n"})
    plain, on_rank = json_lines(run.folder / "python")
    assert on_rank == plain
    assert on_rank[0] == sys.executable
    assert "/of/the/conftest" in on_rank[1]
