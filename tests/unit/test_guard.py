"""What must hold before a fork, and what happens when it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine import guard
from lightning_disttest.errors import UnsafeFork

if TYPE_CHECKING:
    from collections.abc import Callable

CULPRITS = ["tests/test_first.py", "tests/test_second.py"]
LIMIT_S = 100


class FakeTorch:
    """What the guard uses of torch: the number of threads, one computation, and whether there is a group."""

    def __init__(self, compute: Callable[[], object] = lambda: None) -> None:
        self._compute = compute
        self.threads = 7
        self.has_distributed = True
        self.has_group = False
        self.distributed = SimpleNamespace(
            is_available=lambda: self.has_distributed, is_initialized=lambda: self.has_group
        )

    def get_num_threads(self) -> int:
        """Return the number of threads."""
        return self.threads

    def set_num_threads(self, number: int) -> None:
        """Set the number of threads."""
        self.threads = number

    def ones(self, size: int) -> Any:
        """Return what can be summed."""
        return SimpleNamespace(sum=self._compute)


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Put a torch that only pretends in the place of the real one."""
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


class Arrival:
    """A torch that is not there yet, for a guard that has not seen any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch = FakeTorch()
        self._monkeypatch = monkeypatch
        self._callbacks: list[Callable[[Any], None]] = []
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        monkeypatch.setattr(guard, "_threads", guard._TorchThreads())
        monkeypatch.setattr(guard, "when_imported", self._watch)

    def arrive(self) -> None:
        """Import it."""
        self._monkeypatch.setitem(sys.modules, "torch", self.torch)
        for callback in self._callbacks:
            callback(self.torch)

    def _watch(self, name: str, callback: Callable[[Any], None]) -> None:
        assert name == "torch"
        self._callbacks.append(callback)
        if "torch" in sys.modules:
            callback(self.torch)


@pytest.fixture
def arrival(monkeypatch: pytest.MonkeyPatch) -> Arrival:
    """Return a torch that can be imported at a moment of the test's choice."""
    return Arrival(monkeypatch)


