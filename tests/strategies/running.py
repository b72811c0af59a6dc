"""Runs groups of cells, each group in one run of pytest, and looks for what must be in the report."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.harness import Run, run_pytest, write_tests
from tests.strategies.cells import LIMIT_S, Cell, split
from tests.strategies.generator import write_cells

_OPTIONS = ("--disttest-warm-spawn-everywhere", "--disttest-grace=1", "--show-capture=no", "-p", "no:rerunfailures")
_SECONDS_PER_RUN = 60.0
_SLACK_S = 120.0
_AT_ONCE = 2
_OF_RAISED = re.compile(r"^E +", re.MULTILINE)  # what pytest puts before the text of an exception
_TITLE = re.compile(
    r"^_+ (?P<who>ranks? [\d, -]+) of 2(?: \(pid (?P<pids>[\d, ]+)\))?: "
    r"(?P<what>.*?)(?P<cause> <- the cause)? _+$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Observed:
    """What a run says of one cell: its outcome and that of the next test, its text, and the pids that were hit."""

    outcomes: tuple[str | None, str | None]
    text: str
    pids: dict[int, int]
    left_over: tuple[str, ...] = ()


def run_cells(cells: Sequence[Cell], folder: Path) -> dict[Cell, list[str]]:
    """Run cells, two groups at a time, in folders below ``folder``; return what is wrong with each."""
    groups = split(cells, _SECONDS_PER_RUN)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(lambda numbered: run_group(numbered[1], folder / f"{numbered[0]}"), enumerate(groups))
        return {cell: problems for result in results for cell, problems in result.items()}


def run_group(cells: Sequence[Cell], folder: Path) -> dict[Cell, list[str]]:
    """Run cells in one run of pytest; return what is wrong with each."""
    folder.mkdir()
    write_tests(folder, write_cells(cells))
    limit = 2 * sum(cell.seconds for cell in cells) + _SLACK_S
    try:
        run = run_pytest(folder, *_OPTIONS, limit=limit, must_be_clean=False, plugins=("timeout",))
    except subprocess.TimeoutExpired:
        return {cell: [f"the run did not end within {limit:g} s"] for cell in cells}
    (folder / "output.txt").write_text(run.output)
    return {cell: check(cell, observe(cell, run)) for cell in cells}


def observe(cell: Cell, run: Run) -> Observed:
    """Pick what belongs to one cell from a run."""
    name = f"test_{cell.name}"
    begun = {rank: run.folder / f"begun-{cell.name}-{rank}" for rank in (0, 1)}
    return Observed(
        outcomes=(run.outcomes.get(name), run.outcomes.get(f"{name}_next")),
        text=_OF_RAISED.sub("", run.texts.get(name, "")),
        pids={rank: int(path.read_text()) for rank, path in begun.items() if path.exists()},
        left_over=tuple(run.left_over),
    )


def check(cell: Cell, observed: Observed) -> list[str]:
    """Return what is wrong with a cell.

    Each rank with the fault is named by a title, with its pid and what it did, and its own text is there; the first
    title is one of these and is called the cause; the other rank, if there is one, has a title too.
    """
    problems = [f"a process of the run is left: {process}" for process in observed.left_over]
    if observed.outcomes != ("failed", "passed"):
        problems.append(f"outcomes are {observed.outcomes}, not failed and then passed")
    if set(observed.pids) != {*cell.hit}:
        problems.append(f"the fault happened on the ranks {sorted(observed.pids)}, not {list(cell.hit)}")
    titles = list(_TITLE.finditer(observed.text))
    for rank in cell.hit:
        problems += _check_rank(cell, rank, observed, titles)
    if not titles or not titles[0]["cause"] or not _ranks_in(titles[0]["who"]) & {*cell.hit}:
        problems.append(f"the cause is {titles[0].group() if titles else 'nobody'}")
    told = set[int]().union(*(_ranks_in(title["who"]) for title in titles))
    problems += [f"nothing is said of rank {rank}" for rank in sorted({0, 1} - told)]
    return [f"{problem}:\n{observed.text}" if problem is problems[-1] else problem for problem in problems]


def _check_rank(cell: Cell, rank: int, observed: Observed, titles: Sequence[re.Match[str]]) -> list[str]:
    own = [title for title in titles if rank in _ranks_in(title["who"])]
    if not any(str(observed.pids.get(rank)) in (title["pids"] or "").split(", ") for title in own):
        return [f"no title names rank {rank} with its pid {observed.pids.get(rank)}"]
    ways = {"raises": ("raised ValueError", "failed in call"), "hangs": (f"time limit of {LIMIT_S:g} s",)}
    ways["dies"] = ("SIGKILL" if rank == 0 else "status 3", "code 3")
    problems = []
    if not any(way in title["what"] for way in ways[cell.fault] for title in own):
        problems.append(f"rank {rank} is said to have {[title['what'] for title in own]}")
    wanted = {"raises": f"ValueError: {cell.name} on rank {rank}", "hangs": f" in {cell.hook}\n", "dies": ""}
    if wanted[cell.fault] not in observed.text:
        problems.append(f"{wanted[cell.fault]!r} is not in the text")
    return problems


def _ranks_in(who: str) -> set[int]:
    """Return the ranks that words like ``ranks 0-1`` name."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", who):
        found |= set(range(int(first), int(last or first) + 1))
    return found
