"""The marks: good ones become plans, bad ones are named with what to write instead."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed  # noqa: F401  pytester forgets what a test imports, and torch stands one import only

from lightning_disttest.errors import ConditionUnclear, InvalidMarks
from lightning_disttest.selection import marks
from lightning_disttest.selection.marks import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    MakeItem = Callable[..., pytest.Item]

TOO_MANY = "is more than the 1024 ranks that one machine is asked for"
NOTHING_ELSE = "it takes world_size and nothing else:"
TPU = "it takes no arguments; tests on the ranks of a slice are not there yet"
DISTRIBUTED = 'distributed(world_size, *, static=True, device="cpu", backend=None, timeout=None)'

mark = pytest.mark
skip_unless: Any = pytest.mark.skipif  # Lightning's RunIf gives it a key of its own

GOOD_MARKS = [
    (mark.distributed(2), Plan("static", 2, "cpu", "gloo", None)),
    (mark.distributed(world_size=3), Plan("static", 3, "cpu", "gloo", None)),
    (mark.distributed(1), Plan("static", 1, "cpu", "gloo", None)),
    (mark.distributed(1024), Plan("static", 1024, "cpu", "gloo", None)),
    (mark.distributed(2, static=False), Plan("dynamic", 2, "cpu", "gloo", None)),
    (mark.distributed(2, device="cuda"), Plan("static", 2, "cuda", "nccl", None)),
    (mark.distributed(2, device="cuda", backend="gloo"), Plan("static", 2, "cuda", "gloo", None)),
    (mark.distributed(2, backend="cpu:gloo"), Plan("static", 2, "cpu", "cpu:gloo", None)),
    (mark.distributed(2, backend="cpu:gloo,cuda:gloo"), Plan("static", 2, "cpu", "cpu:gloo,cuda:gloo", None)),
    (mark.distributed(2, timeout=5), Plan("static", 2, "cpu", "gloo", 5.0)),
    (mark.distributed(2, timeout=0), Plan("static", 2, "cpu", "gloo", 0.0)),
    (mark.distributed(2, timeout=None), Plan("static", 2, "cpu", "gloo", None)),
    (mark.standalone, Plan("standalone", 1, "cpu", "", None)),
    (mark.standalone(), Plan("standalone", 1, "cpu", "", None)),
    (mark.standalone(4), Plan("standalone", 1, "cpu", "", 4.0)),
    (mark.standalone(timeout=2.5), Plan("standalone", 1, "cpu", "", 2.5)),
    (skip_unless(False, reason="", standalone=True), Plan("standalone", 1, "cpu", "", None)),
    (skip_unless(False, reason="", standalone=False), None),
    (skip_unless(False, reason="", min_cuda_gpus=2), None),
    (skip_unless(False, reason="", tpu=True), None),
    (skip_unless(False, reason="", tpu=True, standalone=True), Plan("standalone", 1, "cpu", "", None)),
    (mark.tpu, None),
    (mark.tpu(), None),
    (mark.skipif(False, reason=""), None),
    (mark.parametrize("value", [2]), None),
]

BAD_MARKS = [
    (mark.distributed, "mark distributed: world_size is missing; write distributed(world_size=2)"),
    (mark.distributed(None), "mark distributed: world_size is missing; write distributed(world_size=2)"),
    (mark.distributed(0), "mark distributed: world_size must be a whole number of 1 or more, not 0"),
    (mark.distributed(-2), "mark distributed: world_size must be a whole number of 1 or more, not -2"),
    (mark.distributed(2.0), "mark distributed: world_size must be a whole number of 1 or more, not 2.0"),
    (mark.distributed(True), "mark distributed: world_size must be a whole number of 1 or more, not True"),
    (mark.distributed("2"), "mark distributed: world_size must be a whole number of 1 or more, not '2'"),
    (mark.distributed(1025), f"mark distributed: world_size 1025 {TOO_MANY}"),
    (mark.distributed([]), "mark distributed: the list of world sizes is empty"),
    (mark.distributed(2, sice=3), f"mark distributed: unknown keyword 'sice'; it takes {DISTRIBUTED}"),
    (mark.distributed(2, True), f"mark distributed: more than one positional argument; it takes {DISTRIBUTED}"),
    (
        mark.distributed(2, world_size=2),
        "mark distributed: world_size is given twice, by position and by name",
    ),
    (mark.distributed(2, static=1), "mark distributed: static must be True or False, not 1"),
    (mark.distributed(2, static=None), "mark distributed: static must be True or False, not None"),
    (mark.distributed(2, device="gpu"), "mark distributed: device must be one of cpu, cuda, not 'gpu'"),
    (mark.distributed(2, device=None), "mark distributed: device must be one of cpu, cuda, not None"),
    (mark.distributed(2, device=["cpu"]), "mark distributed: device must be one of cpu, cuda, not ['cpu']"),
    (mark.distributed(2, backend=3), "mark distributed: backend must be a name, not 3"),
    (
        mark.distributed(2, timeout=-1),
        "mark distributed: timeout must be a number of seconds, 0 or more (0: no limit), not -1",
    ),
    (
        mark.distributed(2, timeout=True),
        "mark distributed: timeout must be a number of seconds, 0 or more (0: no limit), not True",
    ),
    (
        mark.distributed(2, timeout="9"),
        "mark distributed: timeout must be a number of seconds, 0 or more (0: no limit), not '9'",
    ),
    (
        mark.distributed(2, timeout=math.inf),
        "mark distributed: timeout must be a number of seconds, 0 or more (0: no limit), not inf",
    ),
    (
        mark.distributed(2, timeout=math.nan),
        "mark distributed: timeout must be a number of seconds, 0 or more (0: no limit), not nan",
    ),
    (mark.standalone(2, 3), "mark standalone: more than one positional argument; it takes standalone(timeout=None)"),
    (mark.standalone(limit=2), "mark standalone: unknown keyword 'limit'; it takes standalone(timeout=None)"),
    (
        mark.standalone(timeout=-2),
        "mark standalone: timeout must be a number of seconds, 0 or more (0: no limit), not -2",
    ),
    (mark.tpu(4), f"mark tpu: {TPU}"),
    (mark.tpu(world_size=4), f"mark tpu: {TPU}"),
]

# Each mark that says where a test runs, ours and RunIf's: the place, and what it is called in a contradiction.
PLACES: dict[str, tuple[str, str, pytest.MarkDecorator]] = {
    "distributed": ("distributed", "distributed", mark.distributed(2)),
    "standalone": ("standalone", "standalone", mark.standalone),
    "tpu": ("tpu", "tpu", mark.tpu),
    "multigpu_static": ("multigpu_static", "multigpu_static", mark.multigpu_static(3)),
    "multigpu_dynamic": ("multigpu_dynamic", "multigpu_dynamic", mark.multigpu_dynamic(3)),
    "RunIf(standalone=True)": (
        "standalone",
        "standalone (by RunIf)",
        skip_unless(False, reason="", standalone=True),
    ),
    "RunIf(tpu=True)": ("tpu", "tpu (by RunIf)", skip_unless(False, reason="", tpu=True)),
}
MAY_BE_TOGETHER = {"standalone", "tpu"}
KEEP_ONE = (
    "keep one: distributed and multigpu_* run the body on ranks, standalone runs it once, in a fresh process, "
    "tpu runs it on a TPU"
)


def written(values: object) -> str:
    """Return a mark as its user wrote it, as the id of a test; other values have none."""
    if not isinstance(values, pytest.MarkDecorator):
        return ""
    arguments = [repr(argument) for argument in values.args]
    arguments += [f"{name}={value!r}" for name, value in values.kwargs.items()]
    return f"{values.name}({', '.join(arguments)})"


def marked(*names: str, body: str = "def test_it(): pass") -> str:
    """Return the source of a test with these marks."""
    return "\n".join(["import pytest", *(f"@pytest.mark.{name}" for name in names), body])


def problem_of(items: Sequence[pytest.Item]) -> str:
    """Return the text of the refusal of these items."""
    with pytest.raises(InvalidMarks) as caught:
        marks.plan_items(items)
    return str(caught.value)


@pytest.mark.parametrize(("good", "plan"), GOOD_MARKS, ids=written)
def test_good_mark_becomes_a_plan(make_item: MakeItem, good: pytest.MarkDecorator, plan: Plan | None) -> None:
    """A mark says where its test runs; a test without one has no plan."""
    item = make_item("test_it", good)

    marks.plan_items([item])

    assert plan == marks.plan_of(item)


@pytest.mark.parametrize(("bad", "problem"), BAD_MARKS, ids=written)
def test_bad_mark_is_named_with_what_to_write(make_item: MakeItem, bad: pytest.MarkDecorator, problem: str) -> None:
    """A mark that can not be served is refused with the test's id, the reason and what is legal."""
    item = make_item("test_it", bad)

    expected = f"lightning_disttest: 1 test with invalid marks\n  {item.nodeid}: {problem}"
    assert expected == problem_of([item])


