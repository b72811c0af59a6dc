"""Threads and child processes that outlive their test, see ``isolation``: nothing can undo those."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import processes
from lightning_disttest.engine.isolation import REPLACED, Leak

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.engine.isolation import Values

MOMENT_S = 0.5
_POLL_S = 0.002
_LONGEST_COMMAND = 60


@dataclass(frozen=True, slots=True)
class BenignThread:
    """A thread that may outlive a test, because libraries keep one per process."""

    name: str
    reason: str
    is_it: Callable[[threading.Thread], bool]


@dataclass(frozen=True, slots=True)
class BenignChild:
    """A child process that may outlive a test; ``command`` is a part of its command line."""

    name: str
    reason: str
    command: str


def _is_compile_thread(thread: threading.Thread) -> bool:
    module: Any = sys.modules.get("torch._inductor.async_compile")
    return module is not None and thread in module.AsyncCompile.pool()._threads


def _serves_resources(thread: threading.Thread) -> bool:
    target: Any = getattr(thread, "_target", None)
    return getattr(target, "__module__", "") == "multiprocessing.resource_sharer"


BENIGN_THREADS = (
    BenignThread(
        "tqdm's monitor",
        "one per process, started by the first progress bar; it only looks at bars",
        lambda thread: type(thread).__module__ == "tqdm._monitor",
    ),
    BenignThread(
        "native threads that have run Python code",
        "threads of a library in C++, such as those of torch's autograd, which live as long as the process",
        lambda thread: isinstance(thread, threading._DummyThread),
    ),
    BenignThread(
        "torch.compile's pool of threads",
        "one pool per process, which waits for code to compile",
        _is_compile_thread,
    ),
    BenignThread(
        "torch.compile's reader of its compile workers",
        "one per process, which waits for their answers",
        lambda thread: thread.name == "InductorSubproc",
    ),
    BenignThread(
        "multiprocessing's resource sharer",
        "one per process, which hands descriptors of shared tensors to other processes",
        _serves_resources,
    ),
)
BENIGN_CHILDREN = (
    BenignChild(
        "multiprocessing's resource tracker",
        "one per process, started with the first shared memory or spawned process; it ends with the rank",
        "from multiprocessing.resource_tracker import",
    ),
    BenignChild(
        "multiprocessing's fork server",
        "one per process, from which later children are forked; it ends with the rank",
        "from multiprocessing.forkserver import",
    ),
    BenignChild(
        "torch.compile's compile workers",
        "one pool per process, which waits for code to compile; it ends with the rank",
        "--pickler=torch._inductor.",
    ),
    BenignChild(
        "torch's manager of shared memory",
        "one per process with the sharing strategy file_system; it removes what crashed processes have left",
        "torch_shm_manager",
    ),
)


class Threads:
    """Threads of Python."""

    def read(self) -> Values:
        """Return the threads that run now."""
        return dict.fromkeys(threading.enumerate())

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Wait a moment for the new threads to end; return those that go on."""
        new = [thread for thread in now if thread not in base and not _is_benign(thread)]
        if not new or _end_in_a_moment(lambda: not any(thread.is_alive() for thread in new)):
            return []
        names = sorted(thread.name for thread in new if thread.is_alive())
        return [Leak(f"left the thread {name!r} running", REPLACED, undone=False) for name in names]


class Children:
    """Child processes of the rank."""

    def read(self) -> Values:
        """Return the pids of the children that live now."""
        return dict.fromkeys(processes.living_children())

    def undo(self, base: Values, now: Values) -> list[Leak]:  # noqa: ARG002  the children are looked at anew
        """Wait a moment for the new children to end; return those that go on."""

        def left() -> list[list[str]]:
            # Asked again and again: a child that was just started still has the command line of the rank.
            commands = [processes.command_of(pid) for pid in processes.living_children() if pid not in base]
            return [command for command in commands if not _is_benign_command(command)]

        if _end_in_a_moment(lambda: not left()):
            return []
        return [
            Leak(f"left {child} running", REPLACED, undone=False) for child in sorted(_describe(one) for one in left())
        ]


def _is_benign(thread: threading.Thread) -> bool:
    return any(benign.is_it(thread) for benign in BENIGN_THREADS)


def _is_benign_command(command: list[str]) -> bool:
    line = " ".join(command)
    return any(benign.command in line for benign in BENIGN_CHILDREN)


def _end_in_a_moment(ended: Callable[[], bool]) -> bool:
    """Wait a moment; what only a reference cycle keeps, such as the workers of a DataLoader, ends at once."""
    if ended():
        return True
    gc.collect()
    deadline = time.monotonic() + MOMENT_S
    while not ended():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _describe(command: list[str]) -> str:
    """Describe a child without its pid, so that the same one of several ranks reads the same."""
    line = " ".join(command)
    if line == " ".join(processes.command_of(os.getpid())):
        return "a child process forked from it"
    return f"the child process {line[:_LONGEST_COMMAND]!r}"
