"""The file that names the test which runs on ranks: who owns it, who removes it, and what goes wrong with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine.journal import Journal, Review, find_leftovers
from lightning_disttest.reporting.interrupted import read_entry

RANKS: Any = [SimpleNamespace(rank=0, pid=11), SimpleNamespace(rank=1, pid=0)]


def config(folder: Path, **more: Any) -> Any:
    """Return as much of a config as has a cache in ``folder``."""

    def mkdir(name: str) -> Path:
        path = folder / "d" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    cache = SimpleNamespace(_cachedir=folder, _CACHE_PREFIX_DIRS="d", mkdir=mkdir)
    return SimpleNamespace(cache=cache, rootpath=folder, invocation_params=SimpleNamespace(dir=folder), **more)


def files(folder: Path) -> list[Path]:
    """Return all files in the folder of the cache."""
    return list((folder / "d/lightning_disttest").iterdir())


def abandoned(folder: Path, **more: Any) -> None:
    """Leave the file of a process that has ended in the middle of a test."""
    journal = Journal()
    journal.open(config(folder, **more))
    journal.begin("test_a.py::test_it", RANKS)
    os.close(journal._fd)  # which gives the lock up, as the end of the process does


def test_life_of_a_file(tmp_path: Path) -> None:
    """It names the test and the ranks as they are forked, then that none runs, and goes in the end."""
    journal = Journal()
    journal.open(config(tmp_path))
    (path,) = files(tmp_path)
    assert path.read_bytes() == b""

    journal.begin("test_a.py::test_it", RANKS)
    entry = read_entry(path.read_bytes())
    assert entry is not None
    assert (entry.nodeid, entry.ranks, entry.running) == ("test_a.py::test_it", ((0, 11), (1, 0)), True)
    assert (entry.pid, entry.parent, entry.worker) == (os.getpid(), os.getppid(), "")

    journal.begin("test_a.py::test_it", [SimpleNamespace(rank=0, pid=11), SimpleNamespace(rank=1, pid=12)])  # type: ignore[list-item]
    journal.refresh()
    entry = read_entry(path.read_bytes())
    assert entry is not None
    assert entry.ranks == ((0, 11), (1, 12))

    journal.end()
    journal.refresh()  # a rank that is forked for no test
    entry = read_entry(path.read_bytes())
    assert entry is not None
    assert (entry.nodeid, entry.running) == ("test_a.py::test_it", False)
    assert path.read_bytes().count(b"\n") == 1

    journal.close()
    journal.close()
    assert files(tmp_path) == []


def test_file_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    """Only a file without an owner is found; a lock in the same process counts too."""
    journal = Journal()
    journal.open(config(tmp_path))
    journal.begin("test_a.py::test_it", RANKS)
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
from tests.unit.test_journal import Journal, RANKS, config
journal = Journal()
journal.open(config(Path(sys.argv[1])))
journal.begin("test_a.py::test_it", RANKS)
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


def test_without_a_cache() -> None:
    """With ``-p no:cacheprovider`` there is no file, and nothing fails."""
    journal = Journal()
    journal.open(SimpleNamespace())  # type: ignore[arg-type]
    journal.begin("test_a.py::test_it", RANKS)
    journal.refresh()
    journal.end()
    journal.close()
    assert journal._fd == -1
    assert find_leftovers(SimpleNamespace()) == []  # type: ignore[arg-type]


def test_cache_that_can_not_be_written(tmp_path: Path) -> None:
    """A folder that can not be made is no error; one that could be made the second time is used."""
    refused = config(Path("/proc/none"))
    journal = Journal()
    journal.open(refused)
    journal.begin("test_a.py::test_it", RANKS)
    journal.close()

    second = config(tmp_path)
    genuine, calls = second.cache.mkdir, []

    def fails_once(name: str) -> Path:
        calls.append(name)
        if len(calls) == 1:
            raise OSError
        return Path(genuine(name))

    second.cache.mkdir = fails_once
    journal.open(second)
    assert len(files(tmp_path)) == 1
    journal.close()


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that can not be written does not end the run."""
    journal = Journal()
    journal.open(config(tmp_path))
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, journal._fd)
    os.close(full)
    journal.begin("test_a.py::test_it", RANKS)
    journal.end()
    journal.close()
    assert files(tmp_path) == []


def test_a_worker_whose_main_process_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended in order, but its run was stopped: the file stays; that of one with a living main process goes."""
    for parent, left in ((os.getppid(), 0), (1, 1)):
        journal = Journal()
        journal.open(config(tmp_path, workerinput={"workerid": "gw1"}))
        journal.begin("test_a.py::test_it", RANKS)
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        journal.close()
        monkeypatch.undo()
        assert len(files(tmp_path)) == left
    (leftover,) = find_leftovers(config(tmp_path))
    assert leftover.entry is not None
    assert leftover.entry.worker == "gw1"
    leftover.remove()


def test_told_once(tmp_path: Path) -> None:
    """The header tells it; then there is nothing for the summary, nor for another run."""
    abandoned(tmp_path)
    review = Review(config(tmp_path))
    assert "stopped in the middle of test_a.py::test_it" in review.pytest_report_header()[0]
    lines: list[str] = []
    review.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    review.pytest_unconfigure()
    assert lines == []
    assert files(tmp_path) == []


def test_told_in_the_summary_or_kept(tmp_path: Path) -> None:
    """Without a header the summary tells it; without both it is kept."""
    abandoned(tmp_path)
    Review(config(tmp_path)).pytest_unconfigure()
    review = Review(config(tmp_path))
    lines: list[str] = []
    review.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert "stopped in the middle of test_a.py::test_it" in lines[0]
    assert files(tmp_path) == []


def test_crashed_workers_of_this_run_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist has told of them; those of other runs are kept."""
    review = Review(config(tmp_path))
    abandoned(tmp_path, workerinput={"workerid": "gw0"})
    review.pytest_unconfigure()
    assert len(files(tmp_path)) == 1, "it was of another run"
    monkeypatch.setattr(os, "getpid", os.getppid)
    Review(config(tmp_path)).pytest_unconfigure()
    assert files(tmp_path) == []
