"""Random examples of Hypothesis: which seed a test on ranks draws from, and who is told."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine.hypothesis_seed import SEED_NOTE, share_examples

if TYPE_CHECKING:
    from collections.abc import Callable

hypothesis = pytest.importorskip("hypothesis")
strategies = pytest.importorskip("hypothesis.strategies")
stateful = pytest.importorskip("hypothesis.stateful")
core = pytest.importorskip("hypothesis.core")
SETTINGS: dict[str, Any] = {"max_examples": 20, "derandomize": False, "database": None}


@pytest.fixture(autouse=True)
def no_seed_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a seed for all of Hypothesis, and leave none to other tests."""
    monkeypatch.setattr(core, "global_force_seed", None)


class FakeItem:
    """What is read of an item: its function and the option of Hypothesis; and what is noted on it."""

    def __init__(self, function: Any, option: str | None = None, without_plugin: bool = False) -> None:
        self.function = function
        self.stash = pytest.Stash()
        known = {} if without_plugin else {"--hypothesis-seed": option}
        self.config = SimpleNamespace(getoption=known.get)

    @property
    def note(self) -> str | None:
        """Return what a failure of the test will say."""
        return self.stash.get(SEED_NOTE, None)


def make_test(*decorators: Callable[[Any], Any], **settings: Any) -> tuple[Any, list[int]]:
    """Return a Hypothesis test and the examples that it was called with."""
    drawn: list[int] = []

    def test(number: int) -> None:
        drawn.append(number)

    made = hypothesis.given(number=strategies.integers())(test)
    made = hypothesis.settings(**SETTINGS | settings)(made)
    for decorator in decorators:
        made = decorator(made)
    return made, drawn


def drawn_with(seed: int, option: str | None = None) -> list[int]:
    """Return the examples that one rank draws."""
    function, drawn = make_test()
    item: Any = FakeItem(function, option)
    share_examples(item, seed)
    function()
    return drawn


def test_ranks_with_one_seed_draw_the_same_examples() -> None:
    """Each rank has its own copy of the test; the seed is all that they share, and it decides."""
    first, second, other = drawn_with(5), drawn_with(5), drawn_with(6)

    assert first == second
    assert len(first) == 20
    assert other != first


def test_seed_is_told_as_an_option() -> None:
    """A failed example can be had again, as the report says: in a plain run, too."""
    function, drawn = make_test()
    item: Any = FakeItem(function)

    share_examples(item, 5)
    function()

    assert item.note == "To draw the same examples again: --hypothesis-seed=5"
    plain, drawn_in_plain_run = make_test(hypothesis.seed(5))
    plain()
    assert drawn == drawn_in_plain_run
    assert drawn == drawn_with(99, "5")


@pytest.mark.parametrize(("option", "seed"), [("7", 7), ("-7", -7), ("word", "word")])
def test_seed_of_the_command_line_is_read_as_by_hypothesis(option: str, seed: int | str) -> None:
    """In a plain run a number on the command line is a number, anything else is text: the same on ranks."""
    function, _ = make_test()
    item: Any = FakeItem(function, option)

    share_examples(item, 5)

    assert function._hypothesis_internal_use_seed == seed


def test_each_parameter_of_a_test_has_a_seed_and_says_so() -> None:
    """Items of one function, and reruns, share it: the seed of the item before is not the user's own."""
    function, drawn = make_test()
    items: list[Any] = [FakeItem(function), FakeItem(function)]

    for item, seed in zip(items, (5, 6), strict=True):
        share_examples(item, seed)
        function()

    assert drawn == drawn_with(5) + drawn_with(6)
    assert [item.note.partition("=")[2] for item in items] == ["5", "6"]


def test_seed_of_the_command_line_goes_first() -> None:
    """With ``--hypothesis-seed`` the seed that all ranks were sent has no say."""
    function, _ = make_test()
    item: Any = FakeItem(function, "7")

    share_examples(item, 5)

    assert item.note == "To draw the same examples again: --hypothesis-seed=7"
    assert drawn_with(5, "7") == drawn_with(6, "7")
    assert drawn_with(5, "7") != drawn_with(5)


def test_plugin_of_hypothesis_may_be_off() -> None:
    """With ``-p no:hypothesispytest`` there is no option to ask for."""
    function, _ = make_test()
    item: Any = FakeItem(function, without_plugin=True)

    share_examples(item, 5)

    assert function._hypothesis_internal_use_seed == 5


