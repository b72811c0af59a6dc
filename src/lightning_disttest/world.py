"""The ``world`` fixture's object: what a test knows of the ranks it runs on."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from lightning_disttest.engine import recording
from lightning_disttest.engine.context import current_rank, default_group
from lightning_disttest.engine.messages import ValueRecorded
from lightning_disttest.errors import BarrierTimeout, InvalidTolerance, OneProcessRefused

if TYPE_CHECKING:
    import torch

    from lightning_disttest.engine.context import RankContext


class World:
    """The world of the running test, seen from one rank.

    A plain test is a world of one rank without a process group, so that one body can serve as both. In a standalone
    test the world has one rank until a Trainer or Fabric has launched the others.
    """

    def __init__(self, context: RankContext | None) -> None:
        self._context = context

    @property
    def rank(self) -> int:
        """Global rank, from 0 to ``world_size - 1``."""
        if (group := default_group()) is not None:
            return int(group.get_rank())
        return self._context.rank if self._context is not None else 0

    @property
    def local_rank(self) -> int:
        """Rank on this node; equal to ``rank``, as a world lives on one node."""
        return self._context.rank if self._context is not None else 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        if (group := default_group()) is not None:
            return int(group.get_world_size())
        return self._context.world_size if self._context is not None else 1

    @property
    def device(self) -> torch.device:
        """The device of this rank: ``cpu`` or ``cuda:<local_rank>``."""
        import torch

        if self._context is None or self._context.device == "cpu":
            return torch.device("cpu")
        return torch.device(self._context.device, self.local_rank)

    @property
    def backend(self) -> str | None:
        """Backend of the default process group, None without one."""
        group = default_group()
        return str(group.get_backend()) if group is not None else None

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def barrier(self, timeout: float = 30.0) -> None:
        """Wait until all ranks have come here, at most ``timeout`` seconds; nothing to wait for in a world of one.

        Only gloo has a limit of its own; with another backend the time limit of the test ends a barrier.

        Raises:
            BarrierTimeout: if a rank did not come; on rank 0 the text names it.
        """
        __tracebackhide__ = True
        dist = default_group()
        if dist is None:
            return
        if self.backend != "gloo":
            dist.barrier()
            return
        begin = time.monotonic()
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=timeout), wait_all_ranks=True)
        except RuntimeError as error:
            if self._context is not None:
                self._context.group_is_broken = True  # gloo has closed its connections
            waited = time.monotonic() - begin
            if waited < timeout:
                raise  # a peer is gone
            raise BarrierTimeout(self.rank, waited, timeout, str(error).strip()) from None

    def record(
        self, name: str, value: object, *, rtol: float = 0.0, atol: float = 0.0, one_process: bool = False
    ) -> None:
        """Record a value under a name; after the test it must be equal on all ranks, else the test fails.

        The value goes one way, to the pytest process, and is compared there: no rank waits for another, so this
        can not hang. Plain data, tensors, arrays, modules, optimizers, and dicts and lists of them can be recorded; a
        second value of the same name replaces the first. In a plain test there is nothing to compare.

        Args:
            name: what the value is called in the report.
            value: the value as it is now; what becomes of it later does not count.
            rtol: how far floats and tensors may be from those of rank 0: ``atol + rtol * |value of rank 0|``, as in
                ``torch.testing.assert_close``. Their types and shapes have to be the same.
            atol: see ``rtol``.
            one_process: the value must also be what one process records under this name. When the test has passed on
                its ranks, it runs once more in a new world of one rank; it fails if that run does.

        Raises:
            NotRecordable: if the value, or a part of it, is none of these.
            InvalidTolerance: if a tolerance is no finite number of 0 or more.
            OneProcessRefused: if ``one_process`` is asked for in a standalone test.
            OSError: if a large value can not be written to the disk, where the pytest process reads it.
        """
        __tracebackhide__ = True
        for argument, tolerance in (("rtol", rtol), ("atol", atol)):
            if not recording.is_tolerance(tolerance):
                raise InvalidTolerance(name, argument, tolerance)
        context = self._context
        if one_process and context is not None and context.kind == "standalone":
            raise OneProcessRefused(name, context.nodeid)
        leaves = recording.leaves_of(name, value, context.folder if context is not None else "")
        if context is not None:
            context.send(ValueRecorded(name, leaves, float(rtol), float(atol), bool(one_process)))


def make_world() -> World:
    """Return the world of this process."""
    return World(current_rank())
