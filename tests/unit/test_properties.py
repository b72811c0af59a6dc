"""The properties of a test in JUnit: where it ran, how each rank ended, and what ranks recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.reporting.properties import merge_values, properties_of
from lightning_disttest.reporting.stories import RankStory

if TYPE_CHECKING:
    from tests.unit.conftest import Make

# Values of several ranks.

R01, R10 = [(0, 1), (0, 2)], [(1, 2), (1, 1)]  # ranks and what they recorded, in another order


@pytest.mark.parametrize(
    ("recorded", "merged"),
    [
        ([], []),
        ([(0, "a", 1)], [("a", 1)]),
        ([(0, "a", 1), (1, "a", 1)], [("a", 1)]),
        ([(0, "a", 1), (1, "a", 2)], [("a [rank 0]", 1), ("a [rank 1]", 2)]),
        ([(0, "a", 1), (1, "a", 1), (2, "a", 2)], [("a [rank 0]", 1), ("a [rank 1]", 1), ("a [rank 2]", 2)]),
        ([(1, "a", 1)], [("a", 1)]),
        ([(0, "a", 1), (0, "a", 2)], [("a", 1), ("a", 2)]),
        ([(0, "a", 1), (0, "a", 1), (1, "a", 1), (1, "a", 1)], [("a", 1), ("a", 1)]),
        ([(0, "a", 1), (0, "a", 2), (1, "a", 1)], [("a [rank 0]", 1), ("a [rank 0]", 2), ("a [rank 1]", 1)]),
        ([(0, "a", 1), (0, "a", 2), (1, "a", 2), (1, "a", 1)], [(f"a [rank {r}]", v) for r, v in (R01 + R10)]),
        ([(0, "b", 1), (0, "a", 2), (1, "a", 2), (1, "b", 1)], [("b", 1), ("a", 2)]),
        ([(0, "a", 1), (0, "b", 1), (1, "a", 1), (1, "b", 2)], [("a", 1), ("b [rank 0]", 1), ("b [rank 1]", 2)]),
        ([(0, "a", [1, {"x": 2}]), (1, "a", [1, {"x": 2}])], [("a", [1, {"x": 2}])]),
        ([(0, "a", []), (1, "a", None)], [("a [rank 0]", []), ("a [rank 1]", None)]),
        ([(0, "a", "1"), (1, "a", 1)], [("a [rank 0]", "1"), ("a [rank 1]", 1)]),
    ],
)  # fmt: skip
def test_values_are_merged(recorded: list[tuple[int, str, Any]], merged: list[tuple[str, Any]]) -> None:
    """Alike on all ranks that have it: once; else each with its rank. The order is that of the first mention."""
    assert merge_values(recorded) == merged
    assert merge_values(iter(recorded)) == merged


# Properties of a test.


def recording(make: Make, rank: int, *pairs: tuple[object, object]) -> RankStory:
    """Return the story of a rank that passed and recorded properties; pytest has them on each report from then on."""
    call, teardown = (make.report(when, user_properties=list(pairs)) for when in ("call", "teardown"))
    return make.story(rank, make.report("setup"), call, teardown)


def ours(properties: list[tuple[str, object]]) -> dict[str, str]:
    """Return the properties that the plugin adds, with their seconds left out."""
    return {
        name: re.sub(r"\d+\.\d{3} s", "N s", str(value)) for name, value in properties if name.startswith("disttest.")
    }


def recorded(properties: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """Return the properties that the ranks recorded."""
    return [(name, value) for name, value in properties if not name.startswith("disttest.")]


@pytest.mark.parametrize("kind", ["static", "dynamic", "standalone"])
def test_properties_say_where_a_test_ran(make: Make, kind: str) -> None:
    """Kind, number of ranks and each rank's process and outcome are there."""
    properties = properties_of([make.story(rank, *make.passed()) for rank in range(2)], kind)

    assert ours(properties) == {
        "disttest.kind": kind,
        "disttest.world_size": "2",
        "disttest.rank_0": "passed (pid 100, N s)",
        "disttest.rank_1": "passed (pid 101, N s)",
    }
    assert recorded(properties) == []


