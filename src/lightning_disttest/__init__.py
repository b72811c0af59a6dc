"""A pytest plugin for code that trains on many processes and devices with PyTorch Lightning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_disttest.errors import LaunchedRanksFailed, LeakWarning
    from lightning_disttest.selection.runif import RunIf
    from lightning_disttest.strategies.fabric import FabricFactory
    from lightning_disttest.strategies.faults import Faults
    from lightning_disttest.strategies.trainer import TrainerFactory
    from lightning_disttest.world import World

__all__ = ["FabricFactory", "Faults", "LaunchedRanksFailed", "LeakWarning", "RunIf", "TrainerFactory", "World"]

# Imported when asked for: pytest imports this package at each start, in runs without distributed tests too.
_HOMES = {
    "FabricFactory": "lightning_disttest.strategies.fabric",
    "Faults": "lightning_disttest.strategies.faults",
    "LaunchedRanksFailed": "lightning_disttest.errors",
    "LeakWarning": "lightning_disttest.errors",
    "RunIf": "lightning_disttest.selection.runif",
    "TrainerFactory": "lightning_disttest.strategies.trainer",
    "World": "lightning_disttest.world",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
