"""The world of a test as Lightning's ClusterEnvironment: nothing to launch, rank and size are known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_disttest.world import World


def make_environment(base: Any, world: World) -> Any:  # noqa: C901  ten one-line methods of one small class
    """Return a cluster environment of this world, of the class ``base`` of the Lightning package in use."""
    rank, local_rank, world_size = world.rank, world.local_rank, world.world_size

    class WorldEnvironment(base):  # type: ignore[misc]  # the base is only known at run time
        """Every rank exists already and the default process group was formed by lightning_disttest."""

        @property
        def creates_processes_externally(self) -> bool:
            return True

        @property
        def main_address(self) -> str:
            return os.environ["MASTER_ADDR"]

        @property
        def main_port(self) -> int:
            return int(os.environ["MASTER_PORT"])

        @staticmethod
        def detect() -> bool:
            return False

        def world_size(self) -> int:
            return world_size

        def set_world_size(self, size: int) -> None:
            """Do nothing: the size of a world is fixed."""

        def global_rank(self) -> int:
            return rank

        def set_global_rank(self, rank: int) -> None:
            """Do nothing: the rank of a process in a world is fixed."""

        def local_rank(self) -> int:
            return local_rank

        def node_rank(self) -> int:
            return 0

    return WorldEnvironment()
