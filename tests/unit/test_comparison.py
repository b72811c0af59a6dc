"""Recorded values: what counts as equal, and what the table shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lightning_disttest.engine.recording import leaves_of
from lightning_disttest.reporting.comparison import compare_records, compare_with_one_process
from lightning_disttest.reporting.leaves import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.reporting.stories import RankStory
    from tests.unit.conftest import Make

    Tell = Callable[..., str]
    Record = Callable[..., dict[str, Recorded]]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Return a function that records values by name, as a rank would."""
    count = iter(range(1000))

    def record(values: dict[str, Any], **how: Any) -> dict[str, Recorded]:
        folder = str(tmp_path / str(next(count)))  # that of another rank
        return {name: Recorded(dict(leaves_of(name, value, folder)), **how) for name, value in values.items()}

    return record


@pytest.fixture
def compare(make: Make, record: Record) -> Tell:
    """Return a function that gives the table of what ranks recorded, each a dict of values by name."""

    def compare(*values: dict[str, Any], **how: Any) -> str:
        return compare_records([make.story(rank, records=record(of, **how)) for rank, of in enumerate(values)])

    return compare


@pytest.fixture
def alone(make: Make, record: Record) -> Tell:
    """Return a function that gives the table for the values of one process, which come first, and of ranks."""

    def alone(one: dict[str, Any], *values: dict[str, Any], **how: Any) -> str:
        stories = [make.story(rank, records=record(of, one_process=True, **how)) for rank, of in enumerate(values)]
        return compare_with_one_process(stories, record(one))

    return alone


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.5,
        "text",
        None,
        True,
        math.nan,
        math.inf,
        [],
        {},
        [1, [2]],
        {"a": {"b": None}},
        [math.nan],
        torch.zeros(0, 3),
        torch.tensor(1.0),
        torch.tensor([math.nan, -math.inf]),
        torch.full((5000,), math.nan),
        np.array([math.nan]),
        {0: torch.arange(5000)},
    ],
)
def test_equal_values_need_no_table(compare: Tell, value: object) -> None:
    """Values that are equal on all ranks, NaN among them, are not mentioned."""
    assert compare({"x": value}, {"x": value}, {"x": value}) == ""


def test_nothing_recorded_needs_no_table(compare: Tell) -> None:
    """Ranks that recorded nothing agree."""
    assert compare({}, {}) == ""


def test_order_does_not_count(compare: Tell) -> None:
    """Neither the order of names nor that of a dict's keys makes a difference."""
    assert compare({"x": {"a": 1, "b": 2}, "y": 0}, {"y": 0, "x": {"b": 2, "a": 1}}) == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), (1, 1.0), (1, True), (0, None), ("1", 1), ([1, 2], [2, 1]), (math.nan, 0.0), (1j, 2j), ([1], [1, 2])],
)
def test_different_values_are_told_apart(compare: Tell, first: object, second: object) -> None:
    """Values of another size, order or type are different."""
    lines = compare({"x": first}, {"x": second}).splitlines()
    assert lines[:4] == [
        "the ranks recorded different values:",
        "  x",
        f"    rank 0  {first!r}",
        f"    rank 1  {second!r}",
    ]


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        ({"a": 1}, {"a": 1, "b": 1}, ["  x['b']", "    rank 0  (not recorded)", "    rank 1  1"]),
        ({0: 1}, {"0": 1}, ["  x[0]", "    rank 0  1", "    rank 1  (not recorded)", "  x['0']"]),
        ([[1]], {0: [1]}, ["  x", "    rank 0  a list", "    rank 1  a dict"]),
        ([], {}, ["  x", "    rank 0  []", "    rank 1  a dict"]),
        ({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2.5}]}, ["  x['a'][1]['b']", "    rank 0  2.0", "    rank 1  2.5"]),
        (torch.ones(1), [1.0], ["  x", "    rank 0  [1.0] (torch.float32, shape [1])", "    rank 1  [1.0]"]),
        (torch.ones(1), np.ones(1, "float32"), ["  x", "    rank 0  [1.0] (torch.float32, shape [1])"]),
    ],
)
def test_parts_are_named_by_their_paths(compare: Tell, first: object, second: object, lines: list[str]) -> None:
    """A part of a value that differs has its own place in the table."""
    assert compare({"x": first}, {"x": second}).splitlines()[1 : len(lines) + 1] == lines


