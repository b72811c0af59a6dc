"""What a rank asks the controller for while its test runs: further ranks, or a process of the warm interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_disttest.engine import warm_spawn
from lightning_disttest.engine.messages import ConnectionGiven, RanksLaunched
from lightning_disttest.errors import DisttestError

if TYPE_CHECKING:
    from lightning_disttest.engine.messages import LaunchRanks, RunItem, WarmProcessWanted
    from lightning_disttest.engine.supervisor import RankHandle, Supervisor
    from lightning_disttest.engine.worlds import LiveWorld, WorldPool

_LAUNCH_S = 10.0


def launch(
    supervisor: Supervisor, pool: WorldPool, world: LiveWorld, asking: RankHandle, request: LaunchRanks, item: RunItem
) -> list[RankHandle]:
    """Add ranks to the world of a standalone test, which run its item as well; answer, and return them."""
    try:
        grown = [pool.grow(world, environment) for environment in request.environments]
    except (DisttestError, ValueError) as error:
        asking.send(RanksLaunched([], str(error)))
        return []
    for handle in grown:
        handle.send(item)
    started = supervisor.wait_until(lambda: all(handle.pid for handle in grown), _LAUNCH_S)
    pids = [handle.pid for handle in grown] if started else []
    asking.send(RanksLaunched(pids, "" if started else f"no process after {_LAUNCH_S:g} s"))
    return grown


def give_connection(asking: RankHandle, request: WarmProcessWanted) -> None:
    """Answer with a connection to the warm interpreter, which is started if there is none."""
    try:
        with warm_spawn.own_interpreter(request.modules).connect() as connection:
            asking.send(ConnectionGiven(""), (connection.fileno(),))
    except DisttestError as error:
        asking.send(ConnectionGiven(str(error)))
