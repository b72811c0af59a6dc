"""A channel between two processes: length-prefixed messages over a socket pair, with file descriptors beside them."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from lightning_disttest.engine.wire import decode, encode
from lightning_disttest.errors import ChannelBroken

if TYPE_CHECKING:
    from lightning_disttest.engine.messages import Message

_HEADER = struct.Struct("!I")
_CHUNK = 1 << 18
_MOST_FDS = 16
_ANCILLARY = socket.CMSG_LEN(_MOST_FDS * array.array("i").itemsize)


def channel_pair() -> tuple[Channel, socket.socket]:
    """Return a channel and the raw socket of its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs


class Channel:
    """One end of a connection.

    ``receive`` blocks and is for processes that serve one peer; ``receive_available`` never blocks and is for the
    controller, which listens to many. ``fds`` collects descriptors that arrived, in order; ``truncated`` tells that
    this process had no room for all of them.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.settimeout(None)  # a test suite may have set socket.setdefaulttimeout
        self._buffer = bytearray()
        self._queue = bytearray()
        self.closed = False
        self.fds: list[int] = []
        self.truncated = False

    def fileno(self) -> int:
        """Return the descriptor of this end."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        self._socket.close()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, after those that were queued, and beside the first byte descriptors.

        Raises:
            OSError: if the other end is gone.
        """
        self.queue(message)
        frames = bytes(self._queue)
        self._queue.clear()
        if fds:
            sent = socket.send_fds(self._socket, [frames], list(fds))
            frames = frames[sent:]
        self._socket.sendall(frames)

    def drop_fds(self) -> None:
        """Close the descriptors that arrived: one or more are missing, so nobody knows which is which."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
        self.truncated = False

    def end(self) -> None:
        """Tell the other end that no more comes, even if some child process holds a copy of this one; then close."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def queue(self, message: Message) -> None:
        """Send a message together with the next one that is sent."""
        body = encode(message)
        self._queue += _HEADER.pack(len(body)) + body

    def receive(self) -> Message | None:
        """Wait for one message; None when the other end has closed.

        Raises:
            ChannelBroken: if the stream ended inside a message.
        """
        while (message := self._take()) is None:
            if not self._read(0):
                if self._buffer:
                    raise ChannelBroken(self._shortage())
                return None
        return message

    def receive_available(self) -> list[Message]:
        """Return the messages that are there, without waiting; ``closed`` tells the end of the stream.

        Raises:
            ChannelBroken: if the stream ended inside a message.
        """
        if not self.closed:
            try:
                while self._read(socket.MSG_DONTWAIT) == _CHUNK:
                    pass
            except BlockingIOError:
                pass
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        if self.closed and self._buffer:
            shortage = self._shortage()
            self._buffer.clear()
            raise ChannelBroken(shortage, messages)
        return messages

    def _read(self, flags: int) -> int:
        try:
            # Not socket.recv_fds, which drops its flags (seen in Python 3.10 to 3.13).
            chunk, ancillary, seen, _ = self._socket.recvmsg(_CHUNK, _ANCILLARY, flags | socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            chunk, ancillary, seen = b"", [], 0
        self.truncated |= bool(seen & socket.MSG_CTRUNC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self.fds.extend(fds)
        if not chunk:
            self.closed = True
        self._buffer += chunk
        return len(chunk)

    def _complete(self) -> bool:
        size = len(self._buffer)
        return size >= _HEADER.size and size >= _HEADER.size + int(_HEADER.unpack_from(self._buffer)[0])

    def _take(self) -> Message | None:
        if not self._complete():
            return None
        end = _HEADER.size + int(_HEADER.unpack_from(self._buffer)[0])
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return decode(body)

    def _shortage(self) -> str:
        if len(self._buffer) < _HEADER.size:
            return f"it ended after {len(self._buffer)} of the {_HEADER.size} bytes of a message's length"
        expected = int(_HEADER.unpack_from(self._buffer)[0])
        received = len(self._buffer) - _HEADER.size
        return f"it ended after {received} of the {expected} bytes of a message"
