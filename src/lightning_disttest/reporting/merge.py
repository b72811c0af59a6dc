"""From verdicts to the reports that pytest shows: every failing rank with its own traceback, the cause on top."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

from lightning_disttest.reporting.causes import Kind, without_own_numbers
from lightning_disttest.reporting.stories import (
    EXCEPTIONS,
    PHASES,
    Fate,
    RankStory,
    headline,
    is_subreport,
    name_ranks,
    trim_stacks,
)
from lightning_disttest.reporting.verdict import PhaseVerdict, Trouble, is_communication_error
from lightning_disttest.reporting.waiting import describe_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

    from lightning_disttest.settings import RankOutput

Element = tuple[ReprTraceback, "ReprFileLocation | None", "str | None"]
_LAST_LINES = 20
_ON_ONE = "the run on one process"
_WHY_ON_ONE = "The test has passed on its ranks; world.record(..., one_process=True) compares it with that run."
_OURS = {"wasxfail", EXCEPTIONS}  # parts of the verdict


@dataclass(frozen=True, slots=True)
class Frame:
    """What the reports of one test have in common: where it ran; its limit, grace and length in seconds.

    ``command`` runs this test again, alone. ``seconds_on_one`` is the length of its run on one process.
    """

    path: str
    lineno: int
    world_size: int
    is_fresh_process: bool
    timeout: float
    grace: float
    seconds: float
    rank_output: RankOutput
    command: str
    seconds_on_one: float = 0.0


def apply_verdict(report: pytest.TestReport, verdict: PhaseVerdict, stories: Sequence[RankStory], frame: Frame) -> None:
    """Turn the controller's empty report of a phase into the one merged report of all ranks."""
    report.outcome = verdict.outcome
    report.duration = _duration(str(report.when), stories, frame)
    report.sections = _sections(verdict, stories, str(report.when), frame)
    if verdict.wasxfail is not None:
        report.wasxfail = verdict.wasxfail
    if verdict.outcome == "failed":
        finished = [s for s in stories if s.fate is Fate.FINISHED and all(r.passed for r in s.reports)]
        report.longrepr = _add_command(describe_failure(verdict, frame, finished), frame.command)
    elif verdict.outcome == "skipped":
        report.longrepr = verdict.skip  # type: ignore[assignment]


def _add_command(longrepr: Any, command: str) -> Any:
    title = "To run this test alone"
    if hasattr(longrepr, "addsection"):
        longrepr.addsection(title, command)
        return longrepr
    return f"{longrepr}\n{title}: {command}"


def _duration(phase: str, stories: Sequence[RankStory], frame: Frame) -> float:
    """Return how long a phase took on the slowest rank; one that did not end took the rest of the test's time."""
    longest = {
        name: max((r.duration for story in stories if (r := story.report_of(name)) is not None), default=0.0)
        for name in PHASES
    }
    longest["call"] += frame.seconds_on_one
    unfinished = [story for story in stories if story.fate is not Fate.FINISHED and story.phase_reported == phase]
    if not unfinished or (longest[phase] and all(story.fate is not Fate.TIMED_OUT for story in unfinished)):
        return longest[phase]
    earlier = sum(longest[name] for name in PHASES[: PHASES.index(phase)])
    return max(longest[phase], frame.seconds - earlier)


def merge_attributes(report: pytest.TestReport, stories: Sequence[RankStory]) -> None:
    """Give a merged report what other plugins have put on those of the ranks (pytest-html: ``extras``).

    Lists are joined, equal entries once; of anything else that of the first rank is taken, or of the first that failed.
    """
    known = report.__dict__.keys() | _OURS
    of_ranks = [(story, own) for story in stories if (own := story.report_of(str(report.when))) is not None]
    names = {name: None for _, own in of_ranks for name in own.__dict__.keys() - known}
    for name in names:
        having = [(story, own) for story, own in of_ranks if hasattr(own, name)]
        speaker = next((own for story, own in having if any(r.failed for r in story.reports)), having[0][1])
        setattr(report, name, _join([getattr(own, name) for _, own in having]) or getattr(speaker, name))


def _join(values: list[Any]) -> list[Any]:
    lists = [value for value in values if isinstance(value, list)]
    joined: list[Any] = []
    for entry in itertools.chain(*lists):
        if entry not in joined:
            joined.append(entry)
    return joined


def merge_subreports(stories: Sequence[RankStory], frame: Frame) -> list[pytest.TestReport]:
    """Return one report per subtest: that of the first rank, or a failed one that shows every rank that failed it."""
    grouped: dict[tuple[str, int], list[tuple[RankStory, pytest.TestReport, int]]] = {}
    for story in stories:
        seen: collections.Counter[str] = collections.Counter()
        for report, arrival in zip(story.reports, story.arrivals, strict=True):
            if is_subreport(report):
                context = repr(report.context)
                grouped.setdefault((context, seen[context]), []).append((story, report, arrival))
                seen[context] += 1  # several subtests of one rank may have the same name, or none
    return [_merge_subreport(group, frame) for group in grouped.values()]


