"""Worlds as the controller keeps them: made when a test needs one, reused if static, replaced after any failure."""

from __future__ import annotations

import itertools
import shutil
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightning_disttest.engine import processes, recording
from lightning_disttest.engine.memory import MemoryWatch
from lightning_disttest.engine.messages import (
    ForkRank,
    Interrupted,
    JoinFailed,
    Retire,
    Retired,
)
from lightning_disttest.engine.rendezvous import ReservedPort, rank_environment
from lightning_disttest.engine.supervisor import Ended, RankHandle, Supervisor
from lightning_disttest.reporting.stories import trim_stacks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TERM_S = 0.2
_STATUS_S = 1.0  # from the end of a rank's channel to the word of its status
_OTHERS_S = 0.1  # for ranks that end at the same time as another
_LAST_LINES = 20
_INTERRUPT_S = 2.0


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What a test asks of its world. Static tests with equal specs share one; backend '' means no process group."""

    kind: str
    world_size: int
    device: str
    backend: str


@dataclass(eq=False, slots=True)
class LiveWorld:
    """The ranks of one world, as they run; a standalone test's world starts with one rank and may grow."""

    spec: WorldSpec
    ranks: list[RankHandle]
    port: ReservedPort
    store: Path
    healthy: bool = True
    last_nodeid: str = ""
    limit: float = 0.0
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    problems: list[str] = field(default_factory=list)


class WorldPool:
    """Makes, keeps and ends the worlds of one controller."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self._supervisor = supervisor
        self.folder = folder
        self._numbers = itertools.count()
        self._kept: dict[WorldSpec, LiveWorld] = {}
        self._open: list[LiveWorld] = []

    def take_dead(self, spec: WorldSpec) -> LiveWorld | None:
        """Return the kept world for ``spec`` if it is found dead, to be reported and ended; it is kept no more.

        Raises:
            ZygoteLost: if the zygote has ended, and all worlds with it.
        """
        kept = self._kept.get(spec)
        if kept is None or not self._died_idle(kept):
            return None
        del self._kept[spec]
        self._supervisor.check_zygote()
        return kept

    def take(self, spec: WorldSpec) -> LiveWorld:
        """Return a world for ``spec``, the kept one if there is one.

        Raises:
            ZygoteLost, RankNotStarted: if none can be made.
        """
        return self._kept.pop(spec, None) or self._make(spec)

    def give_back(self, world: LiveWorld) -> None:
        """Keep a static world that is still healthy."""
        if world.healthy and world.spec.kind == "static":
            self._kept[world.spec] = world

    def grow(self, world: LiveWorld, environment: dict[str, str]) -> RankHandle:
        """Add a rank to a standalone test's world: the one that the environment of a launcher describes."""
        rank = int(environment.get("LOCAL_RANK", len(world.ranks)))
        size = int(environment.get("WORLD_SIZE", rank + 1))
        handle = self._start(world, rank, size, environment, replace=True)
        world.ranks.append(handle)
        return handle

    def retire(self, world: LiveWorld) -> list[str]:
        """End a world whose ranks are idle: fixtures end, exit handlers run. Return what went wrong.

        Ranks have as long for it as the last test had; then they are ended.
        """
        limit = world.limit
        for handle in world.ranks:
            handle.send(Retire())
        self._supervisor.wait_until(lambda: all(rank.status is not None for rank in world.ranks), limit)
        self._supervisor.take_stacks([handle for handle in world.ranks if handle.status is None])
        problems = list(world.problems)
        for handle in world.ranks:
            problems += _retire_problems(handle, limit)
        self.end(world)
        return problems

    def interrupt(self, world: LiveWorld) -> None:
        """End a world in the middle of a test, as Ctrl-C does: ranks get a moment to end their fixtures."""
        try:
            for handle in world.ranks:
                self._supervisor.signal(handle, signal.SIGINT, group=False)
            self._supervisor.wait_until(lambda: all(rank.status is not None for rank in world.ranks), _INTERRUPT_S)
        finally:
            self.end(world)

    def end(self, world: LiveWorld) -> None:
        """End a world at once, whatever its ranks are doing, and release all that it holds."""
        world.healthy = False
        living = [handle for handle in world.ranks if handle.status is None]
        if living:
            self._supervisor.end(living, TERM_S)
        for handle in world.ranks:
            self._supervisor.forget(handle)
        world.port.close()
        world.store.unlink(missing_ok=True)
        if world in self._open:
            self._open.remove(world)
        if self._kept.get(world.spec) is world:
            del self._kept[world.spec]

    def kept(self) -> Iterable[LiveWorld]:
        """Return the static worlds that are kept now."""
        return list(self._kept.values())

    def remove_values(self) -> None:
        """Remove the large values that the ranks of a test have recorded, if there are any."""
        shutil.rmtree(self.folder / recording.FOLDER, ignore_errors=True)

    def end_all(self) -> None:
        """End every world that is left, at once."""
        for world in list(self._open):
            self.end(world)

    def _make(self, spec: WorldSpec) -> LiveWorld:
        store = self.folder / f"store-{next(self._numbers)}"
        world = LiveWorld(spec, [], ReservedPort(), store)
        self._open.append(world)
        try:
            for rank in range(spec.world_size):
                environment = (
                    rank_environment(rank, spec.world_size, world.port.number)
                    if spec.backend
                    else {"STANDALONE_PORT": str(world.port.number)}
                )
                world.ranks.append(self._start(world, rank, spec.world_size, environment, replace=False))
        except BaseException:
            self.end(world)
            raise
        return world

    def _start(
        self, world: LiveWorld, rank: int, size: int, environment: dict[str, str], *, replace: bool
    ) -> RankHandle:
        spec = world.spec
        return self._supervisor.start_rank(
            rank,
            lambda token: ForkRank(
                token=token,
                rank=rank,
                world_size=size,
                kind=spec.kind,
                device=spec.device,
                backend=spec.backend,
                store=str(world.store),
                port=world.port.number,
                environment=environment,
                replace_environment=replace,
            ),
        )

    def _died_idle(self, world: LiveWorld) -> bool:
        self._supervisor.poll(0)
        if any(_is_ending(handle) for handle in world.ranks):
            for ranks, limit in (filter(_is_ending, world.ranks), _STATUS_S), (world.ranks, _OTHERS_S):
                self._await_statuses(list(ranks), limit)
        for handle in world.ranks:
            if _is_ending(handle):
                world.problems.append(_describe_idle_end(handle))
                world.healthy = False
            else:
                handle.inbox.clear()  # what a thread of the last test said after its end is not of the next one
        return not world.healthy

    def _await_statuses(self, ranks: list[RankHandle], limit: float) -> None:
        self._supervisor.wait_until(lambda: all(handle.status is not None for handle in ranks), limit)


