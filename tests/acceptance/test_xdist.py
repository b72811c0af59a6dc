"""Workers of pytest-xdist that die or stop early while they have ranks: every test has an outcome, nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.acceptance.conftest import RunOnce
from tests.harness import lines_with, start_pytest, wait_until_gone, write_tests

_LIMIT_S = 60.0
# ``wait_for`` ends with an error: no test of a test waits for ever.
_HELPERS = """
    import time

    def wait_for(what):
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)
"""
_IN_THE_ORDER_OF_THE_FILE = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(items):
        yield
        items.sort(key=lambda item: item.location[1])
"""
_PIDS_OF_WORKERS = """
    import os

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            (config.rootpath / config.workerinput["workerid"]).write_text(str(os.getpid()))
"""


def test_a_worker_that_dies_is_replaced(run_once: RunOnce) -> None:
    """A plain test ends its worker, which has a world, while a test on ranks runs in the other one."""
    source = """
        import os
        import psutil
        import pytest
        import torch.distributed as dist
        from helpers import wait_for

        class TestDying:
            @pytest.mark.distributed(2)
            def test_before(self, pytestconfig):
                dist.barrier()
                (pytestconfig.rootpath / "worker").write_text(str(psutil.Process(os.getppid()).ppid()))

            def test_dies(self, pytestconfig):
                wait_for((pytestconfig.rootpath / "running").exists)
                if (pytestconfig.rootpath / "worker").read_text() == str(os.getpid()):
                    os._exit(7)

            @pytest.mark.distributed(2)
            def test_after(self): dist.barrier()

        class TestOther:
            @pytest.mark.distributed(2)
            def test_meanwhile(self, pytestconfig):
                (pytestconfig.rootpath / "running").touch()
                wait_for((pytestconfig.rootpath / "worker").exists)
                worker = int((pytestconfig.rootpath / "worker").read_text())
                wait_for(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie")
                dist.barrier()

            @pytest.mark.distributed(2)
            def test_fails(self, world):
                assert world.rank == 0
    """
    files = {"conftest.py": _IN_THE_ORDER_OF_THE_FILE, "helpers.py": _HELPERS, "test_dying.py": source}
    run = run_once(files, "-n", "2", "--dist", "loadscope")
    # With loadscope pytest-xdist runs a test that ended its worker again in the next one.
    assert run.outcomes == {
        "TestDying::test_before": "passed",
        "TestDying::test_dies": "passed+error",
        "TestDying::test_after": "passed",
        "TestOther::test_meanwhile": "passed",
        "TestOther::test_fails": "failed",
    }, run.output
    assert lines_with(run.output, "crashed while running", "test_dying.py::TestDying::test_dies"), run.output
    assert "INTERNALERROR" not in run.output


def test_a_worker_that_is_killed_while_its_rank_hangs(tmp_path: Path) -> None:
    """The ranks end with their worker, also one that ignores SIGTERM, and the report names the test that ran."""
    source = """
        import os, signal
        import pytest

        @pytest.mark.distributed(2)
        def test_hangs(world, pytestconfig):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if world.rank == 1:
                (pytestconfig.rootpath / "hanging.tmp").write_text(os.environ["PYTEST_XDIST_WORKER"])
                (pytestconfig.rootpath / "hanging.tmp").rename(pytestconfig.rootpath / "hanging")
                while True:
                    pass
            world.barrier(timeout=600)

        @pytest.mark.standalone
        def test_other(): pass
    """
    write_tests(tmp_path, {"conftest.py": _PIDS_OF_WORKERS, "test_hanging.py": source})
    with start_pytest(tmp_path, "-n", "2") as running:
        worker = _wait_for_text(tmp_path / "hanging")
        os.kill(int((tmp_path / worker).read_text()), signal.SIGKILL)
        output, _ = running.process.communicate(timeout=_LIMIT_S)
        assert wait_until_gone(running.stamp) == []
    assert running.process.returncode == 1, output
    assert lines_with(output, f"worker '{worker}' crashed while running 'test_hanging.py::test_hangs'"), output
    assert "1 failed, 1 passed" in output
    assert "INTERNALERROR" not in output


def test_exitfirst_stops_all_workers(run_once: RunOnce) -> None:
    """With -x the first test that fails on a rank ends the run of all workers, and is reported as ever."""
    conftest = """
        def pytest_configure(config):
            global FLAG
            FLAG = config.rootpath / "reported"

        def pytest_runtest_logreport(report):
            if report.failed:
                FLAG.touch()
    """
    source = """
        import pytest
        from helpers import wait_for

        @pytest.mark.distributed(2)
        def test_fails(world):
            assert world.rank == 0

        # These do not run before the failure is reported: then only what the workers have begun can end.
        @pytest.mark.distributed(2)
        @pytest.mark.parametrize("number", range(60))
        def test_other(number, pytestconfig): wait_for((pytestconfig.rootpath / "reported").exists)
    """
    files = {"conftest.py": conftest, "helpers.py": _HELPERS, "test_first.py": source}
    run = run_once(files, "-n", "2", "-x")
    assert run.returncode in (1, 2), run.output
    assert run.outcome("test_fails") == "failed"
    assert lines_with(run.text("test_fails"), "rank 1 of 2", "failed in call")
    assert "stopping after 1 failures" in run.output
    assert len(run.outcomes) < 61
    assert "INTERNALERROR" not in run.output


def test_a_rank_that_is_killed(run_once: RunOnce) -> None:
    """Through pytest-xdist too, the report names the rank and the signal, and the worker goes on."""
    source = """
        import os, signal
        import pytest

        @pytest.mark.distributed(2)
        def test_killed(world):
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            world.barrier()

        @pytest.mark.distributed(2)
        @pytest.mark.parametrize("number", range(4))
        def test_after(number, world): world.barrier()
    """
    run = run_once({"test_killed.py": source}, "-n", "2")
    assert run.outcome("test_killed") == "failed"
    assert lines_with(run.text("test_killed"), "rank 1 of 2", "killed by SIGKILL", "in call"), run.text("test_killed")
    assert [run.outcome(f"test_after[{number}]") for number in range(4)] == ["passed"] * 4
    assert "crashed" not in run.output


def test_tmpdir_switched_off(run_once: RunOnce) -> None:
    """A usage error of a plain run fails the tests of a worker: workers that end at once would be replaced for ever."""
    source = """
        import pytest

        @pytest.mark.distributed(2)
        def test_static(): pass

        @pytest.mark.standalone
        def test_standalone(): pass
    """
    run = run_once({"test_some.py": source}, "-n", "2", "-p", "no:tmpdir")
    assert run.returncode == 1, run.output
    assert run.outcomes == {"test_static": "error", "test_standalone": "error"}
    for name in run.outcomes:
        assert "need pytest's tmpdir plugin" in run.text(name)
    assert "INTERNALERROR" not in run.output


def _wait_for_text(path: Path) -> str:
    deadline = time.monotonic() + _LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)
    return path.read_text()
