"""The matrix itself: nothing is left out, the selection covers all pairs, and each check can fail."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from pathlib import Path

import pytest

from tests.faults import __main__ as command
from tests.faults import injected
from tests.faults.cells import (
    ALL,
    FAULTS,
    IMPOSSIBLE,
    KINDS,
    PLACES,
    RANKS,
    VALID,
    Cell,
    Effect,
    pairs_of,
    pairwise,
    split,
    why_impossible,
)
from tests.faults.expected import expect
from tests.faults.generator import write_cells
from tests.faults.running import Observed, check, run_group

KILLED = Cell("static", "call", "sigkill", "rank1")
TITLE = "______ rank 1 of 2 (pid 41): died in call: killed by SIGKILL <- the cause ______"
OTHER = "______ rank 0 of 2 (pid 40): lost its connection to a peer in call ______"
WORDS = "last output:\n  last words of rank 1"
SEEN = Observed(
    outcomes={"": "failed", "_next": "passed"},
    texts={"": f"{TITLE}\n{WORDS}\n{OTHER}\n"},
    seconds={"": 0.2, "_next": 0.1},
    pids={1: 41},
    returncode=1,
    output="",
)


def test_every_combination_is_a_cell() -> None:
    """Each combination of the four is in exactly one of the lists: those that are run, and those that cannot exist."""
    combinations = {Cell(*values) for values in itertools.product(KINDS, PLACES, FAULTS, RANKS)}
    assert set(ALL) == combinations
    assert len(ALL) == len(combinations)
    assert not set(VALID) & set(IMPOSSIBLE)
    assert set(VALID) | set(IMPOSSIBLE) == combinations


def test_impossible_cells_have_reasons() -> None:
    """A cell that is not run has a reason, and one that is run has none."""
    assert all(IMPOSSIBLE.values())
    assert {why_impossible(cell) for cell in VALID} == {""}


def test_only_few_cells_are_impossible() -> None:
    """Whole places, faults or kinds are not explained away: each value and each pair of kind and fault is run."""
    for kind, fault in itertools.product(KINDS, FAULTS):
        if not why_impossible(Cell(kind, "call", fault, "rank1")):
            assert any(cell.kind == kind and cell.fault == fault for cell in VALID)
    assert {(cell.place, cell.ranks) for cell in VALID} == set(itertools.product(PLACES, RANKS))


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_subtests_have_the_scope_of_a_test(pytester: pytest.Pytester) -> None:
    """A session's fixture cannot have subtests, as the matrix says."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def wide(subtests): ...

        def test_it(wide): ...
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*ScopeMismatch*")


def test_every_fault_has_a_function() -> None:
    """The functions and the data name the same faults; a subtest needs its fixture."""
    assert set(injected.FAULTS) | {"subtest"} == set(FAULTS)


def test_pairwise_covers_every_pair() -> None:
    """Each pair of values that any cell has is in a cell of the selection, which is much smaller."""
    chosen = pairwise(VALID)
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, VALID))
    assert len(chosen) == len(set(chosen)) < len(VALID) / 5


def test_pairs_are_of_different_axes() -> None:
    """A cell has the six pairs of its four values."""
    pairs = pairs_of(KILLED)
    assert len(pairs) == 6
    assert (("place", "call"), ("fault", "sigkill")) in pairs


def test_pairwise_misses_nothing_when_a_cell_is_taken_away() -> None:
    """Without one chosen cell some pair would be uncovered: the selection has no idle cells, or at most a few."""
    chosen = pairwise(VALID)
    every = set().union(*map(pairs_of, chosen))
    idle = [cell for cell in chosen if set().union(*(pairs_of(c) for c in chosen if c != cell)) == every]
    assert len(idle) < len(chosen) / 5


def test_split_runs_each_cell_once() -> None:
    """Groups hold every cell once, of one kind; a fault that stops its run is alone."""
    groups = split(VALID, 25.0)
    assert sorted(itertools.chain(*groups)) == sorted(VALID)
    for group in groups:
        assert len({cell.kind for cell in group}) == 1
        assert len(group) == 1 or all(cell.effect is not Effect.STOPS_RUN for cell in group)


@pytest.mark.parametrize("kind", KINDS)
def test_generated_modules_compile(kind: str) -> None:
    """The tests of all cells are Python, with one test of each name, and each is followed by an innocent one."""
    own = [cell for cell in VALID if cell.kind == kind]
    files = write_cells(own)
    for name, source in files.items():
        compile(source, name, "exec")
    names = [line.partition("(")[0] for line in files[f"test_{kind}.py"].splitlines() if line.startswith("def test_")]
    assert len(names) == len(set(names))
    assert {f"def test_{cell.name}{end}" for cell in own for end in ("", "_next")} <= set(names)


def test_expectations_are_complete() -> None:
    """Each cell says what becomes of it; of each failure it says what is to be read."""
    for cell in VALID:
        expected = expect(cell)
        if cell.effect is Effect.HARMLESS:
            assert expected.speaker is None
            assert expected.outcomes[""] == "passed"
        elif cell.effect is Effect.STOPS_RUN:
            assert expected.returncode is not None
        else:
            assert expected.speaker is not None
            assert expected.titles or expected.shows
            assert expected.outcomes["_next"] == "passed"


