"""Which rank failed first and why: a pure function from the stories of all ranks to a verdict."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lightning_disttest.reporting.causes import Kind, place_in_order, says_peer_is_gone
from lightning_disttest.reporting.comparison import compare_records
from lightning_disttest.reporting.stories import (
    PHASES,
    Fate,
    RankStory,
    is_strict_xpass,
    is_subreport,
    is_xfailed,
)
from lightning_disttest.reporting.waiting import explain_deadlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One rank's part in a failure; ``report`` is None when the rank did not report it itself."""

    story: RankStory
    kind: Kind
    phase: str
    arrival: int
    report: pytest.TestReport | None = None


@dataclass(frozen=True, slots=True)
class PhaseVerdict:
    """The outcome of one phase over all ranks.

    ``troubles`` are the failures, cause first, then those who only waited; ``wasxfail`` is the reason of an expected
    failure; ``disagreement`` is what to say beside them: that the ranks had different outcomes or recorded different
    values, or what went wrong when they left; ``explanation`` is what to say before them: why nobody came further.
    """

    outcome: Outcome
    troubles: tuple[Trouble, ...] = ()
    wasxfail: str | None = None
    skip: object = None
    disagreement: str = ""
    explanation: str = ""


_ALL_PASSED = {phase: PhaseVerdict("passed") for phase in PHASES}


def judge(stories: Sequence[RankStory]) -> dict[str, PhaseVerdict]:
    """Return the verdict of each phase that a plain test would report: setup, call unless setup failed, teardown.

    Precedence over all ranks: died > time limit > failed or error > ranks disagree > xfailed > skipped > passed.
    """
    if all(_says_only_passed(story) for story in stories):
        return dict(_ALL_PASSED)
    deciding = [story for story in stories if story.fate is not Fate.PLANNED]
    if not deciding:
        return judge([_as_death(story) for story in stories])
    troubles = [trouble for story in stories for trouble in _troubles_of(story)]
    early = [t for t in troubles if t.phase != "teardown"]
    late = [t for t in troubles if t.phase == "teardown"]
    body = _without_expected(stories, early)
    waiting = [t for t in early if t.kind is Kind.WAITING]
    if waiting and not body and _has_cause(late) and not _expected_failure(stories):
        body, late = [*waiting, *late], []  # a rank that never came to its own teardown: the test has one failure
    if body:
        return _judge_failed_body(body, late, stories)
    verdicts = {phase: _judge_unfailed(deciding, phase) for phase in ("setup", "call")}
    if verdicts["setup"].outcome != "passed" or all(s.report_of("call") is None for s in deciding):
        del verdicts["call"]
    elif verdicts["call"].outcome == "passed" and (table := compare_records(deciding)):
        verdicts["call"] = PhaseVerdict("failed", disagreement=table)
    verdicts["teardown"] = _judge_teardown(late, stories)
    return verdicts


def add_problems(verdict: PhaseVerdict, problems: Sequence[str]) -> PhaseVerdict:
    """Return the verdict of a teardown after which the world was ended, with what went wrong then."""
    return PhaseVerdict("failed", verdict.troubles, disagreement=describe_leaving(problems))


def describe_leaving(problems: Sequence[str]) -> str:
    """Return what to say when fixtures that outlive a test failed to end, or ranks did not leave."""
    return "errors while these ranks were ended, after the last test that they ran:\n" + "\n".join(problems)


def _says_only_passed(story: RankStory) -> bool:
    """Tell the usual case apart at once, for the sake of suites of thousands of small tests."""
    return (
        story.fate is Fate.FINISHED
        and not story.records
        and len(story.reports) == len(PHASES)
        and all(report.passed and not hasattr(report, "wasxfail") for report in story.reports)
    )