def test_backend_that_is_not_built_in_is_refused_with_those_that_are(make_item: MakeItem) -> None:
    """An unknown backend is refused, with the ones that this torch has."""
    problem = problem_of([make_item("test_it", mark.distributed(2, backend="carrier_pigeon"))])

    assert "mark distributed: backend 'carrier_pigeon' is not built into this torch, which has " in problem
    assert "gloo" in problem


@pytest.mark.parametrize("name", ["carrier_pigeon", "undefined", "UNDEFINED", "cpu:undefined"])
def test_placeholder_of_torch_is_no_backend(make_item: MakeItem, name: str) -> None:
    """The name by which torch says that there is no backend is neither accepted nor offered."""
    problem = problem_of([make_item("test_it", mark.distributed(2, backend=name))])

    assert f"backend {name!r} is not built into this torch" in problem
    assert "undefined" not in problem.partition(", which has ")[2]


@pytest.mark.parametrize("name", ["GLOO", "Gloo", "cpu:GLOO", "CPU:gloo"])
def test_backend_may_be_written_in_any_case(make_item: MakeItem, name: str) -> None:
    """Torch takes the names of backends in any case, and so does the mark."""
    item = make_item("test_it", mark.distributed(2, backend=name))

    marks.plan_items([item])

    plan = marks.plan_of(item)
    assert plan is not None
    assert plan.backend.lower() == name.lower()


