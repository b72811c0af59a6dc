"""A rank: forked from the zygote, joins its world, runs items that the controller names, leaves when told."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import (
    answering,
    guard,
    hypothesis_seed,
    measuring,
    processes,
    pytest_bridge,
    pytest_in_rank,
    recording,
    rendezvous,
)
from lightning_disttest.engine.channel import Channel
from lightning_disttest.engine.context import RankContext, enter_rank
from lightning_disttest.engine.leak_guard import LeakGuard
from lightning_disttest.engine.messages import (
    ConnectionGiven,
    FixturesFailed,
    ForkRank,
    FromRank,
    Interrupted,
    ItemFinished,
    JoinFailed,
    LaunchRanks,
    RanksLaunched,
    Retire,
    Retired,
    RunItem,
    WarmProcessWanted,
    WhereTold,
)
from lightning_disttest.errors import LaunchFailed, WarmInterpreterLost
from lightning_disttest.selection.factories import uses_factory
from lightning_disttest.settings import SETTINGS

if TYPE_CHECKING:
    from lightning_disttest.engine.output import RankFds


class Rank:
    """Serves the controller until it is told to retire."""

    def __init__(self, session: pytest.Session, request: ForkRank, fds: RankFds) -> None:
        self._session = session
        self._request = request
        self._fds = fds
        self._channel = Channel(socket.socket(fileno=fds.channel))
        self._sending = threading.Lock()
        self._tmp_path = ""
        self._pid = os.getpid()
        self._context = RankContext(
            rank=request.rank,
            world_size=request.world_size,
            kind=request.kind,
            device=request.device,
            backend=request.backend,
            port=request.port,
            nodeid="",
            send=self.send,
            launch=self._launch,
            connect_warm=self._connect_warm,
            folder=str(Path(request.store).with_name(recording.FOLDER) / str(request.token)),
        )
        strict = session.config.stash[SETTINGS].strict_leaks
        # The processes of the others end after their test, but what a Trainer leaves may be a fault of its own.
        self._leaks = LeakGuard(self._context, strict, None if request.kind == "static" else uses_factory)
        session.config.pluginmanager.register(self._leaks, "disttest-leaks")
        self._runner = pytest_in_rank.ItemRunner(session, self)

    def run(self) -> int:
        """Serve the controller; return the exit status."""
        try:
            return self._serve()
        except BaseException as error:  # noqa: BLE001  a signal handler that a test has left may raise anything
            self.send(Interrupted("idle", pytest_in_rank.format_error(error), None))
            return 1

    def _serve(self) -> int:
        if not self._join():
            return 1
        self._session.config.hook.pytest_disttest_rank_start(config=self._session.config, rank=self._context)
        while (message := self._channel.receive()) is not None:
            if isinstance(message, RunItem):
                if not self._run_item(message):
                    return 1
            elif isinstance(message, Retire):
                self._retire()
                return 0
            else:
                raise AssertionError(f"a rank does not take {message!r} between items")
        return 0

    def _join(self) -> bool:
        enter_rank(self._context)
        pytest_in_rank.share_tmp_path(self._session.config, lambda: self._tmp_path)
        if not self._request.backend:
            answering.answer_once_grouped(self._fds.ask, self._tell_where)
            return True
        try:
            rendezvous.join_world(self._request)
        except Exception:  # noqa: BLE001  whatever it is, the controller has to hear it
            self.send(JoinFailed(traceback.format_exc()))
            return False
        answering.answer_questions(self._fds.ask, self._tell_where)
        return True

    def _tell_where(self, stack: str, collectives: list[dict[str, Any]] | None) -> None:
        self.send(WhereTold(stack, collectives))

    def _run_item(self, message: RunItem) -> bool:
        items = self._session.items
        item = items[message.index]
        nextitem = None if message.next_index is None else items[message.next_index]
        self._tmp_path = message.tmp_path
        self._context.nodeid = item.nodeid
        self._context.deadline, self._context.limit = message.deadline, message.limit
        hypothesis_seed.share_examples(item, message.seed)
        if self._request.kind == "standalone":
            pytest_in_rank.name_single_test(item)
        problems = self._runner.end_fixtures(item)
        if problems:
            self.send(FixturesFailed(problems))
        self.enter("setup")
        interrupted = self._run_protocol(item, nextitem)
        measuring.save_rank()
        if interrupted is not None:
            self.send(interrupted)
            self.send(Retired(self._runner.end_fixtures(None)))
            return False
        self.send(ItemFinished(message.index, self._is_intact()))
        return True

    def _is_intact(self) -> bool:
        if not self._leaks.intact or self._context.group_is_broken:
            return False
        return rendezvous.world_is_intact() if self._request.backend else True

    def _run_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Interrupted | None:
        try:
            self._runner.run(item, nextitem)
        except pytest.exit.Exception as stop:
            return Interrupted("exit", str(stop), stop.returncode)
        except KeyboardInterrupt as interrupt:
            text = pytest_in_rank.format_error(interrupt) + pytest_in_rank.last_output(item)
            return Interrupted("keyboard", text, None)
        except BaseException:  # noqa: BLE001  an internal error of pytest on a rank is a failure of this test
            return Interrupted("internal", traceback.format_exc(), None)
        return None

    def _retire(self) -> None:
        problems = self._runner.end_fixtures(None)
        atexit._run_exitfuncs()
        measuring.save_rank()
        sys.stdout.flush()
        sys.stderr.flush()
        self.send(Retired(problems))

    def send(self, message: FromRank) -> None:
        """Send a message to the controller; a thread of the test may do so too."""
        with self._sending:
            self._channel.send(message)

    def queue(self, message: FromRank) -> None:
        """Send a message together with the next one."""
        with self._sending:
            self._channel.queue(message)

    def enter(self, stage: str) -> None:
        """Note the stage of the test that begins."""
        if os.getpid() != self._pid:
            # A child that the test has forked came out of the test: it must not report in the name of the rank.
            os._exit(1)
        self._fds.enter(stage)

    def _launch(self, environments: list[dict[str, str]]) -> list[int]:
        self.send(LaunchRanks(environments))
        answer = self._channel.receive()
        if not isinstance(answer, RanksLaunched) or answer.problem:
            raise LaunchFailed(answer.problem if isinstance(answer, RanksLaunched) else "pytest has ended")
        return answer.pids

    def _connect_warm(self, modules: list[str]) -> socket.socket:
        self.send(WarmProcessWanted(modules))
        answer = self._channel.receive()
        if not isinstance(answer, ConnectionGiven) or answer.problem:
            raise WarmInterpreterLost(answer.problem if isinstance(answer, ConnectionGiven) else "pytest has ended")
        return socket.socket(fileno=self._channel.fds.pop(0))


def rank_main(session: pytest.Session, request: ForkRank, fds: RankFds) -> int:
    """Become a rank of ``request``; called in a process that was just forked from the zygote."""
    os.setsid()
    _forget_exit_handlers()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.replace_environment:
        os.environ.clear()
    os.environ.update(request.environment)
    rendezvous.keep_through_patches(rendezvous.launcher_variables(request.environment))
    processes.stamp()
    pytest_in_rank.redirect_output(session.config, fds)
    processes.keep_stack_signals(fds.stacks)
    guard.use_threads_of_rank(request.world_size)
    measuring.measure_rank(Path(request.store).parent, request.token)
    return Rank(session, request, fds).run()


def _forget_exit_handlers() -> None:
    """Leave the controller's exit handlers to the controller; those that the tests of this rank add are run."""
    atexit._clear()
    finalize: Any = weakref.finalize
    for finalizer in list(finalize._registry):
        finalizer.atexit = False
    finalize._registered_with_atexit = False


def prepare_zygote(session: pytest.Session) -> None:
    """Detach a new zygote from what belongs to the controller alone; called in the zygote."""
    rendezvous.hide_foreign_variables()
    pytest_bridge.detach_from_worker(session.config)
