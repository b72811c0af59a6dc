"""The rows of the table: which runs each needs, and which figures follow from them.

Contenders of one row run in turn, in reverse order every other time, so that what else the machine does hits all
alike. A ratio (or difference) is that of two medians; the range beside it is that of runs that were neighbours.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import workloads
from benchmarks.contenders import (
    INSTALLED,
    OURS,
    PER_ID,
    PLAIN,
    REAL_SPAWN,
    SPAWN,
    STANDALONE,
    TORCHRUN,
    WARM_SPAWN,
    WITHOUT,
)
from benchmarks.stopwatch import MEMORY_STEP
from benchmarks.table import Line, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders import Contender, Laboratory, Run
    from benchmarks.table import Unit
    from benchmarks.workloads import Workload

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
LONG_ROW = 8
_CONSTANT = 1.1  # up to this ratio of last to first, the time per test counts as constant


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many tests each run has and how often it is repeated."""

    repeats: int = 5
    static_few: int = 100
    static: int = 300
    dynamic: int = 20
    spawned: int = 2
    fits: int = 10
    fits_per_id: int = 1
    spawn_fits: int = 3
    plain: int = 2000
    plain_repeats: int = 10
    waits: int = 3
    crashes: int = 5
    long: int = 10_000
    long_repeats: int = 3


QUICK = Sizes(
    repeats=1,
    static_few=5,
    static=25,
    dynamic=3,
    spawned=1,
    fits=2,
    spawn_fits=2,
    plain=100,
    plain_repeats=1,
    waits=1,
    crashes=1,
    long=2 * MEMORY_STEP,
    long_repeats=1,
)


def measure(laboratory: Laboratory, sizes: Sizes, rows: set[int]) -> list[Line]:
    """Run what the wanted rows need and return their lines."""
    lines: list[Line] = []
    if rows & {1, 2}:
        lines += _static(laboratory, sizes, rows)
    single: dict[int, Callable[[Laboratory, Sizes], list[Line]]] = {
        3: _dynamic,
        4: _standalone,
        5: _unused,
        6: _waiting,
        7: _crash,
        8: _long,
        9: _spawn,
    }
    for row, function in single.items():
        if row in rows:
            lines += function(laboratory, sizes)
    return lines