@pytest.mark.parametrize("name", ["gloo,carrier_pigeon", "cpu:gloo,cuda:carrier_pigeon", ""])
def test_each_backend_of_several_has_to_be_built_in(make_item: MakeItem, name: str) -> None:
    """One unknown part of a list of backends is enough for a refusal."""
    problem = problem_of([make_item("test_it", mark.distributed(2, backend=name))])

    assert f"mark distributed: backend {name!r} is not built into this torch, which has " in problem


def marked_twice(make_item: MakeItem, first: str, second: str) -> pytest.Item:
    """Return an item with two of the marks that say where it runs, as it is when the marks are checked."""
    item = make_item("test_it", PLACES[first][2], PLACES[second][2])
    marks.translate_aliases([item])
    return item


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in itertools.permutations(PLACES, 2) if not {PLACES[name][0] for name in pair} <= MAY_BE_TOGETHER],
)
def test_places_exclude_each_other(make_item: MakeItem, first: str, second: str) -> None:
    """A test can not run in two places, whoever made the marks, and in whatever order they stand."""
    item = marked_twice(make_item, first, second)
    one, other = (called for _, called in sorted(PLACES[name][:2] for name in (first, second)))

    assert problem_of([item]).endswith(f"::test_it: it is marked both {one} and {other}; {KEEP_ONE}")
    assert marks.plan_of(item) is None


