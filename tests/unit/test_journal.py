"""The file that names the test which runs on ranks: what is in it, and what goes wrong with it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine.journal import Journal
from lightning_disttest.engine.stopped_runs import find_leftovers
from lightning_disttest.reporting.stopped_runs import read_entry

RANKS: Any = [SimpleNamespace(rank=0, pid=11), SimpleNamespace(rank=1, pid=0)]
COMMAND = "pytest test_a.py::test_it --standalone"


def config(folder: Path, **more: Any) -> Any:
    """Return as much of a config as has a cache in ``folder``."""

    def mkdir(name: str) -> Path:
        path = folder / "d" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    cache = SimpleNamespace(_cachedir=folder, _CACHE_PREFIX_DIRS="d", mkdir=mkdir)
    return SimpleNamespace(cache=cache, invocation_params=SimpleNamespace(dir=folder), **more)


def files(folder: Path) -> list[Path]:
    """Return all files in the folder of the cache."""
    return list((folder / "d/lightning_disttest").iterdir())


def test_life_of_a_file(tmp_path: Path) -> None:
    """It names the test and the ranks as they are forked, then that none runs, and goes in the end."""
    journal = Journal()
    journal.open(config(tmp_path))
    (path,) = files(tmp_path)
    assert path.read_bytes() == b""

    with journal.around_test():
        journal.begin("test_a.py::test_it", COMMAND, RANKS)
        entry = read_entry(path.read_bytes())
        assert entry is not None
        assert (entry.nodeid, entry.ranks, entry.running) == ("test_a.py::test_it", ((0, 11), (1, 0)), True)
        assert (entry.command, entry.folder) == (COMMAND, str(tmp_path))
        assert (entry.pid, entry.parent, entry.worker) == (os.getpid(), os.getppid(), "")

        journal.begin("test_a.py::test_it", COMMAND, [SimpleNamespace(rank=0, pid=11), SimpleNamespace(rank=1, pid=12)])  # type: ignore[list-item]
        journal.refresh()
        entry = read_entry(path.read_bytes())
        assert entry is not None
        assert entry.ranks == ((0, 11), (1, 12))

    journal.refresh()  # a rank that is forked for no test
    entry = read_entry(path.read_bytes())
    assert entry is not None
    assert (entry.nodeid, entry.running) == ("test_a.py::test_it", False)
    assert path.read_bytes().count(b"\n") == 1

    journal.close()
    journal.close()
    assert files(tmp_path) == []


def test_a_test_that_fails_in_between(tmp_path: Path) -> None:
    """A test that was begun and could not go on is not the one in which a later kill hits."""
    journal = Journal()
    journal.open(config(tmp_path))
    with contextlib.suppress(ZeroDivisionError), journal.around_test():
        journal.begin("test_a.py::test_it", COMMAND, RANKS)
        raise ZeroDivisionError
    entry = read_entry(files(tmp_path)[0].read_bytes())
    assert entry is not None
    assert (entry.nodeid, entry.running) == ("test_a.py::test_it", False)
    journal.close()


def test_without_a_cache() -> None:
    """With ``-p no:cacheprovider`` there is no file, and nothing fails."""
    journal = Journal()
    journal.open(SimpleNamespace(invocation_params=SimpleNamespace(dir="/")))  # type: ignore[arg-type]
    with journal.around_test():
        journal.begin("test_a.py::test_it", COMMAND, RANKS)
        journal.refresh()
    journal.close()
    assert journal._fd == -1
    assert find_leftovers(SimpleNamespace()) == []  # type: ignore[arg-type]


def test_cache_that_can_not_be_written(tmp_path: Path) -> None:
    """A folder that can not be made is no error; one that could be made the second time is used."""
    refused = config(Path("/proc/none"))
    journal = Journal()
    journal.open(refused)
    journal.begin("test_a.py::test_it", COMMAND, RANKS)
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
    with journal.around_test():
        journal.begin("test_a.py::test_it", COMMAND, RANKS)
    journal.close()
    assert files(tmp_path) == []


def test_a_worker_whose_main_process_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended in order, but its run was stopped: the file stays; that of one with a living main process goes."""
    for parent, left in ((os.getppid(), 0), (1, 1)):
        journal = Journal()
        journal.open(config(tmp_path, workerinput={"workerid": "gw1"}))
        with contextlib.suppress(KeyboardInterrupt), journal.around_test():
            journal.begin("test_a.py::test_it", COMMAND, RANKS)
            monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
            raise KeyboardInterrupt
        journal.close()
        monkeypatch.undo()
        assert len(files(tmp_path)) == left
    (leftover,) = find_leftovers(config(tmp_path))
    assert leftover.entry is not None
    assert (leftover.entry.worker, leftover.entry.running) == ("gw1", True)
    leftover.remove()
