"""A small file per pytest process that names the test which runs on ranks; it outlives a process that is killed.

Its owner holds a lock on it: a file without one belongs to a run that ended without an end. A pid would not do, as pids
are used again. The file is opened after the zygote was forked, so that no rank holds the lock of its controller.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import uuid
from typing import TYPE_CHECKING

from lightning_disttest.engine import pytest_bridge
from lightning_disttest.reporting.stopped_runs import Entry, write_entry

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    import pytest

    from lightning_disttest.engine.supervisor import RankHandle

FOLDER = "lightning_disttest"  # in pytest's cache
PATTERN = "running-{}.json"
NEW_PATTERN = "new-{}"  # until it is locked
_ATTEMPTS = 2  # pytest 8.2 can fail to make its cache folder while another process does


class Journal:
    """The file of this process. Without pytest's cache, or where it can not be written, there is none."""

    def __init__(self) -> None:
        self._fd = -1
        self._path: Path | None = None
        self._worker = ""
        self._parent = os.getppid()
        self._folder = ""
        self._nodeid = ""
        self._command = ""
        self._ranks: Sequence[RankHandle] = ()
        self._begun = ""

    def open(self, config: pytest.Config) -> None:
        """Make the file and lock it, if that is possible; called after the fork of the zygote."""
        self._worker = str(getattr(config, "workerinput", {}).get("workerid", ""))
        self._folder = str(config.invocation_params.dir)
        for _ in range(_ATTEMPTS):
            if self._fd < 0:
                with contextlib.suppress(OSError):
                    self._make(config)

    def _make(self, config: pytest.Config) -> None:
        folder = pytest_bridge.make_cache_folder(config, FOLDER)
        if folder is None or sys.platform == "win32":
            return
        name = uuid.uuid4().hex
        new = folder / NEW_PATTERN.format(name)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            lock(fd)
            # Not under this name before it is locked: another run would take it for one that was left.
            self._path = new.rename(folder / PATTERN.format(name))
        except OSError:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self._fd = fd

    def begin(self, nodeid: str, command: str, ranks: Sequence[RankHandle]) -> None:
        """Note that a test begins on these ranks, and what runs it again; ``refresh`` looks at the ranks again."""
        if self._fd >= 0:
            self._nodeid, self._command, self._ranks = nodeid, command, ranks
            self._begun = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
            self._write(running=True)

    def refresh(self) -> None:
        """Note the pids of ranks that were forked since, and of those that a launcher has added."""
        if self._ranks:
            self._write(running=True)

    @contextlib.contextmanager
    def around_test(self) -> Generator[None, None, None]:
        """Note at the end that no test runs on ranks any more, however the one that began inside has ended."""
        try:
            yield
        finally:
            self._ranks = ()
            if self._nodeid and not self._is_orphaned():
                self._write(running=False)

    def close(self) -> None:
        """Remove the file, as this run ends in order.

        A worker of pytest-xdist that lost its main process is ended by execnet, in order; but its run was stopped.
        """
        if self._fd < 0:
            return
        if self._path is not None and not (self._is_orphaned() and self._nodeid):
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)
        self._fd, self._nodeid, self._ranks = -1, "", ()

    def _is_orphaned(self) -> bool:
        return bool(self._worker) and os.getppid() != self._parent

    def _write(self, *, running: bool) -> None:
        if self._fd < 0:
            return
        entry = Entry(
            nodeid=self._nodeid,
            command=self._command,
            folder=self._folder,
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


def lock(fd: int) -> None:
    """Lock an open file until it is closed by all who have it.

    Raises:
        OSError: if somebody else holds a lock on it.
    """
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
