"""Forking, signalling and reaping, with real processes; nothing here waits without a limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from lightning_disttest.engine import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 20.0
PROGRAM = """
import os, select, signal, subprocess, sys, time
from lightning_disttest.engine import processes

GRANDCHILD = '''
import os, signal, sys
os.setsid()
print(os.getpid(), flush=True)
signal.pause()
'''

def child():
    # Starts a grandchild in a session of its own, tells its pid, and ends; the grandchild comes to the subreaper.
    os.setsid()
    processes.stamp()
    grandchild = subprocess.Popen([sys.executable, "-c", GRANDCHILD], stdout=subprocess.PIPE)
    os.write(told, grandchild.stdout.readline())
    return 0

def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

processes.become_subreaper()
hears, told = os.pipe()
owner = processes.fork(child)
grandchild = int(os.read(hears, 100))
processes.wait_for_end(owner, 20)
"""


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[], int]], int]]:
    """Return ``processes.fork``; what it started is killed and reaped after the test."""
    pids = []

    def fork_and_note(main: Callable[[], int]) -> int:
        pids.append(processes.fork(main))
        return pids[-1]

    yield fork_and_note
    for pid in pids:
        if not processes.has_ended(pid):
            processes.signal_process(pid, signal.SIGKILL)
        processes.reap(pid)


def pause() -> int:
    """Wait for a signal that ends this process."""
    signal.pause()
    return 0


def wait_for_exit(pid: int) -> None:
    """Wait until a child has ended, without reaping it."""
    pidfd = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([pidfd], [], [], LIMIT_S)
    finally:
        os.close(pidfd)
    assert ready, f"process {pid} did not end within {LIMIT_S} s"


def run_program(code: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_fork_runs_main_in_a_child(fork: Callable[[Callable[[], int]], int]) -> None:
    """The child is another process, and its status is what ``main`` returned."""
    hears, told = os.pipe()

    def main() -> int:
        os.write(told, str(os.getpid()).encode())
        return 7

    pid = fork(main)
    status = processes.wait_for_end(pid, LIMIT_S)
    os.close(told)
    said = os.read(hears, 100)
    os.close(hears)

    assert str(pid).encode() == said
    assert status is not None
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.parametrize("error", ["RuntimeError('boom')", "SystemExit(0)", "KeyboardInterrupt()"])
def test_child_never_returns_into_its_parents_code(error: str) -> None:
    """Whatever ``main`` raises, the child shows it and leaves with status 70, and runs nothing of its parent."""
    code = f"""
import os
from lightning_disttest.engine import processes

def main():
    raise {error}

try:
    status = processes.wait_for_end(processes.fork(main), 20)
    print(os.waitstatus_to_exitcode(status))
finally:
    print("parent")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == "70\nparent\n"
    assert error.partition("(")[0] in done.stderr


def test_fork_loses_no_output_and_repeats_none() -> None:
    """What was written before the fork and not flushed appears once."""
    code = """
import sys
from lightning_disttest.engine import processes
sys.stdout.write("before ")
processes.wait_for_end(processes.fork(lambda: print("child", end=" ", flush=True) or 0), 20)
sys.stdout.write("after")
"""
    assert run_program(code) == "before child after"


def test_has_ended_does_not_reap(fork: Callable[[Callable[[], int]], int]) -> None:
    """An ended child is seen as such, again and again, until it is reaped; only then its status is gone."""
    pid = fork(lambda: 5)
    wait_for_exit(pid)

    assert processes.has_ended(pid)
    assert processes.has_ended(pid)
    assert os.waitstatus_to_exitcode(processes.reap(pid)) == 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_has_ended_tells_a_running_child(fork: Callable[[Callable[[], int]], int]) -> None:
    """A child that runs has not ended."""
    assert not processes.has_ended(fork(pause))


def test_what_is_no_child_has_ended() -> None:
    """A pid that is not, or no longer, a child of this process is nothing to wait for."""
    assert processes.has_ended(os.getppid())
    assert processes.reap(os.getppid()) == 0


