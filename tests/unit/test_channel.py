"""The channel, over real socket pairs: frames, descriptors beside them, and every way in which a stream can end."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from lightning_disttest.engine.channel import Channel, channel_pair
from lightning_disttest.engine.messages import ItemFinished, JoinFailed, RankForked, Retire
from lightning_disttest.engine.wire import encode
from lightning_disttest.errors import ChannelBroken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_disttest.engine.messages import Message

LIMIT_S = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """Return a channel and the raw socket of its other end, which gives up after a limit."""
    channel, other = channel_pair()
    other.settimeout(LIMIT_S)
    yield channel, other
    channel.close()
    other.close()


def frame(message: Message) -> bytes:
    """Return the bytes of a message as they travel: four bytes of length, big-endian, then the body."""
    body = encode(message)
    return struct.pack("!I", len(body)) + body


def test_send_writes_a_length_and_a_body(pair: tuple[Channel, socket.socket]) -> None:
    """A frame is the body's length in four bytes, big-endian, then the body."""
    channel, other = pair
    expected = frame(RankForked(1, 2))

    channel.send(RankForked(1, 2))

    assert expected == other.recv(1000)


def test_queued_messages_travel_with_the_next_one() -> None:
    """A queued message is not on the wire until another one is sent, and then goes before it, once."""
    receiver, other = channel_pair()
    channel = Channel(other)

    channel.queue(RankForked(1, 1))
    channel.queue(RankForked(2, 2))
    before = receiver.receive_available()
    channel.send(ItemFinished(3, True))
    together = receiver.receive_available()
    channel.send(Retire())
    afterwards = receiver.receive_available()
    receiver.close()
    channel.close()

    assert before == []
    assert together == [RankForked(1, 1), RankForked(2, 2), ItemFinished(3, True)]
    assert afterwards == [Retire()]


def test_default_timeout_of_the_users_sockets_does_not_count() -> None:
    """A conftest that calls ``socket.setdefaulttimeout`` does not break the channels: nothing is no error."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        channel, other = channel_pair()
    finally:
        socket.setdefaulttimeout(before)
    try:
        assert channel.receive_available() == []
    finally:
        channel.close()
        other.close()


def test_default_timeout_does_not_end_a_wait() -> None:
    """A rank that waits longer for its next test than the suite's default timeout still gets it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        sender, other = channel_pair()
        receiver = Channel(other)
    finally:
        socket.setdefaulttimeout(before)
    timer = threading.Timer(0.1, sender.send, (ItemFinished(3, True),))
    timer.start()
    try:
        assert ItemFinished(3, True) == receiver.receive()
    finally:
        timer.join(LIMIT_S)
        sender.close()
        receiver.close()


def test_receive_returns_messages_in_order(pair: tuple[Channel, socket.socket]) -> None:
    """Messages that arrive in one piece come out one by one, in order."""
    channel, other = pair
    other.sendall(frame(ItemFinished(3, True)) + frame(RankForked(1, 2)))

    assert [ItemFinished(3, True), RankForked(1, 2)] == [channel.receive(), channel.receive()]


def test_receive_waits_for_the_rest_of_a_message(pair: tuple[Channel, socket.socket]) -> None:
    """A message that comes byte by byte is put together."""
    channel, other = pair

    def dribble() -> None:
        for byte in frame(RankForked(1, 2)):
            other.sendall(bytes([byte]))

    sender = threading.Thread(target=dribble)
    sender.start()
    received = channel.receive()
    sender.join(LIMIT_S)

    assert RankForked(1, 2) == received


def test_partial_reads_never_yield_half_a_message(pair: tuple[Channel, socket.socket]) -> None:
    """Whatever the stream is cut into, a message appears with its last byte and not before."""
    channel, other = pair
    data = frame(RankForked(1, 2))
    seen = []

    for byte in data:
        other.sendall(bytes([byte]))
        seen.append(channel.receive_available())

    assert [[]] * (len(data) - 1) + [[RankForked(1, 2)]] == seen


def test_receive_available_does_not_wait(pair: tuple[Channel, socket.socket]) -> None:
    """With nothing there, nothing is returned, at once, and the stream is not taken to have ended."""
    channel, _ = pair

    assert channel.receive_available() == []
    assert not channel.closed


def test_receive_available_returns_all_that_is_there(pair: tuple[Channel, socket.socket]) -> None:
    """All complete messages are returned together; the half one stays for the next call."""
    channel, other = pair
    last = frame(Retire())
    other.sendall(frame(ItemFinished(3, True)) + frame(RankForked(1, 2)) + last[:3])

    first = channel.receive_available()
    other.sendall(last[3:])

    assert [ItemFinished(3, True), RankForked(1, 2)] == first
    assert [Retire()] == channel.receive_available()


