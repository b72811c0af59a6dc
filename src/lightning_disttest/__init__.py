"""A pytest plugin for code that trains on many processes and devices with PyTorch Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_disttest.world import World

if TYPE_CHECKING:
    from lightning_disttest.strategies.trainer import TrainerFactory

__all__ = ["TrainerFactory", "World"]


def __getattr__(name: str) -> object:
    if name == "TrainerFactory":
        from lightning_disttest.strategies.trainer import TrainerFactory

        return TrainerFactory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
