"""``python -m tests.strategies``: run every cell of the matrix, print it as tables, and end with 1 if any is red."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.strategies.cells import ALL, FAULTS, HOOKS, RANKS, STRATEGIES, Cell
from tests.strategies.running import run_cells

_LONGEST = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that the arguments choose; return the exit status."""
    options = _parse(arguments)
    cells = [cell for cell in ALL if _is_chosen(cell, options)]
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="strategies-"))
    results = run_cells(cells, folder)
    print(render(results))
    red = {cell: problems for cell, problems in results.items() if problems}
    for cell, problems in sorted(red.items()):
        print(f"\nred: {cell.name}")
        print("\n".join(f"  {problem[:_LONGEST]}" for problem in problems))
    print(f"\n{len(cells)} cells in {time.monotonic() - begin:.0f} s, {len(red)} red")
    if red:
        print(f"the runs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def render(results: Mapping[Cell, Sequence[str]]) -> str:
    """Return a table for each strategy: hooks x faults, with a sign for rank 0, rank 1 and both."""
    lines = ["In each field rank 0, rank 1, both: + as it must be, R red, . not run."]
    for strategy in STRATEGIES:
        lines += ["", f"{strategy + ':':24}" + "".join(f"{fault:>8}" for fault in FAULTS)]
        for hook in HOOKS:
            cells = [[Cell(strategy, hook, fault, ranks) for ranks in RANKS] for fault in FAULTS]
            fields = ["".join(_sign(cell, results) for cell in of_fault) for of_fault in cells]
            lines.append(f"{hook:24}" + "".join(f"{field:>8}" for field in fields))
    return "\n".join(lines)


def _sign(cell: Cell, results: Mapping[Cell, Sequence[str]]) -> str:
    if cell not in results:
        return "."
    return "R" if results[cell] else "+"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.strategies", description="Run the matrix of strategies.")
    parser.add_argument("--strategy", choices=STRATEGIES, help="only this strategy")
    parser.add_argument("--hook", choices=HOOKS, help="only this hook")
    parser.add_argument("--fault", choices=FAULTS, help="only this fault")
    parser.add_argument("--ranks", choices=RANKS, help="only on these ranks")
    return parser.parse_args(arguments)


def _is_chosen(cell: Cell, options: argparse.Namespace) -> bool:
    return all(getattr(options, name) in (None, getattr(cell, name)) for name in ("strategy", "hook", "fault", "ranks"))


if __name__ == "__main__":
    sys.exit(main())
