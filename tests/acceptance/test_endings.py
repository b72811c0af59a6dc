"""Nothing is left behind, whatever ends: a test, a rank, the run, or pytest itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Running, lines_with, run_pytest, stamped_processes, start_pytest, wait_until_gone, write_tests

WAITING = """
    import pathlib
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2)
    def test_waits(world, pytestconfig):
        (pytestconfig.rootpath / f"rank{world.rank}").touch()
        if world.rank == 0:
            dist.barrier()
        import threading
        threading.Event().wait()
"""

_LIMIT_S = 60.0


def wait_for_ranks(folder: Path) -> None:
    """Wait until both ranks are in the body of the test."""
    deadline = time.monotonic() + _LIMIT_S
    while not all((folder / f"rank{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < deadline, "the ranks never came"
        time.sleep(0.02)


def processes_below(running: Running) -> list[int]:
    """Return the processes of a run without pytest itself."""
    return [pid for pid in stamped_processes(running.stamp) if pid != running.process.pid]


def test_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C during a test on ranks ends the ranks, prints the summary and leaves with 2."""
    write_tests(tmp_path, {"test_waiting.py": WAITING})
    with start_pytest(tmp_path) as running:
        wait_for_ranks(tmp_path)
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does, to all of its foreground group
        output, _ = running.process.communicate(timeout=_LIMIT_S)
        assert running.process.returncode == pytest.ExitCode.INTERRUPTED
        assert "KeyboardInterrupt" in output
        assert "no tests ran in" in output
        assert wait_until_gone(running.stamp) == []


@pytest.mark.parametrize("victim", ["controller", "zygote"])
def test_kill_9(tmp_path: Path, victim: str) -> None:
    """When pytest, or the process that ranks are forked from, is killed -9, every other process ends by itself."""
    write_tests(tmp_path, {"test_waiting.py": WAITING})
    with start_pytest(tmp_path) as running:
        wait_for_ranks(tmp_path)
        below = processes_below(running)
        assert len(below) == 3  # the zygote and two ranks
        zygote = next(pid for pid in below if parent_of(pid) == running.process.pid)
        os.kill(running.process.pid if victim == "controller" else zygote, signal.SIGKILL)
        output, _ = running.process.communicate(timeout=_LIMIT_S)
        assert wait_until_gone(running.stamp) == []
    if victim == "zygote":
        assert running.process.returncode == pytest.ExitCode.TESTS_FAILED
        assert "killed by SIGKILL" in output


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


LOST = """
    import os, signal
    import pytest

    @pytest.mark.distributed(1)
    def test_kills(world):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
"""
PLAIN_LAST = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(items):
        yield
        items.sort(key=lambda item: item.name == "test_plain")