@pytest.mark.parametrize("given", [*itertools.permutations(["distributed", "standalone", "RunIf(standalone=True)"])])
def test_mark_is_named_before_the_condition_that_asks_for_the_same(make_item: MakeItem, given: tuple[str, ...]) -> None:
    """A test that asks twice for one place is told of the mark, which is easier to find."""
    item = make_item("test_it", *(PLACES[name][2] for name in given))

    assert "::test_it: it is marked both distributed and standalone; keep one" in problem_of([item])


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in itertools.permutations(PLACES, 2) if {PLACES[name][0] for name in pair} <= MAY_BE_TOGETHER],
)
def test_tpu_and_standalone_go_together(make_item: MakeItem, first: str, second: str) -> None:
    """A TPU test may need a fresh process, and may say so twice: it is run in one; another place is no use then."""
    item = marked_twice(make_item, first, second)
    is_standalone = "standalone" in (PLACES[first][0], PLACES[second][0])

    marks.plan_items([item])

    assert marks.plan_of(item) == (Plan("standalone", 1, "cpu", "", None) if is_standalone else None)
    item.add_marker(mark.distributed(2))
    assert "it is marked both distributed and " in problem_of([item])


def test_places_of_the_class_count(pytester: pytest.Pytester) -> None:
    """A contradiction between a test and its class is one; two marks of one kind are none, the closest holds."""
    items = pytester.getitems(
        """
        import pytest

        @pytest.mark.multigpu_static(2)
        class TestIt:
            @pytest.mark.multigpu_static(3)
            def test_closest(self): pass

            @pytest.mark.multigpu_dynamic(3)
            def test_other(self): pass

            @pytest.mark.standalone
            def test_alone(self): pass
        """
    )
    marks.translate_aliases(items)

    lines = problem_of(items).splitlines()

    assert Plan("static", 3, "cuda", "nccl", None) == marks.plan_of(items[0])
    assert [line.partition(": ")[2].partition(";")[0] for line in lines[1:]] == [
        "it is marked both multigpu_dynamic and multigpu_static",
        "it is marked both multigpu_static and standalone",
    ]


# The marks that stand for another one.


@pytest.mark.parametrize(
    ("alias", "plan"),
    [
        (mark.multigpu_static(2), Plan("static", 2, "cuda", "nccl", None)),
        (mark.multigpu_static(world_size=2), Plan("static", 2, "cuda", "nccl", None)),
        (mark.multigpu_dynamic(2), Plan("dynamic", 2, "cuda", "nccl", None)),
        (mark.multigpu_dynamic(world_size=2), Plan("dynamic", 2, "cuda", "nccl", None)),
    ],
    ids=written,
)
def test_alias_is_a_world_on_gpus(
    make_item: MakeItem, monkeypatch: pytest.MonkeyPatch, alias: pytest.MarkDecorator, plan: Plan
) -> None:
    """The alias says static or dynamic and the device; a size that is given needs no look at the machine."""
    item = make_item("test_it", alias)

    def fail() -> int:
        raise AssertionError("looked at the machine")

    monkeypatch.setattr(marks, "count_gpus", fail)
    marks.translate_aliases([item])
    marks.plan_items([item])

    assert plan == marks.plan_of(item)


@pytest.mark.parametrize(("gpus", "size"), [(0, 1), (1, 1), (4, 4)])
@pytest.mark.parametrize(
    ("alias", "kind"),
    [
        (mark.multigpu_static, "static"),
        (mark.multigpu_static(), "static"),
        (mark.multigpu_static(None), "static"),
        (mark.multigpu_dynamic, "dynamic"),
        (mark.multigpu_dynamic(world_size=None), "dynamic"),
    ],
    ids=written,
)
def test_alias_without_a_size_takes_all_gpus(
    make_item: MakeItem,
    monkeypatch: pytest.MonkeyPatch,
    alias: pytest.MarkDecorator,
    kind: marks.Kind,
    gpus: int,
    size: int,
) -> None:
    """Each visible GPU has a rank; without any the test is one that needs a GPU, and is skipped later."""
    item = make_item("test_it", alias)

    monkeypatch.setattr(marks, "count_gpus", lambda: gpus)
    marks.translate_aliases([item])
    marks.plan_items([item])

    assert Plan(kind, size, "cuda", "nccl", None) == marks.plan_of(item)