def _is_ending(handle: RankHandle) -> bool:
    """Tell whether a rank that should be idle has ended, or is about to."""
    if handle.status is not None or handle.channel.closed:
        return True
    return any(isinstance(event, Interrupted) for _, _, event in handle.inbox)


def _describe_idle_end(handle: RankHandle) -> str:
    what = "closed its channel to pytest"
    if handle.status is not None:
        what = processes.describe_status(handle.status)
    raised = [event.text for _, _, event in handle.inbox if isinstance(event, Interrupted)]
    how = f"raised an exception\n{raised[0]}" if raised else what
    return describe_lost(handle, how, handle.files.last_output())


def describe_lost(handle: RankHandle, how: str, output: str) -> str:
    """Return what to say of a rank that was lost between two tests; ``how`` may have details after its first line."""
    what, _, details = how.partition("\n")
    return _describe(handle, f"{what} between two tests\n{details}", output)


def _retire_problems(handle: RankHandle, limit: float) -> list[str]:
    """Return what went wrong on one rank from its last item to its end."""
    problems = []
    retired = False
    for _, _, event in handle.inbox:
        if isinstance(event, Retired):
            retired = True
            problems += [f"rank {handle.rank} (pid {handle.pid}):\n{text}" for text in event.problems]
        elif isinstance(event, Ended) and (event.status != 0 or not retired):
            what = f"{processes.describe_status(event.status)} while it was leaving\n"
            problems.append(_describe(handle, what, handle.files.last_output()))
        elif isinstance(event, (JoinFailed, Interrupted)):
            problems.append(f"rank {handle.rank} (pid {handle.pid}):\n{event.text}")
    handle.inbox.clear()
    if handle.status is None:
        problems.append(_describe(handle, f"{describe_staying(limit)}\n", handle.files.last_output()))
    return problems


def _describe(handle: RankHandle, what: str, output: str) -> str:
    """Return a problem of a rank: what is said of it, its stacks and its last output, as far as there are any."""
    parts = [f"rank {handle.rank} (pid {handle.pid}) {what}{trim_stacks(handle.files.stacks())}".rstrip()]
    if lines := output.splitlines()[-_LAST_LINES:]:
        parts += ["last output:", *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def describe_staying(limit: float) -> str:
    """Return what to say of a rank that had ``limit`` seconds to leave."""
    return f"did not leave within {limit:g} s, held by a fixture's end, an exit handler or a thread, and was killed"
