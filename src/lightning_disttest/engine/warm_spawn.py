"""Multiprocessing's ``spawn`` from an interpreter that is warm: everything is pickled and imported as ever, but torch.

``WarmContext`` stands in for the context of the start method ``spawn``. Its processes are children of the warm
interpreter (see ``warm_interpreter``), which this process has started, or, for a rank, the controller.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.connection
import multiprocessing.popen_fork
import multiprocessing.process
import multiprocessing.resource_tracker
import multiprocessing.spawn
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.context import SpawnContext, SpawnProcess, reduction, set_spawning_popen  # type: ignore[attr-defined]
from typing import IO, TYPE_CHECKING, Any

from lightning_disttest.engine import processes
from lightning_disttest.engine.channel import Channel, channel_pair
from lightning_disttest.engine.context import current_rank
from lightning_disttest.engine.messages import (
    FilesPassed,
    ProcessEnded,
    ProcessSpawned,
    ServeConnection,
    SignalProcess,
    SpawnWarm,
)
from lightning_disttest.engine.warm_interpreter import InheritedFd
from lightning_disttest.errors import WarmInterpreterLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILES_AT_ONCE = 16
_END_S = 5.0
_START_S = 60.0  # in which it may still be importing
_LAST_BYTES = 2000
_NO_ANSWER = "it has ended"
_PROGRAM = """
import json, sys
sys.path[:], control, controller, modules = json.loads(sys.argv[1])
from lightning_disttest.engine.warm_interpreter import main
main(control, controller, modules)
"""


class Interpreter:
    """The controller's side of a warm interpreter: a process that is started at once and imports meanwhile."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._control, theirs = channel_pair()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        facts = json.dumps([sys.path, theirs.fileno(), os.getpid(), list(modules)])
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS_")}
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", _PROGRAM, facts],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=environment,
            start_new_session=True,
        )
        theirs.close()

    def connect(self) -> socket.socket:
        """Return a new connection, for one process.

        Raises:
            WarmInterpreterLost: if the interpreter has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._control.send(ServeConnection(), (theirs.fileno(),))
            except OSError:
                ours.close()
                raise WarmInterpreterLost(self._last_words()) from None
        return ours

    def has_ended(self) -> bool:
        """Tell whether the interpreter is gone: killed, or never came up."""
        return self._process.poll() is not None

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._said.seek(0)
        said = self._said.read()[-_LAST_BYTES:].decode(errors="replace").strip()
        return f"{_NO_ANSWER} (pid {self._process.pid}, status {self._process.returncode}) {said}".strip()

    def stop(self) -> None:
        """End the interpreter, and with it every process that it has forked."""
        self._control.end()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


_interpreter: Interpreter | None = None
_owner = 0


def connect(modules: Sequence[str]) -> socket.socket:
    """Return a connection to the warm interpreter of this run, for one process.

    Raises:
        WarmInterpreterLost: if the interpreter has ended.
    """
    rank = current_rank()
    if rank is not None:
        return rank.connect_warm(list(modules))
    return own_interpreter(modules).connect()


def own_interpreter(modules: Sequence[str]) -> Interpreter:
    """Return the warm interpreter of this process; if there is none, one is started, which imports ``modules``."""
    global _interpreter, _owner
    if _interpreter is not None and _interpreter.has_ended():
        stop_interpreter()
    if _interpreter is None or _owner != os.getpid():
        _interpreter, _owner = Interpreter(modules), os.getpid()
    return _interpreter


def stop_interpreter() -> None:
    """End the warm interpreter of this process, if there is one."""
    global _interpreter
    if _interpreter is not None and _owner == os.getpid():
        _interpreter.stop()
        _interpreter = None


class _Popen(multiprocessing.popen_fork.Popen):
    """What ``multiprocessing.popen_spawn_posix.Popen`` is, with the warm interpreter in place of a new one."""

    method = "spawn"
    DupFd = InheritedFd

    def __init__(self, process: WarmProcess) -> None:
        self._fds: list[int] = []
        super().__init__(process)

    def duplicate_for_child(self, fd: int) -> int:
        """Pass a descriptor to the child; return its index there."""
        self._fds.append(fd)
        return len(self._fds) - 1

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, None while the process runs; without WNOHANG wait for its end."""
        if self.returncode is None:
            limit = 0 if flag == os.WNOHANG else None
            if multiprocessing.connection.wait([self.sentinel], limit):
                self.returncode = self._receive_exit_code()
        return self.returncode

    def _receive_exit_code(self) -> int:
        message = self._channel.receive()
        if not isinstance(message, ProcessEnded):
            # The interpreter has ended. Its processes end with it, but torch weakens that to a SIGINT.
            processes.signal_process(self.pid, signal.SIGKILL, group=True)
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(message.status)

    def _send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(OSError):
                self._channel.send(SignalProcess(sig))

    def _launch(self, process: WarmProcess) -> None:
        with _pickled(self, process) as pickled, contextlib.ExitStack() as undo:
            self._channel = Channel(connect(process.modules))
            undo.callback(self._channel.end)
            self.sentinel = self._channel.fileno()
            alive, self._alive = os.pipe()  # the child's ``parent_process()`` waits for the end of this pipe
            undo.callback(os.close, self._alive)
            try:
                tracker: Any = multiprocessing.resource_tracker
                self._ask([0, 1, 2, pickled.fileno(), alive, tracker.getfd(), *self._fds])
            finally:
                os.close(alive)
            self.pid = self._take_pid()
            self.finalizer = multiprocessing.util.Finalize(self, undo.pop_all().close)

    def _ask(self, fds: list[int]) -> None:
        try:
            for begin in range(0, len(fds), _FILES_AT_ONCE):
                self._channel.send(FilesPassed(), tuple(fds[begin : begin + _FILES_AT_ONCE]))
            self._channel.send(SpawnWarm(dict(os.environ), _umask(), len(fds)))
        except OSError:
            raise WarmInterpreterLost(_NO_ANSWER) from None

    def _take_pid(self) -> int:
        if not multiprocessing.connection.wait([self.sentinel], _START_S):
            raise WarmInterpreterLost(f"it has not answered for {_START_S:g} s")
        answer = self._channel.receive()
        if not isinstance(answer, ProcessSpawned) or answer.problem:
            raise WarmInterpreterLost(answer.problem if isinstance(answer, ProcessSpawned) else _NO_ANSWER)
        return answer.pid


