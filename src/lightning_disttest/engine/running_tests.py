"""Which test runs in this process, and since when; the one inside, where a test runs pytest in its own process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True, slots=True)
class RunningTest:
    """A test that has begun, at a time of the monotonic clock."""

    item: pytest.Item
    begun: float


_running: list[RunningTest] = []


def begin(item: pytest.Item) -> None:
    """Note a test that begins; what ran before it in the same run of pytest, or inside of that, has ended."""
    for depth, test in enumerate(_running):
        if test.item.config is item.config:
            del _running[depth:]
            break
    _running.append(RunningTest(item, time.monotonic()))


def end(nodeid: str) -> None:
    """Note that a test has ended."""
    if _running and _running[-1].item.nodeid == nodeid:
        _running.pop()


def current() -> RunningTest | None:
    """Return the test that runs, None outside of tests."""
    return _running[-1] if _running else None