def _alternate(name: str, repeats: int, jobs: Sequence[Callable[[], Run]]) -> list[list[Run]]:
    """Run all jobs in turn, again and again, every other time in reverse; return the runs of each job."""
    runs: list[list[Run]] = [[] for _ in jobs]
    for repeat in range(repeats):
        print(f"{name}: {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
        order = list(zip(jobs, runs, strict=True))
        for job, done in order if repeat % 2 == 0 else reversed(order):
            done.append(job())
    return runs


def _job(laboratory: Laboratory, contender: Contender, work: Workload, test_id: str | None = None) -> Callable[[], Run]:
    return lambda: laboratory.run(contender, work, test_id)


def _static(laboratory: Laboratory, sizes: Sizes, rows: set[int]) -> list[Line]:
    contenders = (PLAIN, TORCHRUN, OURS)
    counts = (sizes.static, sizes.static_few) if 2 in rows else (sizes.static,)
    jobs = [_job(laboratory, each, workloads.static_tests(count)) for count in counts for each in contenders]
    runs = _alternate("rows 1 and 2, static tests", sizes.repeats, jobs)
    lines = _whole_runs(sizes.static, contenders, runs[:3]) if 1 in rows else []
    if 2 in rows:
        lines += _marginal(sizes, contenders, runs[:3], runs[3:])
    return lines


def _whole_runs(count: int, contenders: Sequence[Contender], runs: Sequence[Sequence[Run]]) -> list[Line]:
    walls = [[run.wall for run in each] for each in runs]
    lines = [
        sampled(1, f"{count} static two-rank tests, whole run: {contender.name}", wall, "s")
        for contender, wall in zip(contenders, walls, strict=True)
    ]
    value = _beyond(*(median(wall) for wall in walls))
    samples = tuple(_beyond(*neighbours) for neighbours in zip(*walls, strict=True))
    return [*lines, Line(1, "(ours - plain) / (torchrun - plain)", value, "ratio", 0.5, samples)]


def _beyond(plain: float, torchrun: float, ours: float) -> float:
    if torchrun <= plain:  # noise: such runs tell nothing, and meet no goal
        return math.inf
    return (ours - plain) / (torchrun - plain)


def _marginal(
    sizes: Sizes, contenders: Sequence[Contender], many: Sequence[Sequence[Run]], few: Sequence[Sequence[Run]]
) -> list[Line]:
    lines = []
    for contender, large, small in zip(contenders, many, few, strict=True):
        pairs = zip(large, small, strict=True)
        slopes = [(one.loop - other.loop) / (sizes.static - sizes.static_few) for one, other in pairs]
        goal = 2e-3 if contender is OURS else None
        lines.append(sampled(2, f"one more static two-rank test: {contender.name}", slopes, "ms", goal))
    return lines


def _dynamic(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    jobs = [
        _job(laboratory, OURS, workloads.dynamic_tests(sizes.dynamic)),
        _job(laboratory, SPAWN, workloads.spawn_tests(sizes.spawned)),
    ]
    ours, spawn = _alternate("row 3, dynamic tests", sizes.repeats, jobs)
    mine = sampled(3, f"dynamic two-rank test: {OURS.name}", [run.per_test for run in ours], "ms", 60e-3)
    other = sampled(3, f"dynamic two-rank test: {SPAWN.name}", [run.per_test for run in spawn], "s")
    return [mine, other, _ratio(3, "ours / mp.spawn per test", (mine.samples, other.samples), "part", 1 / 50)]


def _standalone(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    work = workloads.fit_tests(sizes.fits)
    ids = workloads.test_ids(work, sizes.fits_per_id)
    jobs = [_job(laboratory, STANDALONE, work), *(_job(laboratory, PER_ID, work, test_id) for test_id in ids)]
    ours, *per_id = _alternate("row 4, standalone fits", sizes.repeats, jobs)
    what = 'standalone Trainer(strategy="ddp", devices=2).fit()'
    walls = [sum(run.wall for run in runs) / len(ids) for runs in zip(*per_id, strict=True)]
    mine = sampled(4, f"{what}: {STANDALONE.name}", [run.per_test for run in ours], "ms", 150e-3)
    other = sampled(4, f"{what}: {PER_ID.name}", walls, "s")
    return [mine, other, _ratio(4, "ours / one pytest per test and rank", (mine.samples, walls), "part", 1 / 40)]


def _unused(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    contenders = (WITHOUT, INSTALLED)
    jobs = [_job(laboratory, contender, workloads.plain_tests(sizes.plain)) for contender in contenders]
    without, installed = _alternate("row 5, plain tests", sizes.plain_repeats, jobs)
    lines = [
        sampled(5, f"{sizes.plain} plain tests, whole run: {contender.name}", [run.wall for run in runs], "s")
        for contender, runs in zip(contenders, (without, installed), strict=True)
    ]
    starts = tuple(one.start - other.start for one, other in zip(installed, without, strict=True))
    start = median(run.start for run in installed) - median(run.start for run in without)
    loops = ([run.loop for run in runs] for runs in (installed, without))
    cpu_loops = ([run.cpu_loop for run in runs] for runs in (installed, without))
    return [
        *lines,
        Line(5, "start of a run: with - without", start, "ms", 20e-3, starts),
        _ratio(5, "collection and tests: with / without", loops, "ratio", 1.01),
        _ratio(5, "the same in CPU time", cpu_loops, "ratio"),
    ]


def _waiting(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    job = _job(laboratory, OURS, workloads.waiting_tests(sizes.waits))
    (runs,) = _alternate("row 6, a rank that waits", sizes.repeats, [job])
    delays = [_verdict_delay(run, number) for run in runs for number in range(sizes.waits)]
    return [sampled(6, "one rank fails, the other waits: failure to verdict", delays, "s", 1.0)]


def _verdict_delay(run: Run, number: int) -> float:
    (verdict,) = (moment for nodeid, moment in run.verdicts.items() if nodeid.endswith(f"::test_{number}"))
    return verdict - run.written[f"failure{number}.1"]


def _crash(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    job = _job(laboratory, OURS, workloads.crash_tests(sizes.crashes))
    (runs,) = _alternate("row 7, crashes", sizes.repeats, [job])
    rounds = [(run, number) for run in runs for number in range(sizes.crashes)]
    normal = [_started(run, "crash", number) - _started(run, "normal", number) for run, number in rounds]
    after_crash = [_started(run, "next", number) - run.written[f"crash{number}.1"] for run, number in rounds]
    after_verdict = [_started(run, "next", number) - _crash_verdict(run, number) for run, number in rounds]
    usual = median(normal)
    return [
        sampled(7, "from one static test to the next", normal, "ms"),
        sampled(7, "SIGKILL of a rank to the next static test, beyond it", [t - usual for t in after_crash], "ms", 0.1),
        sampled(7, "of this, after the verdict on the killed test", after_verdict, "ms"),
    ]


def _started(run: Run, what: str, number: int) -> float:
    """Return when the body of a test had started on both ranks."""
    return max(run.written[f"{what}{number}.{rank}"] for rank in (0, 1))


def _crash_verdict(run: Run, number: int) -> float:
    (verdict,) = (moment for nodeid, moment in run.verdicts.items() if nodeid.endswith(f"::test_{number}_crash"))
    return verdict


def _long(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    contenders = (PLAIN, OURS)
    jobs = [_job(laboratory, contender, workloads.static_tests(sizes.long)) for contender in contenders]
    lines = []
    growths = []
    runs_of = _alternate("row 8, many tests", sizes.long_repeats, jobs)
    for contender, runs in zip(contenders, runs_of, strict=True):
        first = [_per_test(run.finished[:MEMORY_STEP]) for run in runs]
        last = [_per_test(run.finished[-MEMORY_STEP:]) for run in runs]
        growths.append(median([float(run.memory[-1] - run.memory[0]) for run in runs]))
        where = f"{sizes.long} static tests, {contender.name}"
        lines += [
            sampled(8, f"{where}: test in the first {MEMORY_STEP}", first, "ms"),
            sampled(8, f"{where}: test in the last {MEMORY_STEP}", last, "ms"),
            _ratio(8, f"{where}: last / first", (last, first), "ratio", _CONSTANT if contender is OURS else None),
        ]
    plain, ours = growths
    what = f"memory growth of pytest after the first {MEMORY_STEP} tests"
    return [*lines, Line(8, f"{what}: {PLAIN.name}", plain, "MB"), Line(8, f"{what}: {OURS.name}", ours, "MB", plain)]


def _spawn(laboratory: Laboratory, sizes: Sizes) -> list[Line]:
    work = workloads.spawn_fit_tests(sizes.spawn_fits)
    contenders = (REAL_SPAWN, WARM_SPAWN)
    jobs = [_job(laboratory, contender, work) for contender in contenders]
    real, warm = _alternate("row 9, spawned fits", sizes.repeats, jobs)
    what = 'Trainer(strategy="ddp_spawn", devices=2).fit(), from the second on'
    lines = [
        sampled(9, f"{what}: {contender.name}", [_per_test(run.finished) for run in runs], "s")
        for contender, runs in zip(contenders, (real, warm), strict=True)
    ]
    return [*lines, _ratio(9, "warm / new interpreters", (lines[1].samples, lines[0].samples), "part", 1 / 4)]


def _per_test(finished: Sequence[float]) -> float:
    return (finished[-1] - finished[0]) / (len(finished) - 1)


def _ratio(row: int, what: str, sides: Iterable[Sequence[float]], unit: Unit, goal: float | None = None) -> Line:
    above, below = sides
    samples = tuple(one / other for one, other in zip(above, below, strict=True))
    return Line(row, what, median(above) / median(below), unit, goal, samples)
