"""Where ranks are that are still in a test, and what they wait for in ``torch.distributed``, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_disttest.reporting.stories import RankStory

_WORLD_BARRIER = re.compile(r'[/\\]lightning_disttest[/\\]world\.py", line \d+ in barrier$', re.MULTILINE)
_DEFAULT = "default_pg"
# Of these, torch wants tensors of one shape on all ranks; a barrier has none, a scatter only its source's.
_ALIKE = frozenset(("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"))


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation of a process group, as c10d's flight recorder knows it.

    Attributes:
        name: what torch calls it, such as ``all_reduce``.
        group: the description of its group; ``default_pg`` is the default one.
        number: its place among the operations of its group on this rank, from 1.
        tensors: dtype and shape of each input, such as ``float32 [2, 3]``.
        pending: whether the rank still waits for it.
        point_to_point: whether it is a send or a receive; those have numbers of their own.
    """

    name: str
    group: str
    number: int
    tensors: tuple[str, ...]
    pending: bool
    point_to_point: bool

    @property
    def group_name(self) -> str:
        """The group in words."""
        return "the default group" if self.group == _DEFAULT else f"the group {self.group!r}"

    @property
    def call(self) -> str:
        """The operation with its tensors, without its place."""
        return self.name + (f" of {', '.join(self.tensors)}" if self.tensors else "")

    def __str__(self) -> str:
        return f"{self.call}, number {self.number} of {self.group_name}"


def describe_waiting(collectives: Iterable[Collective]) -> str:
    """Return what one rank waits for, in words; empty if nothing is known of it."""
    pending = [str(collective) for collective in collectives if collective.pending]
    return "waits in " + " and in ".join(pending) if pending else ""


def describe_state(story: RankStory) -> str:
    """Return what keeps a rank, as far as it is known: a collective, a signal, native code; else empty."""
    if story.is_stopped:
        return "is stopped, by SIGSTOP or a debugger"
    if story.is_silent:
        return "its interpreter does not answer: native code holds the GIL, or the machine is busy"
    if is_in_world_barrier(story):
        return "waits in world.barrier()"
    return describe_waiting(story.collectives)


def describe_quiet(nodeid: str, seconds: float, stories: Sequence[RankStory]) -> str:
    """Return what to show of a test of which nothing was heard for some seconds."""
    lines = [f"disttest: no news for {seconds:.0f} s of {nodeid}"]
    for story in stories:
        where = {"start": "before setup", "exit": "after teardown"}.get(story.phase, f"in {story.phase}")
        parts = [where, describe_state(story), f"at {story.place}" if story.place else ""]
        lines.append(f"  rank {story.rank} (pid {story.pid}): {', '.join(filter(None, parts))}")
    if deadlock := explain_deadlock(stories):
        lines.append(f"  {deadlock}")
    return "\n".join(lines)


def waits_in_vain(story: RankStory, finished: Sequence[RankStory]) -> bool:
    """Tell whether a rank waits in a collective that one of those that have finished the test did not come to."""
    if finished and is_in_world_barrier(story):
        return True
    return any(
        not collective.point_to_point and any(_has_not_come(other, collective) for other in finished)
        for collective in story.collectives
        if collective.pending
    )


def is_in_world_barrier(story: RankStory) -> bool:
    """Tell whether a rank waits in the barrier of its ``world``, which the flight recorder does not know."""
    return _WORLD_BARRIER.search(story.stacks) is not None


def _has_not_come(story: RankStory, collective: Collective) -> bool:
    others = [one for one in story.collectives if one.group == collective.group and not one.point_to_point]
    if not others:  # of other groups it may not be a member
        return story.has_answered and collective.group == _DEFAULT
    came_to = {one.number: one.name for one in others}
    return max(came_to) < collective.number or came_to.get(collective.number, collective.name) != collective.name


def explain_deadlock(stories: Sequence[RankStory]) -> str:
    """Say which ranks do not call the same collectives, by group; empty if nothing speaks for that."""
    latest: dict[str, dict[int, Collective]] = {}
    for story in stories:
        for collective in story.collectives:
            if not collective.point_to_point:
                by_rank = latest.setdefault(collective.group, {})
                known = by_rank.get(story.rank)
                if known is None or collective.number > known.number:
                    by_rank[story.rank] = collective
    idle = [story.rank for story in stories if story.has_answered and not story.collectives]
    lines = [_explain_group(by_rank, idle if group == _DEFAULT else ()) for group, by_rank in latest.items()]
    return "\n".join(filter(None, lines))


def _explain_group(by_rank: dict[int, Collective], idle: Sequence[int]) -> str:
    """Compare what ranks do in one group; ``idle`` are members that have called nothing in any group."""
    numbers = {collective.number for collective in by_rank.values() if collective.pending}
    if not numbers:
        return ""
    number = min(numbers)
    waiting = {rank: one for rank, one in by_rank.items() if one.number == number and one.pending}
    group = next(iter(waiting.values())).group_name
    if _differ(list(waiting.values())):
        calls = ", ".join(f"{one.call} on rank {rank}" for rank, one in waiting.items())
        return f"The ranks do not call the same as number {number} of {group}: {calls}."
    missing = [
        f"rank {rank} (its last one was number {one.number}, {one.call})"
        for rank, one in by_rank.items()
        if one.number < number
    ]
    missing += [f"rank {rank} (it has called nothing yet)" for rank in idle]
    if not missing:
        return ""
    ranks = ", ".join(f"rank {rank}" for rank in waiting)
    verb = "waits" if len(waiting) == 1 else "wait"
    call = next(iter(waiting.values())).call
    return f"{ranks} {verb} in number {number} of {group}, {call}; not there: {', '.join(missing)}."


def _differ(collectives: Sequence[Collective]) -> bool:
    names = {one.name for one in collectives}
    if len(names) > 1:
        return True
    return bool(names & _ALIKE) and len({one.tensors for one in collectives}) > 1