def test_table_has_only_what_differs(compare: Tell) -> None:
    """Names that differ are shown with the values of all ranks, in the order in which they were recorded first."""
    table = compare({"b": 1, "same": 0, "a": 1}, {"b": 2, "same": 0, "a": 1}, {"b": 1, "same": 0, "a": 3})

    assert table.splitlines() == [
        "the ranks recorded different values:",
        "  b",
        "    ranks 0, 2  1",
        "    rank 1      2",
        "    they differ, by up to 1 (relative: 1), rtol=0, atol=0",
        "  a",
        "    ranks 0-1  1",
        "    rank 2     3",
        "    they differ, by up to 2 (relative: 2), rtol=0, atol=0",
    ]


def test_missing_value_is_a_difference(compare: Tell) -> None:
    """A name that one rank did not record is shown as such, also if the other recorded None."""
    assert compare({"x": None}, {}).splitlines()[2:] == ["    rank 0  None", "    rank 1  (not recorded)"]
    assert compare({}, {"x": {"a": 1}}).splitlines()[1:] == ["  x", "    rank 0  (not recorded)", "    rank 1  a dict"]


@pytest.mark.parametrize("fate", ["died", "waited", "timed_out"])
def test_nothing_is_compared_unless_all_ranks_finished(make: Make, record: Record, fate: str) -> None:
    """A rank that did not come to the end may not have come to record: no value is held against any rank."""
    unfinished = getattr(make, fate)(2, "teardown", records=record({"x": 3}))
    stories: list[RankStory] = [make.story(rank, records=record({"x": rank})) for rank in range(2)]

    assert compare_records([*stories, unfinished]) == ""
    assert compare_records(stories) != ""


def test_text_about_a_missing_value_is_no_missing_value(compare: Tell) -> None:
    """A recorded text never equals a missing value, whatever it says."""
    assert compare({"x": "(not recorded)"}, {}) != ""


def test_no_line_is_longer_than_the_width(compare: Tell) -> None:
    """Long values, and long paths in their middle, are cut; they are compared in full."""
    name = "weights of the " + "very " * 30 + "large model"
    table = compare({name: "a" * 1000 + "b", "t": torch.rand(1000)}, {name: "a" * 1000 + "c", "t": torch.zeros(1000)})

    assert max(len(line) for line in table.splitlines()) == 100
    assert table.splitlines()[1].startswith("  weights of the very very ")
    assert table.splitlines()[1].endswith("very large model")
    assert table.splitlines()[2].endswith("aaaaaa...")


def test_at_most_ten_parts_are_shown(compare: Tell) -> None:
    """A table of a large model says how much more it could show."""
    lines = compare({"x": [{"a": i} for i in range(25)]}, {"x": [{"a": i + 0.5} for i in range(25)]}).splitlines()

    assert sum(line.startswith("  x[") for line in lines) == 10
    assert lines[-1] == "  and 15 more"


def test_short_tensor_is_shown_whole(compare: Tell) -> None:
    """Type and shape stand beside the path; ranks with the same bytes have one row."""
    values = [torch.tensor([1.0, 2.0, 3.5]), torch.tensor([1.0, 2.5, 3.5]), torch.tensor([1.0, 2.0, 3.5])]

    assert compare(*({"x": value} for value in values)).splitlines()[1:] == [
        "  x (torch.float32, shape [3])",
        "    ranks 0, 2  [1.0, 2.0, 3.5]",
        "    rank 1      [1.0, 2.5, 3.5]",
        "    1 of 3 differ, by up to 0.5 (relative: 0.25), rtol=0, atol=0",
    ]


@pytest.mark.parametrize("size", [64, 1500], ids=["in the message", "in a file"])
def test_of_a_long_tensor_the_first_place_is_shown(compare: Tell, size: int) -> None:
    """The index counts in all dimensions, and the elements there are those of every rank."""
    first, second = torch.zeros(size, 4), torch.zeros(size, 4)
    first[50, 1], second[50, 1], second[60, 0] = 4.0, 5.0, -2.0

    assert compare({"x": first}, {"x": second}, rtol=0.01, atol=0.001).splitlines()[1:] == [
        f"  x (torch.float32, shape [{size}, 4])",
        "    rank 0  [50, 1] = 4.0",
        "    rank 1  [50, 1] = 5.0",
        f"    2 of {4 * size} differ, by up to 2 (relative: inf), rtol=0.01, atol=0.001",
    ]


def test_of_a_long_list_the_first_place_is_shown(compare: Tell) -> None:
    """A curve of a thousand losses has a place where it leaves the other."""
    first = [float(step) for step in range(1000)]
    second = [value * (2 if value >= 700 else 1) for value in first]

    assert compare({"x": first}, {"x": second}).splitlines()[2:] == [
        "    rank 0  [700] = 700.0",
        "    rank 1  [700] = 1400.0",
        "    300 of 1000 differ, by up to 999 (relative: 1), rtol=0, atol=0",
    ]


