"""Ctrl-C and SIGTERM, once and twice, at every moment of a run: it ends in order, or at once, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import Running, lines_with, read_junit, start_pytest, wait_until_gone, write_tests

_LIMIT_S = 60.0
_SIGTERM_STATUS = 143
_INT, _TERM = signal.SIGINT, signal.SIGTERM

IN_ORDER = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(items):
        yield
        items.sort(key=lambda item: item.location[1])
"""
# The first signal leads to a wait that is as good as endless: only the second one can end the run in time.
PATIENT = (
    IN_ORDER
    + """
    from lightning_disttest.engine import worlds
    worlds._INTERRUPT_S = 3600.0
"""
)
DURING_A_TEST = """
    import threading
    import pytest

    @pytest.fixture(scope="session")
    def kept(pytestconfig):
        yield
        (pytestconfig.rootpath / "ended").touch()

    @pytest.mark.distributed(2)
    def test_before(world, kept): world.barrier()

    @pytest.mark.distributed(2)
    def test_waits(world, kept, pytestconfig):
        world.barrier()
        (pytestconfig.rootpath / "ready").touch()
        threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_never(): pass
"""
# The main process of pytest-xdist hears of a test later than the rank that goes on with the next one.
AFTER_A_REPORT = {
    "conftest.py": """
        import os
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logreport(report):
            if report.when == "teardown" and "PYTEST_XDIST_WORKER" not in os.environ:
                open("reported", "w").close()
    """,
    "test_it.py": DURING_A_TEST.replace("import threading", "import threading, time").replace(
        '(pytestconfig.rootpath / "ready").touch()',
        """
        while not (pytestconfig.rootpath / "reported").exists():
            time.sleep(0.01)
        (pytestconfig.rootpath / "ready").touch()""",
    ),
}
HANGS_AT_ITS_END = """
    import signal, threading
    import pytest

    @pytest.fixture
    def stubborn(pytestconfig):
        yield
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (pytestconfig.rootpath / "ending").touch()
        threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_before(): pass

    @pytest.mark.distributed(2)
    def test_waits(world, stubborn, pytestconfig):
        world.barrier()
        (pytestconfig.rootpath / "ready").touch()
        threading.Event().wait()
"""
WORLD_IN_THE_MAKING = """
    import pathlib, threading
    import pytest

    def pytest_collection_finish(session):
        import torch.distributed as dist

        def stuck(path, size):
            (session.config.rootpath / "ready").touch()
            threading.Event().wait()

        dist.FileStore = stuck
"""
A_PLAIN_TEST = """
    import threading
    import pytest

    @pytest.fixture(scope="session")
    def kept(pytestconfig):
        yield
        (pytestconfig.rootpath / "ended").touch()

    @pytest.mark.distributed(2)
    def test_before(world, kept): world.barrier()

    def test_waits(pytestconfig):
        (pytestconfig.rootpath / "ready").touch()
        try:
            threading.Event().wait()
        except Exception:
            pass

    @pytest.mark.distributed(2)
    def test_after(kept): pass
"""
RETIREMENT = """
    import threading
    import pytest

    @pytest.fixture(scope="session")
    def slow(pytestconfig):
        yield
        (pytestconfig.rootpath / "ready").touch()
        threading.Event().wait()

    @pytest.mark.distributed(2)
    def test_before(slow): pass
"""


STOPS_EARLY = """
    def test_fails(): assert False

    @pytest.mark.distributed(2)
    def test_that_the_world_is_kept_for(slow): pass
"""
SWALLOWS = """
    import os, signal
    import pytest

    @pytest.fixture(scope="session")
    def kept(pytestconfig):
        yield
        (pytestconfig.rootpath / "ended").touch()

    @pytest.mark.distributed(2)
    def test_before(kept): pass
"""
SWALLOWED = {
    "by a clause": """
        def test_swallows():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                pass
    """,
    "by Python": """
        class Dropped:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)

        def test_swallows():
            Dropped()
    """,
}
MUST_NOT_RUN = """
    def test_never(pytestconfig): (pytestconfig.rootpath / "never").touch()

    @pytest.mark.distributed(2)
    def test_never_on_ranks(kept, pytestconfig): (pytestconfig.rootpath / "never").touch()
"""


@dataclass(frozen=True)
class Ended:
    """How a run ended that got signals."""

    status: int
    output: str
    outcomes: dict[str, str]


