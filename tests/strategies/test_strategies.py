"""A selection of the matrix of strategies, and that each of its checks can fail."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from tests.strategies import __main__ as command
from tests.strategies.cells import ALL, FAULTS, HOOKS, RANKS, STRATEGIES, Cell, split
from tests.strategies.generator import write_cells
from tests.strategies.running import Observed, check, run_cells


def choose() -> list[Cell]:
    """Return few cells that hold every strategy with every fault, and every hook with every choice of ranks."""
    hooks, ranks = itertools.cycle(HOOKS), itertools.cycle(RANKS)
    return [Cell(strategy, next(hooks), fault, next(ranks)) for strategy in STRATEGIES for fault in FAULTS]


CELLS = choose()
KILLED = Cell("ddp_fork", "training_step", "dies", "rank1")
TITLE = "______ rank 1 of 2 (pid 41): exited with status 3 <- the cause ______"
OTHER = "______ rank 0 of 2 (pid 40): lost its connection to a peer ______"
SEEN = Observed(("failed", "passed"), f"{TITLE}\n{OTHER}\n", {1: 41})
RAISED = Cell("ddp_fork", "setup", "raises", "rank0")
RAISED_SEEN = Observed(
    ("failed", "passed"),
    "______ rank 0 of 2 (pid 40): raised ValueError <- the cause ______\n"
    f"ValueError: {RAISED.name} on rank 0\n______ rank 1 of 2: came to the end ______\n",
    {0: 40},
)


@pytest.fixture(scope="module")
def problems_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, list[str]]:
    """Return what is wrong with each cell of the selection that this run of pytest has chosen."""
    chosen = {item.name for item in request.session.items}
    return run_cells([cell for cell in CELLS if f"test_cell[{cell.name}]" in chosen], tmp_path_factory.mktemp("fits"))


# All of them run when the first one asks for its result.
@pytest.mark.timeout(600, func_only=False)
@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_cell(problems_of: dict[Cell, list[str]], cell: Cell) -> None:
    """Every rank with a fault is told with it, the cause first, and the next test passes."""
    assert problems_of[cell] == [], "\n".join(problems_of[cell])


def test_selection_holds_every_value() -> None:
    """Each strategy is there with each fault, each hook and each choice of ranks is there."""
    assert {(cell.strategy, cell.fault) for cell in CELLS} == set(itertools.product(STRATEGIES, FAULTS))
    assert {cell.hook for cell in CELLS} == set(HOOKS)
    assert {cell.ranks for cell in CELLS} == set(RANKS)
    assert set(CELLS) < set(ALL)


def test_split_runs_each_cell_once() -> None:
    """Groups hold every cell once."""
    assert sorted(itertools.chain(*split(ALL, 60.0))) == sorted(ALL)


def test_generated_modules_compile() -> None:
    """The tests of all cells are Python, and each is followed by an innocent one."""
    files = write_cells(ALL)
    for name, source in files.items():
        compile(source, name, "exec")
    for cell in ALL:
        assert f"def test_{cell.name}(" in files["test_fits.py"]
        assert f"def test_{cell.name}_next(" in files["test_fits.py"]


@pytest.mark.parametrize(("cell", "seen"), [(KILLED, SEEN), (RAISED, RAISED_SEEN)], ids=["dies", "raises"])
def test_what_must_be_is_no_problem(cell: Cell, seen: Observed) -> None:
    """A cell that came out as it must has no problems."""
    assert check(cell, seen) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"outcomes": ("passed", "passed")}, "outcomes are"),
        ({"outcomes": ("failed", "failed")}, "outcomes are"),
        ({"outcomes": ("failed", None)}, "outcomes are"),
        ({"pids": {}}, "the fault happened on the ranks [], not [1]"),
        ({"pids": {1: 42}}, "no title names rank 1 with its pid 42"),
        ({"left_over": ("7: sleep",)}, "a process of the run is left: 7: sleep"),
        ({"text": TITLE}, "nothing is said of rank 0"),
        ({"text": f"{TITLE.replace('status 3', 'status 0')}\n{OTHER}"}, "rank 1 is said to have"),
        ({"text": f"{TITLE.replace(' <- the cause', '')}\n{OTHER}"}, "the cause is"),
        ({"text": f"{OTHER}\n{TITLE}"}, "the cause is"),
        ({"text": ""}, "the cause is nobody"),
    ],
)
def test_what_must_not_be_is_a_problem(change: dict[str, object], problem: str) -> None:
    """Each thing that a cell must show is missed when it is not there."""
    problems = check(KILLED, dataclasses.replace(SEEN, **change))  # type: ignore[arg-type]
    assert any(problem in found for found in problems), problems


def test_text_of_the_exception_is_missed() -> None:
    """That a rank raised something is not enough."""
    text = RAISED_SEEN.text.replace("on rank 0", "on some rank")
    assert any("is not in the text" in found for found in check(RAISED, dataclasses.replace(RAISED_SEEN, text=text)))


def test_the_tables_show_every_sign() -> None:
    """A table has one line for each hook, and tells red, right and not run apart."""
    text = command.render({KILLED: [], dataclasses.replace(KILLED, ranks="both"): ["something"]})
    part = text.partition("ddp_fork:")[2]
    line = next(line for line in part.splitlines() if line.startswith("training_step "))
    assert line.split() == ["training_step", "...", ".+R", "..."]
