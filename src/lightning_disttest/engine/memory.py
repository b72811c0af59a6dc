"""When a static world has taken so much memory that the next test gets a new one; runs in the controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightning_disttest.engine import processes

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 2**20
# Looking takes longer than a tenth of a millisecond with eight ranks; a test may take no longer than ten of those.
_LOOK_TESTS = 8
_LOOK_S = 1.0


class MemoryWatch:
    """Watches the memory of the ranks of one static world from the end of its first test on."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._tests = 0
        self._looked = 0.0

    def has_outgrown(self, pids: Iterable[int], limit: float) -> bool:
        """Tell after a test whether a rank has grown by more than ``limit`` MiB (0: never) since its first test.

        Ranks are looked at after every eighth test, and after one that ends a second or more after the last look.
        """
        now = time.monotonic()
        self._tests += 1
        if not limit or (self._first and self._tests % _LOOK_TESTS and now - self._looked < _LOOK_S):
            return False
        self._looked = now
        memory = {pid: processes.private_memory(pid) for pid in pids}
        self._first = self._first or memory
        return any(used - self._first.get(pid, used) > limit * MIB for pid, used in memory.items())