def test_receive_returns_none_when_the_stream_ends_between_messages(pair: tuple[Channel, socket.socket]) -> None:
    """The last message is delivered, then None; this is a regular end."""
    channel, other = pair
    other.sendall(frame(ItemFinished(3, True)))
    other.close()

    assert ItemFinished(3, True) == channel.receive()
    assert channel.receive() is None
    assert channel.closed


def test_receive_available_notes_the_end_between_messages(pair: tuple[Channel, socket.socket]) -> None:
    """``closed`` tells the end of the stream; asking again is harmless."""
    channel, other = pair
    other.close()

    assert channel.receive_available() == []
    assert channel.closed
    assert channel.receive_available() == []


@pytest.mark.parametrize("method", ["receive", "receive_available"])
@pytest.mark.parametrize(
    ("data", "counts"),
    [
        (b"\x00\x00", "it ended after 2 of the 4 bytes of a message's length"),
        (struct.pack("!I", 10), "it ended after 0 of the 10 bytes of a message"),
        (struct.pack("!I", 10) + b"abc", "it ended after 3 of the 10 bytes of a message"),
    ],
)
def test_end_inside_a_message_is_an_error_with_counts(
    pair: tuple[Channel, socket.socket], method: str, data: bytes, counts: str
) -> None:
    """A stream that ends inside a message is broken; the text says how much was expected and how much came."""
    channel, other = pair
    other.sendall(data)
    other.close()

    def read_all() -> None:
        while not channel.closed:
            getattr(channel, method)()

    with pytest.raises(ChannelBroken) as caught:
        read_all()

    assert f"a channel between processes broke: {counts}" == str(caught.value)


def test_reset_by_the_peer_is_an_end(pair: tuple[Channel, socket.socket]) -> None:
    """A peer that dies with unread data resets the connection: an end of the stream, no exception of its own."""
    channel, other = pair
    channel.send(ItemFinished(3, True))
    other.close()

    assert channel.receive() is None


def test_send_to_a_closed_peer_raises(pair: tuple[Channel, socket.socket]) -> None:
    """A message that nobody can receive is not lost in silence."""
    channel, other = pair
    other.close()

    with pytest.raises(BrokenPipeError):
        channel.send(ItemFinished(3, True))


def test_rubbish_is_a_broken_channel(pair: tuple[Channel, socket.socket]) -> None:
    """A frame that holds no message is reported as such."""
    channel, other = pair
    other.sendall(struct.pack("!I", 3) + b"???")

    with pytest.raises(ChannelBroken, match="not a message: b'\\?\\?\\?'"):
        channel.receive()


def test_big_message_arrives_whole(pair: tuple[Channel, socket.socket]) -> None:
    """A message larger than any buffer of the kernel comes through ``receive``."""
    channel, other = pair
    message = JoinFailed("x" * 3_000_000)
    sender = threading.Thread(target=other.sendall, args=(frame(message),))
    sender.start()

    received = channel.receive()
    sender.join(LIMIT_S)

    assert message == received


def test_big_message_arrives_whole_without_waiting(pair: tuple[Channel, socket.socket]) -> None:
    """A message larger than any buffer of the kernel comes through ``receive_available`` in some calls."""
    channel, other = pair
    message = JoinFailed("x" * 3_000_000)

    def send() -> None:
        other.sendall(frame(message))
        other.close()

    sender = threading.Thread(target=send)
    sender.start()

    received: list[Message] = []
    while not channel.closed:
        received += channel.receive_available()
    sender.join(LIMIT_S)

    assert [message] == received


def test_big_message_with_descriptors_is_sent_whole(pair: tuple[Channel, socket.socket]) -> None:
    """Descriptors travel with the first part of a frame; the rest of a big frame follows."""
    channel, other = pair
    message = JoinFailed("x" * 3_000_000)
    receiver = Channel(other.dup())
    sender = threading.Thread(target=channel.send, args=(message, (channel.fileno(),)))
    sender.start()

    received = receiver.receive()
    sender.join(LIMIT_S)
    arrived = len(receiver.fds)
    for fd in receiver.fds:
        os.close(fd)
    receiver.close()

    assert message == received
    assert arrived == 1


def test_descriptors_arrive_beside_their_message(pair: tuple[Channel, socket.socket]) -> None:
    """A descriptor that was sent works on the other side, after the sender has closed its own."""
    channel, other = pair
    receiver = Channel(other.dup())
    read_end, write_end = os.pipe()
    channel.send(ItemFinished(3, True), (write_end,))
    os.close(write_end)

    assert ItemFinished(3, True) == receiver.receive()
    (arrived,) = receiver.fds
    os.write(arrived, b"through")
    os.close(arrived)

    assert os.read(read_end, 100) == b"through"
    assert os.read(read_end, 100) == b""
    os.close(read_end)
    receiver.close()


