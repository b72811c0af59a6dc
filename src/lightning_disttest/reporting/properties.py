"""The properties of a test in JUnit: where it ran, how each rank ended, and what ranks recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_disttest.reporting.stories import Fate, is_subreport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_disttest.reporting.stories import RankStory

_PREFIX = "disttest"


def properties_of(stories: Sequence[RankStory], kind: str) -> list[tuple[str, object]]:
    """Return the ``user_properties`` of a test: where it ran, how each rank ended, and what ranks recorded.

    A property is there once if the ranks that recorded it agree (often that is rank 0 alone), else once per rank.
    """
    recorded = []
    for story in stories:
        reports = [report for report in story.reports if not is_subreport(report)]
        recorded += [(story.rank, str(name), value) for name, value in (reports[-1].user_properties if reports else ())]
    own: list[tuple[str, object]] = [(f"{_PREFIX}.kind", kind), (f"{_PREFIX}.world_size", len(stories))]
    own += [(f"{_PREFIX}.rank_{story.rank}", _describe(story)) for story in stories]
    return [*own, *merge_values(recorded)]


def merge_values(recorded: Iterable[tuple[int, str, Any]]) -> list[tuple[str, Any]]:
    """Return names and values of (rank, name, value): each value once, with its ranks if another has other values."""
    values: dict[str, dict[int, list[Any]]] = {}
    for rank, name, value in recorded:
        values.setdefault(name, {}).setdefault(rank, []).append(value)
    merged = []
    for name, by_rank in values.items():
        first, *others = by_rank.values()
        if all(other == first for other in others):
            merged += [(name, value) for value in first]
        else:
            merged += [(f"{name} [rank {rank}]", value) for rank, found in by_rank.items() for value in found]
    return merged


def _describe(story: RankStory) -> str:
    outcomes = [report.outcome for report in story.reports if not report.passed]
    ended = story.fate.value if story.fate is not Fate.FINISHED else outcomes[0] if outcomes else "passed"
    seconds = sum(report.duration for report in story.reports if not is_subreport(report))
    return f"{ended} (pid {story.pid}, {seconds:.3f} s)"