def test_sigkill_is_seen_in_the_status(fork: Callable[[Callable[[], int]], int]) -> None:
    """A killed child's status tells the signal."""
    pid = fork(pause)
    processes.signal_process(pid, signal.SIGKILL)

    status = processes.wait_for_end(pid, LIMIT_S)

    assert status is not None
    assert processes.describe_status(status) == "killed by SIGKILL"


def test_wait_for_end_gives_up(fork: Callable[[Callable[[], int]], int]) -> None:
    """A child that does not end within the limit is left alone, and None tells so."""
    pid = fork(pause)

    assert processes.wait_for_end(pid, 0.01) is None
    assert not processes.has_ended(pid)


def test_end_child_kills_what_does_not_end_by_itself(fork: Callable[[Callable[[], int]], int]) -> None:
    """A child that ignores polite signals is killed when its time is over, and reaped."""

    def stubborn() -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return pause()

    pid = fork(stubborn)
    status = processes.end_child(pid, 0.01)

    assert status == signal.SIGKILL
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_end_child_lets_a_child_end_by_itself(fork: Callable[[Callable[[], int]], int]) -> None:
    """A child that ends in time is not killed: its own status is returned."""
    status = processes.end_child(fork(lambda: 3), LIMIT_S)

    assert status is not None
    assert os.waitstatus_to_exitcode(status) == 3


def test_signal_reaches_the_whole_group(fork: Callable[[Callable[[], int]], int]) -> None:
    """With ``group`` the signal reaches every process of the group that the child leads."""
    hears, told = os.pipe()

    def leader() -> int:
        os.setsid()
        os.close(hears)
        processes.fork(pause)
        os.write(told, b"x")
        return pause()

    pid = fork(leader)
    assert os.read(hears, 1) == b"x"
    os.close(told)
    processes.signal_process(pid, signal.SIGKILL, group=True)
    processes.wait_for_end(pid, LIMIT_S)

    # The member holds the other end of the pipe: its end is the end of the stream.
    assert select.select([hears], [], [], LIMIT_S)[0]
    assert os.read(hears, 1) == b""
    os.close(hears)


@pytest.mark.parametrize("group", [False, True])
def test_signal_to_a_process_that_is_gone_is_no_error(fork: Callable[[Callable[[], int]], int], group: bool) -> None:
    """A process that ended in the meantime can not be signalled, and needs not to be."""
    pid = fork(lambda: 0)
    processes.wait_for_end(pid, LIMIT_S)

    processes.signal_process(pid, signal.SIGTERM, group=group)

    assert processes.has_ended(pid)


@pytest.mark.parametrize("pid", [0, -1, -4711])
@pytest.mark.parametrize("group", [False, True])
def test_no_signal_goes_to_a_group_by_accident(monkeypatch: pytest.MonkeyPatch, pid: int, group: bool) -> None:
    """0 and negative numbers, which would reach this process and its whole group, are a mistake of ours."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it was sent"))
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("it was sent"))

    with pytest.raises(AssertionError, match="0 and negative numbers are process groups"):
        processes.signal_process(pid, signal.SIGTERM, group=group)


def test_signal_that_asks_for_stacks_is_nobody_elses() -> None:
    """It is a real-time signal that has no name, unlike those which Lightning and its users handle."""
    assert signal.SIGRTMIN < processes.STACKS_SIGNAL < signal.SIGRTMAX
    assert processes.STACKS_SIGNAL not in {int(named) for named in signal.Signals}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0"),
        (3 << 8, "exited with status 3"),
        (signal.SIGKILL, "killed by SIGKILL"),
        (signal.SIGSEGV | 0x80, "killed by SIGSEGV"),
        (signal.SIGRTMIN + 3, f"killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_status_in_words(status: int, words: str) -> None:
    """A status names the exit code or the signal; a signal without a name has its number."""
    assert words == processes.describe_status(status)


def test_descendants_are_found_and_killed() -> None:
    """What a process has started is found while it lives, and killed by itself; a process that is gone has none."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        deadline = time.monotonic() + LIMIT_S
        while not (found := processes.descendants(parent.pid)) and time.monotonic() < deadline:
            time.sleep(0.005)
        processes.kill_all(found)
        assert len(found) == 1
        assert parent.wait(LIMIT_S) == 0  # its child has ended
    processes.kill_all(found)
    assert processes.descendants(parent.pid) == []


