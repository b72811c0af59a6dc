"""Processes that are lost from outside, a full disk and a closed terminal: outcomes are right and nothing is left."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.acceptance.test_interrupts import DURING_A_TEST, IN_ORDER, wait_for
from tests.harness import lines_with, read_junit, start_pytest, wait_until_gone, write_tests

_LIMIT_S = 60.0
_NEW_MOUNTS = 0x00020000


def test_the_zygote_is_killed_between_two_tests(run_once: RunOnce) -> None:
    """The tests on ranks that are left say why they can not run; what ran before and plain tests are as they were."""
    source = """
        import time
        import psutil
        import pytest

        def has_ended(process):
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

        @pytest.mark.distributed(2)
        def test_before(): pass

        def test_kills():
            (zygote,) = psutil.Process().children()
            ranks = zygote.children()
            assert len(ranks) == 2
            zygote.kill()
            deadline = time.monotonic() + 60
            while not all(has_ended(process) for process in (zygote, *ranks)):
                assert time.monotonic() < deadline
                time.sleep(0.01)

        @pytest.mark.distributed(2)
        def test_same_world(): pass

        @pytest.mark.distributed(1, static=False)
        def test_other_world(): pass

        @pytest.mark.standalone
        def test_alone(): pass

        def test_plain(): pass
    """
    run = run_once({"conftest.py": IN_ORDER, "test_it.py": source})
    assert run.returncode == 1
    assert run.outcomes == {
        "test_before": "passed",  # its ranks died, but not by its fault
        "test_kills": "passed",
        "test_same_world": "error",
        "test_other_world": "error",
        "test_alone": "error",
        "test_plain": "passed",
    }, run.output
    for name in ("test_same_world", "test_other_world", "test_alone"):
        assert "the process that ranks are forked from (pid" in run.text(name)
        assert "a copy of a process in which tests have run already" in run.text(name)


def test_the_zygote_is_killed_in_the_middle_of_a_test(tmp_path: Path) -> None:
    """The test fails with the ranks' death, the next one says why it can not run."""
    write_tests(tmp_path, {"test_it.py": DURING_A_TEST})
    with start_pytest(tmp_path) as running:
        wait_for(tmp_path / "ready", running)
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        output, _ = running.process.communicate(timeout=_LIMIT_S)
        assert wait_until_gone(running.stamp) == []
    outcomes, texts = read_junit(running.junit)
    assert outcomes == {"test_before": "passed", "test_waits": "failed", "test_never": "error"}, output
    assert lines_with(texts["test_waits"], "of 2 (pid", "died in call: killed by SIGKILL"), output
    assert "the process that ranks are forked from (pid" in texts["test_never"]


def test_closed_terminal(tmp_path: Path) -> None:
    """SIGHUP ends pytest, as without the plugin, and everything that it has started."""
    write_tests(tmp_path, {"test_it.py": DURING_A_TEST})
    with start_pytest(tmp_path) as running:
        wait_for(tmp_path / "ready", running)
        os.killpg(running.process.pid, signal.SIGHUP)
        running.process.communicate(timeout=_LIMIT_S)
        assert running.process.returncode == -signal.SIGHUP
        assert wait_until_gone(running.stamp) == []


