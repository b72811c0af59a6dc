"""``python -m tests.faults``: run every cell of the matrix, print it as tables, and end with 1 if any is red."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.cells import FAULTS, IMPOSSIBLE, KINDS, PLACES, RANKS, VALID, Cell, pairwise
from tests.faults.running import run_cells

_HEADS = ("session", "module", "function", "call", "teardown", "between", "exit")
_LONGEST = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that the arguments choose; return the exit status."""
    options = _parse(arguments)
    cells = [cell for cell in (pairwise(VALID) if options.pairwise else VALID) if _is_chosen(cell, options)]
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    results = run_cells(cells, folder)
    print(render(results))
    red = {cell: problems for cell, problems in results.items() if problems}
    for cell, problems in sorted(red.items()):
        print(f"\nred: {cell.name}")
        print("\n".join(f"  {problem[:_LONGEST]}" for problem in problems))
    print(f"\n{len(cells)} cells in {time.monotonic() - begin:.0f} s, {len(red)} red")
    left = sum(problem.startswith("a process of the run is left") for problems in red.values() for problem in problems)
    print("some processes were left" if left else "no process of any run was left")
    if red:
        print(f"the runs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def render(results: Mapping[Cell, Sequence[str]]) -> str:
    """Return the tables: faults x places for each kind, and why some cells cannot exist.

    A field has a sign for rank 0, rank 1 and all ranks; the first line explains them.
    """
    lines = ["In each field rank 0, rank 1, all ranks: + as it must be, R red, - impossible, . not run."]
    for kind in KINDS:
        lines += ["", f"{kind}:", f"{'':28}" + "".join(f"{head:>10}" for head in _HEADS)]
        for fault in FAULTS:
            fields = ["".join(_sign(Cell(kind, place, fault, ranks), results) for ranks in RANKS) for place in PLACES]
            lines.append(f"{fault:28}" + "".join(f"{field:>10}" for field in fields))
        lines.append(_summary(kind, results))
    lines += ["", "impossible:"]
    lines += [f"{count:5} cells: {reason}" for reason, count in Counter(IMPOSSIBLE.values()).items()]
    return "\n".join(lines)


def _sign(cell: Cell, results: Mapping[Cell, Sequence[str]]) -> str:
    if cell in IMPOSSIBLE:
        return "-"
    if cell not in results:
        return "."
    return "R" if results[cell] else "+"


def _summary(kind: str, results: Mapping[Cell, Sequence[str]]) -> str:
    own = [problems for cell, problems in results.items() if cell.kind == kind]
    impossible = sum(cell.kind == kind for cell in IMPOSSIBLE)
    red = sum(bool(problems) for problems in own)
    return f"{kind}: {len(own)} cells were run, {red} are red; {impossible} are impossible"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Run the matrix of faults.")
    parser.add_argument("--pairwise", action="store_true", help="only the cells that make test runs")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of world")
    parser.add_argument("--place", choices=PLACES, help="only this place")
    parser.add_argument("--fault", choices=FAULTS, help="only this fault")
    parser.add_argument("--ranks", choices=RANKS, help="only on these ranks")
    return parser.parse_args(arguments)


def _is_chosen(cell: Cell, options: argparse.Namespace) -> bool:
    return all(getattr(options, name) in (None, getattr(cell, name)) for name in ("kind", "place", "fault", "ranks"))


if __name__ == "__main__":
    sys.exit(main())