@pytest.mark.parametrize(
    ("alias", "problem"),
    [
        (mark.multigpu_static(0), "multigpu_static: world_size must be a whole number of 1 or more, not 0"),
        (mark.multigpu_dynamic("2"), "multigpu_dynamic: world_size must be a whole number of 1 or more, not '2'"),
        (mark.multigpu_static(20000), f"multigpu_static: world_size 20000 {TOO_MANY}"),
        (mark.multigpu_dynamic([]), "multigpu_dynamic: the list of world sizes is empty"),
        (mark.multigpu_static(2, world_size=2), "multigpu_static: world_size is given twice, by position and by name"),
        (mark.multigpu_static(2, 3), f"multigpu_static: {NOTHING_ELSE} multigpu_static(world_size=None)"),
        (mark.multigpu_dynamic(2, sice=3), f"multigpu_dynamic: {NOTHING_ELSE} multigpu_dynamic(world_size=None)"),
        *(
            (
                mark.multigpu_static(2, **{keyword: value}),
                f"multigpu_static: {NOTHING_ELSE} multigpu_static(world_size=None)",
            )
            for keyword, value in {"device": "cpu", "static": False, "backend": "gloo", "timeout": 5}.items()
        ),
    ],
    ids=written,
)
def test_alias_with_bad_arguments_is_refused(make_item: MakeItem, alias: pytest.MarkDecorator, problem: str) -> None:
    """The mark that the user wrote is named, and what it can not say is not passed over in silence."""
    item = make_item("test_it", alias)

    marks.translate_aliases([item])

    assert problem_of([item]).endswith(f"::test_it: mark {problem}")


def test_alias_that_comes_late_is_served(make_item: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conftest may add the mark after the others were translated; it means the same."""
    monkeypatch.setattr(marks, "count_gpus", lambda: 3)
    item = make_item("test_it")
    marks.translate_aliases([item])
    item.add_marker(mark.multigpu_dynamic)

    marks.plan_items([item])

    assert Plan("dynamic", 3, "cuda", "nccl", None) == marks.plan_of(item)


def test_alias_that_comes_late_where_nobody_can_count_gpus_is_a_bad_mark(
    make_item: MakeItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test is named, with what the machine said."""
    unclear = ConditionUnclear("the number of GPUs", "exit code 1")

    def fail() -> int:
        raise unclear

    monkeypatch.setattr(marks, "count_gpus", fail)

    problem = problem_of([make_item("test_it", mark.multigpu_static)])

    assert f"::test_it: mark multigpu_static: {unclear}" in problem


@pytest.mark.parametrize(("alias", "kind"), [("multigpu_static", "static"), ("multigpu_dynamic", "dynamic")])
def test_alias_with_a_list_of_sizes_runs_the_test_once_per_size(
    pytester: pytest.Pytester, alias: str, kind: str
) -> None:
    """The alias takes a list as the mark behind it does."""
    items = pytester.getitems(marked(f"{alias}([1, 2])", body="def test_it(world_size): pass"))

    marks.translate_aliases(items)
    marks.plan_items(items)

    plans = {item.name: plan for item in items if (plan := marks.plan_of(item)) is not None}
    assert {name: (plan.kind, plan.world_size, plan.device) for name, plan in plans.items()} == {
        "test_it[world_size=1]": (kind, 1, "cuda"),
        "test_it[world_size=2]": (kind, 2, "cuda"),
    }


def test_tests_without_an_alias_keep_their_marks(make_item: MakeItem) -> None:
    """Nothing is added to other tests."""
    items = [make_item(name, *given) for name, given in {"a": [], "b": [mark.distributed(2)], "c": [mark.tpu]}.items()]

    marks.translate_aliases(items)

    assert [[own.name for own in item.own_markers] for item in items] == [[], ["distributed"], ["tpu"]]


# What is asked of a test later.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([mark.distributed(2)], True),
        ([mark.standalone], True),
        ([mark.tpu], True),
        ([mark.multigpu_static(2)], True),
        ([mark.multigpu_dynamic(2)], True),
        ([mark.skipif(False, reason="")], True),
        ([mark.distributed(0)], True),
        ([], False),
        ([mark.skip, mark.xfail, mark.parametrize("x", [1])], False),
    ],
)
def test_who_is_marked(make_item: MakeItem, given: list[pytest.MarkDecorator], expected: bool) -> None:
    """A test is marked if it has a mark that may make it run elsewhere or not at all; nobody is before it was read."""
    item = make_item("test_it", *given)
    assert not marks.is_marked(item)

    marks.translate_aliases([item])
    with contextlib.suppress(InvalidMarks):
        marks.plan_items([item])

    assert marks.is_marked(item) == expected