class WarmProcess(SpawnProcess):
    """A process of ``WarmContext``; ``modules`` are those that the interpreter is to have imported."""

    modules: Sequence[str] = ()

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  the name is multiprocessing's
        return _Popen(process_obj)


class WarmContext(SpawnContext):
    """The context of the start method ``spawn``, whose processes start warm.

    The interpreter imports the modules that whoever needs it first has named.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self._modules = modules

    def Process(self, *args: Any, **kwargs: Any) -> WarmProcess:  # type: ignore[override]  # noqa: N802  it is a class there
        """Return a process that has not started yet; the arguments are those of ``multiprocessing.Process``."""
        process = WarmProcess(*args, **kwargs)
        process.modules = self._modules
        return process


@contextlib.contextmanager
def _pickled(popen: _Popen, process: WarmProcess) -> Iterator[IO[bytes]]:
    """Return the file from which ``multiprocessing.spawn`` makes the process in the child."""
    spawn: Any = multiprocessing.spawn
    with tempfile.TemporaryFile() as file:
        set_spawning_popen(popen)  # type: ignore[arg-type]
        try:
            reduction.dump(spawn.get_preparation_data(process.name), file)
            reduction.dump(process, file)
        finally:
            set_spawning_popen(None)
        file.flush()
        file.seek(0)
        yield file


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
