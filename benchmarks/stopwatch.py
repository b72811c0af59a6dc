"""A pytest plugin that notes when things happen in a run; it is copied beside the tests of every workload.

Each pytest process writes one JSON file into the folder that ``BENCHMARK_WATCH`` names. Ranks of the plugin under
test write none: they end without a ``pytest_sessionfinish``.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter
from pathlib import Path

import pytest

MEMORY_STEP = 1000

_moments: dict[str, float] = {}
_finished: list[float] = []
_verdicts: dict[str, float] = {}
_outcomes: Counter[str] = Counter()
_memory: list[int] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Note the start: everything up to here is the start of Python, pytest and the conftest's imports."""
    _moments["collection"] = time.monotonic()
    _moments["cpu_collection"] = time.process_time()


def pytest_collection_finish() -> None:
    """Note the end of collection."""
    _moments["collected"] = time.monotonic()


def pytest_runtest_logstart() -> None:
    """Note when the first test starts."""
    if not _finished:
        _moments["first_test"] = time.monotonic()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count outcomes, and note when each test that did not pass got its verdict."""
    if report.when == "call" or not report.passed:
        _outcomes[report.outcome] += 1
        if not report.passed:
            _verdicts[report.nodeid] = time.monotonic()


def pytest_runtest_logfinish() -> None:
    """Note when a test ends and, now and then, the memory of this process."""
    _finished.append(time.monotonic())
    if len(_finished) % MEMORY_STEP == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        _memory.append(pages * resource.getpagesize())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Write what was noted."""
    _moments["finish"] = time.monotonic()
    _moments["cpu_finish"] = time.process_time()
    notes = {
        "rank": int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))),
        "moments": _moments,
        "finished": _finished,
        "verdicts": _verdicts,
        "outcomes": _outcomes,
        "memory": _memory,
    }
    Path(os.environ["BENCHMARK_WATCH"], f"{os.getpid()}.json").write_text(json.dumps(notes))
