"""Trainers for tests: quick, quiet, and fitted to the world that the test runs in."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Protocol

from lightning_disttest.errors import MissingPackage, WorldMismatch
from lightning_disttest.strategies.environment import make_environment

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from lightning_disttest.world import World

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class TrainerFactory(Protocol):
    """What the fixture ``trainer_factory`` returns."""

    def __call__(self, **arguments: Any) -> Any:
        """Return a ``Trainer``; every argument of Trainer may be given and goes before the defaults."""


class TrainerMaker:
    """Makes Trainers for one test on one rank and tears them down after it."""

    def __init__(self, tmp_path: Path, world: World) -> None:
        self._tmp_path = tmp_path
        self._world = world
        self._made: list[Any] = []

    def __call__(self, **arguments: Any) -> Any:
        """Return a Trainer.

        Defaults: one epoch of two batches, on the CPU or the world's device, no logger, progress bar, model summary
        or checkpoints, ``default_root_dir`` the ``tmp_path`` that all ranks share; in a distributed test
        ``strategy="ddp"``, ``devices`` the number of ranks, and the world's process group.

        Raises:
            WorldMismatch: if ``devices``, ``num_nodes`` or ``accelerator`` can not be had in this world.
        """
        package = import_lightning()
        defaults = self._quick_and_quiet() | (self._fitted(arguments) if self._in_world() else {})
        trainer = package.Trainer(**(defaults | arguments | self._plugins(arguments, package)))
        self._made.append(trainer)
        return trainer

    def tear_down(self) -> None:
        """End what the Trainers of this test still hold."""
        while self._made:
            trainer = self._made.pop()
            trainer.strategy.teardown()
            for logger in trainer.loggers:
                logger.finalize("success")

    def _in_world(self) -> bool:
        return self._world.backend is not None

    def _quick_and_quiet(self) -> dict[str, Any]:
        return {
            "max_epochs": 1,
            "limit_train_batches": 2,
            "limit_val_batches": 2,
            "limit_test_batches": 2,
            "limit_predict_batches": 2,
            "accelerator": "cpu" if self._world.device.type == "cpu" else "gpu",
            "devices": 1,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "default_root_dir": self._tmp_path,
        }

    def _fitted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        size = self._world.world_size
        fitting = {
            "devices": (size, str(size), "auto", -1, list(range(size))),
            "num_nodes": (1,),
            "accelerator": ("cpu", "auto") if self._world.device.type == "cpu" else ("gpu", "cuda", "auto"),
        }
        for name, legal in fitting.items():
            if name in arguments and arguments[name] not in legal:
                raise WorldMismatch(name, arguments[name], size)
        return {"strategy": "ddp", "devices": size}

    def _plugins(self, arguments: dict[str, Any], package: ModuleType) -> dict[str, Any]:
        """Return the plugins argument: what the test gave, and the world's environment if it gave none."""
        if not self._in_world():
            return {}
        base = importlib.import_module(f"{package.__name__}.plugins.environments").ClusterEnvironment
        given = arguments.get("plugins") or []
        plugins = list(given) if isinstance(given, (list, tuple)) else [given]
        if not any(isinstance(plugin, base) for plugin in plugins):
            plugins.append(make_environment(base, self._world))
        return {"plugins": plugins}


def import_lightning() -> ModuleType:
    """Import and return the Lightning package in use: the one that the tests have imported, else the first installed.

    Raises:
        MissingPackage: if there is none.
    """
    imported = [name for name in _PACKAGES if name in sys.modules]
    for name in imported or _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name)
    raise MissingPackage("trainer_factory", _PACKAGES)
