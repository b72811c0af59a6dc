"""The controller's view of the zygote and of every rank: starts them, listens to all of them, signals them."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import selectors
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightning_disttest.engine import processes
from lightning_disttest.engine.channel import Channel, channel_pair
from lightning_disttest.engine.messages import (
    AboutItem,
    ForkFailed,
    ForkRank,
    JoinFailed,
    RankEnded,
    RankForked,
    SignalRank,
    ToRank,
    WhereTold,
)
from lightning_disttest.engine.output import RankFiles
from lightning_disttest.engine.zygote import zygote_main
from lightning_disttest.errors import ChannelBroken, RankNotStarted, ZygoteLost

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from lightning_disttest.engine.zygote import RankMain

_ZYGOTE_END_S = 5.0
_STACKS_S = 0.25
_ANSWER_S = 0.25
_STACKS_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Ended:
    """The rank's process was reaped with this status of ``os.waitpid``."""

    status: int


@dataclass(frozen=True, slots=True)
class Silenced:
    """The rank's channel ended, though its process may live; ``problem`` is empty if it ended between messages."""

    problem: str


Event = AboutItem | Ended | Silenced


@dataclass(eq=False, slots=True)
class RankHandle:
    """One rank as the controller sees it. Silence, end of stream and exit status are observed separately.

    ``tells``: it has said that it answers where it is; ``answer`` is its last one, None if it has not answered.
    """

    token: int
    rank: int
    channel: Channel
    files: RankFiles
    pid: int = 0
    status: int | None = None
    tells: bool = False
    answer: WhereTold | None = None
    inbox: collections.deque[tuple[int, float, Event]] = field(default_factory=collections.deque)

    def send(self, message: ToRank, fds: tuple[int, ...] = ()) -> None:
        """Send a message, and descriptors with it; a rank that is gone says so by its end, not here."""
        with contextlib.suppress(OSError):
            self.channel.send(message, fds)


