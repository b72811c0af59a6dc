"""What can be seen of ranks that are still in a test: where they are, what they wait for, whether they answer."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lightning_disttest.engine.messages import WhereTold
from lightning_disttest.reporting.waiting import Collective

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_disttest.engine.supervisor import RankHandle, Supervisor

_PY_SPY_S = 5.0
_MOST_NATIVE = 4  # py-spy takes about a quarter of a second for each


@dataclass(frozen=True, slots=True)
class Sight:
    """One rank at one moment.

    Attributes:
        stacks: the Python stack of its main thread, or of all threads, in the form of faulthandler.
        collectives: what its process groups did last; empty if it has none or did not tell.
        has_answered: whether it told where it is.
        knows_collectives: whether it told what its process groups did.
        is_stopped: whether it was stopped by a signal or a debugger.
        is_silent: whether it could have told where it is, and did not: its interpreter is held.
        native_stacks: its native stacks, as py-spy prints them.
    """

    stacks: str = ""
    collectives: tuple[Collective, ...] = ()
    has_answered: bool = False
    knows_collectives: bool = False
    is_stopped: bool = False
    is_silent: bool = False
    native_stacks: str = ""

    @property
    def may_be_held(self) -> bool:
        """Whether native code may hold its interpreter, or the kernel the process: it did not answer."""
        return not self.has_answered


NOT_LOOKED_AT = Sight()


def look_at(supervisor: Supervisor, handles: Sequence[RankHandle]) -> dict[RankHandle, Sight]:
    """Ask ranks where they are, all at the same time; it does not disturb a test that is only slow."""
    supervisor.ask_where(list(handles))
    return {handle: _see(handle) for handle in handles}


def look_into(supervisor: Supervisor, sights: Mapping[RankHandle, Sight], *, hung: bool) -> dict[RankHandle, Sight]:
    """Return the sights of ranks that will be ended with the stacks that faulthandler writes, without their help.

    If they ``hung``, the first few that may have been held by native code get native stacks as well. Those come
    first: the signal for the others interrupts system calls.
    """
    held = [handle for handle, sight in sights.items() if hung and sight.may_be_held and handle.pid]
    native = {
        handle: native_stacks(handle.pid, stopped=sights[handle].is_stopped)
        for handle in held[:_MOST_NATIVE]
        if handle.status is None
    }
    supervisor.take_stacks([handle for handle, sight in sights.items() if not sight.is_stopped])
    return {
        handle: dataclasses.replace(
            sight, stacks=handle.files.stacks() or sight.stacks, native_stacks=native.get(handle, "")
        )
        for handle, sight in sights.items()
    }


def _see(handle: RankHandle) -> Sight:
    lives = bool(handle.pid) and handle.status is None
    stopped = lives and is_stopped(handle.pid)
    answer = handle.answer or WhereTold("", None)
    return Sight(
        stacks=answer.stack,
        collectives=tuple(Collective.from_fields(fields) for fields in answer.collectives or ()),
        has_answered=handle.answer is not None,
        knows_collectives=answer.collectives is not None,
        is_stopped=stopped,
        is_silent=handle.tells and lives and not stopped and handle.answer is None,
    )


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped, by SIGSTOP or by a debugger."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def native_stacks(pid: int, *, stopped: bool) -> str:
    """Return Python and native stacks of a process as py-spy prints them; Python stacks alone if it is stopped.

    Empty if py-spy is not installed, or may not look into the process (``ptrace`` is often kept to the superuser).
    """
    program = _find_py_spy()
    if program is None:
        return ""
    command = [program, "dump", "--nonblocking" if stopped else "--native", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PY_SPY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _find_py_spy() -> str | None:
    """Look beside the interpreter first: an environment that is not activated is not on the PATH."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