"""


def test_tests_after_a_lost_zygote_say_so(run_once: RunOnce) -> None:
    """After the zygote was killed the other tests fail with the reason, also under xfail; plain tests still run."""
    source = """
        import pytest

        @pytest.mark.distributed(1)
        def test_after(): pass

        @pytest.mark.distributed(1)
        @pytest.mark.xfail
        def test_expected_to_fail(): assert False

        def test_plain(): pass
    """
    run = run_once({"conftest.py": PLAIN_LAST, "test_a_lost.py": LOST, "test_others.py": source})
    errors = dict.fromkeys(("test_after", "test_expected_to_fail"), "error")
    assert run.outcomes == {"test_kills": "failed", **errors, "test_plain": "passed"}, run.output
    assert list(run.outcomes)[-1] == "test_plain"
    for name in errors:
        assert lines_with(run.text(name), "the process that ranks are forked from (pid", "has ended")


def test_ranks_that_can_not_be_started_use_up_no_descriptors(run_once: RunOnce) -> None:
    """Each test that could not run has given back the descriptors that its ranks would have had."""
    source = """
        import os
        import pytest

        @pytest.mark.parametrize("number", range(60))
        @pytest.mark.distributed(2)
        def test_many(number): pass

        def test_plain(): assert len(os.listdir("/proc/self/fd")) < 40
    """
    run = run_once({"conftest.py": PLAIN_LAST, "test_a_lost.py": LOST, "test_many.py": source})
    assert run.outcome("test_many[59]") == "error", run.output
    assert run.outcome("test_plain") == "passed", run.text("test_plain")
    assert list(run.outcomes)[-1] == "test_plain"


def test_children_of_ranks_are_ended(run_once: RunOnce) -> None:
    """Children that a rank leaves behind are ended with its world, also in a session of their own."""
    source = """
        import subprocess, sys, time
        import pytest

        SLEEP = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]

        @pytest.mark.distributed(2)
        def test_leaves_children(world):
            subprocess.Popen(SLEEP)
            subprocess.Popen(SLEEP, start_new_session=True)

        @pytest.mark.distributed(2, static=False)
        def test_fails_with_children(world):
            subprocess.Popen(SLEEP, start_new_session=True)
            assert False

        @pytest.mark.standalone(timeout=2)
        def test_hangs_with_children():
            subprocess.Popen(SLEEP, start_new_session=True).wait()
    """
    run = run_once({"test_children.py": source})  # the harness checks that no process is left
    assert run.outcomes == {
        "test_leaves_children": "passed",
        "test_fails_with_children": "failed",
        "test_hangs_with_children": "failed",
    }


def test_the_harness_sees_what_is_left(tmp_path: Path) -> None:
    """The check for processes that are left can fail: a plain test that leaves a child is caught."""
    source = """
        import subprocess, sys

        def test_leaves_a_child():
            command = [sys.executable, "-c", "import signal; signal.pause()"]
            subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    """
    write_tests(tmp_path, {"test_child.py": source})
    with pytest.raises(AssertionError, match="processes of the run are left"):
        run_pytest(tmp_path, "-W", "ignore")


def test_a_rank_that_dies_between_tests_is_reported(run_once: RunOnce) -> None:
    """A rank that ends after its test passed is an error at that test, and the next one has a new world."""
    source = """
        import os, signal
        import pytest
        import torch.distributed as dist

        @pytest.mark.distributed(2)
        def test_dies_later(world, pytestconfig):
            if world.rank == 1:
                (pytestconfig.rootpath / "pid").write_text(str(os.getpid()))

        @pytest.mark.distributed(1)
        def test_in_between(world, pytestconfig):
            import psutil
            zygote = psutil.Process().parent()
            before = len(zygote.children())
            os.kill(int((pytestconfig.rootpath / "pid").read_text()), signal.SIGKILL)
            while len(zygote.children()) == before:
                pass

        @pytest.mark.distributed(2)
        def test_next(world): dist.barrier()
    """
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(items):
            yield
            items.sort(key=lambda item: ["test_dies_later", "test_in_between", "test_next"].index(item.name))
    """
    run = run_once({"conftest.py": conftest, "test_between.py": source})
    assert run.returncode == 1
    assert "3 passed, 1 error" in run.output
    assert lines_with(run.output, "rank 1 (pid", "killed by SIGKILL between two tests")
    assert "ERROR test_between.py::test_dies_later" in run.output


def test_exit_on_a_rank_stops_the_run(run_once: RunOnce) -> None:
    """pytest.exit on a rank stops the run as in a plain test, and says which rank."""
    source = """
        import pytest

        @pytest.mark.distributed(2)
        def test_exits(world):
            if world.rank == 1:
                pytest.exit("enough", returncode=9)

        @pytest.mark.distributed(2)
        def test_never(world): pass
    """
    run = run_once({"test_exit.py": source})
    assert run.returncode == 9
    assert "enough (pytest.exit was called on rank 1 in test_exit.py::test_exits)" in run.output
    assert "test_never" not in run.outcomes


