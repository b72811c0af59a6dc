"""From what launched ranks did to one text of all of them, the cause first: pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_disttest.errors import RankFailure
from lightning_disttest.reporting.causes import Kind, place_in_order, says_peer_is_gone, without_own_numbers
from lightning_disttest.reporting.stories import Fate, RankStory, headline, name_ranks, trim_stacks
from lightning_disttest.reporting.waiting import describe_state
from lightning_disttest.settings import find_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_disttest.reporting.raised import RaisedError

# Backward passes of DDP wait for other ranks in native code of torch's autograd, below no frame of Python.


@dataclass(frozen=True, slots=True)
class LaunchedStory:
    """One launched rank.

    Attributes:
        rank: its number.
        pid: its process.
        fate: how it left its function: a rank with an ``error`` has died.
        error: the exception that has left its function; None if it came to its end, or if nothing is known.
        begun: whether its function had begun.
        came_to_end: whether its function came to its end.
        how: how its process ended, in words; empty if it had not ended by itself.
        exitcode: its exit code after all; that of a rank which was ended is that of the signal.
        moment: when its failure was noticed, on the monotonic clock.
        stacks: Python stacks of its threads.
        is_stopped: whether it was stopped by SIGSTOP or a debugger.
    """

    rank: int
    pid: int
    fate: Fate
    error: RaisedError | None = None
    begun: bool = True
    came_to_end: bool = False
    how: str = ""
    exitcode: int | None = None
    moment: float = 0.0
    stacks: str = ""
    is_stopped: bool = False

    @property
    def kind(self) -> Kind | None:
        """Why it is part of the failure; None if it is not."""
        if self.error is not None:
            return _kind_of(self.error)
        fates = {Fate.DIED: Kind.DEATH, Fate.TIMED_OUT: Kind.TIME_LIMIT, Fate.WAITED: Kind.WAITING}
        return fates.get(self.fate)

    @property
    def in_test(self) -> RankStory:
        """The same as the story of a rank of a test: what is known of where it is."""
        return RankStory(
            self.rank, self.pid, self.fate, "call", stacks=trim_stacks(self.stacks), is_stopped=self.is_stopped
        )

    @property
    def waits(self) -> bool:
        """Whether it is in a function of torch where ranks wait for each other."""
        return self.in_test.waits_for_others

    @property
    def state(self) -> str:
        """What keeps it in its function and where, in words; empty if that is not known."""
        if self.kind not in (Kind.WAITING, Kind.TIME_LIMIT):
            return ""
        if self.came_to_end:
            return "came to the end of its function, but its process did not end"
        if not self.begun:
            return "had not begun its function"
        place = self.in_test.place
        return ", ".join(filter(None, (describe_state(self.in_test), place and f"at {place}")))


@dataclass(frozen=True, slots=True)
class LaunchFrame:
    """What was set for a launch, in seconds: the grace, the time limit of its test, how much earlier it was ended."""

    grace: float
    limit: float
    early: float


def sort_causes(stories: Sequence[LaunchedStory]) -> list[LaunchedStory]:
    """Return the ranks that are part of a failure, the cause first."""

    def key(story: LaunchedStory) -> tuple[int, bool, float]:
        assert story.kind is not None
        moment = story.moment if story.error is None else story.error.moment
        return place_in_order(story.kind, waits=story.waits, arrival=moment)

    return sorted((story for story in stories if story.kind is not None), key=key)


def list_failures(stories: Sequence[LaunchedStory], frame: LaunchFrame) -> tuple[RankFailure, ...]:
    """Return those ranks that failed, in their order; one that only waited for another has not."""
    return tuple(
        RankFailure(
            rank=story.rank,
            pid=story.pid,
            exception="" if story.error is None else story.error.name,
            text="" if story.error is None else story.error.text,
            traceback="" if story.error is None else story.error.traceback,
            how=_what([story], frame),
        )
        for story in stories
        if story.kind not in (None, Kind.WAITING)
    )


def describe_launch(stories: Sequence[LaunchedStory], frame: LaunchFrame) -> str:
    """Return the text of the one error of all launched ranks; at least one of them has failed."""
    causes = sort_causes(stories)
    groups = _group(causes)
    parts = [_first_line(groups[0], len(stories), frame)]
    for group in groups:
        is_cause = group[0] is causes[0]
        parts.append("\n" + _title(group, len(stories), frame, is_cause=is_cause))
        parts += [_words_of_torch(story) for story in group]
        parts.append(_body(group[0], folded=causes[0].kind is not Kind.COMMUNICATION))
    if finished := [story.rank for story in stories if story.kind is None]:
        parts.append(f"\n______ {name_ranks(finished)} of {len(stories)}: came to the end ______")
    if any(story.kind is Kind.TIME_LIMIT for story in causes):
        parts.append("\n" + _explain_limit(frame))
    return "\n".join(part.rstrip("\n") for part in parts if part)


def _kind_of(error: RaisedError) -> Kind:
    if error.leaves:
        return Kind.DEATH
    return Kind.COMMUNICATION if says_peer_is_gone(error.path, error.message) else Kind.OWN_ERROR


def _group(causes: Sequence[LaunchedStory]) -> list[list[LaunchedStory]]:
    groups: dict[tuple[object, ...], list[LaunchedStory]] = {}
    for story in causes:
        text = without_own_numbers(_body(story, folded=False))
        groups.setdefault((story.kind, story.how, text), []).append(story)
    return list(groups.values())


def _who(group: Sequence[LaunchedStory], count: int) -> str:
    return f"{name_ranks(sorted(story.rank for story in group))} of {count}"


def _first_line(group: Sequence[LaunchedStory], count: int, frame: LaunchFrame) -> str:
    """Return the line by which the short summary of pytest knows the failure."""
    story, what = group[0], _what(group, frame)
    if story.kind is Kind.OWN_ERROR and story.error is not None:
        what = f"raised {story.error.message}"
    elif story.kind is Kind.COMMUNICATION and story.error is not None:
        what += f": {story.error.message}"
    elif story.state:
        what += f": {story.state}"
    return f"{_who(group, count)} {what}".splitlines()[0]


def _title(group: Sequence[LaunchedStory], count: int, frame: LaunchFrame, *, is_cause: bool) -> str:
    pids = [story.pid for story in sorted(group, key=lambda story: story.rank)]
    return headline(_who(group, count), pids, _what(group, frame), is_cause=is_cause and count > 1)


def _what(group: Sequence[LaunchedStory], frame: LaunchFrame) -> str:
    story = group[0]
    was, its = ("was", "its") if len(group) == 1 else ("were", "their")
    match story.kind:
        case Kind.OWN_ERROR if story.error is not None:
            return f"raised {story.error.name}"
        case Kind.COMMUNICATION:
            return f"lost {its} connection to a peer"
        case Kind.DEATH if story.error is not None:
            return f"died: {story.error.message.splitlines()[0]} left {its} function"
        case Kind.DEATH:
            return f"died: {story.how} {_when(story, its)}"
        case Kind.TIME_LIMIT:
            return f"{was} still running at the time limit of {frame.limit:g} s"
        case _:
            return f"{was} still running when the grace of {frame.grace:g} s was over, and {was} ended"


def _when(story: LaunchedStory, its: str) -> str:
    if story.came_to_end:
        return f"after the end of {its} function"
    return f"before the end of {its} function" if story.begun else f"before {its} function began"


def _body(story: LaunchedStory, *, folded: bool) -> str:
    error = story.error
    if error is not None:
        if folded and story.kind is Kind.COMMUNICATION:
            return f"{error.path}:{error.lineno}: {error.message}"
        return error.traceback
    stacks = trim_stacks(story.stacks)
    return "\n".join(filter(None, (story.state, stacks and f"Python stacks:\n{stacks}")))


def _words_of_torch(story: LaunchedStory) -> str:
    """Return what torch would say of a death, for tests that look for that."""
    if story.kind is not Kind.DEATH or story.exitcode is None:
        return ""
    if story.exitcode >= 0:
        return f"process {story.rank} terminated with exit code {story.exitcode}"
    return f"process {story.rank} terminated with signal {story.how.rpartition(' ')[2]}"


def _explain_limit(frame: LaunchFrame) -> str:
    return (
        f"The limit of {frame.limit:g} s is that of the whole test: see {find_option('timeout').names}. "
        f"Its launched ranks were ended {frame.early:.2g} s before it, to tell this."
    )
