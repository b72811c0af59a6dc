"""Tells of earlier runs that were stopped in the middle, by the files that they left (``journal``)."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import pytest_bridge
from lightning_disttest.engine.journal import FOLDER, NEW_PATTERN, PATTERN, lock
from lightning_disttest.reporting.stopped_runs import Entry, describe_entry, read_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

_MOST_BYTES = 1 << 20


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
    folder = pytest_bridge.find_cache_folder(config, FOLDER)
    if folder is None or sys.platform == "win32":
        return []
    found: list[Leftover] = []
    with contextlib.suppress(OSError):
        for path in sorted(path for pattern in (PATTERN, NEW_PATTERN) for path in folder.glob(pattern.format("*"))):
            with contextlib.suppress(OSError):  # it has an owner, was removed meanwhile, or is no such file
                found += _take(path)
    return found


def _take(path: Path) -> Iterator[Leftover]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError
        lock(fd)
        content = os.pread(fd, _MOST_BYTES, 0)
    except OSError:
        os.close(fd)
        raise
    leftover = Leftover(fd, path, read_entry(content))
    if content:
        yield leftover
    else:
        leftover.remove()


class StoppedRuns:
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
            lines += describe_entry(leftover.entry, str(leftover.path), str(self._config.invocation_params.dir))
            leftover.remove()
        self._leftovers = []
        return lines


def _unlock(fd: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