def run_program(code: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The canary, with the real torch.

CANARY = """
from lightning_disttest.engine import guard
from lightning_disttest.errors import UnsafeFork

{before}
import torch
torch.ones(1_000_000).sum()
{after}
try:
    guard.check_fork(["tests/test_culprit.py"])
except UnsafeFork as error:
    print(error)
else:
    print("safe with", torch.get_num_threads())
"""


def test_running_thread_pool_is_found_by_a_trial_fork() -> None:
    """After a parallel region in this process, a trial fork hangs, is ended, and the culprit is named."""
    said = run_program(CANARY.format(before="", after="torch.set_num_threads(2); torch.ones(1_000_000).sum()"))

    assert said.startswith(
        "ranks cannot be forked from this process: a trial fork of it failed in its first parallel computation "
        "(killed by SIGALRM; it hung, because a thread pool was running).\n"
    )
    assert "It happened while tests/test_culprit.py was collected." in said


def test_watched_torch_can_be_forked() -> None:
    """Held at one thread since its import, torch starts no pool, and a fork is safe."""
    said = run_program(CANARY.format(before="guard.watch_torch()", after=""))

    assert said.startswith("safe with ")  # the number that will hold, not the one that holds now


# The checks, with a torch that only pretends.


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_unsafe(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Where forking was never shown to be safe, it is not tried; the text names the system."""
    monkeypatch.setattr(sys, "platform", platform)

    with pytest.raises(UnsafeFork, match=f"safe on Linux only, and this is {platform}") as caught:
        guard.check_fork(CULPRITS)

    assert "test_first.py" not in str(caught.value)
    assert "Move that work" not in str(caught.value)


def test_process_without_torch_can_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch there is nothing that a fork could break, and nothing is tried."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("lightning_disttest.engine.processes.fork", lambda _main: pytest.fail("it forked"))

    guard.check_fork(CULPRITS)


def test_trial_fork_that_computes_is_enough(fake_torch: FakeTorch) -> None:
    """A child that ends its computation proves that the fork is safe."""
    guard.check_fork(CULPRITS)


def test_trial_fork_that_crashes_is_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that crashes in its computation is named with its signal, and is not said to have hung."""
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(lambda: signal.raise_signal(signal.SIGKILL)))

    with pytest.raises(UnsafeFork, match=r"first parallel computation \(killed by SIGKILL\)\."):
        guard.check_fork(CULPRITS)


def test_trial_fork_that_can_not_be_made_blames_nobody(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without room for another process is told as such; no module can be moved to mend that."""

    def fork(_main: Callable[[], int]) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("lightning_disttest.engine.processes.fork", fork)

    with pytest.raises(UnsafeFork, match=r"a trial fork of it failed \(.*Resource temporarily unavailable\)\.$"):
        guard.check_fork(CULPRITS)


def test_trial_fork_with_many_threads_leaves_this_process_alone(fake_torch: FakeTorch) -> None:
    """The number of threads is raised in the child only."""
    guard.check_fork(CULPRITS)

    assert fake_torch.threads == 7


def test_process_group_is_unsafe(fake_torch: FakeTorch) -> None:
    """Ranks would inherit a group that a conftest or module has joined; the modules that may have done it are named."""
    fake_torch.has_group = True

    with pytest.raises(UnsafeFork) as caught:
        guard.check_fork(CULPRITS)

    assert str(caught.value) == str(UnsafeFork("it has joined a process group, which ranks would inherit", CULPRITS))


def test_rank_with_a_group_is_unsafe(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest inside of a distributed test is told so, with what to do; no module of its own is to blame."""
    fake_torch.has_group = True
    monkeypatch.setattr(guard, "current_rank", lambda: SimpleNamespace(nodeid="t.py::outer"))

    with pytest.raises(UnsafeFork) as caught:
        guard.check_fork(CULPRITS)

    reason = (
        "it is a rank of t.py::outer and has joined its process group; run the inner pytest in a process of its own "
        "(runpytest_subprocess), or mark the outer test standalone"
    )
    assert str(caught.value) == str(UnsafeFork(reason, None))


@pytest.mark.parametrize("is_rank", [True, False])
def test_process_without_a_group_is_safe(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, is_rank: bool) -> None:
    """A standalone test may run pytest inside; and torch may have been built without distributed."""
    monkeypatch.setattr(guard, "current_rank", lambda: SimpleNamespace(nodeid="t.py::outer") if is_rank else None)
    guard.check_fork(CULPRITS)

    fake_torch.has_group, fake_torch.has_distributed = True, False

    guard.check_fork(CULPRITS)


def test_open_gpu_is_unsafe(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has opened a GPU is not forked, and the culprits are named."""
    monkeypatch.setattr(guard, "_open_files", lambda: ["/dev/null", "/dev/nvidia0"])

    with pytest.raises(UnsafeFork, match="it has opened a GPU, which a forked process cannot use") as caught:
        guard.check_fork(CULPRITS)

    assert "while tests/test_first.py, tests/test_second.py was collected" in str(caught.value)


@pytest.mark.parametrize("initialized", [True, False])
def test_initialised_xla_is_unsafe(fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    """An imported XLA is harmless; one whose runtime was started is not."""
    extension = SimpleNamespace(_xla_runtime_is_initialized=lambda: initialized)
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace(_XLAC=extension))

    if not initialized:
        guard.check_fork(CULPRITS)
        return
    with pytest.raises(UnsafeFork, match="initialised the XLA runtime"):
        guard.check_fork(CULPRITS)


def test_only_devices_of_nvidia_are_a_gpu(tmp_path: Path) -> None:
    """Files that happen to be named like a device are none."""
    (tmp_path / "nvidia0").touch()

    with (tmp_path / "nvidia0").open():
        assert str(tmp_path / "nvidia0") in guard._open_files()
        assert guard.gpu_is_open() == any(
            os.path.realpath(entry).startswith("/dev/nvidia") for entry in Path("/proc/self/fd").iterdir()
        )


# Threads of torch.


def test_torch_is_held_at_one_thread_and_released(arrival: Arrival) -> None:
    """From its import to the fork torch has one thread, afterwards its own number again."""
    guard.watch_torch()
    arrival.arrive()
    held = arrival.torch.threads
    guard.release_torch()

    assert (held, arrival.torch.threads) == (1, 7)


def test_torch_that_was_there_before_gets_its_number_back(arrival: Arrival) -> None:
    """In a process that imported torch before it called pytest, its number of threads is restored as well."""
    arrival.arrive()
    guard.watch_torch()
    held = arrival.torch.threads
    guard.release_torch()

    assert (held, arrival.torch.threads) == (1, 7)


def test_torch_that_is_imported_after_the_release_keeps_its_number(arrival: Arrival) -> None:
    """If torch comes late, it is left alone."""
    guard.watch_torch()
    guard.release_torch()
    arrival.arrive()

    assert arrival.torch.threads == 7


@pytest.mark.parametrize("release", ["controller", "rank"])
def test_number_that_the_suite_chose_is_kept(arrival: Arrival, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    """A conftest's ``torch.set_num_threads`` starts no pool before the fork, and holds after it and in every rank."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    guard.watch_torch()
    arrival.arrive()
    arrival.torch.set_num_threads(3)
    held = arrival.torch.threads

    if release == "controller":
        guard.release_torch()
    else:
        guard.use_threads_of_rank(2)

    assert (held, arrival.torch.threads) == (1, 3)


def test_last_number_that_the_suite_chose_counts(arrival: Arrival) -> None:
    """Of several calls before the fork the last one holds, as it would without the plugin."""
    guard.watch_torch()
    arrival.arrive()
    for number in (3, 5):
        arrival.torch.set_num_threads(number)
    guard.release_torch()

    assert arrival.torch.threads == 5


def test_torch_can_be_changed_after_the_release(arrival: Arrival) -> None:
    """After the fork ``torch.set_num_threads`` is torch's own again, in this process and in a rank."""
    genuine = arrival.torch.set_num_threads
    guard.watch_torch()
    arrival.arrive()
    stand_in = arrival.torch.set_num_threads
    guard.release_torch()

    arrival.torch.set_num_threads(2)

    assert stand_in != genuine
    assert arrival.torch.set_num_threads == genuine
    assert arrival.torch.threads == 2


def test_half_imported_torch_is_left_alone(arrival: Arrival, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch whose import has not come to its threads yet, or failed, stops neither the hold nor the release."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    threads = guard._TorchThreads()

    threads.hold()
    threads.release(None)


def test_cuda_is_looked_for_without_its_driver(arrival: Arrival, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is told to count GPUs in a way that does not touch them, unless the user said otherwise."""
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK")
    guard.watch_torch()
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"

    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    guard.watch_torch()
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "0"


@pytest.mark.parametrize(("cores", "world_size", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1), (2, 2, 1), (8, 1, 7)])
def test_ranks_share_the_cores(
    arrival: Arrival, monkeypatch: pytest.MonkeyPatch, cores: int, world_size: int, threads: int
) -> None:
    """Each rank of a world gets its share of the cores, at least one; a world of one has torch's own number."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    guard.watch_torch()
    arrival.arrive()

    guard.use_threads_of_rank(world_size)

    assert arrival.torch.threads == threads


# Who did it.


def test_module_that_starts_threads_is_a_culprit() -> None:
    """A module during whose collection threads were started is noted; others are not."""
    watch = guard.CollectionWatch()
    watch.begin()
    watch.end("harmless.py")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)

    watch.begin()
    thread.start()
    watch.end("culprit.py")
    stop.set()
    thread.join()
    watch.begin()
    watch.end("late.py")

    assert watch.culprits == ["culprit.py"]


def test_module_that_opens_a_gpu_is_a_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the module that opened the GPU is noted, not those that are collected while it is open."""
    is_open = False
    monkeypatch.setattr(guard, "gpu_is_open", lambda: is_open)
    watch = guard.CollectionWatch()

    watch.begin()
    is_open = True
    watch.end("culprit.py")
    watch.begin()
    watch.end("late.py")

    assert watch.culprits == ["culprit.py"]


def test_a_pool_that_ran_before_torch_was_held_is_found() -> None:
    """A caller that has started torch's thread pool before pytest began is told that ranks cannot be forked."""
    script = (
        "import torch; torch.set_num_threads(2); torch.ones(1_000_000).sum()\n"
        "from lightning_disttest.engine import guard\n"
        "guard.watch_torch()\n"
        "guard.check_fork(['test_a.py'])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "it hung, because a thread pool was running" in result.stderr


def test_an_imported_setter_works_after_the_release() -> None:
    """A module that imported the name set_num_threads while torch was held can use it for ever."""
    script = (
        "from lightning_disttest.engine import guard\n"
        "guard.watch_torch()\n"
        "from torch import get_num_threads, set_num_threads\n"
        "guard.release_torch()\n"
        "set_num_threads(1)\n"
        "print(get_num_threads())\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "1\n"
