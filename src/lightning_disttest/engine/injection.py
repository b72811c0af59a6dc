"""Faults that a test plans for its ranks: what happens, on which ranks and when; knows nothing of Lightning."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightning_disttest.engine import processes
from lightning_disttest.engine.context import default_group, own_rank
from lightning_disttest.engine.messages import FaultAnnounced
from lightning_disttest.errors import FaultMisused, FaultRefused
from lightning_disttest.reporting.stories import name_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

_HAPPENED = "happened"
_ENDED = "ended"


class Action(Protocol):
    """What a fault does to its process."""

    @property
    def name(self) -> str:
        """The method of ``faults`` that plans it."""

    @property
    def text(self) -> str:
        """What it does, in words."""

    @property
    def harm(self) -> str:
        """What it would do to pytest, as a verb; empty for what pytest survives."""

    @property
    def is_end(self) -> bool:
        """Whether its process does not go on after it."""

    @property
    def lets_others_go_on(self) -> bool:
        """Whether a launcher, which ends its processes when one fails, has no reason to."""

    @property
    def exit_code(self) -> int | None:
        """How the process ends, if it does; None if it is stopped."""

    def perform(self) -> None:
        """Do it, to this process."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Sends a signal to the process."""

    signum: int
    name: str = "kill"
    harm: str = "kill"
    is_end: bool = True
    lets_others_go_on: bool = False

    @property
    def text(self) -> str:
        """The name of the signal."""
        with contextlib.suppress(ValueError):
            return signal.Signals(self.signum).name
        return f"signal {self.signum}"

    @property
    def exit_code(self) -> int | None:
        """The signal as a negative number."""
        return -self.signum

    def perform(self) -> None:
        """Send the signal; one for which the process has a handler does not end it."""
        processes.signal_process(os.getpid(), self.signum)


@dataclass(frozen=True, slots=True)
class Exit:
    """Leaves by ``os._exit``."""

    status: int
    name: str = "exit"
    harm: str = "end"
    is_end: bool = True
    lets_others_go_on: bool = False

    @property
    def text(self) -> str:
        """The status in words."""
        return f"exit with status {self.status}"

    @property
    def exit_code(self) -> int | None:
        """The status."""
        return self.status

    def perform(self) -> None:
        """Leave."""
        os._exit(self.status)


@dataclass(frozen=True, slots=True)
class Stop:
    """Stops the process, for ever or for some seconds."""

    seconds: float | None
    name: str = "stop"
    harm: str = "stop"
    exit_code: int | None = None

    @property
    def text(self) -> str:
        """The signal, and for how long."""
        return "SIGSTOP" if self.seconds is None else f"SIGSTOP for {self.seconds:g} s"

    @property
    def is_end(self) -> bool:
        """Whether it is for ever."""
        return self.seconds is None

    @property
    def lets_others_go_on(self) -> bool:
        """Whether it goes on as well."""
        return self.seconds is not None

    def perform(self) -> None:
        """Stop."""
        processes.stop_here(self.seconds)