def test_database_is_not_used() -> None:
    """Ranks read the examples that failed before at different times; other settings stay as they were."""
    hypothesis_database = pytest.importorskip("hypothesis.database")
    function, _ = make_test(database=hypothesis_database.InMemoryExampleDatabase(), max_examples=7)
    item: Any = FakeItem(function)

    share_examples(item, 5)

    assert function._hypothesis_internal_use_settings.database is None
    assert function._hypothesis_internal_use_settings.max_examples == 7


def test_seed_of_the_test_itself_is_left_alone() -> None:
    """Who has written ``@seed(0)`` means it, also on the command line."""
    function, _ = make_test(hypothesis.seed(0))
    item: Any = FakeItem(function, "7")

    share_examples(item, 5)

    assert function._hypothesis_internal_use_seed == 0
    assert item.note is None


def test_derandomized_test_is_left_alone() -> None:
    """Ranks draw the same examples already, and the same ones in each run."""
    function, _ = make_test(derandomize=True)
    item: Any = FakeItem(function)

    share_examples(item, 5)

    assert function._hypothesis_internal_use_seed is None
    assert item.note is None


def plain_test() -> None:
    """Be an ordinary test."""


@pytest.mark.parametrize("function", [plain_test, None], ids=["function", "none"])
def test_other_tests_are_left_alone(function: Callable[[], None] | None) -> None:
    """Tests without Hypothesis, and items without a function, have nothing to share."""
    item: Any = FakeItem(function)

    share_examples(item, 5)

    assert item.note is None
    assert not vars(function or SimpleNamespace())


# Without a function of Hypothesis as the test: what is drawn inside it.


def drawn_inside(seed: int, option: str | None = None) -> list[int]:
    """Return the examples that one rank draws by a function of Hypothesis inside a plain test."""
    inner, drawn = make_test()
    item: Any = FakeItem(plain_test, option)
    share_examples(item, seed)
    inner()
    return drawn


def drawn_by_machine(seed: int, option: str | None = None) -> list[int]:
    """Return what one rank draws for the steps of a state machine, whose test is a method of unittest."""
    drawn: list[int] = []

    def step(self: object, number: int) -> None:
        drawn.append(number)

    rule = stateful.rule(number=strategies.integers())(step)
    machine: Any = type("Machine", (stateful.RuleBasedStateMachine,), {"step": rule})
    case = machine.TestCase
    case.settings = hypothesis.settings(**SETTINGS, stateful_step_count=5)
    item: Any = FakeItem(case.runTest, option)
    share_examples(item, seed)
    case("runTest").runTest()
    return drawn


every_draw = pytest.mark.parametrize("draw", [drawn_inside, drawn_by_machine])


@every_draw
def test_what_is_drawn_inside_a_test_is_the_same_on_ranks(draw: Callable[..., list[int]]) -> None:
    """The seed that ranks share decides for state machines and inner functions, too, and it is new for each test."""
    first, other, second = draw(5), draw(6), draw(5)

    assert first == second
    assert len(first) >= 20
    assert other != first


@every_draw
def test_seed_of_the_command_line_decides_inside_a_test(
    draw: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--hypothesis-seed`` Hypothesis has set the user's seed already, and it is kept."""
    monkeypatch.setattr(core, "global_force_seed", 7)

    first, second = draw(5, "7"), draw(6, "7")

    assert core.global_force_seed == 7
    assert first == second
    assert first != draw(5)


def test_hypothesis_is_not_imported_for_a_test_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has not imported it does not wait for it."""
    monkeypatch.delitem(sys.modules, "hypothesis.core")
    item: Any = FakeItem(plain_test)

    share_examples(item, 5)

    assert "hypothesis.core" not in sys.modules
    assert core.global_force_seed is None


def test_item_that_has_no_function_is_left_alone(request: pytest.FixtureRequest) -> None:
    """Items of other plugins need not have a function at all."""
    item: Any = SimpleNamespace(config=request.config)

    share_examples(item, 5)

    assert vars(item) == {"config": request.config}


def test_method_of_a_class_draws_from_the_seed(pytester: pytest.Pytester) -> None:
    """A real item, of a method: the seed reaches the function that is called, and the note the item."""
    (item,) = pytester.getitems(
        """
        from hypothesis import given, settings, strategies

        class TestIt:
            @settings(derandomize=False)
            @given(number=strategies.integers())
            def test_it(self, number): pass
        """
    )

    share_examples(item, 5)

    function: Any = getattr(item, "obj")  # noqa: B009  only functions have one
    assert function._hypothesis_internal_use_seed == 5
    assert item.stash[SEED_NOTE] == "To draw the same examples again: --hypothesis-seed=5"
