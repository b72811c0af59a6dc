"""Files that other runs have left: which have an owner, who tells of them, and who removes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine.journal import Journal, lock
from lightning_disttest.engine.stopped_runs import StoppedRuns, find_leftovers
from tests.unit.test_journal import COMMAND, RANKS, config, files


def abandoned(folder: Path, **more: Any) -> None:
    """Leave the file of a process that has ended in the middle of a test."""
    journal = Journal()
    journal.open(config(folder, **more))
    journal.begin("test_a.py::test_it", COMMAND, RANKS)
    os.close(journal._fd)  # which gives the lock up, as the end of the process does


def test_file_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    """Only a file without an owner is found; a lock in the same process counts too."""
    journal = Journal()
    journal.open(config(tmp_path))
    journal.begin("test_a.py::test_it", COMMAND, RANKS)
    assert find_leftovers(config(tmp_path)) == []
    journal.close()

    abandoned(tmp_path)
    (leftover,) = find_leftovers(config(tmp_path))
    assert leftover.entry is not None
    assert leftover.entry.nodeid == "test_a.py::test_it"
    assert find_leftovers(config(tmp_path)) == [], "two runs would tell of it"
    leftover.release()
    (leftover,) = find_leftovers(config(tmp_path))
    leftover.remove()
    assert files(tmp_path) == []


def test_lock_ends_with_the_process(tmp_path: Path) -> None:
    """A process that is killed has no say any more; a child that it has started does not hold its lock."""
    program = """
import subprocess, sys, os, signal
from pathlib import Path
from tests.unit.test_journal import COMMAND, RANKS, Journal, config
journal = Journal()
journal.open(config(Path(sys.argv[1])))
journal.begin("test_a.py::test_it", COMMAND, RANKS)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin)
print("ready", flush=True)
signal.pause()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert find_leftovers(config(tmp_path)) == []
        process.kill()
        process.wait()
        found = find_leftovers(config(tmp_path))
    assert len(found) == 1
    found[0].remove()


def test_empty_file_is_removed(tmp_path: Path) -> None:
    """A process that had not begun a test has nothing to tell."""
    journal = Journal()
    journal.open(config(tmp_path))
    os.close(journal._fd)
    assert find_leftovers(config(tmp_path)) == []
    assert files(tmp_path) == []


def test_file_of_a_process_that_was_killed_before_it_had_its_name(tmp_path: Path) -> None:
    """It says nothing and is removed, unless its owner is just about to give it its name."""
    folder = config(tmp_path).cache.mkdir("lightning_disttest")
    new = folder / "new-0123"
    with new.open("w") as file:
        lock(file.fileno())
        assert find_leftovers(config(tmp_path)) == []
        assert files(tmp_path) == [new]
    assert find_leftovers(config(tmp_path)) == []
    assert files(tmp_path) == []


def test_told_once(tmp_path: Path) -> None:
    """The header tells it; then there is nothing for the summary, nor for another run."""
    abandoned(tmp_path)
    plugin = StoppedRuns(config(tmp_path))
    assert "stopped in the middle of test_a.py::test_it" in plugin.pytest_report_header()[0]
    lines: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    plugin.pytest_unconfigure()
    assert lines == []
    assert files(tmp_path) == []


def test_told_in_the_summary_or_kept(tmp_path: Path) -> None:
    """Without a header the summary tells it; without both it is kept."""
    abandoned(tmp_path)
    StoppedRuns(config(tmp_path)).pytest_unconfigure()
    plugin = StoppedRuns(config(tmp_path))
    lines: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert "stopped in the middle of test_a.py::test_it" in lines[0]
    assert files(tmp_path) == []


def test_crashed_workers_of_this_run_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist has told of them; those of other runs are kept."""
    plugin = StoppedRuns(config(tmp_path))
    abandoned(tmp_path, workerinput={"workerid": "gw0"})
    plugin.pytest_unconfigure()
    assert len(files(tmp_path)) == 1, "it was of another run"
    monkeypatch.setattr(os, "getpid", os.getppid)
    StoppedRuns(config(tmp_path)).pytest_unconfigure()
    assert files(tmp_path) == []
