"""The only place that forks, signals and reaps processes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A real-time signal that nobody uses: Lightning takes SIGUSR1, SIGUSR2 and SIGTERM for itself.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 7
_CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
_POLL_S = 0.002
_STAMP = "DISTTEST_RANK_PID"


def fork(main: Callable[[], int]) -> int:
    """Fork; the child runs ``main``, leaves with its return value as status and never returns. Return the pid.

    Python 3.12 and newer warn about every fork of a process with threads (numpy's BLAS has some); whether this
    process can be forked was checked by ``guard.check_fork`` before, so the warning is switched off here.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        status = main()
    except BaseException:  # noqa: BLE001  the child must not run its parent's code
        traceback.print_exc(file=sys.__stderr__)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends; leave at once if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(0)


def leave(*_: object) -> NoReturn:
    """Leave in order, as the handler of a signal: a loop that is in ``try`` ends what it has started."""
    raise SystemExit(0)


def become_subreaper() -> None:
    """Become the parent of descendants whose own parent ends, so that none can escape."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep_stack_signals(stacks: int) -> None:
    """Have this process write its Python stacks to ``stacks`` on STACKS_SIGNAL and when it crashes, for good.

    Lightning's Trainer sets the handlers of all signals back after a fit, to what ``signal.getsignal`` told it before.
    That knows no handlers of faulthandler, so they would be gone; such a reset is passed over.
    """
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    genuine = signal.signal

    @functools.wraps(genuine)
    def set_handler(signum: int, handler: Any) -> Any:
        nothing_set = handler == signal.SIG_DFL and signal.getsignal(signum) == signal.SIG_DFL
        if signum == STACKS_SIGNAL or (nothing_set and signum in _CRASHES):
            return signal.SIG_DFL
        return genuine(signum, handler)

    setattr(signal, "signal", set_handler)  # noqa: B010  for all code of this process


def freeze_memory() -> None:
    """Keep the garbage collector off the objects that are there.

    Forks go on sharing their pages, and a collection does not walk over a million objects of torch each time.
    """
    gc.freeze()


def thaw_memory() -> None:
    """Undo ``freeze_memory``."""
    gc.unfreeze()


def signal_process(pid: int, signum: int, *, group: bool = False) -> None:
    """Send a signal to a process, or to the process group that it leads.

    One that is gone, or that changed its user, is no error.
    """
    assert pid > 0, "0 and negative numbers are process groups"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, signum)
        else:
            os.kill(pid, signum)


class EndOfChildren:
    """A file that becomes readable when a child of this process has ended, for a loop that waits on files."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._read

    def drain(self) -> None:
        """Take note: from now on the next end counts."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def forget(self) -> None:
        """Undo all of it, in a child that was just forked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)


def stop_here(seconds: float | None) -> None:
    """Stop this process as SIGSTOP does, for ever or for some seconds.

    A child wakes it: it is started before, and counts the seconds from when it sees that this process is stopped.
    """
    stopped = os.getpid()
    waker = None if seconds is None else fork(lambda: _wake(stopped, seconds))
    signal_process(stopped, signal.SIGSTOP)
    if waker is not None:
        reap(waker)


def _wake(pid: int, seconds: float) -> int:
    die_with_parent(pid)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)  # those of the process that is stopped are no business of this one
    process = psutil.Process(pid)
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(_POLL_S)
    time.sleep(seconds)
    signal_process(pid, signal.SIGCONT)
    return 0


def has_ended(pid: int) -> bool:
    """Tell whether a child has ended, without reaping it: its pid and group stay reserved until ``reap``."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def reap(pid: int) -> int:
    """Reap a child that has ended and return its status as ``os.waitpid`` gives it."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def reap_group(pid: int) -> int:
    """End the process group that a child leads, and reap the child; return its status."""
    # Before it is reaped, its pid still names its process group and nobody else's.
    signal_process(pid, signal.SIGKILL, group=True)
    return reap(pid)


def reap_session(pid: int, others: Collection[int]) -> int:
    """End what a child has started, also in sessions of its own, and reap the child; return its status.

    ``others`` are the children of this process that go on: nothing of theirs is ended.
    """
    status = reap_group(pid)
    kill_orphans(keep=others, owner=pid if others else None)
    return status


def wait_for_end(pid: int, seconds: float) -> int | None:
    """Reap a child that ends within ``seconds`` and return its status, or None."""
    deadline = time.monotonic() + seconds
    while not has_ended(pid):
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)
    return reap(pid)


def end_child(pid: int, seconds: float) -> int | None:
    """Wait ``seconds`` for a child to end by itself, then kill it; return its status."""
    status = wait_for_end(pid, seconds)
    if status is None:
        signal_process(pid, signal.SIGKILL)
        status = wait_for_end(pid, 5.0)
    return status


def kill_orphans(keep: Iterable[int], owner: int | None) -> None:
    """Kill the children of this process that are not in ``keep``, with all of their descendants, and reap them.

    Orphans have come here because this process is a subreaper. With ``owner``, only those are killed that descend
    from this process: they are in its session, or carry its stamp in their environment (see ``stamp``).
    """
    kept = set(keep)
    orphans = []
    for pid in _children():
        with contextlib.suppress(psutil.NoSuchProcess):
            orphans += [psutil.Process(pid)] if pid not in kept else []
    if owner is not None:
        orphans = [orphan for orphan in orphans if _descends(orphan, owner)]
    for orphan in orphans:
        for process in (*orphan.children(recursive=True), orphan):
            signal_process(process.pid, signal.SIGKILL)
    for orphan in orphans:
        wait_for_end(orphan.pid, 1.0)


def _children() -> list[int]:
    """Return the pids of this process's children; the kernel keeps the list, so /proc need not be scanned."""
    try:
        tasks = Path("/proc/self/task")
        return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    except OSError:
        return [child.pid for child in psutil.Process().children()]


def living_children() -> list[int]:
    """Return the pids of this process's children that have not ended; it costs next to nothing if there are none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return [pid for pid in _children() if not _is_gone(pid)]


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that they have; none if it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def kill_all(doomed: Iterable[psutil.Process]) -> None:
    """Kill processes; none that has the pid of one that is gone."""
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def private_memory(pid: int) -> int:
    """Return the bytes of memory that a process has in use for itself, not in files; 0 if it is gone."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def stamp() -> None:
    """Mark what this process will start, so that ``kill_orphans`` knows it even in a session of its own."""
    os.environ[_STAMP] = str(os.getpid())


def _descends(orphan: psutil.Process, owner: int) -> bool:
    try:
        return os.getsid(orphan.pid) == owner or orphan.environ().get(_STAMP) == str(owner)
    except (ProcessLookupError, psutil.Error):
        return False


def describe_status(status: int) -> str:
    """Return a status of ``os.waitpid`` in words: ``killed by SIGKILL`` or ``exited with status 3``."""
    return describe_exitcode(os.waitstatus_to_exitcode(status))


def describe_exitcode(code: int) -> str:
    """Return the exit code of a process in words; a negative one is that of a signal, as in ``subprocess``."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