def describe_failure(verdict: PhaseVerdict, frame: Frame, finished: Sequence[RankStory]) -> Any:
    """Return what pytest shows for a failed phase; ``finished`` are the ranks that came to the end of the test."""
    if verdict.disagreement and not verdict.troubles:
        return verdict.disagreement
    troubles = [t for t in verdict.troubles if t.report is None or not is_subreport(t.report)]
    if not troubles:
        per_rank = collections.Counter(t.story.rank for t in verdict.troubles)
        count = max(per_rank.values())
        return f"contains {count} failed subtest{'s' if count != 1 else ''}"
    if frame.world_size == 1 and len(troubles) == 1 and troubles[0].report is not None and not verdict.disagreement:
        return troubles[0].report.longrepr
    failed = {trouble.story.rank for trouble in troubles}
    others = [story.rank for story in finished if story.rank not in failed]
    return _chain(troubles, frame, others, verdict.disagreement, verdict.explanation)


def describe_one_process(verdicts: Mapping[str, PhaseVerdict], stories: Sequence[RankStory], frame: Frame) -> str:
    """Return what to say of the run of a test on one process that did not pass; ``frame`` is that of the test."""
    alone = dataclasses.replace(frame, world_size=1, is_fresh_process=True)
    phase, verdict = next((when, verdict) for when, verdict in verdicts.items() if verdict.outcome != "passed")
    if verdict.wasxfail is not None:
        expected = verdict.wasxfail.removeprefix("reason: ")  # older versions of pytest put it before that of a call
        return f"{_ON_ONE} failed as expected ({expected or 'xfail'})\n{_WHY_ON_ONE}"
    if verdict.outcome == "skipped":
        reason = verdict.skip[2] if isinstance(verdict.skip, tuple) else verdict.skip
        return f"{_ON_ONE} was skipped: {str(reason).removeprefix('Skipped: ')}\n{_WHY_ON_ONE}"
    longrepr = describe_failure(verdict, alone, [])
    crash = getattr(longrepr, "reprcrash", None)
    first = str(longrepr if crash is None else crash.message).strip().partition("\n")[0]
    parts = [f"{_ON_ONE} failed in {phase}: {first}", _WHY_ON_ONE]
    parts += [] if str(longrepr) == first else [str(longrepr)]
    parts += [str(report.longrepr) for report in merge_subreports(stories, alone) if report.failed]
    parts += [f"---- {name} (one process) ----\n{text}" for name, text in _sections(verdict, stories, phase, alone)]
    return "\n".join(parts)


def _merge_subreport(group: list[tuple[RankStory, pytest.TestReport, int]], frame: Frame) -> pytest.TestReport:
    failed = [(story, report, arrival) for story, report, arrival in group if report.failed]
    if not failed:
        return group[0][1]
    troubles = []
    for story, report, arrival in failed:
        kind = Kind.COMMUNICATION if is_communication_error(report) else Kind.OWN_ERROR
        troubles.append(Trouble(story, kind, "call", arrival, report))
    troubles.sort(key=lambda trouble: (trouble.kind, trouble.arrival))
    merged = troubles[0].report
    assert merged is not None
    if frame.world_size > 1:
        merged.longrepr = _chain(troubles, frame)
    return merged


def _chain(
    troubles: Sequence[Trouble], frame: Frame, finished: Sequence[int] = (), more: str = "", first: str = ""
) -> ExceptionChainRepr:
    """Make one exception chain of all ranks: it survives pytest-xdist and keeps colours and the crash line."""
    elements: list[Element] = [(_native(f"{first}\n"), None, None)] if first else []
    groups = _identical(troubles)
    crash = _crash_of(groups[0], frame, first)
    for group in groups:
        trouble = group[0]
        title = _title(group, frame, is_cause=trouble is troubles[0])
        elements.append((_native(title + "\n"), None, None))
        elements += _body(trouble, folded=troubles[0].kind is not Kind.COMMUNICATION)
    if finished:
        text = f"______ {name_ranks(finished)} of {frame.world_size}: came to the end of the test ______\n"
        elements.append((_native(text), None, None))
    elements.append((_native(f"{more}\n" if more else ""), crash, None))
    return ExceptionChainRepr(elements)


def _identical(troubles: Sequence[Trouble]) -> list[list[Trouble]]:
    groups: dict[tuple[Kind, str, str, str], list[Trouble]] = {}
    for trouble in troubles:
        text = without_own_numbers("".join(_text_of(element) for element in _body(trouble, folded=False)))
        how = trouble.story.how.partition("\n")[0] if trouble.report is None else ""
        groups.setdefault((trouble.kind, trouble.phase, how, text), []).append(trouble)
    return list(groups.values())


def _text_of(element: Element) -> str:
    return str(element[0]) + str(element[2] or "")


def _title(group: Sequence[Trouble], frame: Frame, *, is_cause: bool) -> str:
    who = _who(group, frame)
    if frame.world_size > 1:
        who += f" of {frame.world_size}"
    pids = [trouble.story.pid for trouble in sorted(group, key=lambda trouble: trouble.story.rank)]
    return headline(who, pids, _what(group, frame), is_cause=is_cause and frame.world_size > 1)