def test_properties_say_how_each_rank_ended(make: Make) -> None:
    """What a rank reported, or how it left without a report, is told of each one."""
    setup, teardown = make.report("setup"), make.report("teardown")
    stories = [
        make.story(0, setup, make.failed("call", ValueError("a")), teardown),
        make.story(1, make.skipped("setup", "no"), teardown),
        make.died(2, "call", setup),
        make.timed_out(3, "call", setup),
        make.waited(4, "call", setup),
        make.story(5, setup, make.report("call"), make.failed("teardown", ValueError("late"))),
        make.story(6, make.failed("setup", ValueError("early")), make.skipped("teardown", "no")),
        make.died(7, "teardown", setup, make.failed("call", ValueError("a"))),
    ]

    told = [value.partition(" (")[0] for name, value in ours(properties_of(stories, "static")).items() if "_" in name]

    assert told[1:] == ["failed", "skipped", "died", "timed out", "waited", "failed", "failed", "died"]


def test_properties_say_how_long_each_rank_took(make: Make) -> None:
    """The seconds of all phases are summed, those of subtests are a part of the body already."""
    sub = make.subreport("a")
    sub.duration = 50.0
    seconds = {"setup": 0.25, "call": 1.5, "teardown": 0.125}
    setup, *others = (make.report(when, duration=duration) for when, duration in seconds.items())

    properties = dict(properties_of([make.story(0, setup, sub, *others)], "static"))

    assert properties["disttest.rank_0"] == "passed (pid 100, 1.875 s)"


def test_failed_subtest_is_how_its_rank_ended(make: Make) -> None:
    """A rank that failed a subtest did not pass."""
    sub = make.subreport("a", "failed", make.longrepr(ValueError("sub")))
    story = make.story(0, make.report("setup"), sub, make.report("call"), make.report("teardown"))

    assert ours(properties_of([story], "static"))["disttest.rank_0"] == "failed (pid 100, N s)"


def test_own_properties_come_first_and_those_of_ranks_are_merged(make: Make) -> None:
    """A value that all ranks recorded is there once, each other one with its rank."""
    stories = [recording(make, rank, ("same", [1]), ("loss", rank)) for rank in range(2)]

    properties = properties_of(stories, "static")

    assert [name for name, _ in properties[:4]] == list(ours(properties))
    assert properties[4:] == [("same", [1]), ("loss [rank 0]", 0), ("loss [rank 1]", 1)]


def test_properties_are_those_of_the_last_report(make: Make) -> None:
    """Reports repeat what was recorded before them: the last one, which is not a subtest's, has all of it."""
    setup = make.report("setup", user_properties=[("a", 1)])
    call = make.report("call", user_properties=[("a", 1), ("b", 2)])
    sub = make.subreport("i")
    sub.user_properties = [("of a subtest", 3)]

    assert recorded(properties_of([make.story(0, setup, call, sub)], "static")) == [("a", 1), ("b", 2)]


def test_names_that_are_no_strings_become_strings(make: Make) -> None:
    """Whatever ``record_property`` took for a name is written as JUnit writes it, and merged by that."""
    stories = [recording(make, 0, (3, "a"), (None, "b")), recording(make, 1, ("3", "a"), (None, "c"))]

    properties = recorded(properties_of(stories, "static"))

    assert properties == [("3", "a"), ("None [rank 0]", "b"), ("None [rank 1]", "c")]


def test_rank_without_a_report_has_no_properties(make: Make) -> None:
    """A rank that died at its start does not take away what others recorded."""
    properties = properties_of([make.died(0, "start"), recording(make, 1, ("a", 1))], "dynamic")

    assert recorded(properties) == [("a", 1)]
    assert ours(properties)["disttest.rank_0"] == "died (pid 100, N s)"