class Supervisor:
    """Owns the zygote and all ranks of this controller."""

    def __init__(self, show: Callable[[str], None] | None, forked: Callable[[], None] = lambda: None) -> None:
        self._show = show
        self._forked = forked
        self._tokens = itertools.count()
        self._arrivals = itertools.count()
        self._handles: dict[int, RankHandle] = {}
        self._selector = selectors.DefaultSelector()
        self._control: Channel | None = None
        self.zygote_pid = 0

    def start(self, prepare: Callable[[], None], rank_main: RankMain) -> None:
        """Fork the zygote from this process as it is now."""
        self._control, theirs = channel_pair()
        controller = os.getpid()

        def main() -> int:
            assert self._control is not None
            self._control.close()
            self._selector.close()
            return zygote_main(Channel(theirs), controller, prepare, rank_main)

        self.zygote_pid = processes.fork(main)
        theirs.close()
        self._selector.register(self._control, selectors.EVENT_READ, self._read_control)

    def start_rank(self, rank: int, request: Callable[[int], ForkRank]) -> RankHandle:
        """Start a rank; ``request`` makes the message from the token that the rank gets.

        Raises:
            ZygoteLost: if the zygote has ended.
            RankNotStarted: if this process has no room for the files of the rank.
        """
        self.check_zygote()
        assert self._control is not None
        with contextlib.ExitStack() as undo:
            handle, theirs = self._open_files(rank, undo)
            try:
                self._control.send(request(handle.token), (theirs.fileno(), *handle.files.rank_ends()))
            except OSError:
                raise ZygoteLost(self.zygote_pid) from None
            undo.pop_all()
        theirs.close()
        handle.files.handed_over()
        self._handles[handle.token] = handle
        self._selector.register(handle.channel, selectors.EVENT_READ, lambda: self._read_rank(handle))
        self._selector.register(handle.files.raw, selectors.EVENT_READ, lambda: self._read_raw(handle))
        return handle

    def check_zygote(self) -> None:
        """Check that ranks can be forked.

        Raises:
            ZygoteLost: if the zygote has ended.
        """
        if self._control is None or self._control.closed:
            raise ZygoteLost(self.zygote_pid)

    def _open_files(self, rank: int, undo: contextlib.ExitStack) -> tuple[RankHandle, socket.socket]:
        try:
            channel, theirs = channel_pair()
            undo.callback(channel.close)
            undo.callback(theirs.close)
            files = RankFiles(rank, self._show)
            undo.callback(files.abandon)
        except OSError as error:
            raise RankNotStarted(rank, str(error)) from error
        return RankHandle(next(self._tokens), rank, channel, files), theirs

    def poll(self, seconds: float | None) -> None:
        """Wait up to ``seconds`` (None: for ever) for news of any rank, and put it into the inboxes."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def signal(self, handle: RankHandle, signum: int, *, group: bool) -> None:
        """Signal a rank through the zygote, which knows whether the pid is still the rank's."""
        if self._control is not None and not self._control.closed:
            try:
                self._control.send(SignalRank(handle.token, signum, group))
            except OSError:
                self._lose_zygote()

    def end(self, handles: list[RankHandle], seconds: float) -> None:
        """End ranks: SIGTERM to each group, then SIGKILL after ``seconds``, and wait until the zygote reaped them."""
        for signum, limit in ((signal.SIGTERM, seconds), (signal.SIGKILL, _ZYGOTE_END_S)):
            for handle in handles:
                if handle.status is None:
                    self.signal(handle, signum, group=True)
            self.wait_until(lambda: all(handle.status is not None for handle in handles), limit)

    def take_stacks(self, handles: list[RankHandle]) -> None:
        """Have ranks write their Python stacks, by a signal that needs no interpreter, and wait a moment for them.

        One that is stopped writes nothing. It is not to go on: what it does then is no part of what happened.
        """
        for handle in handles:
            handle.files.forget_stacks()
            self.signal(handle, processes.STACKS_SIGNAL, group=False)
        deadline, seen = time.monotonic() + _STACKS_S, [""]
        while time.monotonic() < deadline:
            asked = [handle.files for handle in handles if handle.status is None]
            written = [files.stacks() for files in asked]
            if written == seen and all(files.stacks_are_complete() for files in asked):
                return  # they come in many pieces, and this was the last one
            seen = written
            time.sleep(_STACKS_POLL_S)  # the selector hears nothing of what is written to a file
            self.poll(0)

    def ask_where(self, handles: list[RankHandle]) -> None:
        """Ask those ranks that can tell where they are, and wait a moment for their answers."""
        telling = [handle for handle in handles if handle.tells]
        for handle in handles:
            handle.answer = None
        for handle in telling:
            handle.files.ask()
        self.wait_until(
            lambda: all(handle.status is not None or handle.answer is not None for handle in telling), _ANSWER_S
        )

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Listen to all ranks until ``condition`` holds, at most ``seconds``; return whether it held."""
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.poll(left)
        return True

    def forget(self, handle: RankHandle) -> None:
        """Close the files of a rank that has ended."""
        self._handles.pop(handle.token, None)
        self._unregister(handle.channel)
        if handle.files.raw_open:
            handle.files.read_raw()
        self._unregister(handle.files.raw)  # also when its end was read just now: its number will be another file's
        handle.channel.close()
        handle.files.close()

    def stop(self) -> None:
        """End the zygote and with it every rank that is left."""
        if self._control is None:
            return
        for handle in list(self._handles.values()):
            self.forget(handle)
        self._unregister(self._control)
        self._control.end()
        processes.end_child(self.zygote_pid, _ZYGOTE_END_S)
        self._selector.close()
        self._control = None

    def _read_control(self) -> None:
        assert self._control is not None
        try:
            messages = self._control.receive_available()
        except ChannelBroken as error:
            messages = list(error.messages)
        for message in messages:
            if isinstance(message, RankForked) and message.token in self._handles:
                self._handles[message.token].pid = message.pid
                self._forked()
            elif isinstance(message, RankEnded) and message.token in self._handles:
                self._note_end(self._handles[message.token], message.status)
            elif isinstance(message, ForkFailed) and message.token in self._handles:
                handle = self._handles[message.token]
                self._deliver(handle, JoinFailed(str(RankNotStarted(handle.rank, message.reason))))
                handle.status = 0
        if self._control.closed:
            self._lose_zygote()

    def _note_end(self, handle: RankHandle, status: int) -> None:
        self._read_rank(handle)  # what it said before it ended comes first
        handle.status = status
        self._deliver(handle, Ended(status))

    def _lose_zygote(self) -> None:
        assert self._control is not None
        self._unregister(self._control)
        self._control.close()
        for handle in self._handles.values():
            # The kernel ends the ranks with the zygote; nobody is left who could tell their status.
            if handle.status is None:
                self._note_end(handle, signal.SIGKILL)

    def _read_rank(self, handle: RankHandle) -> None:
        if handle.channel.closed:
            return
        problem = ""
        try:
            messages = handle.channel.receive_available()
        except ChannelBroken as error:
            messages, problem = list(error.messages), str(error)
        for message in messages:
            self._deliver(handle, message)  # type: ignore[arg-type]
        if handle.channel.closed or problem:
            self._unregister(handle.channel)
            handle.channel.closed = True
            self._deliver(handle, Silenced(problem))

    def _read_raw(self, handle: RankHandle) -> None:
        handle.files.read_raw()
        if not handle.files.raw_open:
            self._unregister(handle.files.raw)

    def _deliver(self, handle: RankHandle, event: Event | WhereTold) -> None:
        if isinstance(event, WhereTold):
            handle.tells = True
            handle.answer = event if event.stack else handle.answer
            return
        handle.inbox.append((next(self._arrivals), time.monotonic(), event))

    def _unregister(self, file: Channel | int) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it was unregistered when its stream ended
            self._selector.unregister(file)
