"""The cells of the fault matrix as data: place x fault x ranks x kind, those that cannot exist with their reason."""

from __future__ import annotations

import enum
import heapq
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import pytest

SETUPS = ("session_setup", "module_setup", "function_setup")
PLACES = (*SETUPS, "call", "teardown", "between", "exit")
RANKS = ("rank0", "rank1", "all")
KINDS = ("static", "dynamic", "standalone")
# Seconds that a test with a fault that hangs may take: time to make the world, then some to hang.
LIMITS_S = {"static": 1.5, "dynamic": 1.5, "standalone": 2.5}
_LEAVE_S = 10.0  # what a rank of a world that is used once has to leave


class Effect(enum.Enum):
    """What a fault does to the process that it happens in."""

    RAISES = "an exception leaves the place"
    FAILS_SUBTEST = "a subtest fails"
    DIES = "the process ends"
    HANGS = "the process never goes on"
    HARMLESS = "the process goes on"
    STOPS_RUN = "the run is to stop"


@dataclass(frozen=True)
class Fault:
    """A fault, by the name of its function in ``injected``.

    ``shows`` are texts by which a reader knows it: of an exception, or the way in which a process ended.
    """

    name: str
    effect: Effect
    shows: tuple[str, ...] = ()


_ALL_FAULTS = (
    Fault("exception", Effect.RAISES, ("ValueError: a plain exception",)),
    Fault("unpicklable", Effect.RAISES, ("CannotBePickled: holds a lock",)),
    Fault("unrebuildable", Effect.RAISES, ("CannotBeRebuilt: first and second",)),
    Fault("unprintable", Effect.RAISES, ("CannotBePrinted",)),
    Fault("chained", Effect.RAISES, ("KeyError: 'the first reason'", "ValueError: the second reason")),
    Fault("group", Effect.RAISES, ("two reasons (2 sub-exceptions)", "ValueError: one", "TypeError: two")),
    Fault("subtest", Effect.FAILS_SUBTEST, ("ValueError: in a subtest",)),
    Fault("os_exit_0", Effect.DIES, ("exited with status 0",)),
    Fault("os_exit_3", Effect.DIES, ("exited with status 3",)),
    Fault("sys_exit_0", Effect.RAISES, ("SystemExit: 0",)),
    Fault("keyboard_interrupt", Effect.DIES, ("KeyboardInterrupt was raised",)),
    Fault("pytest_exit", Effect.STOPS_RUN, ("a test wants to stop",)),
    Fault("sigkill", Effect.DIES, ("killed by SIGKILL",)),
    Fault("sigsegv", Effect.DIES, ("killed by SIGSEGV",)),
    Fault("abort", Effect.DIES, ("killed by SIGABRT",)),
    Fault("memory_error", Effect.RAISES, ("MemoryError",)),
    Fault("out_of_memory", Effect.RAISES, ("MemoryError",)),
    Fault("hang_in_python", Effect.HANGS),
    Fault("hang_in_collective", Effect.HANGS),
    Fault("hang_with_gil", Effect.HANGS),
    Fault("hang_without_sigterm", Effect.HANGS),
    Fault("stopped", Effect.HANGS),
    Fault("closed_output", Effect.HARMLESS),
    Fault("closed_output_raises", Effect.RAISES, ("ValueError: without output",)),
    Fault("flood", Effect.HARMLESS),
    Fault("flood_raises", Effect.RAISES, ("ValueError: after a flood",)),
    Fault("grandchild_keeps_files", Effect.HARMLESS),
    Fault("grandchild_keeps_files_dies", Effect.DIES, ("killed by SIGKILL",)),
    Fault("grandchild_in_session", Effect.HARMLESS),
    Fault("fifty_children", Effect.HARMLESS),
    Fault("group_torn_down", Effect.RAISES, ("ValueError: before the group was torn down",)),
)
FAULTS = {fault.name: fault for fault in _ALL_FAULTS}
_NEEDS_GROUP = ("hang_in_collective", "group_torn_down")


