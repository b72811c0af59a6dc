"""Fits the arguments of Trainers and Fabrics to the world of a test, and refuses those that do not fit."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine.context import current_rank
from lightning_disttest.errors import WorldMismatch
from lightning_disttest.imports import is_importable
from lightning_disttest.strategies.environment import make_environment

if TYPE_CHECKING:
    from types import ModuleType

    from lightning_disttest.world import World

Arguments = dict[str, Any]
_ELSEWHERE = "use it in a plain test or in one marked standalone, which start with one process"


class Fitting:
    """What the world of a test asks of the Trainers and Fabrics in it.

    A test marked ``distributed`` runs on ranks that exist already. A plain test and a standalone one start with one
    process, in which a strategy may launch others.
    """

    def __init__(self, world: World) -> None:
        context = current_rank()
        self._world = world
        self._size = world.world_size
        self.is_plain = context is None
        self.has_ranks = context is not None and context.kind != "standalone"

    def fit(self, arguments: Arguments, package: ModuleType) -> Arguments:
        """Return the arguments of a test with those that make them fit; what a test gives goes first.

        A strategy of DeepSpeed skips the test where that is not installed.

        Raises:
            WorldMismatch: if ``devices``, ``num_nodes`` or ``accelerator`` can not be had in this world.
        """
        __tracebackhide__ = True
        _skip_without_deepspeed(arguments.get("strategy"))
        kind = "cpu" if self._world.device.type == "cpu" else "gpu"
        fitted: Arguments = {"accelerator": kind, "devices": 1}
        if getattr(arguments.get("strategy"), "_accelerator", None) is not None:
            del fitted["accelerator"]  # Lightning takes one from the strategy or from the argument
        if not self.has_ranks:
            return fitted | arguments
        self._check_arguments(arguments)
        given = arguments | {name: fitted[name] for name in fitted if arguments.get(name) == "auto"}
        fitted["strategy"] = "ddp"
        return fitted | given | {"devices": self._size} | self._plugins(arguments, package)

    def check(self, arguments: Arguments, strategy: Any, package: ModuleType) -> None:
        """Check a strategy that Lightning has made of the arguments.

        Raises:
            WorldMismatch: if it has other ranks than this world, or would launch some.
        """
        if not self.has_ranks:
            return
        chosen = arguments.get("strategy", "ddp")
        own = _own_environment(arguments, package)
        named = ("strategy", chosen) if own is None else ("plugins", arguments["plugins"])
        launchers = importlib.import_module(f"{package.__name__}.strategies.launchers.multiprocessing")
        if isinstance(getattr(strategy, "launcher", None), launchers._MultiProcessingLauncher):
            reason = "launches processes of its own"
            raise WorldMismatch("strategy", chosen, self._size, reason, _ELSEWHERE)
        if (size := getattr(strategy, "world_size", 1)) != self._size:
            raise WorldMismatch(*named, self._size, f"makes a world of {size}")
        if (number := getattr(strategy, "num_processes", self._size)) != self._size:
            raise WorldMismatch("strategy", chosen, self._size, f"has the devices of {number}")
        if (rank := getattr(strategy, "global_rank", 0)) != self._world.rank:
            reason = f"takes rank {self._world.rank} for rank {rank}"
            raise WorldMismatch(*named, self._size, reason, "let it have the ranks of the world")
        if (kind := strategy.root_device.type) != self._world.device.type:
            reason = f"uses a device of type {kind}, and the world has {self._world.device.type}"
            name = "accelerator" if "accelerator" in arguments else "strategy"
            raise WorldMismatch(name, arguments.get(name, chosen), self._size, reason)

    def _check_arguments(self, arguments: Arguments) -> None:
        size = self._size
        all_devices = list(range(size))
        fitting = {
            "devices": (size, str(size), "auto", -1, "-1", all_devices, ",".join(map(str, all_devices))),
            "num_nodes": (1,),
            "accelerator": ("cpu", "auto") if self._world.device.type == "cpu" else ("gpu", "cuda", "auto"),
        }
        for name, legal in fitting.items():
            given = arguments.get(name)
            # An accelerator may be an object of Lightning: ``check`` sees what comes of it.
            if name in arguments and given not in legal and isinstance(given, (int, str, list)):
                raise WorldMismatch(name, given, size)

    def _plugins(self, arguments: Arguments, package: ModuleType) -> Arguments:
        """Return the plugins argument: what the test gave, and the world's environment if there is no other."""
        if getattr(arguments.get("strategy"), "cluster_environment", None) is not None:
            return {}
        plugins = _as_list(arguments.get("plugins"))
        if _own_environment(arguments, package) is None:
            plugins.append(make_environment(_environment_class(package), self._world))
        return {"plugins": plugins}


def _own_environment(arguments: Arguments, package: ModuleType) -> Any:
    """Return the cluster environment that a test has put among the plugins, None if it has not."""
    base = _environment_class(package)
    return next((plugin for plugin in _as_list(arguments.get("plugins")) if isinstance(plugin, base)), None)


def _environment_class(package: ModuleType) -> Any:
    return importlib.import_module(f"{package.__name__}.plugins.environments").ClusterEnvironment


def _as_list(plugins: Any) -> list[Any]:
    if plugins is None:
        return []
    return list(plugins) if isinstance(plugins, Collection) else [plugins]


def _skip_without_deepspeed(strategy: Any) -> None:
    __tracebackhide__ = True
    if isinstance(strategy, str):
        is_deepspeed = strategy.lower().startswith("deepspeed")
    else:
        is_deepspeed = any(base.__name__ == "DeepSpeedStrategy" for base in type(strategy).__mro__)
    if is_deepspeed and not is_importable("deepspeed"):
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        pytest.skip(f"the strategy {name} needs the package deepspeed, which is not installed")
