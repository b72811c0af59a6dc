"""Where a rank was, by its stacks: in which function of torch.distributed, and on which line of the user's code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lightning_disttest
from lightning_disttest.reporting.stories import name_ranks
from tests.unit.test_waiting import stacks

if TYPE_CHECKING:
    from tests.unit.conftest import Make

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:9 barrier"
LIBRARY = "/venv/lib/python3.11/site-packages/lightning/fabric/fabric.py:7 barrier"
STDLIB = "/usr/lib/python3.11/threading.py:5 wait"
OURS = f"{Path(str(lightning_disttest.__file__)).parent}/world.py:3 barrier"
TEST = "/home/me/test_it.py:7 test_it"


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([TEST], "/home/me/test_it.py:7 in test_it"),
        ([TORCH, OURS, LIBRARY, TEST], "/home/me/test_it.py:7 in test_it"),
        ([STDLIB, "/home/me/helper.py:2 helper", TEST], "/home/me/helper.py:2 in helper"),
        (["/home/lightning_disttest/test_it.py:4 test_it"], "/home/lightning_disttest/test_it.py:4 in test_it"),
        ([TORCH, OURS, LIBRARY], "/venv/lib/python3.11/site-packages/lightning/fabric/fabric.py:7 in barrier"),
        (["<string>:1 run", STDLIB], "<string>:1 in run"),
        ([TORCH, OURS], ""),
        ([], ""),
    ],
    ids=["test", "libraries above it", "helper", "folder of our name", "library alone", "string", "torch", "nothing"],
)
def test_place_is_in_the_code_of_the_user(make: Make, frames: list[str], place: str) -> None:
    """The innermost frame outside of all libraries is the place, else that of any library but torch and this one."""
    other = 'Thread 0x1 (most recent call first):\n  File "/home/me/other.py", line 1 in run\n\n'

    assert make.waited(0, "call", stacks=other + stacks(*frames)).place == place


@pytest.mark.parametrize(
    ("frames", "stopped", "function", "waits"),
    [
        ([TORCH, TEST], False, "barrier", True),
        ([TORCH, TEST], True, "barrier", False),
        ([STDLIB, TORCH, TEST], False, "", False),
        ([], False, "", False),
    ],
)
def test_who_waits_for_others(make: Make, frames: list[str], stopped: bool, function: str, waits: bool) -> None:
    """Who is in a function of torch.distributed waits for others, unless it was stopped there."""
    story = make.waited(0, "call", stacks=stacks(*frames), is_stopped=stopped)

    assert (story.torch_call, story.waits_for_others) == (function, waits)


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({}, True),
        ({"knows_collectives": True, "pending": True}, True),
        ({"knows_collectives": True, "pending": False}, False),
        ({"is_stopped": True}, False),
    ],
)
def test_who_waits_in_a_backward_pass(make: Make, more: dict[str, Any], waits: bool) -> None:
    """DistributedDataParallel waits for other ranks in native code; who has nothing pending hangs alone."""
    pending = more.pop("pending", None)
    collectives = () if pending is None else (make.collective(pending=pending),)
    frames = ("/lib/python3.11/site-packages/torch/autograd/graph.py:979 _engine_run_backward", TEST)
    story = make.waited(0, "call", stacks=stacks(*frames), collectives=collectives, **more)

    assert (story.is_in_backward, story.torch_call, story.waits_for_others) == (True, "", waits)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([1], "rank 1"),
        ([0, 1], "ranks 0-1"),
        ([1, 2, 3], "ranks 1-3"),
        ([0, 2, 3], "ranks 0, 2-3"),
        ([0, 2, 4], "ranks 0, 2, 4"),
        ([9, 10, 12], "ranks 9-10, 12"),
    ],
)
def test_names_of_ranks(ranks: list[int], name: str) -> None:
    """Neighbouring ranks are named as a range."""
    assert name == name_ranks(ranks)
