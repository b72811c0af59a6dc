"""A small file per pytest process that names the test which runs on ranks; it outlives a process that is killed.

Its owner holds a lock on it: a file without one belongs to a run that ended without an end. A pid would not do, as pids
are used again. The file is opened after the zygote was forked, so that no rank holds the lock of its controller.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import stat
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import pytest_bridge
from lightning_disttest.reporting.interrupted import Entry, describe_entry, read_entry, write_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from lightning_disttest.engine.supervisor import RankHandle

_FOLDER = "lightning_disttest"
_PATTERN = "running-*.json"
_MOST_BYTES = 1 << 20
_ATTEMPTS = 2  # pytest 8.2 can fail to make its cache folder while another process does


class Journal:
    """The file of this process. Without pytest's cache, or where it can not be written, there is none."""

    def __init__(self) -> None:
        self._fd = -1
        self._path: Path | None = None
        self._worker = ""
        self._parent = os.getppid()
        self._nodeid = ""
        self._ranks: Sequence[RankHandle] = ()
        self._begun = ""

    def open(self, config: pytest.Config) -> None:
        """Make the file and lock it, if that is possible; called after the fork of the zygote."""
        self._worker = str(getattr(config, "workerinput", {}).get("workerid", ""))
        for _ in range(_ATTEMPTS):
            if self._fd < 0:
                with contextlib.suppress(OSError):
                    self._make(config)

    def _make(self, config: pytest.Config) -> None:
        folder = pytest_bridge.make_cache_folder(config, _FOLDER)
        if folder is None or sys.platform == "win32":
            return
        name = uuid.uuid4().hex
        new = folder / f"new-{name}"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _lock(fd)
            # Not under this name before it is locked: another run would take it for one that was left.
            self._path = new.rename(folder / f"running-{name}.json")
        except OSError:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self._fd = fd

    def begin(self, nodeid: str, ranks: Sequence[RankHandle]) -> None:
        """Note that a test begins on these ranks; ``refresh`` looks at them again."""
        if self._fd >= 0:
            self._nodeid, self._ranks = nodeid, ranks
            self._begun = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
            self._write(running=True)

    def refresh(self) -> None:
        """Note the pids of ranks that were forked since, and of those that a launcher has added."""
        if self._ranks:
            self._write(running=True)

    def end(self) -> None:
        """Note that no test runs on ranks."""
        self._ranks = ()
        if self._nodeid:
            self._write(running=False)

    def close(self) -> None:
        """Remove the file, as this run ends in order.

        A worker of pytest-xdist that lost its main process is ended by execnet, in order; but its run was stopped.
        """
        if self._fd < 0:
            return
        orphaned = bool(self._worker) and os.getppid() != self._parent
        if self._path is not None and not (orphaned and self._nodeid):
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)
        self._fd, self._nodeid, self._ranks = -1, "", ()

    def _write(self, *, running: bool) -> None:
        if self._fd < 0:
            return
        entry = Entry(
            nodeid=self._nodeid,
            ranks=tuple((handle.rank, handle.pid) for handle in self._ranks),
            begun=self._begun,
            pid=os.getpid(),
            worker=self._worker,
            parent=self._parent,
            running=running,
        )
        content = write_entry(entry)
        with contextlib.suppress(OSError):  # a full disk is no reason to fail a test
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))


@dataclass(frozen=True, slots=True)
class Leftover:
    """The file of a process that has ended without removing it; locked, so that one run alone tells of it."""

    fd: int
    path: Path
    entry: Entry | None

    def remove(self) -> None:
        """Remove the file and let go of it."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.release()

    def release(self) -> None:
        """Let go of the file; also for processes that were forked meanwhile."""
        _unlock(self.fd)
        os.close(self.fd)


def find_leftovers(config: pytest.Config) -> list[Leftover]:
    """Return the files that nobody owns any more, locked; an empty one names no test and is removed."""
    folder = pytest_bridge.find_cache_folder(config, _FOLDER)
    if folder is None or sys.platform == "win32":
        return []
    found: list[Leftover] = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(_PATTERN)):
            with contextlib.suppress(OSError):  # it has an owner, was removed meanwhile, or is no such file
                found += _take(path)
    return found


def _take(path: Path) -> Iterator[Leftover]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError
        _lock(fd)
        content = os.pread(fd, _MOST_BYTES, 0)
    except OSError:
        os.close(fd)
        raise
    leftover = Leftover(fd, path, read_entry(content))
    if content:
        yield leftover
    else:
        leftover.remove()


class Review:
    """A plugin of the main process: says once which earlier runs were stopped in the middle, and of which test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._leftovers = find_leftovers(config)

    def pytest_report_header(self) -> list[str]:
        """Say it in the header."""
        return self._tell()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say it in the summary of a run without a header."""
        for line in self._tell():
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Keep for the next run what could not be told, and forget workers of this one: pytest-xdist told of them."""
        for leftover in self._leftovers:
            leftover.release()
        for leftover in find_leftovers(self._config):
            if leftover.entry is not None and leftover.entry.worker and leftover.entry.parent == os.getpid():
                leftover.remove()
            else:
                leftover.release()

    def _tell(self) -> list[str]:
        lines = []
        for leftover in self._leftovers:
            lines += describe_entry(leftover.entry, str(leftover.path), self._name_here)
            leftover.remove()
        self._leftovers = []
        return lines

    def _name_here(self, nodeid: str) -> str:
        path, separator, name = nodeid.partition("::")
        return os.path.relpath(self._config.rootpath / path, self._config.invocation_params.dir) + separator + name


def _lock(fd: int) -> None:
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(fd: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
