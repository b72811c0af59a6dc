"""Who has SIGTERM when, in a process that runs tests; the signals themselves are sent in the acceptance tests."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine import termination
from lightning_disttest.engine.termination import Termination
from lightning_disttest.errors import RunTerminated


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Start with the default handler, and leave the one that was there."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def make_session(**more: Any) -> Any:
    """Return as much of a session as registers a plugin and can be stopped."""
    config = SimpleNamespace(pluginmanager=SimpleNamespace(register=lambda *_: None), **more)
    return SimpleNamespace(config=config, shouldstop=False, exitstatus=2)


def test_installed_inside_the_context_only() -> None:
    """The default handler is back afterwards, also after an error."""

    def fail_inside() -> None:
        with termination.in_order(make_session()):
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not termination._installed


def test_not_in_workers() -> None:
    """A worker of pytest-xdist keeps the default."""
    with termination.in_order(make_session(workerinput={})):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_not_in_place_of_another_handler(handler: Any) -> None:
    """A handler of somebody else stays, before and after."""
    signal.signal(signal.SIGTERM, handler)
    with termination.in_order(make_session()):
        assert signal.getsignal(signal.SIGTERM) == handler
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    """Only our own handler is taken away, and when another one calls it, it does nothing."""
    ours = Termination(make_session())
    assert ours.install()

    def theirs(*_: object) -> None:
        """Stand for the handler of a Trainer."""

    signal.signal(signal.SIGTERM, theirs)
    ours.handle()
    ours.restore()
    assert signal.getsignal(signal.SIGTERM) == theirs


def test_not_in_other_threads() -> None:
    """Only the main thread may set handlers; elsewhere nothing is done."""
    installed: list[bool] = []
    thread = threading.Thread(target=lambda: installed.append(Termination(make_session()).install()))
    thread.start()
    thread.join()
    assert installed == [False]


def test_signal_names_what_runs_and_interrupts_workers() -> None:
    """Workers on this machine get SIGINT; one on another machine is not touched; the exit status is 143."""
    sent: list[tuple[str, int]] = []
    session = make_session()
    ours = Termination(session)
    for name, is_here in (("here", True), ("remote", False)):
        process = SimpleNamespace(send_signal=lambda signum, name=name: sent.append((name, signum)))
        gateway = SimpleNamespace(spec=SimpleNamespace(popen=is_here), _io=SimpleNamespace(popen=process))
        ours.pytest_testnodeready(SimpleNamespace(gateway=gateway))
    ours.pytest_runtest_logstart("a.py::x")
    ours.pytest_runtest_logfinish("a.py::x")
    ours.pytest_runtest_logstart("a.py::y")
    assert ours.install()
    with pytest.raises(RunTerminated, match=r"^SIGTERM ended the run in a\.py::y$"):
        ours.handle()
    ours.restore()
    assert sent == [("here", signal.SIGINT)]

    assert list(ours.pytest_sessionfinish(session)) == [None]
    assert session.exitstatus == 143


def test_a_signal_that_a_test_has_swallowed_stops_the_session() -> None:
    """After that test, with the text that the exception had; without a signal nothing stops."""
    session = make_session()
    ours = Termination(session)
    assert ours.install()
    ours.pytest_runtest_logstart("a.py::x")
    ours.pytest_runtest_logfinish("a.py::x")
    assert not session.shouldstop
    ours.pytest_runtest_logstart("a.py::y")
    with contextlib.suppress(KeyboardInterrupt):
        ours.handle()
    assert not session.shouldstop
    ours.pytest_runtest_logfinish("a.py::y")
    ours.restore()
    assert session.shouldstop == "SIGTERM ended the run in a.py::y"


def test_without_a_signal_the_exit_status_is_pytests() -> None:
    """Nothing is changed at the end of an undisturbed run."""
    session: Any = SimpleNamespace(exitstatus=1)
    assert list(Termination(make_session()).pytest_sessionfinish(session)) == [None]
    assert session.exitstatus == 1


def test_forked_children_have_the_default() -> None:
    """A child that is forked meanwhile dies of SIGTERM, however early it comes; afterwards nothing is held back."""
    ours = Termination(make_session())
    assert ours.install()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    statuses = set()
    for _ in range(100):
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            signal.pause()
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        statuses.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    ours.restore()
    assert statuses == {-signal.SIGTERM}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
