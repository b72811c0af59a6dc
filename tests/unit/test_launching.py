"""Starting, watching and ending launched processes: real ones, forked from this process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from lightning_disttest.engine import launching, running_tests
from lightning_disttest.engine.context import enter_rank, leave_rank
from lightning_disttest.engine.inspection import is_stopped
from lightning_disttest.engine.launching import LaunchedProcesses, Limits, limits_now, start_processes
from lightning_disttest.errors import LaunchedRanksFailed
from lightning_disttest.reporting.launched import LaunchFrame
from lightning_disttest.settings import SETTINGS
from tests.unit.contexts import make_context
from tests.unit.test_settings import DEFAULTS

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
FORK = multiprocessing.get_context("fork")
GENEROUS = Limits(LaunchFrame(grace=10.0, limit=0.0, early=0.0), None)
HASTY = Limits(LaunchFrame(grace=0.05, limit=0.0, early=0.0), None)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the files of launches in a folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def launch(
    function: Callable[[int], object], limits: Limits = GENEROUS, context: Any = FORK, nprocs: int = 2
) -> LaunchedProcesses:
    """Start processes that run a function of their rank."""
    return start_processes(function, (), nprocs, context, limits)


def failure_of(started: LaunchedProcesses) -> LaunchedRanksFailed:
    """Return the error of a launch, after which no process and no file of it is left."""
    with pytest.raises(LaunchedRanksFailed) as raised:
        started.join()
    assert all(process.exitcode is not None for process in started.processes)
    assert list(Path(tempfile.gettempdir()).glob("disttest-*")) == []
    return raised.value


def text_of(started: LaunchedProcesses) -> str:
    """Return what a launch says of its failure; empty if it says that all went well."""
    try:
        while not started.join(timeout=30):
            pass
    except LaunchedRanksFailed as failure:
        return str(failure)
    return ""


def wait_for_ever() -> None:
    """Wait for nothing, longer than any test; but who forgets to end this process is not to wait for it for ever."""
    threading.Event().wait(15)


def test_join_with_a_timeout(folder: Path) -> None:
    """It says whether all have ended well, and ends nothing because of that timeout."""

    def wait(rank: int) -> None:
        while not (folder / "go").exists():
            time.sleep(0.005)

    started = launch(wait)
    assert not started.join(timeout=0.05)
    assert all(process.exitcode is None for process in started.processes)
    (folder / "go").touch()
    assert started.join(timeout=30)
    assert started.join()
    assert [process.exitcode for process in started.processes] == [0, 0]
    assert list(folder.glob("disttest-*")) == []


def test_grace_period_of_the_caller() -> None:
    """Whoever gives torch's argument gets that grace."""

    def fail_or_wait(rank: int) -> None:
        if rank == 0:
            raise ValueError("bad")
        wait_for_ever()

    started = launch(fail_or_wait)
    begun = time.monotonic()
    with pytest.raises(LaunchedRanksFailed, match="ValueError: bad"):
        started.join(grace_period=0.05)
    assert time.monotonic() - begun < 5


def test_status_0_before_the_end_is_a_failure() -> None:
    """A process that left its function by the back door has died, whatever its status."""
    text = text_of(launch(lambda _: os._exit(0), nprocs=1))
    assert text.startswith("rank 0 of 1 died: exited with status 0 before the end of its function\n")


def test_who_waits_shows_its_stacks() -> None:
    """A process that is ended after the grace tells where it was."""

    def fail_or_wait(rank: int) -> None:
        if rank == 0:
            raise ValueError("bad")
        wait_for_ever()

    text = text_of(launch(fail_or_wait, HASTY))
    assert "rank 1 of 2" in text
    assert re.search(r"Python stacks:\n(.*\n)+  File .* in wait_for_ever\n", text), text


def test_process_that_ignores_sigterm_is_killed() -> None:
    """Whatever a process does about SIGTERM, it ends."""

    def fail_or_resist(rank: int) -> None:
        if rank == 0:
            raise ValueError("bad")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wait_for_ever()

    started = launch(fail_or_resist, replace(GENEROUS, frame=LaunchFrame(1.0, 0.0, 0.0)))
    failure_of(started)
    assert started.processes[1].exitcode == -signal.SIGKILL


def test_stopped_process_is_told_and_killed(folder: Path) -> None:
    """A process that was stopped has no stacks to show."""

    def fail_or_stop(rank: int) -> None:
        if rank == 1:
            (folder / "draft").write_text(str(os.getpid()))
            (folder / "draft").rename(folder / "pid")
            os.kill(os.getpid(), signal.SIGSTOP)
        while not (folder / "pid").exists() or not is_stopped(int((folder / "pid").read_text())):
            time.sleep(0.005)
        raise ValueError("bad")

    started = launch(fail_or_stop, replace(GENEROUS, frame=LaunchFrame(0.5, 0.0, 0.0)))
    assert "is stopped, by SIGSTOP or a debugger" in str(failure_of(started))


class SlowToBegin(ForkProcess):
    """A process that takes its time before it begins, unless it is rank 0, as a spawned one does."""

    def run(self) -> None:
        """Run the target after a while."""
        if getattr(self, "_args")[1] == 1:  # noqa: B009  not known to typeshed
            time.sleep(0.5)
        super().run()


