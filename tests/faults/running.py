"""Runs groups of cells, each group in one run of pytest, and compares what came out with what must come out."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.faults.cells import Cell, split
from tests.faults.expected import Expected, expect
from tests.faults.generator import write_cells
from tests.harness import Run, json_lines, run_pytest, write_tests

GRACE_S = 0.2
OPTIONS = (f"--disttest-grace={GRACE_S}", "--show-capture=no", "-p", "no:rerunfailures")
_SECONDS_PER_RUN = 25.0
_SLACK_S = 120.0
_AT_ONCE = 2
_TITLE = re.compile(r"^_+ (?P<who>.+?) \(pid (?P<pids>[\d, ]+)\): (?P<what>.*?)(?P<cause> <- the cause)? _+$", re.M)
_LATE = re.compile(r"^(?P<who>rank \d+) \(pid (?P<pids>\d+)\):? ?(?P<what>.*)$", re.M)
_ENDED = re.compile(r"^_+ (ranks? [\d, -]+ of \d+): came to the end of the test _+$", re.M)
_EXIT = re.compile(r"pytest\.exit was called on (?:rank (\d)|the fresh process) in (\S+)\)")


@dataclass(frozen=True)
class Observed:
    """What a run says of one cell: outcomes and texts by the ends of the names of its tests, seconds, and pids."""

    outcomes: dict[str, str]
    texts: dict[str, str]
    seconds: dict[str, float]
    pids: dict[int, int]
    returncode: int
    output: str
    left_over: tuple[str, ...] = ()


def run_cells(cells: Sequence[Cell], folder: Path) -> dict[Cell, list[str]]:
    """Run cells, two groups at a time, in folders below ``folder``; return what is wrong with each."""
    groups = split(cells, _SECONDS_PER_RUN)
    groups.sort(key=lambda group: -sum(cell.seconds for cell in group))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(lambda numbered: run_group(numbered[1], folder / f"{numbered[0]}"), enumerate(groups))
        return {cell: problems for result in results for cell, problems in result.items()}


def run_group(cells: Sequence[Cell], folder: Path) -> dict[Cell, list[str]]:
    """Run cells in one run of pytest; return what is wrong with each."""
    folder.mkdir()
    write_tests(folder, write_cells(cells))
    limit = 2 * sum(cell.seconds for cell in cells) + _SLACK_S
    try:
        run = run_pytest(folder, *OPTIONS, limit=limit, must_be_clean=False)
    except subprocess.TimeoutExpired:
        return {cell: [f"the run did not end within {limit:g} s"] for cell in cells}
    (folder / "output.txt").write_text(run.output)
    return {cell: check(cell, expect(cell), observe(cell, run)) for cell in cells}


def observe(cell: Cell, run: Run) -> Observed:
    """Pick what belongs to one cell from a run."""
    prefix = f"test_{cell.name}"
    ends = {name: name.removeprefix(prefix) for name in run.outcomes if name.startswith(prefix)}
    times = run.folder / "seconds.jsonl"
    seconds = dict(json_lines(times)) if times.exists() else {}
    begun = {rank: run.folder / f"begun-{cell.name}-{rank}" for rank in (0, 1)}
    return Observed(
        outcomes={end: run.outcomes[name] for name, end in ends.items()},
        texts={end: run.texts[name] for name, end in ends.items()},
        seconds={name.removeprefix(prefix): value for name, value in seconds.items() if name.startswith(prefix)},
        pids={rank: int(path.read_text()) for rank, path in begun.items() if path.exists()},
        returncode=run.returncode,
        output=run.output,
        left_over=tuple(run.left_over),
    )


def check(cell: Cell, expected: Expected, observed: Observed) -> list[str]:
    """Return what differs between what must come out of a cell and what did."""
    problems = [f"a process of the run is left: {process}" for process in observed.left_over]
    if set(observed.pids) != set(cell.hit):
        problems.append(f"the fault happened on the ranks {sorted(observed.pids)}, not {list(cell.hit)}")
    if expected.returncode is not None:
        return problems + _check_stopped(cell, expected, observed)
    if observed.outcomes != expected.outcomes:
        problems.append(f"outcomes are {observed.outcomes}, not {expected.outcomes}")
    problems += _check_seconds(expected, observed)
    if expected.speaker is None:
        return problems
    return problems + _check_text(cell, expected, observed, observed.texts.get(expected.speaker, ""))


def _check_stopped(cell: Cell, expected: Expected, observed: Observed) -> list[str]:
    problems = []
    if observed.returncode != expected.returncode:
        problems.append(f"the run ended with {observed.returncode}, not {expected.returncode}")
    problems += [f"{text!r} is not on the screen" for text in expected.shows if text not in observed.output]
    calls = _EXIT.findall(observed.output)
    if not any(int(rank or 0) in cell.hit and name.endswith(f"::test_{cell.name}") for rank, name in calls):
        problems.append(f"the screen does not name rank and test, but {calls}")
    if "_next" in observed.outcomes:
        problems.append("the next test was run")
    return problems


def _check_text(cell: Cell, expected: Expected, observed: Observed, text: str) -> list[str]:
    wanted = [*expected.shows]
    wanted += [template.format(rank=rank) for template in expected.of_each_rank for rank in cell.hit]
    if expected.phase:
        wanted.append(f"failed on {expected.phase} with")
    problems = [f"{want!r} is not in the text" for want in wanted if want not in text]
    if expected.titles:
        for rank in cell.hit:
            problems += _check_title(rank, observed.pids.get(rank, 0), expected.titles, text)
        titles = list(_TITLE.finditer(text))
        if titles and cell.world_size > 1 and not (titles[0]["cause"] and _ranks_in(titles[0]["who"]) & {*cell.hit}):
            problems.append(f"the cause is {titles[0].group()!r}")
        problems += _check_others(cell, text)
    return [f"{problem}:\n{text}" if problem is problems[-1] else problem for problem in problems]


def _check_title(rank: int, pid: int, titles: Sequence[str], text: str) -> list[str]:
    lines = [match for pattern in (_TITLE, _LATE) for match in pattern.finditer(text)]
    own = [match for match in lines if rank in _ranks_in(match["who"])]
    if not own:
        return [f"no line names rank {rank}"]
    if not any(str(pid) in match["pids"].split(", ") for match in own):
        return [f"rank {rank} is shown without its pid {pid}"]
    said = [match["what"].replace("were ", "was ") for match in own]
    if not any(title in what for title in titles for what in said):
        return [f"rank {rank} is said to have {said}, not {' or '.join(titles)}"]
    return []


def _check_others(cell: Cell, text: str) -> list[str]:
    """Of the ranks that were not hit it is said, too, what became of them."""
    if cell.place in ("between", "exit"):
        return []
    told = [match["who"] for match in _TITLE.finditer(text)] + _ENDED.findall(text)
    silent = set(range(cell.world_size)) - {*cell.hit}.union(*map(_ranks_in, told))
    return [f"nothing is said of rank {rank}" for rank in sorted(silent)]


def _ranks_in(who: str) -> set[int]:
    """Return the ranks that words like ``ranks 0-1 of 2`` name; a fresh process is rank 0."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", who.partition(" of ")[0]):
        found |= set(range(int(first), int(last or first) + 1))
    return found or {0}


def _check_seconds(expected: Expected, observed: Observed) -> list[str]:
    missing = expected.outcomes.keys() - observed.seconds.keys()
    problems = [f"how long test{end} took was not noted" for end in sorted(missing)]
    late = {end: took for end, took in observed.seconds.items() if took > expected.seconds}
    return problems + [f"test{end} took {took:.1f} s, more than {expected.seconds:g} s" for end, took in late.items()]