@dataclass(frozen=True, slots=True)
class Delay:
    """Sleeps."""

    seconds: float
    name: str = "delay"
    harm: str = ""
    is_end: bool = False
    lets_others_go_on: bool = True
    exit_code: int | None = None

    @property
    def text(self) -> str:
        """How long it takes."""
        return f"delay of {self.seconds:g} s"

    def perform(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Throw:
    """Raises an exception, given as an instance or a class."""

    error: BaseException | type[BaseException]
    name: str = "error"
    harm: str = ""
    is_end: bool = False
    lets_others_go_on: bool = False
    exit_code: int | None = None

    @property
    def text(self) -> str:
        """The name of the class."""
        return (self.error if isinstance(self.error, type) else type(self.error)).__name__

    def perform(self) -> None:
        """Raise it."""
        __tracebackhide__ = True
        raise self.error


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen, on which ranks (None: all of them), from which step on, in which hook."""

    action: Action
    ranks: tuple[int, ...] | None
    step: int | None
    hook: str | None

    def __str__(self) -> str:
        ranks: object = "all" if self.ranks is None else list(self.ranks)
        if self.ranks is not None and len(self.ranks) == 1:
            ranks = self.ranks[0]
        given = [("rank", ranks), ("step", self.step), ("hook", self.hook)]
        arguments = ", ".join(f"{name}={value!r}" for name, value in given if value is not None)
        return f"{self.action.name}({arguments})"

    def concerns(self, rank: int) -> bool:
        """Tell whether it is planned for this rank."""
        return self.ranks is None or rank in self.ranks

    def is_due(self, step: int | None, hook: str | None) -> bool:
        """Tell whether now, at this step and in this hook, is the time; None is what is not known, or no hook."""
        if self.hook is not None and hook != self.hook:
            return False
        return self.step is None or (step is not None and step >= self.step)

    def describe(self, rank: int, step: int | None, hook: str | None) -> str:
        """Return what happens on a rank, and where: ``SIGKILL on rank 1 at step 3``."""
        where = f" in {hook}" if self.hook is not None else ""
        when = f" at step {step}" if self.step is not None else ""
        return f"{self.action.text} on rank {rank}{where}{when}"


class Fault:
    """A fault that is planned: happens once in each process of its ranks.

    ``number`` tells it from the other faults of its test. In ``folder`` it leaves word of what has happened, also in
    processes that a Trainer has launched.
    """

    def __init__(self, plan: Plan, number: int, folder: str, planner: int) -> None:
        self._plan = plan
        self._number = number
        self._folder = folder
        self._planner = planner  # the process that runs the test; others were launched from it
        self._happened_in: int | None = None
        self._step: int | None = None
        self._took_part_as: tuple[int, int] | None = None  # rank, and number of ranks, of the planning process

    @property
    def plan(self) -> Plan:
        """What is planned."""
        return self._plan

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"_happened_in": self._happened_in}
        return Fault, (self._plan, self._number, self._folder, self._planner), state

    def __repr__(self) -> str:
        return f"<fault {self._plan}>"

    def reach(self, *, step: int | None = None, hook: str | None = None) -> None:
        """Say where a loop is: it has come to this step, or to a place of this name, or both.

        For loops without a Trainer. A fault with a step happens at the first call with that step or a later one; with
        a hook as well, at the first call with the hook after that. A fault may end this process here, stop or delay
        it, or raise its exception.

        Raises:
            FaultMisused: without step and hook.
            FaultRefused: if the fault would end or stop pytest itself.
        """
        __tracebackhide__ = True
        if step is None and hook is None:
            raise FaultMisused("reach() needs step=, hook= or both: where is the loop?")
        self._come_to(step, hook, find_rank(None))

    def _come_to(self, step: int | None, hook: str | None, rank: int) -> None:
        __tracebackhide__ = True
        self._step = step if step is not None else self._step
        self._take_part(rank)
        if not self._plan.concerns(rank) or self._happened_in == os.getpid():
            return
        if self._plan.is_due(self._step, hook):
            self._refuse_in_pytest()
            self._happened_in = os.getpid()
            self._note(_HAPPENED, rank)
            self._announce(self._plan.describe(rank, self._step, hook))
            self._plan.action.perform()

    def _take_part(self, rank: int) -> None:
        if os.getpid() == self._planner:
            self._took_part_as = rank, find_world_size()

    def _refuse_in_pytest(self) -> None:
        __tracebackhide__ = True
        if self._plan.action.harm and own_rank() is None and os.getpid() == self._planner:
            raise FaultRefused(str(self._plan), self._plan.action.harm)

    def _announce(self, what: str) -> None:
        """Tell the pytest process what happens to this rank; one that a rank has launched is none of its ranks."""
        context, action = own_rank(), self._plan.action
        if context is not None:
            context.send(FaultAnnounced(what, action.is_end, action.exit_code))

    def _come_to_end(self, rank: int) -> None:
        """Note that the training ended on this rank, and at which step."""
        self._note(_ENDED, rank, "" if self._step is None else str(self._step))

    def _note(self, what: str, rank: int, text: str = "") -> None:
        with contextlib.suppress(OSError):  # the test may be over, and its folder gone
            Path(self._folder, f"{self._number}-{what}-{rank}").write_text(text)

    def find_missing(self) -> str:
        """Return why the fault did not happen where it should have; empty if it did. For the end of the test."""
        happened, wanted = self._noted(_HAPPENED), self._wanted()
        if wanted == []:
            return ""
        missing = [rank for rank in wanted or () if rank not in happened]
        if happened and (not missing or not self._plan.action.lets_others_go_on):
            return ""
        return self._reason(missing)

    def _wanted(self) -> list[int] | None:
        """Return the ranks on which it should have happened, as far as it is this process that can tell.

        None stands for any rank. Ranks of a world, and those that a strategy has launched in a standalone test, run the
        test themselves; other processes that a Trainer has launched only leave word.
        """
        ranks, context = self._plan.ranks, own_rank()
        if context is None or (context.kind == "standalone" and context.rank == 0 and self._took_part_as is None):
            return None if ranks is None else list(ranks)
        if self._plan.concerns(context.rank):
            return [context.rank]
        size = self._took_part_as[1] if self._took_part_as is not None and context.rank == 0 else sys.maxsize
        return [rank for rank in ranks or () if rank >= size]

    def _noted(self, what: str) -> dict[int, str]:
        found = Path(self._folder).glob(f"{self._number}-{what}-*")
        return {int(path.name.rpartition("-")[2]): path.read_text() for path in found}

    def _reason(self, missing: Sequence[int]) -> str:
        ended = self._noted(_ENDED)
        steps = [step for rank, step in ended.items() if rank in missing or not missing]
        if steps:
            return self._describe_end(steps[0])
        if self._took_part_as is not None and (self._took_part_as[0] in missing or not missing):
            return self._describe_end("" if self._step is None else str(self._step))
        if ended or self._took_part_as is not None:
            return f"there was no {name_ranks(missing)}"
        return "no Trainer had it among its callbacks, and no loop called its reach()"

    def _describe_end(self, step: str) -> str:
        text = f"training ended at step {step}" if step else "training ended"
        if self._plan.hook is None:
            return text
        since = "" if self._plan.step is None else f" from step {self._plan.step} on"
        return f"{text}, and {self._plan.hook} was not called{since}"


def find_rank(trainer_rank: int | None) -> int:
    """Return the rank of this process: that of the default group, else that of its Trainer, else that of the test."""
    group = default_group()
    if group is not None:
        return int(group.get_rank())
    context = own_rank()
    return trainer_rank if trainer_rank is not None else context.rank if context is not None else 0


def find_world_size() -> int:
    """Return the number of ranks of the default group, else of this test."""
    group = default_group()
    if group is not None:
        return int(group.get_world_size())
    context = own_rank()
    return context.world_size if context is not None else 1
