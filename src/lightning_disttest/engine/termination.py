"""SIGTERM, with which CI systems cancel a job, ends the run in order, as Ctrl-C does; only the exit status is its own.

Not in workers of pytest-xdist: for their main process a worker that leaves before its tests are done has crashed,
whether it leaves in order or not. The main process interrupts them, as a Ctrl-C at the terminal reaches them too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import processes, pytest_bridge
from lightning_disttest.errors import RunTerminated

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

STATUS = 128 + signal.SIGTERM
_PLUGIN = "disttest-termination"


class Termination:
    """A plugin that knows which tests run and holds the handler of SIGTERM."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._running: dict[str, None] = {}
        self._last = ""
        self._workers: list[subprocess.Popen[bytes]] = []
        self._heard = ""  # the text; not the exception, which would keep what the test that it left has in its frames

    def install(self) -> bool:
        """Take SIGTERM over unless somebody else has; return whether that was done."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, self.handle)
        _installed.add(self)
        return True

    def restore(self) -> None:
        """Give SIGTERM its default meaning back; a handler that was set meanwhile stays."""
        _installed.discard(self)
        if signal.getsignal(signal.SIGTERM) == self.handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def handle(self, *_: object) -> None:
        """End the run in order at the first signal, at once at the second.

        What is raised here may never reach pytest: a test may catch it, and Python drops it in ``__del__`` and in
        callbacks of native code. Then the session stops after the test that runs.

        Whoever has set a handler since, as Lightning does in ``fit``, calls the one before; that would have been the
        default one, which can not be called.

        Raises:
            RunTerminated: at the first signal.
        """
        if signal.getsignal(signal.SIGTERM) != self.handle:
            return
        if self._heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            processes.signal_process(os.getpid(), signal.SIGTERM)
            return
        terminated = RunTerminated(list(self._running), self._last)
        self._heard = str(terminated)
        for worker in self._workers:
            worker.send_signal(signal.SIGINT)  # one that has ended gets none
        raise terminated

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Note the process of a worker, unless it is on another machine."""
        if node.gateway.spec.popen:
            self._workers.append(pytest_bridge.process_of_worker(node))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins, in this process or in a worker of pytest-xdist."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note a test that has ended; stop the session if there was a signal that did not."""
        self._running.pop(nodeid, None)
        self._last = nodeid
        if self._heard:
            self._session.shouldstop = self._heard

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Set the exit status after the summary, which pytest prints for its own exit codes only."""
        yield
        if self._heard:
            session.exitstatus = STATUS


_installed: set[Termination] = set()
_masks = threading.local()


def _hold_back() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]) if _installed else None


def _let_through() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _leave_child_alone() -> None:
    for termination in list(_installed):
        termination.restore()
    _let_through()


# A process that a plain test forks is ended by SIGTERM as ever. It is held back meanwhile: Python forgets signals with
# a handler of Python that a child gets before it is set up (multiprocessing's ``terminate`` right after ``start``).
os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_leave_child_alone)


@contextlib.contextmanager
def in_order(session: pytest.Session) -> Generator[None, None, None]:
    """Have SIGTERM end the run in order, inside this context."""
    config, termination = session.config, Termination(session)
    if hasattr(config, "workerinput") or not termination.install():
        yield
        return
    try:
        config.pluginmanager.register(termination, _PLUGIN)
        yield
    finally:
        termination.restore()
