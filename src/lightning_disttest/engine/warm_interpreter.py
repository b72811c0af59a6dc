"""A fresh interpreter that has imported some modules and forks processes in the place of multiprocessing's ``spawn``.

It is the role of one process: started by the controller when the first such process is wanted, ended with it. What it
has imported is what a spawned process would have to import for seconds; it has run no test, and test modules are
imported in each process anew.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import processes
from lightning_disttest.engine.channel import Channel
from lightning_disttest.engine.messages import (
    FilesPassed,
    ProcessEnded,
    ProcessSpawned,
    ServeConnection,
    SignalProcess,
    SpawnWarm,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_FILES = 6  # stdin, stdout, stderr, the pickled process, its parent's sign of life, the resource tracker
_OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_inherited: list[int] = []


class InheritedFd:
    """A descriptor of the parent in what was pickled for the child, as ``multiprocessing.reduction.DupFd`` makes it."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """Return the descriptor, in the child."""
        return _inherited[self._index]


class WarmInterpreter:
    """Serves one connection for each process that is wanted: forks it, signals it, and tells how it ended.

    A connection that its owner closes takes the process with it, whatever the process does at that moment.
    """

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._waiting: list[Channel] = []
        self._serving: dict[int, Channel] = {}
        self._ended = processes.EndOfChildren()

    def run(self) -> None:
        """Serve until the controller's end of the channel closes, or SIGTERM says so; then end every process."""
        signal.signal(signal.SIGTERM, self._stop)
        try:
            while not self._control.closed:
                self._wait()
                self._take_connections()
                for connection in list(self._waiting):
                    self._take_request(connection)
                for pid, connection in list(self._serving.items()):
                    self._serve(pid, connection)
                self._reap_ended()
        finally:
            for pid in list(self._serving):
                self._reap(pid)
            processes.kill_orphans(keep=(), owner=None)

    def _stop(self, *_: object) -> None:
        """End the loop; an exception would break off what ends the processes, for which the time is the same."""
        self._control.closed = True

    def _wait(self) -> None:
        channels = (self._control, *self._waiting, *self._serving.values())
        with selectors.DefaultSelector() as selector:
            selector.register(self._ended, selectors.EVENT_READ)
            for channel in channels:
                if not channel.closed:
                    selector.register(channel, selectors.EVENT_READ)
            selector.select()
        self._ended.drain()

    def _take_connections(self) -> None:
        for message in self._control.receive_available():
            assert isinstance(message, ServeConnection), message
            self._waiting.append(Channel(socket.socket(fileno=self._control.fds.pop(0))))

    def _take_request(self, connection: Channel) -> None:
        for message in connection.receive_available():
            if isinstance(message, SpawnWarm):
                self._waiting.remove(connection)
                self._spawn(connection, message)
                return
            assert isinstance(message, FilesPassed), message
        if connection.closed:
            self._waiting.remove(connection)
            connection.close()

    def _spawn(self, connection: Channel, request: SpawnWarm) -> None:
        fds = connection.fds[:]
        connection.fds.clear()
        interpreter = os.getpid()
        try:
            if len(fds) != request.files:
                raise OSError("too many open files")
            with _signals_blocked():  # our handlers are none of the process's
                pid = processes.fork(lambda: self._become_process(interpreter, connection, request, fds))
        except OSError as error:
            with contextlib.suppress(OSError):
                connection.send(ProcessSpawned(0, str(error)))
            connection.close()
        else:
            self._serving[pid] = connection
            with contextlib.suppress(OSError):  # then its owner is gone, which is noticed with the next message
                connection.send(ProcessSpawned(pid, ""))
        finally:
            for fd in fds:
                os.close(fd)

    def _become_process(self, interpreter: int, connection: Channel, request: SpawnWarm, fds: list[int]) -> int:
        processes.die_with_parent(interpreter)
        self._ended.forget()
        for channel in (self._control, connection, *self._waiting, *self._serving.values()):
            if not channel.closed:
                channel.close()
        return _run_process(request, fds)

    def _serve(self, pid: int, connection: Channel) -> None:
        for message in [] if connection.closed else connection.receive_available():
            assert isinstance(message, SignalProcess), message
            processes.signal_process(pid, message.signum)
        if connection.closed:
            processes.signal_process(pid, signal.SIGKILL)

    def _reap_ended(self) -> None:
        for pid in [pid for pid in self._serving if processes.has_ended(pid)]:
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        """End the session of a process, reap it, and tell its owner."""
        connection = self._serving.pop(pid)
        status = processes.reap_session(pid, others=self._serving)
        if not connection.closed:
            with contextlib.suppress(OSError):
                connection.send(ProcessEnded(status))
        connection.close()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, _OWN_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWN_SIGNALS)


def _run_process(request: SpawnWarm, fds: list[int]) -> int:
    """Be what ``multiprocessing.spawn.spawn_main`` is in a new interpreter; return the exit status."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWN_SIGNALS)
    stdio, (pickled, sentinel, tracker), inherited = fds[:3], fds[3:OWN_FILES], fds[OWN_FILES:]
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
        os.close(fd)
    _inherited[:] = inherited
    os.environ.clear()
    os.environ.update(request.environment)
    os.umask(request.umask)
    _take_over_settings()
    own_tracker: Any = multiprocessing.resource_tracker._resource_tracker
    own_tracker._fd = tracker
    try:
        return int(multiprocessing.spawn._main(pickled, sentinel))
    finally:
        atexit._run_exitfuncs()


def _take_over_settings() -> None:
    """Do what a new interpreter does with its environment when it imports these packages, or measures coverage."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal():
        torch.set_num_threads(int(threads))
    if numpy is not None:
        numpy.random.seed()  # or each process would begin with the same numbers
    if "COVERAGE_PROCESS_START" in os.environ or "COVERAGE_PROCESS_CONFIG" in os.environ:
        import coverage

        coverage.process_startup()


def main(control: int, controller: int, modules: list[str]) -> None:
    """Run the interpreter; ``control`` is the descriptor of its channel, ``modules`` is what to import."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, processes.leave)
    # Not SIGKILL: when the controller is killed, the processes that were forked here are to be ended too.
    processes.die_with_parent(controller, signal.SIGTERM)
    processes.become_subreaper()
    for name in modules:
        with contextlib.suppress(Exception):  # the process that needs it will tell why it can not be imported
            importlib.import_module(name)
    processes.freeze_memory()
    WarmInterpreter(Channel(socket.socket(fileno=control))).run()
