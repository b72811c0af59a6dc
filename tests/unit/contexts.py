"""What a rank knows of itself, for tests of what asks it."""

from __future__ import annotations

import dataclasses
from typing import Any

from lightning_disttest.engine.context import RankContext


def make_context(rank: int, world_size: int, kind: str, **others: Any) -> RankContext:
    """Return the context of a rank on the CPU; what it would say to the controller goes nowhere."""
    refused: Any = None
    context = RankContext(
        rank=rank,
        world_size=world_size,
        kind=kind,
        device="cpu",
        backend="" if kind == "standalone" else "gloo",
        port=29500,
        nodeid="test_it.py::test",
        send=lambda _: None,
        launch=lambda _: [],
        connect_warm=refused,
    )
    return dataclasses.replace(context, **others)
