"""Recorded values: what counts as equal, and what the table shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.reporting.comparison import compare_records

if TYPE_CHECKING:
    from tests.unit.conftest import Make


def compare(make: Make, *records: dict[str, Any]) -> str:
    """Return the table of what these ranks recorded."""
    return compare_records([make.story(rank, records=record) for rank, record in enumerate(records)])


@pytest.mark.parametrize(
    "value", [1, 1.5, "text", None, True, math.nan, math.inf, [1, [2]], {"a": {"b": None}}, [math.nan]]
)
def test_equal_values_need_no_table(make: Make, value: object) -> None:
    """Values that are equal on all ranks, NaN among them, are not mentioned."""
    assert compare(make, {"x": value}, {"x": value}, {"x": value}) == ""


def test_nothing_recorded_needs_no_table(make: Make) -> None:
    """Ranks that recorded nothing agree."""
    assert compare(make, {}, {}) == ""


def test_order_does_not_count(make: Make) -> None:
    """Neither the order of names nor that of a dict's keys makes a difference."""
    assert compare(make, {"x": {"a": 1, "b": 2}, "y": 0}, {"y": 0, "x": {"b": 2, "a": 1}}) == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), (1, 1.0), (1, True), (0, None), ("1", 1), ([1, 2], [2, 1]), (math.nan, 0.0), ({"a": 1}, {"a": 1, "b": 1})],
)
def test_different_values_are_told_apart(make: Make, first: object, second: object) -> None:
    """Values of another size, order or type are different."""
    assert compare(make, {"x": first}, {"x": second}) == (
        f"the ranks recorded different values:\n  'x':\n    rank 0: {first!r}\n    rank 1: {second!r}"
    )


def test_table_has_only_what_differs(make: Make) -> None:
    """Each name that differs is shown with the values of all ranks, in the order in which it was recorded first."""
    table = compare(make, {"b": 1, "same": 0, "a": 1}, {"b": 2, "same": 0, "a": 1}, {"b": 1, "same": 0, "a": 3})

    assert table.splitlines() == [
        "the ranks recorded different values:",
        "  'b':",
        "    rank 0: 1",
        "    rank 1: 2",
        "    rank 2: 1",
        "  'a':",
        "    rank 0: 1",
        "    rank 1: 1",
        "    rank 2: 3",
    ]


def test_missing_value_is_a_difference(make: Make) -> None:
    """A name that one rank did not record is shown as such, also if the other recorded None."""
    assert compare(make, {"x": None}, {}).splitlines()[2:] == ["    rank 0: None", "    rank 1: (not recorded)"]


@pytest.mark.parametrize("fate", ["died", "waited", "timed_out"])
def test_nothing_is_compared_unless_all_ranks_finished(make: Make, fate: str) -> None:
    """A rank that did not come to the end may not have come to record: no value is held against any rank."""
    unfinished = getattr(make, fate)(2, "teardown", records={"x": 3})
    stories = [make.story(0, records={"x": 1}), make.story(1, records={"x": 2})]

    assert compare_records([*stories, unfinished]) == ""
    assert compare_records(stories) != ""


def test_text_about_a_missing_value_is_no_missing_value(make: Make) -> None:
    """A recorded text never equals a missing value, whatever it says."""
    assert compare(make, {"x": "(not recorded)"}, {}) != ""


def test_long_value_is_shortened(make: Make) -> None:
    """A long value is cut; it is compared in full."""
    lines = compare(make, {"x": "a" * 1000 + "b"}, {"x": "a" * 1000 + "c"}).splitlines()

    assert lines[2] == "    rank 0: '" + "a" * 96 + "..."
    assert lines[2:] == [lines[2], lines[2].replace("rank 0", "rank 1")]
