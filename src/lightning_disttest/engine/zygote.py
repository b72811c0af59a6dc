"""The zygote: a pristine copy of the controller, forked before any test has run. It forks ranks and reaps them."""

from __future__ import annotations

import os
import selectors
import signal
from typing import TYPE_CHECKING

from lightning_disttest.engine import processes
from lightning_disttest.engine.messages import ForkFailed, ForkRank, FromZygote, RankEnded, RankForked, SignalRank
from lightning_disttest.engine.output import FILES_PER_RANK, RankFds

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.engine.channel import Channel

    RankMain = Callable[[ForkRank, RankFds], int]


class Zygote:
    """Serves the controller until the controller's end of the channel closes; then ends every rank."""

    def __init__(self, control: Channel, rank_main: RankMain) -> None:
        self._control = control
        self._rank_main = rank_main
        self._tokens: dict[int, int] = {}
        self._ended = processes.EndOfChildren()

    def run(self) -> int:
        """Fork, signal and reap as the controller asks; return the exit status."""
        try:
            self._loop()
        except SystemExit:
            pass  # the controller is gone
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end_all()
        return 0

    def _loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while not self._control.closed:
                selector.select()
                self._ended.drain()
                self._serve()
                self._reap_ended()

    def _serve(self) -> None:
        messages = self._control.receive_available()
        complete = not self._control.truncated
        for message in messages:
            if isinstance(message, ForkRank) and complete:
                self._fork_rank(message)
            elif isinstance(message, ForkRank):
                self._tell(ForkFailed(message.token, "too many open files"))
            elif isinstance(message, SignalRank):
                self._signal_rank(message)
            else:
                raise AssertionError(f"the zygote does not take {message!r}")
        # Descriptors come with the first bytes of a message, which may be read before the rest of it.
        if not complete and any(isinstance(message, ForkRank) for message in messages):
            self._control.drop_fds()

    def _fork_rank(self, request: ForkRank) -> None:
        fds = RankFds(*self._control.fds[:FILES_PER_RANK])
        del self._control.fds[:FILES_PER_RANK]
        zygote = os.getpid()
        try:
            pid = processes.fork(lambda: self._become_rank(zygote, request, fds))
        except OSError as error:
            self._tell(ForkFailed(request.token, str(error)))
        else:
            self._tokens[pid] = request.token
            self._tell(RankForked(request.token, pid))
        finally:
            fds.close()

    def _tell(self, message: FromZygote) -> None:
        try:
            self._control.send(message)
        except OSError:
            self._control.closed = True  # the controller is gone

    def _become_rank(self, zygote: int, request: ForkRank, fds: RankFds) -> int:
        processes.die_with_parent(zygote)
        self._ended.forget()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._control.close()
        return self._rank_main(request, fds)

    def _signal_rank(self, request: SignalRank) -> None:
        for pid, token in self._tokens.items():
            if token == request.token:
                processes.signal_process(pid, request.signum, group=request.group)

    def _reap_ended(self) -> None:
        ended = [pid for pid in self._tokens if processes.has_ended(pid)]
        for pid in ended:
            token = self._tokens.pop(pid)
            self._tell(RankEnded(token, processes.reap_session(pid, others=self._tokens)))

    def _end_all(self) -> None:
        for pid in self._tokens:
            processes.reap_group(pid)
        processes.kill_orphans(keep=(), owner=None)


def zygote_main(control: Channel, controller: int, prepare: Callable[[], None], rank_main: RankMain) -> int:
    """Run the zygote; ``prepare`` detaches it from what belongs to the controller alone.

    It leads a session of its own, so that a Ctrl-C at the terminal reaches the controller only, which then ends
    the ranks in order.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, processes.leave)
    # Not SIGKILL: when the controller is killed, what the ranks have started is to be ended too.
    processes.die_with_parent(controller, signal.SIGTERM)
    processes.become_subreaper()
    prepare()
    processes.freeze_memory()
    return Zygote(control, rank_main).run()
