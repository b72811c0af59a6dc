"""The controller's view of its ranks: what they tell is kept apart from their news, and nothing is left of them."""

from __future__ import annotations

import os
import selectors
from typing import TYPE_CHECKING

import pytest

from lightning_disttest.engine.channel import channel_pair
from lightning_disttest.engine.messages import WhereTold
from lightning_disttest.engine.output import RankFiles
from lightning_disttest.engine.supervisor import RankHandle, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def handle() -> Iterator[RankHandle]:
    """Return a handle of a rank whose process has the other ends of its files: this one."""
    ours, theirs = channel_pair()
    handle = RankHandle(0, 0, ours, RankFiles(0, None))
    yield handle
    theirs.close()


def test_announcement_is_no_answer(handle: RankHandle) -> None:
    """A rank that says that it will answer has not said where it is, and neither is news of its test."""
    supervisor = Supervisor(None)

    supervisor._deliver(handle, WhereTold("", []))
    announced = (handle.tells, handle.answer)
    supervisor._deliver(handle, WhereTold("Current thread", []))

    assert announced == (True, None)
    assert handle.answer == WhereTold("Current thread", [])
    assert not handle.inbox
    handle.files.abandon()
    handle.channel.close()


@pytest.mark.parametrize("has_ended", [False, True], ids=["open", "ended"])
def test_forgotten_rank_is_listened_to_no_more(handle: RankHandle, has_ended: bool) -> None:
    """Its descriptors get new owners; one that is still registered then would be in the way of the next rank."""
    supervisor = Supervisor(None)
    held = os.dup(handle.files.rank_ends()[0])  # the stream ends when nobody holds this any more
    handle.files.handed_over()
    for file in (handle.channel, handle.files.raw):
        supervisor._selector.register(file, selectors.EVENT_READ)
    if has_ended:
        os.close(held)

    supervisor.forget(handle)

    assert not supervisor._selector.get_map()
    if not has_ended:
        os.close(held)
