"""The ``world`` of a test in a process without a group, and what can be recorded with it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightning_disttest.engine.context import RankContext, current_rank
from lightning_disttest.engine.messages import ValueRecorded
from lightning_disttest.engine.recording import leaves_of
from lightning_disttest.engine.wire import decode, encode
from lightning_disttest.errors import BarrierTimeout, InvalidTolerance, NotRecordable, OneProcessRefused
from lightning_disttest.world import World
from tests.unit.contexts import make_context

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_disttest.engine.messages import FromRank


class Sent(list["FromRank"]):
    """What a rank sent to the controller."""

    def context(self, device: str = "cpu") -> RankContext:
        """Return the context of rank 1 of 4 that sends into this list."""
        return make_context(1, 4, "static", device=device, send=self.append)


def test_plain_test_is_a_world_of_one() -> None:
    """Outside of ranks there is one rank, rank zero, on the CPU, without a backend, and nothing to wait for."""
    world = World(None)

    assert (world.rank, world.local_rank, world.world_size, world.backend) == (0, 0, 1, None)
    assert world.is_rank_zero
    assert world.device == torch.device("cpu")
    world.barrier(timeout=0.001)
    world.record("nothing", "to compare")


def test_fixture_gives_a_world_of_one(world: World) -> None:
    """This very test is a plain one."""
    assert current_rank() is None
    assert (world.rank, world.world_size) == (0, 1)


def test_rank_without_a_group_knows_its_place() -> None:
    """Before a group is formed, rank and size are those that the controller assigned."""
    world = World(Sent().context())

    assert (world.rank, world.local_rank, world.world_size) == (1, 1, 4)
    assert not world.is_rank_zero
    assert world.device == torch.device("cpu")


def test_device_of_a_rank_on_gpus_is_its_own() -> None:
    """Each rank has the GPU of its local rank."""
    assert World(Sent().context("cuda")).device == torch.device("cuda", 1)


@pytest.fixture
def broken_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch say that this process has a gloo group, in which no barrier succeeds."""

    def barrier(**_: object) -> None:
        raise RuntimeError("Rank 1 failed to pass monitoredBarrier\n")

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.monitored_barrier", barrier)


@pytest.mark.usefixtures("broken_barrier")
def test_barrier_tells_its_limit() -> None:
    """A barrier that ran out of time says on which rank, how long it waited, its limit and what torch said."""
    pattern = (
        r"^rank 0 waited 0\.\d s \(limit 0 s\) in world\.barrier\(\) for the other ranks: "
        r"Rank 1 failed to pass monitoredBarrier$"
    )

    with pytest.raises(BarrierTimeout, match=pattern):
        World(Sent().context()).barrier(timeout=0.0)


@pytest.mark.usefixtures("broken_barrier")
def test_barrier_that_fails_before_its_limit_is_no_timeout() -> None:
    """If a peer is gone the error of torch is passed on, so that it is known as an echo."""
    with pytest.raises(RuntimeError, match="failed to pass monitoredBarrier") as caught:
        World(Sent().context()).barrier(timeout=1000.0)

    assert caught.type is RuntimeError


@pytest.mark.parametrize("value", [torch.ones(2), {"weight": torch.zeros(3000)}, [1.5, None]])
def test_recorded_value_is_sent_in_one_message(value: object, tmp_path: Path) -> None:
    """With its parts, how to compare them, and nothing that changes on its way."""
    sent = Sent()
    world = World(replace(sent.context(), folder=str(tmp_path)))

    world.record("x", value, rtol=1, atol=0.5, one_process=True)

    assert sent == [ValueRecorded("x", leaves_of("x", value, str(tmp_path)), 1.0, 0.5, True)]
    assert sent == [decode(encode(message)) for message in sent]


@pytest.mark.parametrize("in_rank", [True, False])
@pytest.mark.parametrize(
    ("value", "how", "error"),
    [
        ({"a": {2}}, {}, NotRecordable),
        (1.0, {"rtol": -1.0}, InvalidTolerance),
        (1.0, {"atol": math.nan}, InvalidTolerance),
    ],
)
def test_what_is_wrong_is_refused_everywhere(
    value: object, how: dict[str, Any], error: type[Exception], in_rank: bool
) -> None:
    """What can not be compared is refused, in a plain test as in a rank, and nothing is sent."""
    sent = Sent()
    world = World(sent.context() if in_rank else None)

    with pytest.raises(error):
        world.record("x", value, **how)

    assert sent == []


def test_one_process_is_refused_in_standalone_tests() -> None:
    """Without it a standalone test may record, and a plain test may give every argument."""
    sent = Sent()
    world = World(replace(sent.context(), kind="standalone"))

    with pytest.raises(OneProcessRefused, match=r"^test_it\.py::test called world\.record\('x', "):
        world.record("x", 1, one_process=True)
    world.record("x", 1)
    World(None).record("x", 1, one_process=True, rtol=0.1)

    assert sent == [ValueRecorded("x", [["x", 1]], 0.0, 0.0, False)]
