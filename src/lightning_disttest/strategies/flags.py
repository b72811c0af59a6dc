"""The settings of torch and the process groups that Lightning makes: no test is blamed for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_disttest.imports import when_imported
from lightning_disttest.strategies.packages import PACKAGES, TRAINER_PACKAGES

if TYPE_CHECKING:
    from types import ModuleType

_SETS_FLAGS = "_set_torch_flags"  # in the constructor of a Trainer
# Strategies that make device meshes, whose groups they never destroy.
_MAKE_GROUPS = {"model_parallel": "ModelParallelStrategy", "fsdp": "FSDPStrategy"}


def watch_trainers() -> None:
    """Have what Lightning sets and makes told from what tests do, as soon as Lightning is imported, if it ever is."""
    for package in TRAINER_PACKAGES:
        when_imported(f"{package}.trainer.connectors.accelerator_connector", _patch)
    for root in PACKAGES:
        for module in _MAKE_GROUPS:
            when_imported(f"{root}.strategies.{module}", _patch_strategy)


def _patch_strategy(module: ModuleType) -> None:
    from lightning_disttest.engine.torch_state import excuse_groups

    strategy: Any = getattr(module, _MAKE_GROUPS[module.__name__.rpartition(".")[2]], None)
    if strategy is not None:
        strategy.setup_environment = excuse_groups(strategy.setup_environment)


def _patch(module: ModuleType) -> None:
    from lightning_disttest.engine.torch_state import excuse

    if hasattr(module, _SETS_FLAGS):
        setattr(module, _SETS_FLAGS, excuse(getattr(module, _SETS_FLAGS)))
