"""Random faults in one run of static tests: what is wrong with such a run is found."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest
from benchmarks.random_faults import CHOICE, Result, describe, find_problems, main

from tests.faults.cells import Cell
from tests.faults.generator import write_around
from tests.faults.running import OPTIONS
from tests.harness import Run, run_pytest, write_tests

_TESTS = 30
_FAULTS = 6
Observed = tuple[Sequence[Cell], Run]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Return a few random faults and the run that they were in."""
    chosen = random.Random(7)
    cells = chosen.sample(CHOICE, _FAULTS)
    folder = tmp_path_factory.mktemp("random")
    write_tests(folder, write_around(cells, _TESTS - 2 * _FAULTS, chosen))
    return cells, run_pytest(folder, *OPTIONS)


def test_every_fault_is_told_at_its_own_test(observed: Observed) -> None:
    """Nothing is wrong, and every other test has passed."""
    cells, run = observed
    assert find_problems(cells, _TESTS, run) == {}, run.output
    passed = [name for name, outcome in run.outcomes.items() if outcome == "passed"]
    assert len(passed) >= _TESTS - _FAULTS


def _passes(run: Run, cell: Cell) -> Run:
    return dataclasses.replace(run, outcomes=run.outcomes | {f"test_{cell.name}": "passed"})


def _blames_an_innocent(run: Run, _: Cell) -> Run:
    return dataclasses.replace(run, outcomes=run.outcomes | {"test_innocent_0": "failed"})


def _loses_a_test(run: Run, _: Cell) -> Run:
    left = {name: outcome for name, outcome in run.outcomes.items() if name != "test_innocent_0"}
    return dataclasses.replace(run, outcomes=left)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_passes, "outcomes are"),
        (_blames_an_innocent, "is failed, though it has no fault"),
        (_loses_a_test, "29 tests were reported, not 30"),
        (lambda run, _: dataclasses.replace(run, returncode=2), "it ended with 2, not 1"),
        (lambda run, _: dataclasses.replace(run, left_over=["4711 python"]), "a process is left: 4711 python"),
    ],
    ids=["a fault that passes", "an innocent that fails", "a test that is missing", "another end", "a process"],
)
def test_what_is_wrong_is_found(observed: Observed, change: Callable[[Run, Cell], Run], text: str) -> None:
    """Each thing that may go wrong is named once."""
    cells, run = observed
    problems = find_problems(cells, _TESTS, change(run, cells[0]))
    shown = describe(Result(7, _TESTS, _FAULTS, problems, 1.0))
    assert shown.count(text) == 1
    assert "seed 7: 6 faults in 30 static tests: 1 are wrong" in shown


def test_more_faults_than_there_is_room_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Each fault needs a test after it."""
    with pytest.raises(SystemExit):
        main(["--tests", "10", "--faults", "6"])
    assert "at most half of --tests" in capsys.readouterr().err
