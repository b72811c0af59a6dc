"""Selection and order: what is kept, what runs next to what, and what the header says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed  # noqa: F401  pytester forgets what a test imports, and torch stands one import only

from lightning_disttest.selection import filters, marks

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeItems = Callable[[list[tuple[str, pytest.MarkDecorator | None]]], list[pytest.Item]]


mark = pytest.mark
STATIC_2, STATIC_3 = mark.distributed(2), mark.distributed(3)
DYNAMIC = mark.distributed(2, static=False)


@pytest.fixture
def plan(make_item: Callable[..., pytest.Item]) -> MakeItems:
    """Return a function that makes planned items of names and marks (None: a plain test)."""

    def make_items(tests: list[tuple[str, pytest.MarkDecorator | None]]) -> list[pytest.Item]:
        items = [make_item(name, *([given] if given is not None else [])) for name, given in tests]
        marks.plan_items(items)
        return items

    return make_items


def names(items: list[pytest.Item]) -> list[str]:
    """Return the names of items."""
    return [item.name for item in items]


def test_groups_follow_one_another(plan: MakeItems) -> None:
    """Plain tests come first, then static, dynamic and standalone ones."""
    items = plan([("alone", mark.standalone), ("dynamic", DYNAMIC), ("static", STATIC_2), ("plain", None)])

    filters.group(items)

    assert names(items) == ["plain", "static", "dynamic", "alone"]


def test_static_tests_of_one_world_are_neighbours(plan: MakeItems) -> None:
    """Worlds come in the order of their first test; inside a world the order stays."""
    on_gpu = mark.distributed(2, device="cuda", backend="gloo")
    with_limit = mark.distributed(2, timeout=5)
    items = plan(
        [
            ("b1", STATIC_3),
            ("a1", STATIC_2),
            ("c1", on_gpu),
            ("b2", STATIC_3),
            ("a2", with_limit),
            ("c2", on_gpu),
        ]
    )

    filters.group(items)

    assert names(items) == ["b1", "b2", "a1", "a2", "c1", "c2"]


def test_worlds_of_different_backends_are_different(plan: MakeItems) -> None:
    """The backend is part of what makes a world."""
    fake = mark.distributed(2, backend="fake")
    items = plan([("a1", STATIC_2), ("b1", fake), ("a2", STATIC_2), ("b2", fake)])

    filters.group(items)

    assert names(items) == ["a1", "a2", "b1", "b2"]


def test_order_inside_other_groups_stays(plan: MakeItems) -> None:
    """Plain, dynamic and standalone tests keep the user's order, whatever their size."""
    tests = []
    for i in range(3):
        tests += [(f"p{i}", None), (f"d{i}", mark.distributed(2 + i % 2, static=False)), (f"s{i}", mark.standalone)]
    items = plan(tests)

    filters.group(items)

    assert names(items) == ["p0", "p1", "p2", "d0", "d1", "d2", "s0", "s1", "s2"]


def test_plain_tests_are_not_moved(plan: MakeItems) -> None:
    """A run without marks has the order it had."""
    items = plan([("c", None), ("a", None), ("b", None)])

    filters.group(items)

    assert names(items) == ["c", "a", "b"]


def test_keep_standalone(plan: MakeItems) -> None:
    """Only standalone tests are kept, by either mark; the others are returned, to be reported as deselected."""
    skip_unless: Any = mark.skipif  # Lightning's RunIf gives it a key of its own
    of_lightning = skip_unless(False, reason="", standalone=True)
    items = plan(
        [
            ("plain", None),
            ("ours", mark.standalone),
            ("static", STATIC_2),
            ("of_lightning", of_lightning),
            ("dynamic", DYNAMIC),
        ]
    )

    removed = filters.keep_standalone(items)

    assert names(items) == ["ours", "of_lightning"]
    assert names(removed) == ["plain", "static", "dynamic"]


def test_keep_standalone_removes_what_is_skipped_anyway(plan: MakeItems) -> None:
    """A standalone test with an unconditional skip needs no process."""
    items = plan([("skipped", mark.standalone)])
    items[0].add_marker(mark.skip)

    assert names(filters.keep_standalone(items)) == ["skipped"]
    assert items == []


