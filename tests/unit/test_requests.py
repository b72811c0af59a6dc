"""How the controller answers ranks that ask for others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine import requests
from lightning_disttest.engine.messages import LaunchRanks, RanksLaunched, RunItem


@pytest.mark.parametrize(
    ("started", "answer"),
    [(True, RanksLaunched([7], "")), (False, RanksLaunched([], "no process after 10 s"))],
)
def test_further_ranks_that_start_or_do_not(started: bool, answer: RanksLaunched) -> None:
    """The new ranks get the test of the one that asks, which is told their pids, or why there are none."""
    answers: list[Any] = []
    sent: list[Any] = []
    new = SimpleNamespace(pid=7, send=sent.append)
    fake: Any = SimpleNamespace(grow=lambda *_: new, wait_until=lambda *_: started, send=answers.append)
    item = RunItem(0, None, "", 0)

    grown = requests.launch(fake, fake, fake, fake, LaunchRanks([{"LOCAL_RANK": "1"}]), item)

    assert grown == [new]
    assert (sent, answers) == ([item], [answer])
