"""Where ranks are that are still in a test, and what they wait for in ``torch.distributed``, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_disttest.reporting.stories import Fate, name_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_disttest.reporting.stories import RankStory

_WORLD_BARRIER = re.compile(r'[/\\]lightning_disttest[/\\]world\.py", line \d+ in barrier$', re.MULTILINE)
_DEFAULT = "default_pg"
_NO_DESCRIPTION = "undefined"
# Of these, torch wants tensors of one shape on all ranks; a barrier has none, a scatter only its source's.
_ALIKE = frozenset(("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"))


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation of a process group, as c10d's flight recorder knows it.

    Attributes:
        name: what torch calls it, such as ``all_reduce``.
        group: the name of its group, which differs from that of every other group of this process.
        description: what the user called the group; ``default_pg`` is the default one, ``undefined`` has none.
        number: its place among the operations of its group on this rank, from 1.
        tensors: dtype and shape of each input, such as ``float32 [2, 3]``.
        pending: whether it was begun and is not done.
        point_to_point: whether it is a send or a receive; those have numbers of their own.
        members: the ranks of the group; empty if they are not known.
    """

    name: str
    group: str
    description: str
    number: int
    tensors: tuple[str, ...]
    pending: bool
    point_to_point: bool
    members: tuple[int, ...]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Collective:
        """Make one of what came as JSON, which has no tuples."""
        return cls(**{**fields, "tensors": tuple(fields["tensors"]), "members": tuple(fields["members"])})

    @property
    def group_name(self) -> str:
        """The group in words."""
        if self.description == _DEFAULT:
            return "the default group"
        return f"the group {self.group}" if self.description == _NO_DESCRIPTION else f"the group {self.description!r}"

    @property
    def call(self) -> str:
        """The operation with its tensors, without its place."""
        return self.name + (f" of {', '.join(self.tensors)}" if self.tensors else "")

    def __str__(self) -> str:
        return f"{self.call}, number {self.number} of {self.group_name}"


def describe_waiting(collectives: Sequence[Collective], torch_call: str = "", *, in_backward: bool = False) -> str:
    """Return what one rank waits for, in words; empty if nothing is known of it.

    ``torch_call`` is the function of torch.distributed that it is in: only a rank that is in the function of its last
    operation surely waits in it. One that was begun and not waited for may be pending for long. In a backward pass it
    waits for the gradients of all ranks.
    """
    begun = [collective for collective in collectives if collective.pending]
    parts = []
    if (awaited := _awaited(collectives, torch_call, in_backward=in_backward)) is not None:
        parts.append(f"waits in {awaited}")
        begun.remove(awaited)
    elif torch_call:
        parts.append(f"is in {torch_call} of torch.distributed")
    elif in_backward:
        parts.append("is in a backward pass of torch")
    parts += [f"has begun {collective}, which is not done" for collective in begun]
    return ", ".join(parts)


def _awaited(collectives: Sequence[Collective], torch_call: str, *, in_backward: bool) -> Collective | None:
    begun = [collective for collective in collectives if collective.pending]
    return begun[-1] if begun and (in_backward or torch_call.startswith(begun[-1].name)) else None


def is_in_world_barrier(story: RankStory) -> bool:
    """Tell whether a rank waits in the barrier of its ``world``, which the flight recorder does not know."""
    return _WORLD_BARRIER.search(story.stacks) is not None


def waits_in_vain(story: RankStory, finished: Sequence[RankStory]) -> bool:
    """Tell whether a rank waits in a collective to which one that has finished the test did not come."""
    if finished and is_in_world_barrier(story):
        return True
    awaited = _awaited(story.collectives, story.torch_call, in_backward=story.is_in_backward)
    if awaited is None or awaited.point_to_point:
        return False
    return any(other.knows_collectives and _did_not_come(other, awaited) for other in finished)


def _did_not_come(story: RankStory, awaited: Collective) -> bool:
    others = [one for one in story.collectives if one.group == awaited.group and not one.point_to_point]
    if not others:
        return story.rank in awaited.members
    names = {one.number: one.name for one in others}
    return max(names) < awaited.number or names.get(awaited.number, awaited.name) != awaited.name


