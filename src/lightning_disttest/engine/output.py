"""The files of a rank: its channel, its raw output, files for its captured output, stacks and progress, and questions.

The controller makes them, the rank writes them. Because the controller holds them too, the last lines and the
stacks of a rank can be read after it was killed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FILES_PER_RANK = 7
STAGES = ("start", "setup", "call", "teardown", "exit")
_TAIL_BYTES = 1 << 14
_LONGEST_LINE = 1 << 13


@dataclass(frozen=True, slots=True)
class RankFds:
    """The rank's side: channel, raw output (fd 1 and 2), captured stdout and stderr, stacks, progress, questions."""

    channel: int
    raw: int
    stdout: int
    stderr: int
    stacks: int
    progress: int
    ask: int

    def close(self) -> None:
        """Close all of them, in a process that is not the rank."""
        for fd in (self.channel, self.raw, self.stdout, self.stderr, self.stacks, self.progress, self.ask):
            os.close(fd)

    def enter(self, stage: str) -> None:
        """Note that the rank enters a stage of a test: one byte in a file, which stays when the rank is killed."""
        os.pwrite(self.progress, bytes((STAGES.index(stage),)), 0)


class RankFiles:
    """The controller's side of the files of one rank; ``show`` gets its raw output line by line, if there is one."""

    def __init__(self, rank: int, show: Callable[[str], None] | None) -> None:
        self._rank = rank
        self._show = show
        self._pending = b""
        self._recent = b""
        self._previous = b""
        with contextlib.ExitStack() as undo:
            self._stdout = undo.enter_context(tempfile.TemporaryFile(buffering=0))
            self._stderr = undo.enter_context(tempfile.TemporaryFile(buffering=0))
            # In memory: a full disk must not take the stacks and the progress of a rank.
            self._stacks = undo.enter_context(os.fdopen(os.memfd_create("stacks"), "r+b", buffering=0))
            self._progress = undo.enter_context(os.fdopen(os.memfd_create("progress"), "r+b", buffering=0))
            self.raw, self._raw_end = os.pipe()
            undo.callback(os.close, self.raw)
            undo.callback(os.close, self._raw_end)
            self._ask_end, self._ask = os.pipe()
            undo.pop_all()
        os.set_blocking(self.raw, False)
        os.set_blocking(self._ask, False)
        self.raw_open = True

    def rank_ends(self) -> tuple[int, ...]:
        """Return the descriptors that the rank gets beside its channel, in the order of ``RankFds``."""
        files = (self._stdout, self._stderr, self._stacks, self._progress)
        return self._raw_end, *(file.fileno() for file in files), self._ask_end

    def handed_over(self) -> None:
        """Close what only the rank needs, so that the end of its raw output can be seen."""
        os.close(self._raw_end)
        os.close(self._ask_end)

    def abandon(self) -> None:
        """Close everything: the rank was not started."""
        self.handed_over()
        self.close()

    def read_raw(self) -> None:
        """Take what the rank wrote to its raw output, and show it with the rank's number."""
        try:
            chunk = os.read(self.raw, 1 << 16)
        except BlockingIOError:
            return
        if not chunk:
            self.raw_open = False
        self._recent = (self._recent + chunk)[-_TAIL_BYTES:]
        self._show_lines(chunk)

    def begin_test(self) -> None:
        """Start a new test: what was written before is not among its last lines."""
        self._previous, self._recent = self._recent, b""
        os.pwrite(self._progress.fileno(), b"\0", 0)

    def stage(self) -> str:
        """Return the stage of the test that the rank is in."""
        return STAGES[(os.pread(self._progress.fileno(), 1, 0) or b"\0")[0]]

    def last_output(self) -> str:
        """Return the last output of the rank that no report carries: captured in the open phase, and raw."""
        parts = [_tail(self._stdout), _tail(self._stderr), self._recent]
        return "".join(part.decode(errors="replace") for part in parts if part)

    def ask(self) -> None:
        """Ask the rank where it is; one that does not read its questions must not block us."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._ask, b"?")

    def previous_output(self) -> str:
        """Return the last raw output of the rank from before the test that began last."""
        return self._previous.decode(errors="replace")

    def stacks(self) -> str:
        """Return the Python stacks that the rank was last asked for."""
        return _tail(self._stacks).decode(errors="replace")

    def stacks_are_complete(self) -> bool:
        """Tell whether the last thread was written, which is the one that runs the test."""
        return are_complete(self.stacks())

    def forget_stacks(self) -> None:
        """Empty the file of stacks before they are asked for."""
        self._stacks.truncate(0)
        self._stacks.seek(0)

    def close(self) -> None:
        """Close every file, after showing what is left of the raw output."""
        if self._pending:
            self._show_lines(b"\n")
        os.close(self.raw)
        os.close(self._ask)
        self.raw_open = False
        for file in (self._stdout, self._stderr, self._stacks, self._progress):
            file.close()

    def _show_lines(self, chunk: bytes) -> None:
        if self._show is None:
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if len(self._pending) > _LONGEST_LINE:
            lines.append(self._pending)
            self._pending = b""
        if lines:
            self._show("".join(f"[rank {self._rank}] {line.decode(errors='replace')}\n" for line in lines))


def are_complete(stacks: str) -> bool:
    """Tell whether stacks that faulthandler writes are there to the last thread, the one that runs the test."""
    _, _, last = stacks.partition("Current thread")
    return "\n  File " in last and last.endswith("\n")


def _tail(file: IO[bytes]) -> bytes:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