def test_grace_counts_from_the_begin() -> None:
    """A process that was still starting when another one failed gets to tell its own error."""

    def fail(rank: int) -> None:
        raise ValueError(f"bad {rank}")

    error = failure_of(launch(fail, HASTY, SimpleNamespace(Process=SlowToBegin)))
    assert [failure.text for failure in error.ranks] == ["bad 0", "bad 1"]


def test_process_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for for ever, and not sent the signal for stacks, of which it would die."""
    monkeypatch.setattr(launching, "_BEGIN_S", 0.1)

    def fail(rank: int) -> None:
        raise ValueError(f"bad {rank}")

    started = launch(fail, HASTY, SimpleNamespace(Process=SlowToBegin))
    assert "had not begun its function" in str(failure_of(started))
    assert started.processes[1].exitcode == -signal.SIGTERM


class Unstartable(ForkProcess):
    """A process that can not be started, unless it is rank 0."""

    def start(self) -> None:
        """Start rank 0."""
        if getattr(self, "_args")[1] == 1:  # noqa: B009  not known to typeshed
            raise OSError("no more processes")
        super().start()


def test_process_that_can_not_be_started(folder: Path) -> None:
    """Its error is raised as it is, and those that were started before are ended."""
    made: list[ForkProcess] = []

    def make(**arguments: Any) -> ForkProcess:
        made.append(Unstartable(**arguments))
        return made[-1]

    with pytest.raises(OSError, match="no more processes"):
        launch(lambda _: wait_for_ever(), context=SimpleNamespace(Process=make))
    assert made[0].exitcode == -signal.SIGTERM
    assert list(folder.glob("disttest-*")) == []


def test_status_after_the_end_counts() -> None:
    """A process that came to the end of its function and then died has failed."""

    class Fragile(ForkProcess):
        def run(self) -> None:
            super().run()
            os._exit(3)

    error = failure_of(launch(lambda _: None, context=SimpleNamespace(Process=Fragile), nprocs=1))
    assert "rank 0 of 1 died: exited with status 3 after the end of its function" in str(error)
    assert getattr(error, "exit_code", None) == 3


def test_process_that_does_not_end_after_its_function() -> None:
    """A thread that keeps a process alive is told at the time limit."""

    def leave_thread(rank: int) -> None:
        threading.Thread(target=wait_for_ever).start()

    limits = Limits(LaunchFrame(0.1, limit=1.0, early=0.5), time.monotonic() + 0.5)
    assert "came to the end of its function, but its process did not end" in str(
        failure_of(launch(leave_thread, limits, nprocs=1))
    )


OWNER = """
import multiprocessing, os, signal
from lightning_disttest.engine.launching import Limits, start_processes
from lightning_disttest.reporting.launched import LaunchFrame

def stay(rank):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    signal.pause()

context = multiprocessing.get_context("fork")
started = start_processes(stay, (), 2, context, Limits(LaunchFrame(1.0, 0.0, 0.0), None))
started.join()
"""


def test_ranks_end_with_their_launcher() -> None:
    """When the process that has launched them is killed, ranks end that take no notice of the SIGINT of torch."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        ranks = [psutil.Process(int(owner.stdout.readline())) for _ in range(2)]
        owner.kill()
        assert psutil.wait_procs(ranks, timeout=30)[1] == []


def test_interrupt_ends_all(folder: Path) -> None:
    """What breaks off the wait goes on, after everything was ended."""

    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    started = launch(lambda _: wait_for_ever())
    before = signal.signal(signal.SIGALRM, break_off)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            started.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(process.exitcode is not None for process in started.processes)
    assert list(folder.glob("disttest-*")) == []


@contextlib.contextmanager
def running(monkeypatch: pytest.MonkeyPatch, config: Any, timeout: float) -> Any:
    """Have a test run that has begun just now."""
    monkeypatch.setattr(running_tests, "_running", [])
    stash = {SETTINGS: replace(DEFAULTS, timeout=timeout, grace=0.7, given=frozenset({"timeout"}))}
    plain = SimpleNamespace(pluginmanager=config.pluginmanager, stash=stash)
    item: Any = SimpleNamespace(nodeid="a", config=plain, get_closest_marker=lambda _: None)
    running_tests.begin(item)
    yield running_tests.current()


@pytest.mark.parametrize(("timeout", "early"), [(100.0, 1.0), (2.0, 0.5)])
def test_limits_of_a_plain_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, timeout: float, early: float
) -> None:
    """They are counted from the begin of the test, and over a bit before who else watches the limit can act."""
    with running(monkeypatch, request.config, timeout) as test:
        limits = limits_now()
    assert limits.frame == LaunchFrame(0.7, timeout, early)
    assert limits.deadline == test.begun + timeout - early


def test_no_limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 0 is none, and outside of tests there is none."""
    with running(monkeypatch, request.config, 0.0):
        assert limits_now().deadline is None
    monkeypatch.setattr(running_tests, "_running", [])
    assert limits_now() == Limits(LaunchFrame(0.5, 0.0, 0.0), None)


def test_limits_in_a_rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rank the controller's limit holds, which it has been told."""
    context = make_context(0, 1, "standalone", deadline=1000.0, limit=8.0)
    enter_rank(context)
    try:
        with running(monkeypatch, request.config, 100.0):
            assert limits_now() == Limits(LaunchFrame(0.7, 8.0, 1.0), 999.0)
    finally:
        leave_rank()