def test_what_must_be_is_no_problem() -> None:
    """A cell that came out as it must has no problems."""
    assert check(KILLED, expect(KILLED), SEEN) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"outcomes": {"": "passed", "_next": "passed"}}, "outcomes are"),
        ({"outcomes": {"": "failed", "_next": "failed"}}, "outcomes are"),
        ({"outcomes": {"": "failed"}}, "outcomes are"),
        ({"pids": {}}, "the fault happened on the ranks [], not [1]"),
        ({"pids": {1: 42}}, "rank 1 is shown without its pid 42"),
        ({"pids": {0: 40, 1: 41}}, "the fault happened on the ranks [0, 1], not [1]"),
        ({"seconds": {"": 99.0, "_next": 0.1}}, "test took 99.0 s, more than 10 s"),
        ({"seconds": {"": 0.2, "_next": 99.0}}, "test_next took 99.0 s, more than 10 s"),
        ({"seconds": {"": 0.2}}, "how long test_next took was not noted"),
        ({"left_over": ("7: sleep",)}, "a process of the run is left: 7: sleep"),
        ({"texts": {"": f"{TITLE}\n{WORDS}"}}, "nothing is said of rank 0"),
        ({"texts": {"": TITLE}}, "'last words of rank 1' is not in the text"),
        ({"texts": {"": f"{TITLE.replace('SIGKILL', 'SIGTERM')}\n{WORDS}"}}, "rank 1 is said to have"),
        ({"texts": {"": f"{TITLE.replace('in call', 'in setup')}\n{WORDS}"}}, "rank 1 is said to have"),
        ({"texts": {"": f"{TITLE.replace('rank 1', 'rank 0')}\n{WORDS}"}}, "no line names rank 1"),
        ({"texts": {"": f"{TITLE.replace(' <- the cause', '')}\n{WORDS}"}}, "the cause is"),
        ({"texts": {}}, "no line names rank 1"),
    ],
)
def test_what_must_not_be_is_a_problem(change: dict[str, object], problem: str) -> None:
    """Each thing that a cell must show is missed when it is not there."""
    problems = check(KILLED, expect(KILLED), dataclasses.replace(SEEN, **change))  # type: ignore[arg-type]
    assert any(problem in found for found in problems), problems


STOPPED = Cell("dynamic", "call", "pytest_exit", "rank1")
SAID = "a test wants to stop (pytest.exit was called on rank 1 in t.py::test_dynamic_call_pytest_exit_rank1)"
ENDED = Observed({}, {}, {}, {1: 41}, 9, SAID)


def test_ranks_that_came_to_the_end_are_told_of() -> None:
    """It is enough to say of a rank that it came to the end."""
    text = f"{TITLE}\n{WORDS}\n______ rank 0 of 2: came to the end of the test ______\n"
    assert check(KILLED, expect(KILLED), dataclasses.replace(SEEN, texts={"": text})) == []


def test_a_stopped_run_is_no_problem() -> None:
    """A run that pytest.exit stopped, and that says so, has no problems."""
    assert check(STOPPED, expect(STOPPED), ENDED) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"returncode": 1}, "the run ended with 1, not 9"),
        ({"output": SAID.replace("rank 1", "rank 0")}, "the screen does not name rank and test"),
        ({"output": SAID.replace("rank1)", "rank0)")}, "the screen does not name rank and test"),
        ({"output": SAID.replace("wants", "hates")}, "'a test wants to stop' is not on the screen"),
        ({"outcomes": {"_next": "passed"}}, "the next test was run"),
    ],
)
def test_a_run_that_was_not_stopped_is_a_problem(change: dict[str, object], problem: str) -> None:
    """A run that goes on, or does not say why it ended, is noticed."""
    problems = check(STOPPED, expect(STOPPED), dataclasses.replace(ENDED, **change))  # type: ignore[arg-type]
    assert any(problem in found for found in problems), problems


def test_a_run_without_the_fault_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run whose fault does not happen is red: nothing is taken on trust."""
    from tests.faults import running

    def write(cells: list[Cell]) -> dict[str, str]:
        files = write_cells(cells)
        return files | {"injected.py": "def act(*_): pass\n"}

    cell = Cell("standalone", "call", "os_exit_0", "rank0")
    monkeypatch.setattr(running, "write_cells", write)
    problems = run_group([cell], tmp_path / "run")[cell]
    assert "the fault happened on the ranks [], not [0]" in problems
    assert any(problem.startswith("outcomes are {'': 'passed', '_next': 'passed'}") for problem in problems)


def test_the_tables_show_every_sign() -> None:
    """A table has one line for each fault, and tells red, right, impossible and not run apart."""
    green, red = Cell("static", "call", "sigkill", "rank0"), Cell("static", "call", "sigkill", "rank1")
    text = command.render({green: [], red: ["something"]})
    line = next(line for line in text.splitlines() if line.startswith("sigkill "))
    assert line.split()[4] == "+R."
    impossible = sum(cell.kind == "static" for cell in IMPOSSIBLE)
    assert f"static: 2 cells were run, 1 are red; {impossible} are impossible" in text
    dynamic = text.partition("dynamic:\n")[2]
    assert next(line for line in dynamic.splitlines() if line.startswith("sigkill ")).split()[6] == "---"
    idle = sum(cell.place == "between" and cell.kind != "static" for cell in ALL)
    assert f"{idle} cells: a world that is used once has no time between two tests" in text


@pytest.mark.parametrize(("problems", "status"), [([], 0), (["it is wrong"], 1)])
def test_the_command_ends_with_1_if_a_cell_is_red(
    problems: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command shows what is wrong, and its status says whether anything is; only then it keeps the runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(command, "run_cells", lambda cells, _: dict.fromkeys(cells, problems))
    assert command.main(["--kind=static", "--place=call", "--fault=sigkill"]) == status
    output = capsys.readouterr().out
    assert f"3 cells in 0 s, {3 * status} red" in output
    assert ("it is wrong" in output) == bool(problems)
    assert list(tmp_path.iterdir()) == ([] if not problems else [Path(output.splitlines()[-1].split()[-1])])
