"""Values that ranks recorded with ``world.record``, compared in the controller after the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_disttest.reporting import leaves
from lightning_disttest.reporting.leaves import MISSING, Difference, Recorded
from lightning_disttest.reporting.stories import Fate, name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_disttest.reporting.stories import RankStory

_WIDTH = 100
_MOST_BLOCKS = 10
_RANKS_DIFFER = "the ranks recorded different values:"
_ONE_DIFFERS = "the ranks recorded other values than one process does:"
_ONE_PROCESS = "one process"
_UNREADABLE = "recorded values can not be compared, as the file of a large one can not be read any more:"


@dataclass(frozen=True, slots=True)
class _Row:
    """A value, and who has it; ``who`` are ranks, or nobody for the one process."""

    who: tuple[int, ...]
    leaf: Any

    @property
    def label(self) -> str:
        return name_ranks(self.who) if self.who else _ONE_PROCESS


def compare_records(stories: Sequence[RankStory]) -> str:
    """Return a table of the values that are not equal on all ranks; empty if all are.

    Nothing is compared if a rank did not come to the end of the test: it may not have come to record its values.
    """
    if any(story.fate is not Fate.FINISHED for story in stories):
        return ""
    names = dict.fromkeys(name for story in stories for name in story.records)
    by_rank = {name: {story.rank: story.records.get(name) for story in stories} for name in names}
    return _table(_RANKS_DIFFER, (block for name, recorded in by_rank.items() for block in _blocks(name, recorded)))


def compare_with_one_process(stories: Sequence[RankStory], records: Mapping[str, Recorded]) -> str:
    """Return a table of the values for which that is asked and that are not those of one process; empty if all are."""
    blocks = [
        block
        for name, recorded in stories[0].records.items()
        if recorded.one_process
        for block in _blocks_of_one(name, {story.rank: story.records[name] for story in stories}, records.get(name))
    ]
    ranks = _Row(tuple(story.rank for story in stories), MISSING)
    blocks += [
        [f"  {name}", *_lines([ranks, _Row((), _outline(name, recorded))])]
        for name, recorded in records.items()
        if recorded.one_process and name not in stories[0].records
    ]
    return _table(_ONE_DIFFERS, blocks)


def _table(heading: str, blocks: Iterable[list[str]]) -> str:
    try:
        every = list(blocks)
    except OSError as error:
        return f"{_UNREADABLE} {error}"
    if not every:
        return ""
    lines = [line for block in every[:_MOST_BLOCKS] for line in block]
    if more := len(every) - _MOST_BLOCKS:
        lines += [f"  and {more} more"] if more > 0 else []
    return "\n".join([heading, *(_cut(line) for line in lines)])


def _blocks(name: str, by_rank: Mapping[int, Recorded | None]) -> Iterator[list[str]]:
    """Yield the lines of each part of a value that is not the same on all ranks."""
    there = [recorded for recorded in by_rank.values() if recorded is not None]
    if len(there) < len(by_rank):
        yield [f"  {name}", *_lines(_grouped({rank: _outline(name, of) for rank, of in by_rank.items()}))]
        return
    arguments = {rank: _arguments(recorded) for rank, recorded in zip(by_rank, there, strict=True)}
    if len(set(arguments.values())) > 1:
        rows = [(row.label, str(row.leaf)) for row in _grouped(arguments)]
        yield [f"  {name}: the ranks gave different arguments", *_aligned(rows)]
        return
    first = there[0]
    for path in dict.fromkeys(path for recorded in there for path in recorded.leaves):
        found = {rank: of.leaves.get(path, MISSING) for rank, of in zip(by_rank, there, strict=True)}
        rows_of_leaf = _grouped(found)
        pairs = [(row.leaf, rows_of_leaf[0].leaf) for row in rows_of_leaf[1:]]
        yield from _differing(path, rows_of_leaf, pairs, first)


def _blocks_of_one(name: str, by_rank: Mapping[int, Recorded], one: Recorded | None) -> Iterator[list[str]]:
    """Yield the lines of each part of a value that is not what one process recorded."""
    first = next(iter(by_rank.values()))
    if one is None:
        row = _Row((), MISSING)
        ranks = {rank: _outline(name, recorded) for rank, recorded in by_rank.items()}
        yield [f"  {name}", *_lines([*_grouped(ranks), row])]
        return
    for path in dict.fromkeys([*first.leaves, *one.leaves]):
        expected = _Row((), one.leaves.get(path, MISSING))
        rows = _grouped({rank: recorded.leaves.get(path, MISSING) for rank, recorded in by_rank.items()})
        pairs = [(row.leaf, expected.leaf) for row in rows]
        yield from _differing(path, [*rows, expected], pairs, first)


def _differing(path: str, rows: Sequence[_Row], pairs: Iterable[tuple[Any, Any]], how: Recorded) -> Iterator[list[str]]:
    compared = [leaves.compare(actual, expected, how.rtol, how.atol) for actual, expected in pairs]
    differences = [difference for difference in compared if difference is not None]
    if not differences:
        return
    kinds = {leaves.describe_kind(row.leaf) for row in rows if row.leaf is not MISSING}
    kind = kinds.pop() if len(kinds) == 1 else ""
    header = _cut_middle(f"  {path}", _WIDTH - len(kind) - 3) + (f" ({kind})" if kind else "")
    yield [header, *_lines(rows, differences, with_kind=not kind), *_summary(differences, how)]


def _outline(name: str, recorded: Recorded | None) -> Any:
    """Return the value of a name that others did not record: itself, or that it is there if it has many parts."""
    return MISSING if recorded is None else recorded.leaves[name]


def _arguments(recorded: Recorded) -> str:
    return f"rtol={recorded.rtol:g}, atol={recorded.atol:g}, one_process={recorded.one_process}"


def _grouped(by_rank: Mapping[int, Any]) -> list[_Row]:
    """Return each value once, with the ranks that have it, in the order of ranks."""
    groups: dict[str, tuple[list[int], Any]] = {}
    for rank, leaf in by_rank.items():
        groups.setdefault(leaves.identity(leaf), ([], leaf))[0].append(rank)
    return [_Row(tuple(ranks), leaf) for ranks, leaf in groups.values()]


def _lines(rows: Sequence[_Row], differences: Sequence[Difference] = (), *, with_kind: bool = True) -> list[str]:
    """Return a line per row: the values, or if one of them is too long, the first elements that differ."""
    room = _WIDTH - 6 - max(len(row.label) for row in rows)
    whole = [_with_kind(leaves.show(row.leaf), row.leaf) if with_kind else leaves.show(row.leaf) for row in rows]
    same_kind = bool(differences) and all(difference.total > 1 for difference in differences)
    if same_kind and not all(0 < len(text) <= room for text in whole):
        first = min(difference.first for difference in differences)
        whole = [leaves.show_element(row.leaf, first) for row in rows]
    texts = [text or _with_kind(leaves.show_size(row.leaf), row.leaf) for text, row in zip(whole, rows, strict=True)]
    return _aligned([(row.label, text) for text, row in zip(texts, rows, strict=True)])


def _with_kind(text: str, leaf: Any) -> str:
    kind = leaves.describe_kind(leaf)
    return f"{text} ({kind})" if text and kind else text


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(label) for label, _ in rows)
    return [f"    {label:{width}}  {text}" for label, text in rows]


def _summary(differences: Sequence[Difference], how: Recorded) -> list[str]:
    """Return how far apart the values are; nothing if that can not be said."""
    absolute = [d.absolute for d in differences if d.absolute is not None]
    relative = [d.relative for d in differences if d.relative is not None]
    total = max(d.total for d in differences)
    count = max(d.count for d in differences)
    words = [f"{count} of {total} differ" if total > 1 else "they differ"]
    if absolute and relative:
        words.append(f"by up to {max(absolute):.3g} (relative: {max(relative):.3g})")
        words.append(f"rtol={how.rtol:g}, atol={how.atol:g}")
    return [f"    {', '.join(words)}"] if len(words) > 1 or total > 1 else []


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _cut_middle(text: str, width: int) -> str:
    """Shorten a path where it says least: both its beginning and its end tell what it is."""
    if len(text) <= width:
        return text
    half = (width - 3) // 2
    return f"{text[: width - 3 - half]}...{text[-half:]}"