@dataclass(frozen=True, order=True)
class Cell:
    """One combination; ``ranks`` are those on which the fault happens."""

    kind: str
    place: str
    fault: str
    ranks: str

    @property
    def name(self) -> str:
        """The part of the names of its tests that is its own."""
        return f"{self.kind}_{self.place}_{self.fault}_{self.ranks}"

    @property
    def launched(self) -> bool:
        """Whether its test is a standalone one that launches a second rank."""
        return self.kind == "standalone" and (self.ranks != "rank0" or self.fault in _NEEDS_GROUP)

    @property
    def effect(self) -> Effect:
        """What the fault does to the process at this place."""
        effect = FAULTS[self.fault].effect
        if self.place == "exit" and (effect in (Effect.RAISES, Effect.STOPS_RUN) or self.fault == "keyboard_interrupt"):
            return Effect.HARMLESS  # Python passes over what an exit handler raises
        if self.place == "between" and effect in (Effect.RAISES, Effect.STOPS_RUN):
            return Effect.DIES  # nobody is there to take it
        return effect

    @property
    def hit(self) -> tuple[int, ...]:
        """The ranks on which the fault happens."""
        return {"rank0": (0,), "rank1": (1,), "all": (0, 1)}[self.ranks]

    @property
    def world_size(self) -> int:
        """The number of processes that its test has in the end."""
        return 1 if self.kind == "standalone" and not self.launched else 2

    @property
    def seconds(self) -> float:
        """About how long it takes on two quiet cores."""
        begin = {"static": 0.15, "dynamic": 0.25, "standalone": 0.15}[self.kind] + 0.5 * self.launched
        if self.effect is Effect.HANGS:
            leaves = self.place == "exit" and self.kind != "static"
            return begin + (_LEAVE_S if leaves else LIMITS_S[self.kind])
        return begin + (5.0 if self.effect is Effect.STOPS_RUN else 0.0)


def why_impossible(cell: Cell) -> str:
    """Return why a cell cannot exist; an empty string if it can."""
    if cell.place == "between" and cell.kind != "static":
        return "a world that is used once has no time between two tests"
    if cell.fault == "group" and sys.version_info < (3, 11):
        return "this Python has no exception groups"
    if cell.fault == "subtest" and not hasattr(pytest, "Subtests"):
        return "this pytest has no subtests"
    if cell.fault == "subtest" and cell.place in ("session_setup", "module_setup"):
        return "the fixture subtests has the scope of a test"
    if cell.fault == "subtest" and cell.place in ("between", "exit"):
        return "no test is there that a subtest could belong to"
    if cell.fault == "hang_in_collective" and cell.place == "exit" and cell.ranks != "all":
        return "a peer that does not wait leaves, which breaks the collective off"
    return _why_impossible_standalone(cell) if cell.kind == "standalone" else ""


def _why_impossible_standalone(cell: Cell) -> str:
    if cell.place in SETUPS and cell.fault in _NEEDS_GROUP:
        return "a standalone test has no process group before its body launches ranks"
    if cell.place in SETUPS and cell.ranks == "all":
        return "a second rank is launched by the body, which is not reached when rank 0 fails before it"
    return ""


ALL = tuple(
    Cell(kind, place, fault, ranks) for kind, place, fault, ranks in itertools.product(KINDS, PLACES, FAULTS, RANKS)
)
VALID = tuple(cell for cell in ALL if not why_impossible(cell))
IMPOSSIBLE = {cell: reason for cell in ALL if (reason := why_impossible(cell))}

Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(cell: Cell) -> frozenset[Pair]:
    """Return all pairs of values of a cell: (place, fault), (place, ranks) and so on."""
    values = [(field.name, str(getattr(cell, field.name))) for field in fields(cell)]
    return frozenset(itertools.combinations(values, 2))


def pairwise(cells: Iterable[Cell]) -> list[Cell]:
    """Return few and quick cells that cover every pair of values that any of ``cells`` has."""
    pairs = {cell: pairs_of(cell) for cell in cells}
    uncovered = set().union(*pairs.values())
    chosen = []
    heap = [(cell.seconds / len(pairs[cell]), cell) for cell in pairs]
    heapq.heapify(heap)
    while uncovered:
        _, cell = heapq.heappop(heap)
        new = pairs[cell] & uncovered
        price = cell.seconds / len(new) if new else float("inf")
        if heap and price > heap[0][0]:  # it has become dearer since it was put in
            heapq.heappush(heap, (price, cell))
            continue
        uncovered -= new
        chosen.append(cell)
    return chosen


def split(cells: Sequence[Cell], seconds: float) -> list[list[Cell]]:
    """Return groups of cells for one run each: of one kind, of about ``seconds``; what stops its run is alone."""
    alone = [[cell] for cell in cells if cell.effect is Effect.STOPS_RUN]
    groups: list[list[Cell]] = []
    for kind in KINDS:
        left = [cell for cell in cells if cell.kind == kind and cell.effect is not Effect.STOPS_RUN]
        count = max(1, round(sum(cell.seconds for cell in left) / seconds))
        groups += [group for start in range(count) if (group := left[start::count])]
    return groups + alone