def _who(group: Sequence[Trouble], frame: Frame) -> str:
    if frame.is_fresh_process:
        return "the fresh process"
    return name_ranks(sorted(trouble.story.rank for trouble in group))


def _what(group: Sequence[Trouble], frame: Frame) -> str:
    text = _what_one(group[0], frame)
    return text if len(group) == 1 else text.replace("was ", "were ").replace("lost its", "lost their")


def _what_one(trouble: Trouble, frame: Frame) -> str:
    where = _where(trouble)
    if trouble.kind is Kind.DEATH and trouble.story.unreported:
        return f"came to the end of the test, but sent no report of its {trouble.phase}: a hook has kept it back"
    if trouble.kind is Kind.DEATH:
        return f"died {where}: {trouble.story.how.splitlines()[0]}"
    if trouble.story.fate is Fate.STRANDED and trouble.report is None:
        return f"was still {where} and waited for a rank that had come to the end of the test"
    if trouble.kind is Kind.TIME_LIMIT:
        return f"was still {where} at the time limit of {frame.timeout:g} s"
    if trouble.kind in (Kind.WAITING, Kind.PLANNED) and trouble.story.how:
        return f"{trouble.story.how}, {where}"
    if trouble.kind is Kind.WAITING:
        return f"was still {where} when the grace of {frame.grace:g} s was over, and was ended"
    if trouble.kind is Kind.COMMUNICATION:
        return f"lost its connection to a peer {where}"
    return f"failed {where}"


def _where(trouble: Trouble) -> str:
    if trouble.report is not None:
        return f"in {trouble.phase}"
    return trouble.story.where


def _body(trouble: Trouble, *, folded: bool) -> list[Element]:
    """Return the part of a chain that shows one rank; ``folded``: an echo of another rank's end takes one line."""
    if trouble.report is None:
        return [(_native(_story_text(trouble.story)), None, None)]
    longrepr: Any = trouble.report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if folded and trouble.kind is Kind.COMMUNICATION and crash is not None:
        return [(_native(f"{crash.path}:{crash.lineno}: {crash.message}\n"), None, None)]
    if isinstance(longrepr, ExceptionChainRepr):
        return list(longrepr.chain)
    if hasattr(longrepr, "reprtraceback"):
        return [(longrepr.reprtraceback, crash, None)]
    return [(_native(f"{longrepr}\n"), None, None)]


def _story_text(story: RankStory) -> str:
    parts = []
    _, _, details = story.how.partition("\n")
    if details:
        parts.append(details.rstrip("\n"))
    if state := describe_state(story):
        parts.append(state)
    if story.stacks.strip():
        parts.append("Python stacks:\n" + trim_stacks(story.stacks))
    if story.native_stacks.strip():
        parts.append("Stacks that py-spy sees:\n" + trim_stacks(story.native_stacks))
    if story.last_output.strip():
        lines = story.last_output.rstrip("\n").splitlines()[-_LAST_LINES:]
        parts.append("last output:\n" + "\n".join(f"  {line}" for line in lines))
    return "\n".join(parts) + "\n" if parts else ""


def _crash_of(group: Sequence[Trouble], frame: Frame, explanation: str) -> ReprFileLocation:
    """Return the one line by which the short summary and JUnit know the failure."""
    trouble = group[0]
    prefix = _who(group, frame)
    longrepr: Any = None if trouble.report is None else trouble.report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return ReprFileLocation(crash.path, crash.lineno, f"{prefix}: {crash.message}")
    message = f"{prefix} {_what(group, frame)}"
    if trouble.kind is Kind.TIME_LIMIT:
        where = trouble.story.place and f"at {trouble.story.place}"
        reasons = [*explanation.splitlines(), describe_state(trouble.story), where]
        message += next((f": {reason}" for reason in reasons if reason), "")
    if trouble.report is not None:
        message += f": {str(longrepr).strip()}".splitlines()[0].removesuffix(": ")
    return ReprFileLocation(frame.path, frame.lineno, message)


def _native(text: str) -> ReprTraceback:
    return ReprTraceback([ReprEntryNative([text])], None, "native")


def _sections(verdict: PhaseVerdict, stories: Sequence[RankStory], phase: str, frame: Frame) -> list[tuple[str, str]]:
    """Return the captured output to show: of the ranks that the option names, or of rank 0 if nothing failed."""
    if verdict.troubles:
        involved = [t.story.rank for t in verdict.troubles if t.kind is not Kind.COMMUNICATION]
        involved = involved or [verdict.troubles[0].story.rank]
        chosen = {"first": involved[:1], "failed": involved, "all": [s.rank for s in stories]}[frame.rank_output]
    else:
        chosen = [story.rank for story in stories][: None if frame.rank_output == "all" else 1]
    sections = []
    for story in stories:
        reports = [report for report in story.reports if not is_subreport(report)]
        if story.rank in chosen and reports:
            last = story.report_of(phase) or reports[-1]
            suffix = f" (rank {story.rank})" if frame.world_size > 1 else ""
            sections += [(f"{name}{suffix}", content) for name, content in last.sections]
    return sections