def test_descriptors_of_several_messages_keep_their_order(pair: tuple[Channel, socket.socket]) -> None:
    """``fds`` collects what arrived with one message after the other."""
    channel, other = pair
    receiver = Channel(other.dup())
    pipes = [os.pipe() for _ in range(6)]
    write_ends = tuple(write_end for _, write_end in pipes)
    channel.send(RankForked(1, 1), write_ends[:5])
    channel.send(RankForked(2, 2), write_ends[5:])

    received: list[Message] = []
    while len(received) < 2:
        received += receiver.receive_available()
    inodes = [os.fstat(fd).st_ino for fd in receiver.fds]
    expected = [os.fstat(fd).st_ino for fd in write_ends]
    for fd in (*receiver.fds, *(fd for ends in pipes for fd in ends)):
        os.close(fd)
    receiver.close()

    assert [RankForked(1, 1), RankForked(2, 2)] == received
    assert expected == inodes


TOO_FEW = """
import os, resource
from lightning_disttest.engine.channel import Channel, channel_pair
from lightning_disttest.engine.messages import RankForked

sender, other = channel_pair()
receiver = Channel(other)
pipes = [os.pipe() for _ in range(3)]
before = sorted(os.listdir("/proc/self/fd"))
sender.send(RankForked(1, 1), tuple(fd for ends in pipes for fd in ends))
highest = max(fd for ends in pipes for fd in ends)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, limits[1]))
received = receiver.receive_available()
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(received == [RankForked(1, 1)], receiver.truncated, 0 < len(receiver.fds) < 6)
receiver.drop_fds()
print(receiver.fds, receiver.truncated, sorted(os.listdir("/proc/self/fd")) == before)
sender.send(RankForked(2, 2), pipes[0])
print(receiver.receive_available() == [RankForked(2, 2)], receiver.truncated, len(receiver.fds))
"""


def test_descriptors_that_have_no_room_are_noticed_and_dropped() -> None:
    """With too few free descriptors a message still arrives, the loss is told, and the rest can be closed."""
    done = subprocess.run([sys.executable, "-c", TOO_FEW], capture_output=True, text=True, timeout=LIMIT_S)

    assert done.stdout.splitlines() == ["True True True", "[] False True", "True False 2"], done.stderr


def test_descriptors_that_have_room_are_not_truncated(pair: tuple[Channel, socket.socket]) -> None:
    """Where all descriptors arrive, nothing is told to be missing."""
    channel, other = pair
    receiver = Channel(other.dup())
    channel.send(RankForked(1, 2), (0, 1, 2))

    received = receiver.receive()
    arrived, truncated = len(receiver.fds), receiver.truncated
    receiver.drop_fds()
    receiver.close()

    assert RankForked(1, 2) == received
    assert (arrived, truncated) == (3, False)


def test_end_reaches_the_peer_though_a_copy_is_open(pair: tuple[Channel, socket.socket]) -> None:
    """A child that holds a copy of this end does not keep the other one waiting, as it does after ``close``."""
    channel, other = pair
    peer = Channel(other.dup())
    copy = os.dup(channel.fileno())

    channel.end()
    received = peer.receive_available()
    os.close(copy)
    peer.close()

    assert received == []
    assert peer.closed
    assert channel.closed


def test_end_after_the_peer_is_gone_is_no_error(pair: tuple[Channel, socket.socket]) -> None:
    """A peer that went first needs not to be told."""
    channel, other = pair
    other.close()

    channel.end()

    assert channel.closed


def test_end_inside_a_message_is_noticed_behind_a_complete_one(
    pair: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half message at the end is an error also when complete messages were read in the same call."""
    channel, other = pair
    whole, half = frame(RankForked(1, 2)), struct.pack("!I", 1000) + b"half"
    monkeypatch.setattr("lightning_disttest.engine.channel._CHUNK", len(whole) + len(half))
    other.sendall(whole + half)
    other.close()

    received: list[Message] = []

    def read_all() -> None:
        while not channel.closed:
            received.extend(channel.receive_available())
        received.extend(channel.receive_available())

    with pytest.raises(ChannelBroken, match="after 4 of the 1000 bytes of a message") as caught:
        read_all()

    assert [RankForked(1, 2)] == [*received, *caught.value.messages]


def test_messages_before_a_broken_end_are_not_lost(pair: tuple[Channel, socket.socket]) -> None:
    """A peer that is killed while it writes has said all that it wrote before, and the channel is broken only once."""
    channel, other = pair
    other.sendall(frame(ItemFinished(3, True)) + frame(RankForked(1, 2)) + b"\x00\x00")
    other.close()

    received: list[Message] = []

    def read_all() -> None:
        while not channel.closed:
            received.extend(channel.receive_available())

    with pytest.raises(ChannelBroken, match="after 2 of the 4 bytes of a message's length") as caught:
        read_all()

    assert [ItemFinished(3, True), RankForked(1, 2)] == [*received, *caught.value.messages]
    assert channel.closed
    assert channel.receive_available() == []
