"""What each rank did in one test: the input of ``verdict`` and ``merge``, free of processes and channels."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_PYTEST_FRAME = re.compile(r"[/\\](_pytest|pluggy)[/\\]")
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
    records: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The innermost frame of its stacks that is not torch's: where in the test it was; empty if unknown."""
        frames = _FRAME.findall(self.stacks.rpartition("Current thread")[2])
        own = [f"{path}:{line} in {function}" for path, line, function in frames if "/torch/" not in path]
        return own[0] if own else ""

    @property
    def phase_reported(self) -> str:
        """The phase to which pytest counts where it left: before the first is setup, after the last is teardown."""
        return {"start": "setup", "exit": "teardown"}.get(self.phase, self.phase)

    @property
    def waits_for_others(self) -> bool:
        """Whether its innermost frame is one of torch.distributed: it waits for a peer, and is not what hangs."""
        innermost = _FRAME.search(self.stacks.rpartition("Current thread")[2])
        return innermost is not None and "/torch/distributed/" in innermost[1]

    def report_of(self, phase: str) -> pytest.TestReport | None:
        """Return the main report of a phase, not a sub-report."""
        for report in self.reports:
            if report.when == phase and not is_subreport(report):
                return report
        return None


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
    """Return stacks as faulthandler wrote them, without the frames of pytest that every test stands on."""
    kept = []
    below_test = False
    for line in stacks.rstrip("\n").splitlines():
        if not line.startswith("  "):
            below_test = False
        elif _PYTEST_FRAME.search(line):
            below_test = True
        if not below_test:
            kept.append(line)
    return "\n".join(kept)
