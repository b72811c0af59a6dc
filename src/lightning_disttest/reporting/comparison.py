"""Values that ranks recorded with ``world.record``, compared in the controller after the test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lightning_disttest.reporting.stories import Fate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_disttest.reporting.stories import RankStory

_WIDTH = 100


def compare_records(stories: Sequence[RankStory]) -> str:
    """Return a table of the values that are not equal on all ranks; empty if all are.

    Nothing is compared if a rank did not come to the end of the test: it may not have come to record its values.
    """
    if any(story.fate is not Fate.FINISHED for story in stories):
        return ""
    names = list(dict.fromkeys(name for story in stories for name in story.records))
    lines: list[str] = []
    for name in names:
        values = {story.rank: story.records.get(name, _MISSING) for story in stories}
        if len({_canonical(value) for value in values.values()}) > 1:
            lines.append(f"  {name!r}:")
            lines += [f"    rank {rank}: {_shorten(value)}" for rank, value in values.items()]
    return "\n".join(["the ranks recorded different values:", *lines]) if lines else ""


class _Missing:
    def __repr__(self) -> str:
        return "(not recorded)"


_MISSING = _Missing()


def _canonical(value: Any) -> str:
    """Return a text that is equal for equal values; NaN equals NaN here, as it does for a reader of the table."""
    return "" if value is _MISSING else json.dumps(value, sort_keys=True)


def _shorten(value: Any) -> str:
    text = repr(value)
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "values"}:  # a tensor or an array
        text = f"{value['values']!r} ({value['dtype']}, shape {value['shape']})"
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
