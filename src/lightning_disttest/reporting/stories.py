"""What each rank did in one test: the input of ``verdict`` and ``merge``, free of processes and channels."""

from __future__ import annotations

import enum
import itertools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from lightning_disttest.reporting.leaves import Recorded
    from lightning_disttest.reporting.waiting import Collective

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
# What a test stands on: pytest, and in a process that a launcher has started, what calls its function.
_BELOW_THE_TEST = re.compile(r"^ .*([(/\\](_pytest|pluggy)[/\\]|lightning_disttest[/\\]engine[/\\]launched\.py)")
_OWN_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"  # not by its name: users may have folders of that name
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3[.]\d+)[/\\]|^<")
_OWN_THREAD = re.compile(r"lightning_disttest[/\\]engine[/\\]answering\.py|<no Python frame>")
_BACKWARD = "_engine_run_backward"
EXCEPTIONS = "disttest_exceptions"  # attribute of a failed report: classes and texts, for ``engine.stand_ins``
PHASES = ("setup", "call", "teardown")


class Fate(enum.Enum):
    """How a rank left the test."""

    FINISHED = "finished"
    """It reported every phase."""
    DIED = "died"
    """Its process ended, or KeyboardInterrupt left the test, or it never joined its world."""
    TIMED_OUT = "timed out"
    """It was still in the test at the time limit and was ended."""
    WAITED = "waited"
    """It was still in the test when the grace after another rank's failure was over, and was ended."""
    STRANDED = "left behind"
    """It waited for a rank that had come to the end of the test, and was ended."""
    PLANNED = "ended by the test's own fault"
    """The test had it end, or stop, and it did: it has no say in the outcome."""


@dataclass(frozen=True, slots=True)
class RankStory:
    """One rank in one test.

    Attributes:
        rank: its number.
        pid: its process.
        fate: how it left the test.
        phase: the phase it was in when it left; ``exit`` after the last one, ``start`` before the first.
        reports: what pytest reported on it, in order, sub-reports included.
        arrivals: for each report, when it arrived at the controller: a number that only grows.
        end_arrival: when its end was noticed, on the same scale.
        how: how it ended, in words; empty if it finished.
        last_output: its last output that is in no report.
        stacks: Python stacks of its threads.
        native_stacks: its native stacks as py-spy prints them; empty if it is not there.
        collectives: what its process groups did last, if it was still in the test and could tell.
        knows_collectives: whether it told what its process groups did.
        is_stopped: whether it was stopped by SIGSTOP or a debugger.
        is_silent: whether its interpreter did not answer, though it should have: something native holds it.
        unreported: a phase that it must have gone through and of which no report came; empty if there is none.
        records: what it recorded with ``world.record``.
    """

    rank: int
    pid: int
    fate: Fate
    phase: str
    reports: tuple[pytest.TestReport, ...] = ()
    arrivals: tuple[int, ...] = ()
    end_arrival: int = 0
    how: str = ""
    last_output: str = ""
    stacks: str = ""
    native_stacks: str = ""
    collectives: tuple[Collective, ...] = ()
    knows_collectives: bool = False
    is_stopped: bool = False
    is_silent: bool = False
    unreported: str = ""
    records: dict[str, Recorded] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where in the test it was: the innermost frame of no library, else of none but torch; empty if unknown."""
        frames = _FRAME.findall(self.stacks.rpartition("Current thread")[2])
        others = [f for f in frames if "/torch/" not in f[0] and not f[0].startswith(_OWN_PACKAGE)]
        own = [frame for frame in others if not _LIBRARY.search(frame[0])]
        path, line, function = next(iter(own or others), ("", "", ""))
        return f"{path}:{line} in {function}" if path else ""

    @property
    def where(self) -> str:
        """Where it left, in words: ``in call``, ``before setup``."""
        return {"start": "before setup", "exit": "after teardown"}.get(self.phase, f"in {self.phase}")

    @property
    def phase_reported(self) -> str:
        """The phase to which pytest counts where it left: before the first is setup, after the last is teardown."""
        return {"start": "setup", "exit": "teardown"}.get(self.phase, self.phase)

    @property
    def torch_call(self) -> str:
        """The function of torch.distributed in which it is, by its innermost frame; empty if it is in none."""
        path, function = self._innermost
        return function if "/torch/distributed/" in path else ""

    @property
    def is_in_backward(self) -> bool:
        """Whether it is in the engine of a backward pass, where DistributedDataParallel waits for its gradients."""
        path, function = self._innermost
        return "/torch/autograd/" in path and function == _BACKWARD

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits for a peer, and is not what hangs.

        That is in a function of torch.distributed, or in a backward pass unless no operation of a group is pending.
        """
        in_backward = self.is_in_backward and (not self.knows_collectives or any(c.pending for c in self.collectives))
        return (bool(self.torch_call) or in_backward) and not self.is_stopped

    @property
    def _innermost(self) -> tuple[str, str]:
        """File and function of the innermost frame; empty if it is not known."""
        frame = _FRAME.search(self.stacks.rpartition("Current thread")[2])
        return ("", "") if frame is None else (frame[1], frame[3])

    def report_of(self, phase: str) -> pytest.TestReport | None:
        """Return the main report of a phase, not a sub-report."""
        for report in self.reports:
            if report.when == phase and not is_subreport(report):
                return report
        return None


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, ``ranks 1-3`` or ``ranks 0, 2-3``; the ranks come in order."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def headline(who: str, pids: Sequence[int], what: str, *, is_cause: bool) -> str:
    """Return the line above what is shown of some ranks: who they are, their processes, and what became of them."""
    role = " <- the cause" if is_cause else ""
    return f"______ {who} (pid {', '.join(map(str, pids))}): {what}{role} ______"


def is_subreport(report: pytest.TestReport) -> bool:
    """Tell whether a report is that of a subtest (pytest's own or pytest-subtests')."""
    return hasattr(report, "context")


def is_xfailed(report: pytest.TestReport) -> bool:
    """Tell whether a report is an expected failure."""
    return bool(report.skipped and hasattr(report, "wasxfail"))


def is_strict_xpass(report: pytest.TestReport) -> bool:
    """Tell whether a report failed only because an xfail(strict=True) test passed."""
    return report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS(strict)]")


def trim_stacks(stacks: str) -> str:
    """Return stacks as faulthandler or py-spy wrote them, without what every rank has.

    That are the frames of pytest that each test stands on, the thread that tells where the rank is, and what py-spy
    says of the process.
    """
    threads = []
    for thread in re.split(r"(?m)^(?=(?:Current t|T)hread )", stacks.strip("\n")):
        lines = thread.strip("\n").splitlines()
        if not thread.startswith("Process ") and not any(_OWN_THREAD.search(line) for line in lines):
            threads.append("\n".join(itertools.takewhile(lambda line: not _BELOW_THE_TEST.search(line), lines)))
    return "\n\n".join(filter(None, threads))