def test_keep_standalone_removes_what_its_module_skips(pytester: pytest.Pytester) -> None:
    """A skip mark of the module counts like one on the test."""
    items = pytester.getitems(
        """
        import pytest
        pytestmark = pytest.mark.skip(reason="not here")

        @pytest.mark.standalone
        def test_it(): pass
        """
    )
    marks.plan_items(items)

    assert names(filters.keep_standalone(items)) == ["test_it"]


def test_keep_standalone_removes_what_its_class_skips(pytester: pytest.Pytester) -> None:
    """A skip mark of the class counts like one on the test; a condition that may not hold does not."""
    items = pytester.getitems(
        """
        import pytest
        pytestmark = pytest.mark.standalone

        @pytest.mark.skip
        class TestSkipped:
            def test_skipped(self): pass

        @pytest.mark.skipif(True, reason="on this machine")
        class TestConditional:
            def test_conditional(self): pass

        def test_plain(): pass
        """
    )
    marks.plan_items(items)

    removed = filters.keep_standalone(items)

    assert names(removed) == ["test_skipped"]
    assert names(items) == ["test_conditional", "test_plain"]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ([STATIC_2], "disttest: 1 static in 1 world (start method: fork)"),
        ([STATIC_2, STATIC_2, STATIC_3, None], "disttest: 3 static in 2 worlds (start method: fork)"),
        ([mark.standalone], "disttest: 1 standalone (start method: fork)"),
        (
            [mark.standalone, DYNAMIC, STATIC_2],
            "disttest: 1 static in 1 world, 1 dynamic, 1 standalone (start method: fork)",
        ),
    ],
    ids=["static", "worlds", "standalone", "all"],
)
def test_summary_counts_what_runs_on_ranks(
    plan: MakeItems, asked: list[pytest.MarkDecorator | None], line: str
) -> None:
    """One line says how many tests of each kind there are, and in how many worlds."""
    items = plan([(f"test_{i}", given) for i, given in enumerate(asked)])

    assert [line] == filters.summarize(items)


def test_no_summary_of_plain_tests(plan: MakeItems) -> None:
    """A run without ranks has no line in its header."""
    assert filters.summarize(plan([("plain", None)])) == []


NOTHING = "disttest: nothing ran: no standalone test was executed, so this run proves nothing*"


@pytest.mark.parametrize(
    "test",
    [
        "def test_plain(): pass",
        "@pytest.mark.standalone\n@pytest.mark.skipif(True, reason='never')\ndef test_skipped(): pass",
    ],
    ids=["deselected", "skipped"],
)
def test_run_in_which_nothing_ran_fails(pytester: pytest.Pytester, test: str) -> None:
    """With --standalone, a run that executed nothing is red and says why."""
    pytester.makepyfile(f"import pytest\n{test}")

    result = pytester.runpytest_subprocess("--standalone")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOTHING])


def test_collecting_only_is_not_a_run(pytester: pytest.Pytester) -> None:
    """``--collect-only`` executes nothing and is not expected to."""
    pytester.makepyfile("import pytest\n@pytest.mark.standalone\ndef test_it(): pass")

    result = pytester.runpytest_subprocess("--standalone", "--collect-only", "-q")

    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*nothing ran*")


def test_run_that_executed_a_test_is_left_alone(pytester: pytest.Pytester) -> None:
    """One executed standalone test is enough."""
    pytester.makepyfile("import pytest\n@pytest.mark.standalone\ndef test_it(): pass\ndef test_plain(): pass")

    result = pytester.runpytest_subprocess("--standalone")

    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*nothing ran*")


def test_expected_failure_was_executed(pytester: pytest.Pytester) -> None:
    """A test that failed as its xfail mark says has run."""
    pytester.makepyfile("import pytest\n@pytest.mark.standalone\n@pytest.mark.xfail\ndef test_it(): assert False")

    result = pytester.runpytest_subprocess("--standalone")

    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*nothing ran*")