def is_communication_error(report: pytest.TestReport) -> bool:
    """Tell whether a failed report is only the echo of a peer's end."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash is not None and says_peer_is_gone(crash.path, crash.message)


def _troubles_of(story: RankStory) -> list[Trouble]:
    troubles = []
    for report, arrival in zip(story.reports, story.arrivals, strict=True):
        if report.failed:
            kind = Kind.COMMUNICATION if is_communication_error(report) else Kind.OWN_ERROR
            troubles.append(Trouble(story, kind, str(report.when), arrival, report))
    fates = {
        Fate.DIED: Kind.DEATH,
        Fate.TIMED_OUT: Kind.TIME_LIMIT,
        Fate.STRANDED: Kind.TIME_LIMIT,
        Fate.WAITED: Kind.WAITING,
        Fate.PLANNED: Kind.PLANNED,
    }
    if story.unreported:
        troubles.append(Trouble(story, Kind.DEATH, story.unreported, story.end_arrival))
    if story.fate in fates:
        troubles.append(Trouble(story, fates[story.fate], story.phase_reported, story.end_arrival))
    return troubles


def _without_expected(stories: Sequence[RankStory], troubles: list[Trouble]) -> list[Trouble]:
    """Drop what an expected failure explains: an xfail holds if one rank failed with an exception it names."""
    if not _expected_failure(stories):
        return troubles if _has_cause(troubles) else []
    unexpected = [
        t for t in troubles if not (t.report is not None and (is_strict_xpass(t.report) or is_subreport(t.report)))
    ]
    return troubles if any(t.kind < Kind.COMMUNICATION for t in unexpected) else []


def _expected_failure(stories: Sequence[RankStory]) -> bool:
    return any(is_xfailed(report) for story in stories for report in story.reports)


def _has_cause(troubles: list[Trouble]) -> bool:
    return any(t.kind < Kind.WAITING for t in troubles)


def _as_death(story: RankStory) -> RankStory:
    """Return the story of a rank that ended as planned, in a test of which no rank is left that could pass."""
    return dataclasses.replace(
        story,
        fate=Fate.DIED,
        how=f"{story.how.removeprefix('was ')}, and no rank is left that could come to the end of the test",
    )


def _order(troubles: Sequence[Trouble]) -> tuple[Trouble, ...]:
    """Sort troubles, the cause first."""

    def key(trouble: Trouble) -> tuple[int, bool, float]:
        return place_in_order(trouble.kind, waits=trouble.story.waits_for_others, arrival=trouble.arrival)

    return tuple(sorted(troubles, key=key))


def _judge_failed_body(
    body: list[Trouble], late: list[Trouble], stories: Sequence[RankStory]
) -> dict[str, PhaseVerdict]:
    ordered = _order(body)
    phase = ordered[0].phase
    if phase == "teardown":
        phase = min((trouble.phase for trouble in body), key=PHASES.index)
    verdicts = {"setup": PhaseVerdict("passed")}
    # A rank that was ended in its teardown, by the time limit or after the grace, belongs to the failure of the body.
    own = [t for t in late if t.report is not None or t.kind is Kind.DEATH]
    ended = [t for t in late if t not in own]
    verdicts[phase] = PhaseVerdict("failed", (*ordered, *_order(ended)), explanation=_explain(ordered, stories))
    verdicts["teardown"] = PhaseVerdict("failed" if own else "passed", _order(own))
    return verdicts


def _judge_teardown(late: list[Trouble], stories: Sequence[RankStory]) -> PhaseVerdict:
    if _has_cause(late):
        ordered = _order(late)
        return PhaseVerdict("failed", ordered, explanation=_explain(ordered, stories))
    return PhaseVerdict("passed")


def _explain(ordered: Sequence[Trouble], stories: Sequence[RankStory]) -> str:
    """Return why nobody came further, if the time limit is the cause; else the cause says it."""
    if ordered[0].kind is not Kind.TIME_LIMIT:
        return ""
    hung = [trouble.story for trouble in ordered if trouble.kind is Kind.TIME_LIMIT]
    return explain_deadlock([*hung, *(story for story in stories if story.fate is Fate.FINISHED)])


def _judge_unfailed(stories: Sequence[RankStory], phase: str) -> PhaseVerdict:
    reports = {story.rank: report for story in stories if (report := story.report_of(phase)) is not None}
    xfailed = [report for report in reports.values() if is_xfailed(report)]
    skipped = [report for report in reports.values() if report.skipped and not is_xfailed(report)]
    if xfailed and not skipped:
        return PhaseVerdict("skipped", wasxfail=xfailed[0].wasxfail, skip=xfailed[0].longrepr)
    if not skipped:
        xpassed = [report.wasxfail for report in reports.values() if hasattr(report, "wasxfail")]
        return PhaseVerdict("passed", wasxfail=xpassed[0] if xpassed else None)
    if len(skipped) == len(stories):
        return PhaseVerdict("skipped", skip=skipped[0].longrepr)
    return PhaseVerdict("failed", disagreement=_table(stories))


def _table(stories: Sequence[RankStory]) -> str:
    lines = ["the ranks disagree; a test must end the same way on all of them:"]
    for story in stories:
        words = [
            f"{report.outcome} in {report.when}{_reason(report)}"
            for report in story.reports
            if not report.passed and not is_subreport(report)
        ]
        lines.append(f"  rank {story.rank}: {'; '.join(words) or _progress(story)}")
    return "\n".join(lines)


def _reason(report: pytest.TestReport) -> str:
    return f" ({report.longrepr[2].removeprefix('Skipped: ')})" if isinstance(report.longrepr, tuple) else ""


def _progress(story: RankStory) -> str:
    if story.fate is Fate.FINISHED:
        return "passed"
    done = [phase for phase in PHASES if story.report_of(phase) is not None]
    where = f", at {story.place}" if story.place else ""
    return f"{story.fate.value} {story.where}" + (f" after {done[-1]}" if done else "") + where