ASKS: dict[str, tuple[list[pytest.MarkDecorator], set[str]]] = {
    "nothing": ([], set()),
    "skip": ([mark.skip, mark.skipif(True, reason="standalone, min_cuda_gpus and tpu")], set()),
    "standalone": ([mark.standalone], {"standalone"}),
    "RunIf(standalone=True)": ([skip_unless(False, reason="", standalone=True)], {"standalone"}),
    "RunIf(standalone=False)": ([skip_unless(False, reason="", standalone=False)], set()),
    "distributed on cpu": ([mark.distributed(2)], set()),
    "distributed on cuda": ([mark.distributed(2, device="cuda")], {"cuda"}),
    "gloo on cuda": ([mark.distributed(2, device="cuda", backend="gloo", static=False)], {"cuda"}),
    "multigpu_static": ([mark.multigpu_static(2)], {"cuda"}),
    "multigpu_dynamic": ([mark.multigpu_dynamic(2)], {"cuda"}),
    "RunIf(min_cuda_gpus=2)": ([skip_unless(False, reason="", min_cuda_gpus=True)], {"cuda"}),
    "RunIf of both": ([skip_unless(False, reason="", min_cuda_gpus=True, standalone=True)], {"cuda", "standalone"}),
    "second RunIf": ([mark.skipif(False, reason=""), skip_unless(False, reason="", min_cuda_gpus=True)], {"cuda"}),
    "tpu": ([mark.tpu], {"tpu"}),
    "RunIf(tpu=True)": ([skip_unless(False, reason="", tpu=True)], {"tpu"}),
    "tpu and standalone": ([mark.tpu, mark.standalone], {"tpu", "standalone"}),
}


@pytest.mark.parametrize(("given", "expected"), ASKS.values(), ids=ASKS)
def test_what_a_test_asks_for(make_item: MakeItem, given: list[pytest.MarkDecorator], expected: set[str]) -> None:
    """Standalone, GPUs and TPUs are asked for by marks of ours and by RunIf, alone and together."""
    item = make_item("test_it", *given)
    marks.translate_aliases([item])
    marks.plan_items([item])
    questions = {"standalone": marks.asks_for_standalone, "cuda": marks.asks_for_cuda, "tpu": marks.asks_for_tpu}

    assert {name for name, asks in questions.items() if asks(item)} == expected


def test_all_bad_marks_are_named_together(make_item: MakeItem) -> None:
    """One refusal names every test that is to be corrected, and none of the good ones."""
    items = [
        make_item("test_a", mark.distributed(0)),
        make_item("test_b"),
        make_item("test_c", mark.standalone(-1)),
    ]

    lines = problem_of(items).splitlines()

    assert lines[0] == "lightning_disttest: 2 tests with invalid marks"
    assert [line.split(": ")[0].rpartition("::")[2] for line in lines[1:]] == ["test_a", "test_c"]


