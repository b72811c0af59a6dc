"""``python -m benchmarks.random_faults``: one run of many static tests, some with a fault, chosen by a seed.

Every fault has to be told at its own test as tests/faults expects it, every other test has to pass, and the run has
to end by itself. Not a measurement of speed; the seconds are for orientation.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.cells import VALID, Cell, Effect
from tests.faults.expected import expect
from tests.faults.generator import write_around
from tests.faults.running import OPTIONS, check, observe
from tests.harness import Run, run_pytest, write_tests

if TYPE_CHECKING:
    from collections.abc import Sequence

_TESTS = 1000
_FAULTS = 200
_SEEDS = (1, 2, 3)
_LIMIT_S = 1800.0
_LONGEST = 2000
# Those after which the world has to be ended by a test that fails on purpose, and those that end the run, are left out.
CHOICE = [
    cell
    for cell in VALID
    if cell.kind == "static" and cell.place != "exit" and cell.effect not in (Effect.HARMLESS, Effect.STOPS_RUN)
]


@dataclass(frozen=True)
class Result:
    """What came out of one run: problems by the name of the test, and how long it took in seconds."""

    seed: int
    tests: int
    faults: int
    problems: dict[str, list[str]]
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each seed; return 1 if anything is not as it must be."""
    options = _parse(arguments)
    failed = False
    for seed in options.seeds:
        with tempfile.TemporaryDirectory(prefix="random-faults-") as folder:
            result = run_seed(seed, options.tests, options.faults, Path(folder))
        print(describe(result), flush=True)
        failed |= bool(result.problems)
    return 1 if failed else 0


def run_seed(seed: int, tests: int, faults: int, folder: Path) -> Result:
    """Run ``tests`` static tests, ``faults`` of them with a fault; the seed chooses the faults and the order."""
    chosen = random.Random(seed)
    cells = chosen.sample(CHOICE, faults)
    write_tests(folder, write_around(cells, tests - 2 * faults, chosen))  # each fault is followed by a test of its own
    begin = time.monotonic()
    try:
        run = run_pytest(folder, *OPTIONS, limit=_LIMIT_S, must_be_clean=False)
    except subprocess.TimeoutExpired:
        return Result(seed, tests, faults, {"the run": [f"it did not end within {_LIMIT_S:g} s"]}, _LIMIT_S)
    return Result(seed, tests, faults, find_problems(cells, tests, run), time.monotonic() - begin)


def find_problems(cells: Sequence[Cell], tests: int, run: Run) -> dict[str, list[str]]:
    """Return what is wrong with a run of ``tests`` tests with these faults, by the name of the test."""
    observed = {cell: replace(observe(cell, run), left_over=()) for cell in cells}
    problems = {cell.name: found for cell in cells if (found := check(cell, expect(cell), observed[cell]))}
    problems |= _check_innocent(run.outcomes, cells)
    of_run = [f"a process is left: {process}" for process in run.left_over]
    if len(run.outcomes) != tests:
        of_run.append(f"{len(run.outcomes)} tests were reported, not {tests}")
    if run.returncode != 1:
        of_run.append(f"it ended with {run.returncode}, not 1:\n{run.output[-_LONGEST:]}")
    return problems | ({"the run": of_run} if of_run else {})


def _check_innocent(outcomes: dict[str, str], cells: Sequence[Cell]) -> dict[str, list[str]]:
    guilty = {f"test_{cell.name}" for cell in cells}
    return {
        name: [f"is {outcome}, though it has no fault"]
        for name, outcome in outcomes.items()
        if name not in guilty and outcome != "passed"
    }


def describe(result: Result) -> str:
    """Return one line for a run, and what is wrong with it."""
    verdict = f"{len(result.problems)} are wrong" if result.problems else "each was told at its own test"
    lines = [
        f"seed {result.seed}: {result.faults} faults in {result.tests} static tests: {verdict} ({result.seconds:.0f} s)"
    ]
    for name, problems in sorted(result.problems.items()):
        lines += [f"  {name}: {problem[:_LONGEST]}" for problem in problems]
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_faults", description="Put random faults into one run of static tests."
    )
    parser.add_argument("--seeds", type=_numbers, default=_SEEDS, metavar="1,2,3", help="one run for each of them")
    parser.add_argument("--tests", type=int, default=_TESTS, metavar="N", help="tests in a run")
    parser.add_argument("--faults", type=int, default=_FAULTS, metavar="N", help="tests with a fault among them")
    options = parser.parse_args(arguments)
    if not 0 < options.faults <= min(len(CHOICE), options.tests // 2):
        parser.error(f"--faults: 1 to {len(CHOICE)}, and at most half of --tests")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
