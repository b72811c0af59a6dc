"""What must hold in the controller before it is forked: no native thread pool, no device in use.

Traps (measured; design notes in docs/explanation/how-it-works.md): after any OpenMP region in the parent, the first
one in a forked child hangs for ever; CUDA can not be used in a child once the parent has touched it; neither can XLA.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine.context import current_rank
from lightning_disttest.errors import UnsafeFork
from lightning_disttest.imports import when_imported

if TYPE_CHECKING:
    from types import ModuleType

_CANARY_S = 2
_OPEN_FILES = "/proc/self/fd"
_CANARY_NUMBERS = 1_000_000


class _TorchThreads:
    """Keeps torch at one intra-op thread from its import to the fork, so that no OpenMP pool exists at the fork.

    Not done by OMP_NUM_THREADS: that would pin numpy's BLAS for ever and leak into subprocesses. A number that the
    suite sets meanwhile (a conftest with ``torch.set_num_threads(1)``) is kept and holds from the fork on.
    """

    def __init__(self) -> None:
        self._held = False
        self._default: int | None = None
        self._chosen: int | None = None
        self._share: int | None = None
        self._setter: Any = None
        self._getter: Any = None

    def hold(self) -> None:
        """Hold torch at one thread, now or as soon as it is imported."""
        self._held = True
        self._apply_if_imported()

    def release(self, share: int | None) -> None:
        """Let torch have the number that the suite chose, else ``share``, else its own."""
        self._held = False
        self._share = share
        self._apply_if_imported()

    def apply(self, torch: ModuleType) -> None:
        """Set the threads of torch, which was just imported or is to be changed."""
        module: Any = torch
        if self._setter is None:
            self._setter, self._getter = module.set_num_threads, module.get_num_threads
        if self._held and module.set_num_threads != self._choose:
            self._chosen, self._default = None, self._getter()
            module.set_num_threads, module.get_num_threads = self._choose, self._tell
            self._setter(1)
        elif not self._held and module.set_num_threads == self._choose:
            module.set_num_threads, module.get_num_threads = self._setter, self._getter
            self._setter(self._chosen or self._share or self._default)

    def _apply_if_imported(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_num_threads"):
            self.apply(torch)

    def _choose(self, number: int) -> None:
        """Stand in for ``torch.set_num_threads`` while torch is held, and for who has imported that name for ever."""
        if self._held:
            self._chosen = number
        else:
            self._setter(number)

    def _tell(self) -> int:
        """Stand in for ``torch.get_num_threads``: tell what will hold, for who asks while torch is held."""
        return int((self._held and (self._chosen or self._default)) or self._getter())


_threads = _TorchThreads()


def watch_torch() -> None:
    """Hold torch at one thread until ``release_torch``, and keep its CUDA check away from the driver."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    _threads.hold()
    when_imported("torch", _threads.apply)


def release_torch() -> None:
    """Give torch its own number of threads back, after the fork or when there will be none."""
    _threads.release(None)


def use_threads_of_rank(world_size: int) -> None:
    """Share the cores among the ranks of a world: each gets cores // ranks threads, and at least one."""
    cores = len(os.sched_getaffinity(0))
    _threads.release(max(1, cores // world_size) if world_size > 1 else None)


class CollectionWatch:
    """Notes which test modules started native threads or opened a GPU while they were imported."""

    def __init__(self) -> None:
        self._before: tuple[int, bool] = (0, False)
        self.culprits: list[str] = []

    def begin(self) -> None:
        """Called before a module is collected."""
        self._before = _native_threads(), gpu_is_open()

    def end(self, nodeid: str) -> None:
        """Called after a module was collected."""
        threads, gpu = self._before
        if _native_threads() > threads or (gpu_is_open() and not gpu):
            self.culprits.append(nodeid)


def check_fork(culprits: list[str]) -> None:
    """Check that this process can be forked and its children can compute.

    Raises:
        UnsafeFork: if not; the text says why and names the test modules that are to blame, if they are known.
    """
    if sys.platform != "linux":
        raise UnsafeFork(f"forking ranks is known to be safe on Linux only, and this is {sys.platform}", None)
    torch = sys.modules.get("torch")
    if torch is None:
        return
    _check_groups(torch, culprits)
    if gpu_is_open():
        raise UnsafeFork("it has opened a GPU, which a forked process cannot use", culprits)
    if _xla_is_initialized():
        raise UnsafeFork("it has initialised the XLA runtime, which a forked process cannot use", culprits)
    try:
        ended = _run_canary(torch)
    except OSError as error:
        raise UnsafeFork(f"a trial fork of it failed ({error})", None) from error
    if ended != "exited with status 0":
        hint = "; it hung, because a thread pool was running" if "SIGALRM" in ended else ""
        raise UnsafeFork(f"a trial fork of it failed in its first parallel computation ({ended}{hint})", culprits)


def _check_groups(torch: Any, culprits: list[str]) -> None:
    rank = current_rank()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if rank is None:
        raise UnsafeFork("it has joined a process group, which ranks would inherit", culprits)
    advice = "run the inner pytest in a process of its own (runpytest_subprocess), or mark the outer test standalone"
    raise UnsafeFork(f"it is a rank of {rank.nodeid} and has joined its process group; {advice}", None)


def gpu_is_open() -> bool:
    """Tell whether this process holds an NVIDIA device open; no module can have done that without torch.

    Asked twice for each test module, so it has to cost nothing in suites that have no torch.
    """
    return "torch" in sys.modules and any(target.startswith("/dev/nvidia") for target in _open_files())


def _run_canary(torch: ModuleType) -> str:
    """Fork a child that runs one parallel region under an alarm; return how it ended."""
    from lightning_disttest.engine import processes

    def main() -> int:
        module: Any = torch
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_CANARY_S)
        _threads.release(None)
        module.set_num_threads(max(2, len(os.sched_getaffinity(0))))
        module.ones(_CANARY_NUMBERS).sum()
        return 0

    status = processes.end_child(processes.fork(main), _CANARY_S + 3)
    return "did not end" if status is None else processes.describe_status(status)


def _xla_is_initialized() -> bool:
    xla: Any = sys.modules.get("torch_xla")
    return xla is not None and bool(xla._XLAC._xla_runtime_is_initialized())


def _native_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208  ten times cheaper than Path.iterdir
    except OSError:
        return 0


def _open_files() -> list[str]:
    targets = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(_OPEN_FILES):  # noqa: PTH208  run for each test module, so it has to be cheap
            with contextlib.suppress(OSError):  # closed meanwhile: the descriptor of the directory itself always is
                targets.append(os.readlink(f"{_OPEN_FILES}/{entry}"))  # noqa: PTH115
    return targets
