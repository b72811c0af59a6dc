"""Selection and order: what is kept, what runs next to what, and what the header says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed  # noqa: F401  pytester forgets what a test imports, and torch stands one import only

from lightning_disttest.selection import filters, marks
from lightning_disttest.settings import find_option
from tests.unit.test_settings import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.settings import Settings

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


# Selection.

skip_unless: Any = mark.skipif  # RunIf gives it keys of its own

TESTS: dict[str, list[pytest.MarkDecorator]] = {
    "plain": [],
    "static": [STATIC_2],
    "dynamic": [DYNAMIC],
    "alone": [mark.standalone],
    "tpu": [mark.tpu],
    "tpu_alone": [mark.tpu, mark.standalone],
    "static_cuda": [mark.distributed(2, device="cuda")],
    "static_gloo_cuda": [mark.distributed(2, device="cuda", backend="gloo")],
    "dynamic_cuda": [mark.distributed(2, device="cuda", static=False)],
    "alias_static": [mark.multigpu_static(2)],
    "alias_dynamic": [mark.multigpu_dynamic(2)],
    "runif_cuda": [skip_unless(False, reason="", min_cuda_gpus=True)],
    "runif_tpu": [skip_unless(False, reason="", tpu=True)],
    "runif_alone": [skip_unless(False, reason="", standalone=True)],
    "runif_cuda_alone": [skip_unless(False, reason="", min_cuda_gpus=True, standalone=True)],
    "static_runif_cuda": [STATIC_2, skip_unless(False, reason="", min_cuda_gpus=True)],
    "runif_other": [skip_unless(False, reason="standalone, tpu")],
}
STANDALONE = ["alone", "tpu_alone", "runif_alone", "runif_cuda_alone"]
CUDA = [
    "static_cuda",
    "static_gloo_cuda",
    "dynamic_cuda",
    "alias_static",
    "alias_dynamic",
    "runif_cuda",
    "runif_cuda_alone",
    "static_runif_cuda",
]
TPU = ["tpu", "tpu_alone", "runif_tpu"]
STATIC = ["static", "static_cuda", "static_gloo_cuda", "alias_static", "static_runif_cuda"]
DYNAMIC_TESTS = ["dynamic", "dynamic_cuda", "alias_dynamic"]

SWITCHES = ["standalone", "cuda_only", "tpu", "multigpu_static", "multigpu_dynamic"]


def switched_on(*fields: str) -> Settings:
    """Return settings with these switches on."""
    on: dict[str, Any] = dict.fromkeys(fields, True)
    return replace(DEFAULTS, **on)


@pytest.fixture
def items_of_all_kinds(make_item: Callable[..., pytest.Item]) -> list[pytest.Item]:
    """Return planned items, one of each kind."""
    items = [make_item(name, *given) for name, given in TESTS.items()]
    marks.translate_aliases(items)
    marks.plan_items(items)
    return items


@pytest.mark.parametrize(
    ("switches", "kept"),
    [
        (["standalone"], STANDALONE),
        (["cuda_only"], CUDA),
        (["tpu"], TPU),
        (["multigpu_static"], STATIC),
        (["multigpu_dynamic"], DYNAMIC_TESTS),
        (["standalone", "cuda_only"], STANDALONE),
        (["standalone", "tpu"], ["tpu_alone"]),
        (["standalone", "cuda_only", "tpu"], ["tpu_alone"]),
        (
            ["cuda_only", "multigpu_static"],
            ["static_cuda", "static_gloo_cuda", "alias_static", "static_runif_cuda"],
        ),
        (["cuda_only", "multigpu_dynamic"], ["dynamic_cuda", "alias_dynamic"]),
        (["multigpu_static", "multigpu_dynamic"], []),
        (["standalone", "multigpu_static"], []),
        (["cuda_only", "tpu"], []),
        (SWITCHES, []),
        ([], list(TESTS)),
    ],
    ids=lambda names: "+".join(names) if names and set(names) <= set(SWITCHES) else "",
)
def test_switches_select(items_of_all_kinds: list[pytest.Item], switches: list[str], kept: list[str]) -> None:
    """Each switch keeps its tests, by any mark; together they keep what all of them do; the order stays."""
    items = items_of_all_kinds

    removed = filters.select(items, filters.selecting(switched_on(*switches)))

    assert names(items) == kept
    assert names(removed) == [name for name in TESTS if name not in kept]


def test_every_switch_selects() -> None:
    """All options that select have a filter; the others have none."""
    assert filters.selecting(DEFAULTS) == []
    assert [field for field in SWITCHES if filters.selecting(switched_on(field)) == [field]] == SWITCHES
    others = replace(DEFAULTS, require=frozenset({"cuda"}), timeout=1.0, grace=1.0, rank_output="all")
    assert filters.selecting(others) == []


@pytest.mark.parametrize("more", [[], ["tpu"], ["multigpu_static"], ["tpu", "multigpu_static", "multigpu_dynamic"]])
def test_standalone_makes_cuda_only_say_nothing(more: list[str]) -> None:
    """As in Lightning, both together are standalone alone; the other switches keep their say."""
    fields = filters.selecting(switched_on("standalone", "cuda_only", *more))

    assert fields == ["standalone", *more]
    assert "With --standalone it is ignored, as in Lightning." in find_option("cuda_only").help


@pytest.mark.parametrize(
    ("switch", "given"),
    [
        ("standalone", mark.standalone),
        ("cuda_only", mark.distributed(2, device="cuda")),
        ("tpu", mark.tpu),
        ("multigpu_static", STATIC_2),
        ("multigpu_dynamic", DYNAMIC),
    ],
)
def test_selection_removes_what_is_skipped_anyway(plan: MakeItems, switch: str, given: pytest.MarkDecorator) -> None:
    """A test with an unconditional skip is not what a selecting run is for; a condition that may not hold stays."""
    items = plan([("skipped", given), ("conditional", given), ("fine", given)])
    items[0].add_marker(mark.skip)
    items[1].add_marker(mark.skipif(True, reason="on this machine"))

    removed = filters.select(items, [switch])

    assert names(removed) == ["skipped"]
    assert names(items) == ["conditional", "fine"]


def test_selection_removes_what_its_module_skips(pytester: pytest.Pytester) -> None:
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

    assert names(filters.select(items, ["standalone"])) == ["test_it"]


def test_selection_removes_what_its_class_skips(pytester: pytest.Pytester) -> None:
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

    removed = filters.select(items, ["standalone"])

    assert names(removed) == ["test_skipped"]
    assert names(items) == ["test_conditional", "test_plain"]


# The header.


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