@pytest.mark.parametrize("arguments", [(), ("-s",), ("-n", "2")], ids=["captured", "live", "workers"])
def test_nobody_reads_the_output(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """When the reader of pytest's output goes away in the middle of a test, the run ends and leaves nothing."""
    source = """
        import os, time
        import pytest

        @pytest.mark.distributed(2)
        @pytest.mark.parametrize("number", range(3))
        def test_prints(world, number, pytestconfig):
            world.barrier()
            (pytestconfig.rootpath / "ready").touch()
            while not (pytestconfig.rootpath / "closed").exists():
                time.sleep(0.01)
            print("to nobody")
            os.write(1, b"to nobody")
    """
    write_tests(tmp_path, {"test_it.py": source})
    with start_pytest(tmp_path, "-v", *arguments) as running:
        wait_for(tmp_path / "ready", running)
        assert running.process.stdout is not None
        running.process.stdout.close()
        (tmp_path / "closed").touch()
        assert running.process.wait(_LIMIT_S) != 0
        assert wait_until_gone(running.stamp) == []


# In a mount namespace of the run alone, where TMPDIR is a file system of one megabyte.
SMALL_DISK = """
    import ctypes, pathlib, subprocess, tempfile

    small = pathlib.Path(__file__).parent / "small"
    small.mkdir()
    assert ctypes.CDLL(None).unshare(0x00020000) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    tempfile.tempdir = str(small)
"""
FILLING = """
    import pytest

    @pytest.mark.distributed(2)
    def test_prints_much(world):
        for _ in range(200):
            print("x" * 65536)

    @pytest.mark.distributed(2)
    def test_after_much(world):
        print("there is room again")
        world.barrier()

    @pytest.mark.distributed(2)
    def test_fills(world, tmp_path):
        if world.rank == 0:
            (tmp_path / "large").write_bytes(b"x" * 3_000_000)
        world.barrier()

    @pytest.mark.distributed(2)
    def test_prints_on_a_full_disk(): print("a line")

    @pytest.mark.distributed(2)
    def test_quiet(world): world.barrier()

    @pytest.mark.distributed(2)
    def test_fails(world): assert world.rank == 0

    @pytest.mark.distributed(3, static=False)
    def test_another_world(world): world.barrier()

    @pytest.mark.standalone
    def test_alone(): pass
"""


def can_mount() -> bool:
    """Tell whether this user may mount a file system, which is tried in a process of its own."""
    program = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({_NEW_MOUNTS}))"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0 and os.geteuid() == 0


@pytest.mark.skipif(not hasattr(ctypes, "CDLL") or not can_mount(), reason="a small file system takes root to mount")
def test_full_disk(run_once: RunOnce) -> None:
    """What can not be written fails its test with the error of the system; every other test has its outcome."""
    run = run_once({"conftest.py": SMALL_DISK, "test_full.py": FILLING})
    assert run.outcomes == {
        "test_prints_much": "failed",
        "test_after_much": "passed",
        "test_fills": "failed",
        "test_prints_on_a_full_disk": "failed",
        "test_quiet": "passed",
        "test_fails": "failed",
        "test_another_world": "passed",
        "test_alone": "passed",
    }, run.output[-5000:]
    for name in ("test_prints_much", "test_fills", "test_prints_on_a_full_disk"):
        assert "OSError: [Errno 28] No space left on device" in run.text(name)
    assert "assert 1 == 0" in run.text("test_fails")
    assert lines_with(run.output, "FAILED test_full.py::test_fills - rank 0: OSError: [Errno 28]")


def test_a_rank_is_killed_and_no_other_can_be_made(run_once: RunOnce) -> None:
    """Two faults at once are both told: the death at the test before, the lack of room at the test after."""
    files = {
        "conftest.py": """
            import os, pathlib, resource, signal, time

            def pytest_runtest_logfinish(nodeid):
                if not nodeid.endswith("test_before"):
                    return
                pid = int(pathlib.Path("pid").read_text())
                os.kill(pid, signal.SIGKILL)
                deadline = time.monotonic() + 10
                while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                open_files = len(os.listdir("/proc/self/fd"))
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        """,
        "test_it.py": """
            import os, pathlib, pytest

            @pytest.mark.distributed(2)
            def test_before(world):
                if world.rank == 1:
                    pathlib.Path("pid").write_text(str(os.getpid()))

            @pytest.mark.distributed(2)
            def test_then(): pass
        """,
    }
    run = run_once(files)
    assert run.outcomes == {"test_before": "passed+error", "test_then": "error"}, run.output
    assert lines_with(run.text("test_before"), "rank 1", "killed by SIGKILL between two tests")
    assert lines_with(run.text("test_then"), "test_then cannot run", "open files")
    assert "During handling of the above exception" not in run.output