def test_long_values_of_other_shapes_are_named_by_their_size(compare: Tell) -> None:
    """There is no element to compare."""
    table = compare({"x": torch.zeros(500), "y": [0] * 500}, {"x": torch.zeros(501), "y": [0] * 501})

    assert table.splitlines()[1:] == [
        "  x",
        "    rank 0  500 elements (torch.float32, shape [500])",
        "    rank 1  501 elements (torch.float32, shape [501])",
        "  y",
        "    rank 0  a list of 500",
        "    rank 1  a list of 501",
    ]


def test_other_tolerances_are_a_difference(make: Make, record: Record) -> None:
    """Ranks that ask for other tolerances do not agree on what is equal, whatever their values."""
    how: list[dict[str, Any]] = [{}, {"rtol": 0.1}, {"atol": 2.0}, {"one_process": True}, {}]
    stories = [make.story(rank, records=record({"x": 1.0}, **of)) for rank, of in enumerate(how)]

    assert compare_records(stories).splitlines()[1:] == [
        "  x: the ranks gave different arguments",
        "    ranks 0, 4  rtol=0, atol=0, one_process=False",
        "    rank 1      rtol=0.1, atol=0, one_process=False",
        "    rank 2      rtol=0, atol=2, one_process=False",
        "    rank 3      rtol=0, atol=0, one_process=True",
    ]


def test_ranks_are_compared_with_the_first(compare: Tell) -> None:
    """Two ranks may be twice the tolerance apart, if each is near enough to rank 0."""
    assert compare({"x": 1.0}, {"x": 1.1}, {"x": 0.9}, atol=0.11) == ""
    assert compare({"x": 1.1}, {"x": 1.0}, {"x": 0.9}, atol=0.11) != ""


def test_a_lost_file_is_a_failure(make: Make, record: Record) -> None:
    """Values that differ and can not be read are told of, and are no internal error."""
    stories = [make.story(rank, records=record({"x": torch.full((3000,), float(rank))})) for rank in range(2)]
    lost = Path(stories[1].records["x"].leaves["x"]["file"])
    lost.unlink()

    assert compare_records(stories).startswith("recorded values can not be compared, as the file of a large one can ")
    assert str(lost) in compare_records(stories)


def test_what_one_process_gives_too_needs_no_table(alone: Tell) -> None:
    """With a tolerance, and whatever else the one process has recorded."""
    assert alone({"x": 1.0, "y": 0}, {"x": 1.05}, {"x": 0.95}, rtol=0.06) == ""


def test_what_only_the_one_process_recorded_is_missed(make: Make, record: Record) -> None:
    """A value that asks for the comparison, and that no rank has recorded, is a difference."""
    stories = [make.story(rank, records=record({})) for rank in range(2)]

    assert compare_with_one_process(stories, record({"x": 1}, one_process=True)).splitlines() == [
        "the ranks recorded other values than one process does:",
        "  x",
        "    ranks 0-1    (not recorded)",
        "    one process  1",
    ]


def test_only_names_that_ask_for_it_are_compared_with_one_process(make: Make, record: Record) -> None:
    """A value that is another one on one process by its nature, such as a batch size, can be recorded beside."""
    stories = [make.story(rank, records=record({"x": 2})) for rank in range(2)]

    assert compare_with_one_process(stories, record({"x": 1})) == ""


def test_the_one_process_has_a_row_of_its_own(alone: Tell) -> None:
    """Each rank is compared with the one process, not only the first."""
    assert alone({"x": 1.0}, {"x": 1.0}, {"x": 1.0}, {"x": 1.5}, rtol=0.1).splitlines() == [
        "the ranks recorded other values than one process does:",
        "  x",
        "    ranks 0-1    1.0",
        "    rank 2       1.5",
        "    one process  1.0",
        "    they differ, by up to 0.5 (relative: 0.5), rtol=0.1, atol=0",
    ]


def test_what_one_process_does_not_record_is_a_difference(alone: Tell) -> None:
    """A name, or a part of its value."""
    assert alone({"y": {}}, {"x": 1, "y": {"a": 1}}, {"x": 1, "y": {"a": 1}}).splitlines()[1:] == [
        "  x",
        "    ranks 0-1    1",
        "    one process  (not recorded)",
        "  y['a']",
        "    ranks 0-1    1",
        "    one process  (not recorded)",
    ]
