"""What the makers of Trainers and of Fabrics share: they fit what they make to the world, and tear it down."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from lightning_disttest.engine.context import default_group
from lightning_disttest.engine.exceptions import first_of_chain
from lightning_disttest.strategies.fitting import Fitting
from lightning_disttest.strategies.packages import import_lightning
from lightning_disttest.strategies.versions import LogVersions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_disttest.strategies.fitting import Arguments
    from lightning_disttest.world import World

_RANK_ZERO = "lightning_utilities.core.rank_zero"  # all packages share its function


class Maker:
    """Makes objects of one class of Lightning for one test in one process."""

    fixture: ClassVar[str]
    class_name: ClassVar[str]

    def __init__(self, tmp_path: Path, world: World) -> None:
        self._tmp_path = tmp_path
        self._world = world
        self._fitting = Fitting(world)
        self._versions = LogVersions(tmp_path)
        before = _rank_zero()
        self._ends: list[Callable[[], object]] = [lambda: self._restore_rank_zero(before)]
        if self._fitting.is_plain and default_group() is None:
            self.at_end(_destroy_group)

    def make(self, arguments: Arguments) -> Any:
        """Return a new object.

        Raises:
            WorldMismatch: if the arguments do not fit the world of the test.
            MissingPackage: if Lightning is not installed.
        """
        __tracebackhide__ = True
        package = import_lightning(self.fixture)
        made = getattr(package, self.class_name)(**self._fitting.fit(arguments, package))
        self._fitting.check(arguments, made.strategy, package)
        self._versions.assign(made.loggers)
        for logger in made.loggers:
            self.at_end(functools.partial(_finalize_used, logger))
        return made

    def at_end(self, end: Callable[[], object]) -> None:
        """Have ``end`` called after the test, before those that were given earlier."""
        self._ends.append(end)

    def tear_down(self) -> None:
        """End what the objects of this test still hold; all of it, whatever raises, and then raise that, chained."""
        raised: Exception | None = None
        while self._ends:
            try:
                self._ends.pop()()
            except Exception as error:  # noqa: BLE001  it is raised below
                first_of_chain(error).__context__ = raised
                raised = error
        if raised is not None:
            raise raised

    def _restore_rank_zero(self, before: int | None) -> None:
        """Set back who is rank zero; a Trainer of a standalone test knows better than this process did before it."""
        module: Any = sys.modules.get(_RANK_ZERO)
        if module is not None and (self._fitting.is_plain or self._fitting.has_ranks):
            module.rank_zero_only.rank = self._world.rank if before is None else before


def _rank_zero() -> int | None:
    module: Any = sys.modules.get(_RANK_ZERO)
    return None if module is None else getattr(module.rank_zero_only, "rank", None)


def _destroy_group() -> None:
    """Destroy the group that a Trainer or Fabric has made: Lightning keeps it until the process ends."""
    if (distributed := default_group()) is not None:
        distributed.destroy_process_group()


def _finalize_used(logger: Any) -> None:
    """Write what a logger still holds; one that was not used would make its files only now."""
    if getattr(logger, "_experiment", None) is not None:
        logger.finalize("success")