def describe_state(story: RankStory) -> str:
    """Return what keeps a rank in the test, as far as it is known: a collective, a signal, native code; else empty."""
    if story.fate not in (Fate.WAITED, Fate.TIMED_OUT, Fate.STRANDED):
        return ""
    if story.is_stopped:
        return "is stopped, by SIGSTOP or a debugger"
    if story.is_silent:
        return "its interpreter does not answer: native code holds the GIL, or the machine is busy"
    if is_in_world_barrier(story):
        return "waits in world.barrier()"
    return describe_waiting(story.collectives, story.torch_call, in_backward=story.is_in_backward)


def describe_quiet(nodeid: str, seconds: float, stories: Sequence[RankStory]) -> str:
    """Return what to show of a test of which nothing was heard for some seconds."""
    lines = [f"disttest: no news for {seconds:.0f} s of {nodeid}"]
    lines += [f"  rank {story.rank} (pid {story.pid}): {_describe_place(story)}" for story in stories]
    in_test = [story for story in stories if story.fate is Fate.WAITED]
    lines += [f"  {line}" for line in explain_deadlock(in_test).splitlines()]
    return "\n".join(lines)


def _describe_place(story: RankStory) -> str:
    if story.fate is Fate.FINISHED:
        return "came to the end of the test"
    if story.fate in (Fate.DIED, Fate.PLANNED):
        return story.how.partition("\n")[0]
    return ", ".join(filter(None, (story.where, describe_state(story), story.place and f"at {story.place}")))


def explain_deadlock(stories: Sequence[RankStory]) -> str:
    """Say which ranks do not call the same collectives, a line for each group; empty if nothing speaks for that."""
    groups: dict[str, dict[int, list[Collective]]] = {}
    for story in sorted(stories, key=lambda story: story.rank):
        for collective in story.collectives:
            if not collective.point_to_point:
                groups.setdefault(collective.group, {}).setdefault(story.rank, []).append(collective)
    told = sorted(story.rank for story in stories if story.knows_collectives)
    return "\n".join(filter(None, (_explain_group(by_rank, told) for by_rank in groups.values())))


def _explain_group(by_rank: Mapping[int, Sequence[Collective]], told: Sequence[int]) -> str:
    """Compare what ranks do in one group, at the first operation that is not done; ``told`` are those that told."""
    everything = [one for ones in by_rank.values() for one in ones]
    number = min((one.number for one in everything if one.pending), default=0)
    if not number:
        return ""
    calls = {rank: one for rank, ones in by_rank.items() for one in ones if one.number == number}
    first = next(iter(calls.values()))
    if _differ(list(calls.values())):
        ranks_of = _group_ranks({rank: one.call for rank, one in calls.items()})
        each = ", ".join(f"{call} on {name_ranks(ranks)}" for call, ranks in ranks_of.items())
        return f"The ranks do not call the same as number {number} of {first.group_name}: {each}."
    latest = {rank: max(ones, key=lambda one: one.number) for rank, ones in by_rank.items()}
    behind = {rank: one for rank, one in latest.items() if one.number < number}
    missing = {rank: f"its last one was number {one.number}, {one.call}" for rank, one in behind.items()}
    missing |= {rank: "it has called none there" for rank in told if rank in first.members and rank not in by_rank}
    if not missing:
        return ""
    callers = name_ranks([rank for rank in latest if rank not in behind])
    absent = ", ".join(f"{name_ranks(ranks)} ({_of(ranks, why)})" for why, ranks in _group_ranks(missing).items())
    return f"{callers} called number {number} of {first.group_name}, {first.call}; not there: {absent}."


def _group_ranks(words: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the ranks, in order, of which the same is said."""
    ranks_of: dict[str, list[int]] = {}
    for rank, said in words.items():
        ranks_of.setdefault(said, []).append(rank)
    return ranks_of


def _of(ranks: Sequence[int], why: str) -> str:
    return why if len(ranks) == 1 else why.replace("its last", "their last").replace("it has", "they have")


def _differ(collectives: Sequence[Collective]) -> bool:
    names = {one.name for one in collectives}
    if len(names) > 1:
        return True
    return bool(names & _ALIKE) and len({one.tensors for one in collectives}) > 1