def test_exitfirst_stops_in_order(run_once: RunOnce) -> None:
    """With -x the run stops after the first failed test on ranks, whose fixtures are ended."""
    source = """
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def ended(pytestconfig):
            yield
            (pytestconfig.rootpath / "ended").touch()

        @pytest.mark.distributed(2)
        def test_1(): assert False

        @pytest.mark.distributed(2)
        def test_2(): pass
    """
    run = run_once({"test_x.py": source}, "-x")
    assert run.returncode == 1
    assert set(run.outcomes) == {"test_1"}
    assert (run.folder / "ended").exists()


def test_live_output(tmp_path: Path) -> None:
    """With -s the output of ranks is shown while the test runs, each line with its rank."""
    source = """
        import os, time
        import pytest

        @pytest.mark.distributed(2)
        def test_prints(world, pytestconfig):
            print(f"from rank {world.rank}")
            os.system("echo from a child")
            while not (pytestconfig.rootpath / "seen").exists():
                time.sleep(0.01)
    """
    write_tests(tmp_path, {"test_live.py": source})
    with start_pytest(tmp_path, "-s") as running:
        wanted = {f"[rank {rank}] from {what}" for rank in (0, 1) for what in (f"rank {rank}", "a child")}
        assert running.process.stdout is not None
        while wanted:
            line = running.process.stdout.readline()
            assert line, f"never shown: {wanted}"
            wanted -= {text for text in wanted if line.rstrip().endswith(text)}
        (tmp_path / "seen").touch()
        running.process.communicate(timeout=_LIMIT_S)
        assert running.process.returncode == 0


def test_megabytes_of_output_block_nobody(run_once: RunOnce) -> None:
    """Megabytes on descriptors 1 and 2 block no rank, captured or live."""
    source = """
        import os
        import pytest

        @pytest.mark.distributed(2)
        def test_floods(world):
            for _ in range(64):
                os.write(1, b"x" * 65536)
                os.write(2, b"y" * 65536)
    """
    for arguments in ((), ("-s",)):
        run = run_once({"test_flood.py": source}, *arguments)
        assert run.returncode == 0, run.output[-2000:]


def test_unsafe_fork_is_a_clear_error(run_once: RunOnce) -> None:
    """A module that starts a thread pool at import makes ranks impossible: each such test says so and names it."""
    source = """
        import pytest
        import torch

        torch._C.set_num_threads(4)  # torch.set_num_threads itself is put off until after the fork
        torch.nn.Linear(64, 64)(torch.randn(512, 64))

        @pytest.mark.distributed(2)
        def test_ranks(): pass

        def test_plain(): pass
    """
    run = run_once({"test_pool.py": source})
    assert run.outcomes == {"test_plain": "passed", "test_ranks": "error"}
    text = run.text("test_ranks")
    assert "ranks cannot be forked from this process" in text
    assert "test_pool.py" in text.partition("It happened while")[2]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older Pythons do not warn of a fork")
def test_python_warns_of_no_fork(tmp_path: Path) -> None:
    """With warnings as errors, forking a process that has threads is no error (Python 3.12 and newer warn)."""
    source = """
        import threading
        import pytest

        threading.Thread(target=threading.Event().wait, daemon=True).start()

        @pytest.mark.distributed(2)
        def test_it(): pass
    """
    write_tests(tmp_path, {"test_threads.py": source})
    run = run_pytest(tmp_path, "-W", "error")
    assert run.returncode == 0, run.output


def test_embedding_a_run(tmp_path: Path) -> None:
    """pytest.main called by a script runs tests on ranks; the script goes on afterwards."""
    write_tests(
        tmp_path,
        {
            "test_it.py": "import pytest\n@pytest.mark.distributed(2)\ndef test_it(world): world.barrier()\n",
            "main.py": "import pytest\nprint('exit code', int(pytest.main(['-q', 'test_it.py'])))\n",
        },
    )
    result = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert result.stdout.count("exit code") == 1
    assert "exit code 0" in result.stdout