def test_good_items_are_planned_beside_bad_ones(make_item: MakeItem) -> None:
    """A bad mark does not hide the plans of other tests."""
    bad, good = make_item("test_a", mark.distributed(0)), make_item("test_b", mark.standalone)

    problem_of([bad, good])

    assert marks.plan_of(bad) is None
    assert Plan("standalone", 1, "cpu", "", None) == marks.plan_of(good)


def test_marks_of_classes_and_modules_count(pytester: pytest.Pytester) -> None:
    """A mark may stand on the class or the module; the closest one holds."""
    items = pytester.getitems(
        """
        import pytest
        pytestmark = pytest.mark.distributed(2)

        @pytest.mark.distributed(3)
        class TestIt:
            def test_class(self): pass

            @pytest.mark.distributed(4)
            def test_own(self): pass

        def test_module(): pass
        """
    )

    marks.plan_items(items)

    sizes = {item.name: plan.world_size for item in items if (plan := marks.plan_of(item)) is not None}
    assert sizes == {"test_class": 3, "test_own": 4, "test_module": 2}


@pytest.mark.parametrize("sizes", ["[1, 2, 4]", "(1, 2, 4)", "world_size=[1, 2, 4]"])
def test_list_of_sizes_runs_the_test_once_per_size(pytester: pytest.Pytester, sizes: str) -> None:
    """A list of world sizes parametrises the test, with readable ids, also if it does not ask for its size."""
    items = pytester.getitems(marked(f"distributed({sizes})"))

    marks.plan_items(items)

    assert [item.name for item in items] == [f"test_it[world_size={size}]" for size in (1, 2, 4)]
    assert [plan.world_size for item in items if (plan := marks.plan_of(item)) is not None] == [1, 2, 4]


def test_list_of_sizes_gives_the_test_its_size(pytester: pytest.Pytester) -> None:
    """A test with an argument ``world_size`` gets the size that it runs with, beside its own parameters."""
    source = marked("distributed([2, 3])", "parametrize('x', ['a'])", body="def test_it(x, world_size): pass")
    items = pytester.getitems(source)

    marks.plan_items(items)

    params = [getattr(item, "callspec").params for item in items]  # noqa: B009  only functions have one
    assert params == [{"x": "a", "world_size": 2}, {"x": "a", "world_size": 3}]


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ("[2, 0]", "mark distributed: world_size must be a whole number of 1 or more, not 0"),
        ("[2, 'two']", "mark distributed: world_size must be a whole number of 1 or more, not 'two'"),
        ("[2, 1025]", f"mark distributed: world_size 1025 {TOO_MANY}"),
        ("[]", "mark distributed: the list of world sizes is empty"),
    ],
)
def test_list_with_a_bad_size_is_refused(pytester: pytest.Pytester, sizes: str, problem: str) -> None:
    """Each size of a list has to be legal."""
    assert problem_of(pytester.getitems(marked(f"distributed({sizes})"))).endswith(problem)


def test_single_size_does_not_parametrise(pytester: pytest.Pytester) -> None:
    """One number leaves the test's id as it is."""
    assert [item.name for item in pytester.getitems(marked("distributed(2)"))] == ["test_it"]


def test_list_of_sizes_needs_a_test_that_can_be_parametrised(pytester: pytest.Pytester) -> None:
    """Pytest can not parametrise methods of unittest; such a test is told to give one number."""
    items = pytester.getitems(
        """
        import unittest
        import pytest

        class TestIt(unittest.TestCase):
            @pytest.mark.distributed([1, 2])
            def test_it(self): pass
        """
    )

    assert (
        "mark distributed: a list of world sizes needs a test function, which pytest can parametrise; "
        "give one number to this test"
    ) in problem_of(items)


def test_list_of_sizes_that_comes_too_late_is_a_bad_mark(pytester: pytest.Pytester) -> None:
    """A conftest that adds the mark after collection is told that a list comes too late for a test."""
    item = pytester.getitems(marked("parametrize('x', [1])", body="def test_it(x): pass"))[0]
    item.add_marker(pytest.mark.distributed([1, 2]))

    assert "a list of world sizes" in problem_of([item])
