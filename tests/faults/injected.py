"""The faults themselves. A copy of this module lies beside the generated tests, which import it."""

from __future__ import annotations

import builtins
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

HERE = Path(__file__).parent
_TICK_S = 0.01
_MEGABYTE = 1 << 20
_KEPT: list[object] = []


def act(cell: str, fault: str, ranks: str, subtests: Any = None) -> None:
    """Do the fault on the ranks that it is for, when all have come here; the others wait for them."""
    meet()
    act_alone(cell, fault, ranks, subtests)
    if fault != "hang_in_collective":
        meet()


def act_alone(cell: str, fault: str, ranks: str, subtests: Any = None) -> None:
    """Do the fault on the ranks that it is for, whatever the others do."""
    if ranks not in (f"rank{_rank()}", "all"):
        return
    begin(cell)
    if fault == "hang_in_collective" and (ranks == "all" or "between" in cell):
        hang_in_receive()
    elif fault == "subtest":
        subtest(subtests)
    else:
        FAULTS[fault]()


def act_between_tests(cell: str, fault: str, ranks: str) -> None:
    """Leave a timer that does the fault in the main thread once the controller says that the test is over."""

    def handle(*_: object) -> None:
        if (HERE / f"go-{cell}").exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            act_alone(cell, fault, ranks)
            (HERE / f"done-{cell}-{_rank()}").touch()

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)


def begin(cell: str) -> None:
    """Note the process in which a fault happens, and say so."""
    print(f"last words of rank {_rank()}", flush=True)  # noqa: T201
    new = HERE / f"new-{cell}-{_rank()}"
    new.write_text(str(os.getpid()))
    new.rename(HERE / f"begun-{cell}-{_rank()}")


def meet() -> None:
    """Wait for the other ranks, where there is a group."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


def launch() -> None:
    """Launch a second rank of this test."""
    from lightning.fabric import Fabric

    Fabric(strategy="ddp", devices=2, accelerator="cpu").launch()


def _rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


class CannotBePickled(Exception):
    """Holds a lock, which cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class CannotBeRebuilt(Exception):
    """Takes other arguments than ``args`` has."""

    def __init__(self, first: str, *, second: str) -> None:
        super().__init__(f"{first} and {second}")


class CannotBePrinted(Exception):
    """Raises when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def exception() -> NoReturn:
    """Raise."""
    raise ValueError("a plain exception")


def unpicklable() -> NoReturn:
    """Raise what cannot be pickled."""
    raise CannotBePickled


def unrebuildable() -> NoReturn:
    """Raise what cannot be made again from its ``args``."""
    raise CannotBeRebuilt("first", second="second")


def unprintable() -> NoReturn:
    """Raise what cannot be shown."""
    raise CannotBePrinted


def chained() -> NoReturn:
    """Raise one exception from another."""
    try:
        raise KeyError("the first reason")
    except KeyError as first:
        raise ValueError("the second reason") from first


def group() -> NoReturn:
    """Raise a group of exceptions."""
    raise vars(builtins)["ExceptionGroup"]("two reasons", [ValueError("one"), TypeError("two")])


def subtest(subtests: Any) -> None:
    """Fail a subtest; the test goes on."""
    with subtests.test("part"):
        raise ValueError("in a subtest")


def os_exit_0() -> NoReturn:
    """Leave as if all was well."""
    os._exit(0)


def os_exit_3() -> NoReturn:
    """Leave with a status."""
    os._exit(3)


def sys_exit_0() -> NoReturn:
    """Leave in Python's way."""
    sys.exit(0)


def keyboard_interrupt() -> NoReturn:
    """Interrupt."""
    raise KeyboardInterrupt


def pytest_exit() -> NoReturn:
    """Stop the run."""
    pytest.exit("a test wants to stop", returncode=9)


def sigkill() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def sigsegv() -> None:
    """Read address 0."""
    ctypes.string_at(0)


def abort() -> NoReturn:
    """Abort as a failed assertion in C does."""
    os.abort()


def memory_error() -> None:
    """Ask for more memory than there is."""
    _limit_memory()
    bytearray(1024 * _MEGABYTE)


def out_of_memory() -> NoReturn:
    """Fill the little memory that is left, and keep it: none is left to tell of it."""
    _limit_memory()
    eaten = []
    while True:
        eaten.append(bytearray(_MEGABYTE))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 64 * _MEGABYTE, hard))


def hang_in_python() -> None:
    """Wait for ever, in Python."""
    threading.Event().wait()


def hang_in_collective() -> None:
    """Wait in a barrier that the other ranks pass by."""
    import torch.distributed as dist

    dist.barrier()


def hang_in_receive() -> None:
    """Wait for what the other rank never sends."""
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=1 - _rank())


def hang_with_gil() -> None:
    """Wait for ever in C, without letting Python go on."""
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def hang_without_sigterm() -> None:
    """Wait for ever and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def stopped() -> None:
    """Be stopped, as by Ctrl-Z."""
    os.kill(os.getpid(), signal.SIGSTOP)


def closed_output() -> None:
    """Close standard output and error, and go on."""
    os.close(1)
    os.close(2)


def closed_output_raises() -> NoReturn:
    """Close standard output and error, then raise."""
    closed_output()
    raise ValueError("without output")


def flood() -> None:
    """Write megabytes, and go on."""
    for _ in range(32):
        os.write(1, b"x" * (1 << 16))
        os.write(2, b"y" * (1 << 16))


def flood_raises() -> NoReturn:
    """Write megabytes, then raise."""
    flood()
    raise ValueError("after a flood")


def grandchild_keeps_files() -> None:
    """Leave a child that keeps every descriptor of the rank open."""
    if os.fork() == 0:
        while True:
            signal.pause()


def grandchild_keeps_files_dies() -> None:
    """Leave a child that keeps every descriptor open, then be killed."""
    grandchild_keeps_files()
    sigkill()


def grandchild_in_session() -> None:
    """Leave a child in a session of its own."""
    _KEPT.append(subprocess.Popen(["sleep", "600"], start_new_session=True))


def fifty_children() -> None:
    """Leave fifty children."""
    for _ in range(50):
        _KEPT.append(subprocess.Popen(["sleep", "600"]))


def group_torn_down() -> NoReturn:
    """Tear the process group down before the exception is out: the peers' errors are heard first."""
    import torch.distributed as dist

    try:
        raise ValueError("before the group was torn down")
    finally:
        dist.destroy_process_group()


FAULTS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        exception,
        unpicklable,
        unrebuildable,
        unprintable,
        chained,
        group,
        os_exit_0,
        os_exit_3,
        sys_exit_0,
        keyboard_interrupt,
        pytest_exit,
        sigkill,
        sigsegv,
        abort,
        memory_error,
        out_of_memory,
        hang_in_python,
        hang_in_collective,
        hang_with_gil,
        hang_without_sigterm,
        stopped,
        closed_output,
        closed_output_raises,
        flood,
        flood_raises,
        grandchild_keeps_files,
        grandchild_keeps_files_dies,
        grandchild_in_session,
        fifty_children,
        group_torn_down,
    )
}