def test_child_dies_with_its_parent() -> None:
    """A process that asked for it is killed by the kernel as soon as its parent ends."""
    hears, told = os.pipe()

    def parent() -> int:
        os.close(hears)
        me = os.getpid()

        def child() -> int:
            processes.die_with_parent(me)
            os.write(told, b"x")
            return pause()

        processes.fork(child)
        return pause()

    pid = processes.fork(parent)
    os.close(told)
    assert os.read(hears, 1) == b"x"
    processes.signal_process(pid, signal.SIGKILL)
    processes.wait_for_end(pid, LIMIT_S)

    assert select.select([hears], [], [], LIMIT_S)[0], "the child outlived its parent"
    assert os.read(hears, 1) == b""
    os.close(hears)


def test_child_whose_parent_is_gone_already_leaves_at_once(fork: Callable[[Callable[[], int]], int]) -> None:
    """A parent that ended before the child could ask is noticed by its pid."""

    def child() -> int:
        processes.die_with_parent(os.getppid() + 1)
        return 9

    status = processes.wait_for_end(fork(child), LIMIT_S)

    assert status == 0


def test_stopped_process_goes_on_after_its_time(fork: Callable[[Callable[[], int]], int]) -> None:
    """A process that stops for a time is stopped, goes on by itself, and leaves no child behind."""

    def main() -> int:
        begin = time.monotonic()
        processes.stop_here(0.2)
        return 0 if time.monotonic() - begin >= 0.2 and processes.living_children() == [] else 1

    pid = fork(main)

    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert processes.wait_for_end(pid, LIMIT_S) == 0


def test_process_that_stops_for_ever_does_not_go_on(fork: Callable[[Callable[[], int]], int]) -> None:
    """A process that stops for ever has no child that would wake it; SIGKILL ends it."""

    def main() -> int:
        processes.stop_here(None)
        return 0

    pid = fork(main)

    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert psutil.Process(pid).children() == []
    assert processes.end_child(pid, 0.1) == signal.SIGKILL


def test_orphans_are_killed_though_they_left_their_session() -> None:
    """A grandchild in a session of its own is found by its stamp after its parent has ended, killed and reaped."""
    code = f"""{PROGRAM}
print(is_alive(grandchild))
processes.kill_orphans(keep=(), owner=owner)
print(is_alive(grandchild))
"""

    assert run_program(code) == "True\nFalse"


def test_orphans_of_another_owner_are_left_alone() -> None:
    """With an owner, descendants of others live on."""
    code = f"""{PROGRAM}
processes.kill_orphans(keep=(), owner=os.getpid())
print(is_alive(grandchild))
processes.kill_orphans(keep=(), owner=None)
print(is_alive(grandchild))
"""

    assert run_program(code) == "True\nFalse"


def test_kept_children_are_left_alone() -> None:
    """Children in ``keep`` are nobody's orphans; without an owner all others are killed."""
    code = f"""{PROGRAM}
kept = processes.fork(lambda: signal.pause() or 0)
processes.kill_orphans(keep=[kept], owner=None)
print(is_alive(kept), is_alive(grandchild))
processes.end_child(kept, 0)
"""

    assert run_program(code) == "True False"


def test_orphans_go_with_their_descendants() -> None:
    """An orphan's own children are killed with it."""
    code = """
import os, signal
from lightning_disttest.engine import processes

processes.become_subreaper()
hears, told = os.pipe()

def orphan():
    os.setsid()
    os.close(hears)
    processes.fork(lambda: os.write(told, b"x") and signal.pause() or 0)
    return signal.pause() or 0

pid = processes.fork(orphan)
os.close(told)
assert os.read(hears, 1) == b"x"
processes.kill_orphans(keep=(), owner=pid)
print(os.read(hears, 1), processes.has_ended(pid))
"""

    assert run_program(code) == "b'' True"


def test_freeze_memory_takes_objects_from_the_collector() -> None:
    """After freezing, the objects that are there are in the permanent generation."""
    code = """
import gc
from lightning_disttest.engine import processes
processes.freeze_memory()
print(gc.get_freeze_count() > 0)
"""

    assert run_program(code) == "True"
