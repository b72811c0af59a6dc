"""Fabrics for tests, fitted to the world that the test runs in."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from lightning_disttest.strategies.making import Maker


class FabricFactory(Protocol):
    """What the fixture ``fabric_factory`` returns."""

    def __call__(self, **arguments: Any) -> Any:
        """Return a ``Fabric``; every argument of Fabric may be given and goes before the defaults."""


class FabricMaker(Maker):
    """Makes Fabrics for one test in one process and tears them down after it."""

    fixture = "fabric_factory"
    class_name = "Fabric"

    def __call__(self, **arguments: Any) -> Any:
        """Return a Fabric.

        Defaults: one process on the CPU or the world's device; in a distributed test ``strategy="ddp"``, ``devices``
        the number of ranks, and the world's process group, so that ``launch`` starts nothing.

        Raises:
            WorldMismatch: if the arguments do not fit the world of the test.
            MissingPackage: if Lightning is not installed.
        """
        __tracebackhide__ = True
        fabric = self.make(arguments)
        self.at_end(lambda: _tear_down(fabric.strategy))
        return fabric


def _tear_down(strategy: Any) -> None:
    # Strategies that save checkpoints by themselves raise it at their end, when all else is done.
    with contextlib.suppress(NotImplementedError):
        strategy.teardown()