def strike(
    folder: Path,
    files: Mapping[str, str],
    signals: Mapping[str, signal.Signals],
    *arguments: str,
    group: bool = True,
) -> Ended:
    """Run pytest and send each signal when its file is there; its group gets it, as from a terminal, or it alone."""
    write_tests(folder, files)
    with start_pytest(folder, *arguments) as running:
        for flag, signum in signals.items():
            wait_for(folder / flag, running)
            (os.killpg if group else os.kill)(running.process.pid, signum)
        output, _ = running.process.communicate(timeout=_LIMIT_S)
        left = wait_until_gone(running.stamp)
    assert left == [], output
    return Ended(running.process.returncode, output, read_junit(running.junit)[0])


def wait_for(path: Path, running: Running) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + _LIMIT_S
    while not path.exists():
        assert running.process.poll() is None, running.process.communicate()[0]
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_ctrl_c_once(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """During a test on ranks: their fixtures end, the summary and JUnit have what was run before, exit code 2."""
    ended = strike(tmp_path, AFTER_A_REPORT, {"ready": _INT}, *workers, "--dist=loadfile")
    assert ended.status == pytest.ExitCode.INTERRUPTED, ended.output
    assert ended.outcomes.get("test_before") == "passed", ended.output
    assert "test_never" not in ended.outcomes
    assert "1 passed" in ended.output
    assert "KeyboardInterrupt" in ended.output
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_ctrl_c_twice(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """The second Ctrl-C does not wait for ranks that do not end."""
    files = {"conftest.py": PATIENT, "test_it.py": HANGS_AT_ITS_END}
    ended = strike(tmp_path, files, {"ready": _INT, "ending": _INT}, *workers, "--dist=loadfile")
    if workers:  # the main process waits for nothing of ours: its second Ctrl-C breaks off pytest's own summary
        assert ended.status in (pytest.ExitCode.INTERRUPTED, -_INT), ended.output
    else:
        assert ended.status == pytest.ExitCode.INTERRUPTED, ended.output
        assert ended.outcomes == {"test_before": "passed"}, ended.output
        assert "1 passed" in ended.output


def test_ctrl_c_while_ranks_ignore_it(tmp_path: Path) -> None:
    """Ranks that ignore SIGINT are ended after their moment."""
    source = DURING_A_TEST.replace(
        "world.barrier()\n        (py", "import signal; signal.signal(2, signal.SIG_IGN); world.barrier()\n        (py"
    )
    ended = strike(tmp_path, {"test_it.py": source}, {"ready": _INT})
    assert ended.status == pytest.ExitCode.INTERRUPTED, ended.output
    assert ended.outcomes == {"test_before": "passed"}
    assert not (tmp_path / "ended").exists()


def test_ctrl_c_while_a_world_is_made(tmp_path: Path) -> None:
    """Ranks that have not joined their world yet are ended too."""
    source = "import pytest\n@pytest.mark.distributed(2)\ndef test_it(): pass\n"
    ended = strike(tmp_path, {"conftest.py": WORLD_IN_THE_MAKING, "test_it.py": source}, {"ready": _INT})
    assert ended.status == pytest.ExitCode.INTERRUPTED, ended.output
    assert "no tests ran" in ended.output


@pytest.mark.parametrize(("signum", "status"), [(_INT, 2), (_TERM, _SIGTERM_STATUS)], ids=["ctrl-c", "sigterm"])
def test_signal_while_a_plain_test_runs(tmp_path: Path, signum: signal.Signals, status: int) -> None:
    """A world that is kept meanwhile is ended in order."""
    ended = strike(tmp_path, {"conftest.py": IN_ORDER, "test_it.py": A_PLAIN_TEST}, {"ready": signum})
    assert ended.status == status, ended.output
    assert ended.outcomes["test_before"] == "passed"  # pytest leaves an entry without a name for the other one
    assert (tmp_path / "ended").exists()
    if signum == _TERM:
        assert "SIGTERM ended the run in test_it.py::test_waits" in ended.output


@pytest.mark.parametrize(("signum", "status"), [(_INT, 2), (_TERM, _SIGTERM_STATUS)], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("moment", ["in the last test", "after the last test"])
def test_signal_while_a_world_retires(tmp_path: Path, signum: signal.Signals, status: int, moment: str) -> None:
    """A fixture that does not end when its world retires is not waited for."""
    source = RETIREMENT if moment == "in the last test" else RETIREMENT + STOPS_EARLY
    ended = strike(tmp_path, {"conftest.py": IN_ORDER, "test_it.py": source}, {"ready": signum}, "-x")
    assert ended.status == status, ended.output
    if moment == "after the last test":
        assert ended.outcomes == {"test_before": "passed", "test_fails": "failed"}
        assert signum == _INT or "SIGTERM ended the run between two tests, after test_it.py::test_fails" in ended.output


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_sigterm(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """SIGTERM to pytest alone ends the run in order, and the text says so and names the test."""
    ended = strike(tmp_path, AFTER_A_REPORT, {"ready": _TERM}, *workers, "--dist=loadfile", "-rA", group=False)
    assert ended.status == _SIGTERM_STATUS, ended.output
    assert ended.outcomes.get("test_before") == "passed", ended.output
    assert lines_with(ended.output, "RunTerminated: SIGTERM ended the run in test_it.py::test_waits"), ended.output
    assert lines_with(ended.output, "PASSED test_it.py::test_before"), "the summary is not complete"
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("body", SWALLOWED.values(), ids=SWALLOWED)
def test_sigterm_that_a_test_swallows(tmp_path: Path, body: str) -> None:
    """The run ends after that test, whose outcome is told; no other one runs, and what is kept ends in order."""
    source = textwrap.dedent(SWALLOWS) + textwrap.dedent(body) + textwrap.dedent(MUST_NOT_RUN)
    ended = strike(tmp_path, {"conftest.py": IN_ORDER, "test_it.py": source}, {}, "-Wignore")
    assert ended.status == _SIGTERM_STATUS, ended.output
    assert ended.outcomes == {"test_before": "passed", "test_swallows": "passed"}, ended.output
    assert lines_with(ended.output, "!! Interrupted: SIGTERM ended the run in test_it.py::test_swallows !!"), (
        ended.output
    )
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "never").exists()


def test_sigterm_twice(tmp_path: Path) -> None:
    """The second SIGTERM ends pytest at once, as without the plugin, and every rank with it."""
    files = {"conftest.py": PATIENT, "test_it.py": HANGS_AT_ITS_END}
    ended = strike(tmp_path, files, {"ready": _TERM, "ending": _TERM}, group=False)
    assert ended.status == -_TERM


def test_a_handler_of_the_user_is_left_alone(tmp_path: Path) -> None:
    """With a handler of its own a suite decides what SIGTERM does."""
    conftest = """
        import os, signal

        def leave(*_):
            os.write(1, b"the suite's own handler")
            os._exit(9)

        signal.signal(signal.SIGTERM, leave)
    """
    ended = strike(tmp_path, {"conftest.py": conftest, "test_it.py": DURING_A_TEST}, {"ready": _TERM}, group=False)
    assert ended.status == 9, ended.output


def test_what_plain_tests_see_of_sigterm(tmp_path: Path) -> None:
    """Children of plain tests die of SIGTERM, a Trainer in fit handles it, and afterwards it has its old meaning."""
    source = """
        import multiprocessing, os, signal, time
        import pytest
        from lightning.pytorch.demos.boring_classes import BoringModel
        from lightning.pytorch.utilities.exceptions import SIGTERMException

        def test_child_dies():
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            child.start()
            child.terminate()
            child.join()
            assert child.exitcode == -signal.SIGTERM

        class Struck(BoringModel):
            def training_step(self, batch, batch_idx):
                os.kill(os.getpid(), signal.SIGTERM)
                return super().training_step(batch, batch_idx)

        def test_trainer_handles_it(trainer_factory):
            with pytest.raises(SIGTERMException):
                trainer_factory(enable_progress_bar=False).fit(Struck())

        @pytest.mark.distributed(1)
        def test_ranks_have_the_default(): assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    """
    script = """
        import signal
        import pytest

        status = pytest.main(["-q", "-Wignore", "-p", "no:cacheprovider", "test_sigterm.py"])
        print("exit code", int(status), "and", signal.getsignal(signal.SIGTERM).name)
    """
    write_tests(tmp_path, {"test_sigterm.py": source, "main.py": script})
    command = [sys.executable, "main.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert "exit code 0 and SIG_DFL" in result.stdout, result.stdout + result.stderr
