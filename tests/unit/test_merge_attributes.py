"""What other plugins put on the reports of ranks, and find on the merged one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.reporting.merge import merge_attributes
from lightning_disttest.reporting.stories import EXCEPTIONS

if TYPE_CHECKING:
    from lightning_disttest.reporting.stories import RankStory
    from tests.unit.conftest import Make


def merged(make: Make, *stories: RankStory, when: str = "call") -> pytest.TestReport:
    """Return the controller's report of a phase with what the ranks' reports carry."""
    report = make.report(when)
    merge_attributes(report, stories)
    return report


def carrying(make: Make, rank: int, **attributes: Any) -> RankStory:
    """Return the story of a rank with attributes on the report of its body."""
    return make.story(rank, make.report("setup"), make.report("call", **attributes), make.report("teardown"))


def test_lists_are_joined_without_repetitions(make: Make) -> None:
    """What ranks attached, as pytest-html's extras, is all there, in their order, and once."""
    stories = [carrying(make, rank, extras=[{"content": "same"}, {"content": rank}]) for rank in range(2)]

    report: Any = merged(make, *stories)

    assert report.extras == [{"content": "same"}, {"content": 0}, {"content": 1}]
    own: Any = stories[0].reports[1]
    assert own.extras == [{"content": "same"}, {"content": 0}]


def test_of_other_values_the_first_rank_has_its_own(make: Make) -> None:
    """Values that can not be joined are taken from the first rank that has any."""
    report: Any = merged(
        make, carrying(make, 0), carrying(make, 1, note="one"), carrying(make, 2, note="two", mark=[2])
    )

    assert report.note == "one"
    assert report.mark == [2]


def test_of_other_values_a_failed_rank_goes_before_the_first(make: Make) -> None:
    """What was noted beside a failure is what the merged report is about."""
    failed = make.failed("call", ValueError("own"), note="failed")
    stories = [carrying(make, 0, note="zero"), make.story(1, make.report("setup"), failed, make.report("teardown"))]

    report: Any = merged(make, *stories, carrying(make, 2, note="two"))

    assert report.note == "failed"


@pytest.mark.parametrize("others", [(None, ["a"]), (["a"], None), ("text", ["a"])])
def test_lists_beside_other_values_are_joined_all_the_same(make: Make, others: tuple[object, object]) -> None:
    """A plugin that attaches something on some ranks only may say None on the others."""
    report: Any = merged(make, *(carrying(make, rank, extras=value) for rank, value in enumerate((*others, ["b"]))))

    assert report.extras == ["a", "b"]


def test_attributes_belong_to_their_phase(make: Make) -> None:
    """What was put on the report of the body is not on that of the teardown; a subtest's report has its own."""
    sub = make.subreport("i")
    setattr(sub, "note", "of a subtest")  # noqa: B010  as a plugin does it
    story = make.story(0, make.report("setup"), sub, make.report("call", extras=["a"]), make.report("teardown"))

    assert not hasattr(merged(make, story, when="teardown"), "extras")
    assert getattr(merged(make, story), "extras", None) == ["a"]
    assert not hasattr(merged(make, story), "note")


def test_parts_of_the_outcome_are_not_taken_over(make: Make) -> None:
    """Outcome, text, duration and sections are merged by other rules; so are expected failures and exceptions."""
    call = make.failed("call", ValueError("own"), duration=3.0, sections=[("a", "b")], user_properties=[("a", 1)])
    setattr(call, EXCEPTIONS, [("builtins:ValueError", "own")])
    call.wasxfail = "known"
    report = make.report("call", duration=1.0)
    before = dict(report.__dict__)

    merge_attributes(report, [make.story(0, make.report("setup"), call, make.report("teardown"))])

    assert report.__dict__ == before


def test_rank_without_a_report_of_the_phase_adds_nothing(make: Make) -> None:
    """A rank that died in its body leaves what the others attached."""
    report: Any = merged(make, make.died(0, "call", make.report("setup")), carrying(make, 1, extras=["a"]))

    assert report.extras == ["a"]
