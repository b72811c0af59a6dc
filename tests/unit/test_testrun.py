"""How the controller listens to the ranks of one test: what it hears while it asks them where they are is not lost."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import pytest_bridge
from lightning_disttest.engine.messages import ItemFinished, RunItem, WhereTold
from lightning_disttest.engine.supervisor import Ended, RankHandle
from lightning_disttest.engine.testrun import TestRun
from lightning_disttest.reporting.stories import Fate

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.engine.supervisor import Event

PENDING = {
    "name": "barrier",
    "group": "0",
    "description": "default_pg",
    "number": 1,
    "tensors": [],
    "pending": True,
    "point_to_point": False,
    "members": [0],
}
FILES = SimpleNamespace(
    begin_test=lambda: None,
    stage=lambda: "call",
    stacks=lambda: "",
    last_output=lambda: "",
)


class OneRank:
    """Stands for the supervisor of one rank: answers questions, and has news while it does or later."""

    def __init__(self, while_asked: Event | None = None, later: Event | None = None) -> None:
        channel: Any = SimpleNamespace(send=lambda *_: None)
        files: Any = FILES
        self.handle = RankHandle(0, 0, channel, files, pid=2**22 + 1, tells=True)
        self.slept: list[float | None] = []
        self._while_asked = while_asked
        self._later = later

    def ask_where(self, handles: list[RankHandle]) -> None:
        """Have each rank say that it is in a barrier."""
        for handle in handles:
            handle.answer = WhereTold("Current thread (most recent call first):\n", [PENDING])
        if self._while_asked is not None:
            self._hear(self._while_asked)

    def poll(self, seconds: float | None) -> None:
        """Return at once where a real one would sleep, and the moments of sleep are noted."""
        self.slept.append(seconds)
        if self._later is not None and len(self.slept) > 1:
            self._hear(self._later)
        else:
            time.sleep(min(seconds or 0.0, 0.05))

    def _hear(self, event: Event) -> None:
        self.handle.inbox.append((1, time.monotonic(), event))

    def run(self, show: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Any:
        """Run a test with a notice after 10 ms; return the one story."""
        monkeypatch.setattr(pytest_bridge, "show_line", lambda _, text: show(text))
        spec = SimpleNamespace(kind="static")
        world: Any = SimpleNamespace(ranks=[self.handle], healthy=True, spec=spec)
        settings: Any = SimpleNamespace(grace=0.0, progress=0.01)
        item: Any = SimpleNamespace(config=SimpleNamespace(getoption=lambda *_: False), nodeid="test_it.py::test_it")
        fake: Any = self
        run = TestRun(fake, fake, world, RunItem(0, None, "", 0, time.monotonic() + 30), settings, item)
        [story] = run.run().stories
        return story


def test_news_that_come_while_ranks_are_asked_are_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that ends while its ranks are asked where they are has ended: nobody sleeps till the next notice."""
    shown: list[str] = []
    rank = OneRank(while_asked=ItemFinished(0, True))

    story = rank.run(shown.append, monkeypatch)

    assert story.fate is Fate.FINISHED
    assert len(shown) == 1
    assert len(rank.slept) == 1  # before the notice


def test_what_a_rank_told_in_time_is_not_said_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waited when the notice was shown and died later did not die waiting."""
    shown: list[str] = []

    story = OneRank(later=Ended(9)).run(shown.append, monkeypatch)

    assert "has begun barrier, number 1 of the default group" in shown[0]
    assert story.fate is Fate.DIED
    assert story.collectives == ()
    assert story.stacks == ""
