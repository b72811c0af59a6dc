"""What runs inside a process that a launcher has started: its function, and files that tell how that ended."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import processes
from lightning_disttest.engine.context import leave_rank
from lightning_disttest.engine.exceptions import text_of
from lightning_disttest.reporting.raised import RaisedError

if TYPE_CHECKING:
    from collections.abc import Callable

# Of these torch makes an exit code and no exception; the first ends a process with any status, 0 as well.
_LEAVING = (SystemExit, KeyboardInterrupt, GeneratorExit)


@dataclass(frozen=True, slots=True)
class LaunchedFiles:
    """The files of one process in the folder of its launch: how its function ended, and the stacks of its threads."""

    folder: str
    rank: int

    @property
    def error_file(self) -> str:
        """Where torch puts the traceback of an exception."""
        return self._path("torch")

    def keep_stacks(self) -> None:
        """Have this process write its stacks to its file when it is asked for them, and when it crashes."""
        draft = self._path("stacks-draft")
        # A descriptor for the whole life of the process; the file gets its name when the signal may be sent.
        stacks = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        processes.keep_stack_signals(stacks)
        Path(draft).rename(self._path("stacks"))

    def has_begun(self) -> bool:
        """Tell whether the function has begun, and the process answers the signal for stacks."""
        return Path(self._path("stacks")).exists()

    def stacks(self) -> str:
        """Return the stacks that were written; empty if there are none."""
        with contextlib.suppress(OSError):
            return Path(self._path("stacks")).read_text(errors="replace")
        return ""

    def tell_error(self, error: BaseException) -> None:
        """Write which exception has left the function."""
        self._tell(asdict(describe_error(error)))

    def tell_end(self) -> None:
        """Write that the function has come to its end."""
        self._tell({})

    def has_told(self) -> bool:
        """Tell whether the function has ended, in whatever way."""
        return Path(self._path("end")).exists()

    def told(self) -> RaisedError | None:
        """Return the exception that has left the function; None if it came to its end."""
        fields = json.loads(Path(self._path("end")).read_text())
        return RaisedError(**fields) if fields else None

    def _tell(self, fields: dict[str, Any]) -> None:
        draft = Path(self._path("end-draft"))
        draft.write_text(json.dumps(fields))
        draft.rename(self._path("end"))  # whole or not at all

    def _path(self, name: str) -> str:
        return str(Path(self.folder, f"{self.rank}-{name}"))


@dataclass(frozen=True, slots=True)
class LaunchedFunction:
    """A function that a launcher runs in several processes; it is called and left as if by torch itself."""

    function: Callable[..., object]
    folder: str

    def __call__(self, rank: int, *args: Any) -> None:
        """Run the function as rank ``rank``."""
        files = LaunchedFiles(self.folder, rank)
        pid = os.getpid()
        leave_rank()
        # torch asks for SIGINT, which may not end a rank that hangs.
        processes.die_with_parent(os.getppid())
        files.keep_stacks()
        try:
            self.function(rank, *args)
        except BaseException as error:
            with contextlib.suppress(Exception):  # a full disk must not hide the error, which torch tells as well
                if os.getpid() == pid:
                    files.tell_error(error)
            raise
        if os.getpid() == pid:  # a child that the function has forked, and that came out of it, is not this rank
            files.tell_end()


def describe_error(error: BaseException) -> RaisedError:
    """Describe an exception, without the frame that caught it; its class and its text may be as odd as they like."""
    frames = None if error.__traceback__ is None else error.__traceback__.tb_next
    name = type(error).__name__
    last = traceback.extract_tb(frames)[-1:]
    try:
        formatted = traceback.TracebackException(type(error), error, frames)
        whole, message = "".join(formatted.format()), "".join(formatted.format_exception_only())
    except Exception as problem:  # noqa: BLE001  whatever an exception's own code raises
        message = f"{name}: <text unavailable: {type(problem).__name__}>\n"
        whole = "".join(["Traceback (most recent call last):\n", *traceback.format_tb(frames), message])
    return RaisedError(
        name=name,
        text=text_of(error),
        traceback=whole,
        message=message.strip(),
        path=last[0].filename if last else "",
        lineno=(last[0].lineno or 0) if last else 0,
        moment=time.monotonic(),
        leaves=isinstance(error, _LEAVING),
        exits=not isinstance(error, Exception),
    )
