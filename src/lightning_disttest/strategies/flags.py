"""The settings of torch that a Trainer makes: no test is blamed for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_disttest.imports import when_imported

if TYPE_CHECKING:
    from types import ModuleType

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_SETS_FLAGS = "_set_torch_flags"  # in the constructor of a Trainer


def watch_trainers() -> None:
    """Have what Trainers set told from what tests set, as soon as Lightning is imported, if it ever is."""
    for package in _PACKAGES:
        when_imported(f"{package}.trainer.connectors.accelerator_connector", _patch)


def _patch(module: ModuleType) -> None:
    from lightning_disttest.engine.torch_state import excuse

    if hasattr(module, _SETS_FLAGS):
        setattr(module, _SETS_FLAGS, excuse(getattr(module, _SETS_FLAGS)))
