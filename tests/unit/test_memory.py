"""When a world has outgrown its limit: what is compared, and how seldom anybody looks."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from lightning_disttest.engine import memory, processes
from lightning_disttest.engine.memory import MIB, MemoryWatch


class Memory:
    """Stands for the memory of processes; counts how often it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of = {1: 100 * MIB, 2: 100 * MIB}
        self.looks = 0
        self.now = 0.0
        monkeypatch.setattr(processes, "private_memory", self._look)
        monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _look(self, pid: int) -> int:
        self.looks += 1
        return self.of[pid]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Return the memory of two ranks."""
    return Memory(monkeypatch)


def run_tests(watch: MemoryWatch, number: int, limit: float = 50.0) -> list[bool]:
    """Let so many tests end; return what the watch says after each."""
    return [watch.has_outgrown((1, 2), limit) for _ in range(number)]


def test_growth_of_one_rank_is_found(ranks: Memory) -> None:
    """The growth is that since the first test, of any rank, and more than the limit."""
    watch = MemoryWatch()
    assert run_tests(watch, 1) == [False]
    ranks.of[2] += 51 * MIB
    assert run_tests(watch, 7) == [False] * 6 + [True]


def test_growth_up_to_the_limit_is_allowed(ranks: Memory) -> None:
    """Neither memory that was there at the end of the first test counts, nor a growth of just the limit."""
    watch = MemoryWatch()
    run_tests(watch, 1)
    ranks.of[1] += 50 * MIB
    assert run_tests(watch, 40) == [False] * 40


def test_nobody_looks_after_each_test(ranks: Memory) -> None:
    """Forty quick tests cost six looks at each rank: after the first, and after every eighth."""
    run_tests(MemoryWatch(), 40)
    assert ranks.looks == 6 * 2


def test_long_tests_are_looked_at(ranks: Memory) -> None:
    """After a second without a look comes one, so that a few big tests cannot go unseen."""
    watch = MemoryWatch()
    run_tests(watch, 1)
    ranks.of[1] += 51 * MIB
    assert run_tests(watch, 1) == [False]
    ranks.now = 1.0
    assert run_tests(watch, 1) == [True]


def test_without_limit_nobody_looks(ranks: Memory) -> None:
    """With 0 there is no limit, and no look."""
    watch = MemoryWatch()
    run_tests(watch, 1, limit=0)
    ranks.of[1] *= 100
    assert run_tests(watch, 16, limit=0) == [False] * 16
    assert ranks.looks == 0


def test_private_memory_is_that_of_the_process() -> None:
    """What a process keeps shows; a process that is gone has none."""
    before = processes.private_memory(os.getpid())
    kept = b"x" * (64 * MIB)
    assert 60 * MIB < processes.private_memory(os.getpid()) - before < 100 * MIB
    assert len(kept) == 64 * MIB
    assert processes.private_memory(2**22 + 1) == 0
