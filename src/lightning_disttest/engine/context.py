"""What a process knows of itself as a rank; runs in ranks, and answers None everywhere else."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from lightning_disttest.engine.messages import FromRank


@dataclass(slots=True)
class RankContext:
    """This process as a rank of a world.

    Attributes:
        rank: global rank, 0 to ``world_size - 1``; equal to the local rank, as worlds live on one node.
        world_size: number of ranks; 1 for a standalone test until its Trainer has launched further ranks.
        kind: ``static``, ``dynamic`` or ``standalone``.
        device: device type of the world, ``cpu`` or ``cuda``.
        backend: backend of the default process group; empty when the rank started without one.
        port: a port on this host that is reserved for this world's rendezvous.
        nodeid: the test that runs.
        send: sends a message to the controller.
        launch: asks the controller for further ranks that run the same test, one per environment; returns pids.
        connect_warm: asks the controller for a connection to the interpreter that has imported these modules.
        folder: where this rank leaves for the controller what is too large for a message; it need not be there yet.
        deadline: when the time limit of the test is reached, on the monotonic clock; None if it has none.
        limit: that limit in seconds; 0 if it has none.
        group_is_broken: whether the default process group is known to be of no use any more.
    """

    rank: int
    world_size: int
    kind: str
    device: str
    backend: str
    port: int
    nodeid: str
    send: Callable[[FromRank], None]
    launch: Callable[[list[dict[str, str]]], list[int]]
    connect_warm: Callable[[list[str]], socket.socket]
    folder: str = ""
    deadline: float | None = None
    limit: float = 0.0
    group_is_broken: bool = False


_current: RankContext | None = None
_pid = 0


def current_rank() -> RankContext | None:
    """Return the context of this rank, or None in a process that is no rank."""
    return _current


def own_rank() -> RankContext | None:
    """Return the context of this rank, None also in a process that a rank has forked: that may not speak for it."""
    return _current if os.getpid() == _pid else None


def enter_rank(context: RankContext) -> None:
    """Declare this process a rank."""
    global _current, _pid
    _current, _pid = context, os.getpid()


def leave_rank() -> None:
    """Declare this process none: it was forked from a rank and must not speak in its name."""
    global _current
    _current = None


def default_group() -> Any:
    """Return ``torch.distributed`` if this process is in a default process group, else None; torch is not imported."""
    distributed: Any = sys.modules.get("torch.distributed")
    exists = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if exists else None
