"""The reports that pytest shows: one per phase, with every failing rank, the cause on top."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.reporting import merge
from lightning_disttest.reporting.stories import PHASES, Fate, trim_stacks
from lightning_disttest.reporting.verdict import PhaseVerdict, add_problems, judge
from tests.unit.conftest import COMMAND, raised_in_torch

if TYPE_CHECKING:
    from lightning_disttest.reporting.merge import Frame
    from lightning_disttest.reporting.stories import RankStory
    from lightning_disttest.settings import RankOutput
    from tests.unit.conftest import Make

GONE = raised_in_torch(RuntimeError("Connection closed by peer"))
CAME_TO_THE_END = "rank 0 of 2: came to the end of the test"
OUTPUT: dict[str, Any] = {"sections": [("Captured stdout call", "hello")]}


def merged(make: Make, stories: list[RankStory], phase: str = "call", frame: Frame | None = None) -> pytest.TestReport:
    """Return the merged report of one phase of these stories."""
    report = make.report(phase)
    merge.apply_verdict(report, judge(stories)[phase], stories, frame or make.frame(len(stories)))
    return report


def titles(report: pytest.TestReport) -> list[str]:
    """Return the headlines of a merged report, one per rank or group of ranks."""
    return [line.strip("_ ") for line in report.longreprtext.splitlines() if line.startswith("______ ")]


def failing(make: Make, rank: int, error: BaseException, at: int = 1) -> RankStory:
    """Return the story of a rank whose body failed."""
    reports = make.report("setup"), make.failed("call", error), make.report("teardown")
    return make.story(rank, *reports, arrivals=(0, at, 9))


# Titles.


def test_cause_comes_first_and_is_named(make: Make) -> None:
    """Each rank has a title with its number, its pid and what happened; the first one is the cause."""
    stories = [failing(make, 0, ValueError("second"), at=2), failing(make, 1, ValueError("first"), at=1)]

    assert titles(merged(make, stories)) == [
        "rank 1 of 2 (pid 101): failed in call <- the cause",
        "rank 0 of 2 (pid 100): failed in call",
    ]


def test_world_of_one_shows_the_traceback_as_it_is(make: Make) -> None:
    """A failure of a single rank looks like that of a plain test."""
    story = failing(make, 0, ValueError("boom"))

    report = merged(make, [story])

    assert report.longrepr is story.reports[1].longrepr


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("died", "rank 1 of 2 (pid 101): died in call: killed by SIGKILL <- the cause"),
        ("timed_out", "rank 1 of 2 (pid 101): was still in call at the time limit of 300 s <- the cause"),
    ],
)
def test_title_of_a_rank_that_reported_nothing(make: Make, kind: str, title: str) -> None:
    """A rank that died or hung has a title that says so, with the phase."""
    story = getattr(make, kind)(1, "call", make.report("setup"))

    assert titles(merged(make, [make.story(0, *make.passed()), story])) == [title, CAME_TO_THE_END]


def test_title_of_a_rank_that_waited(make: Make) -> None:
    """A rank that was ended after the grace says for what it was ended."""
    stories = [failing(make, 0, ValueError("boom")), make.waited(1, "call", make.report("setup"))]

    assert titles(merged(make, stories))[1] == (
        "rank 1 of 2 (pid 101): was still in call when the grace of 0.5 s was over, and was ended"
    )


@pytest.mark.parametrize(
    ("phase", "reported", "where"), [("start", "setup", "before setup"), ("exit", "teardown", "after teardown")]
)
def test_death_outside_of_the_phases_is_told(make: Make, phase: str, reported: str, where: str) -> None:
    """A rank that died before its first or after its last phase says when."""
    story = make.died(1, phase, *(make.passed() if phase == "exit" else []))

    report = merged(make, [make.story(0, *make.passed()), story], reported)

    assert titles(report) == [f"rank 1 of 2 (pid 101): died {where}: killed by SIGKILL <- the cause", CAME_TO_THE_END]


def test_ranks_that_came_to_the_end_are_listed_last(make: Make) -> None:
    """Who had no share in the failure is named in one line at the end, so that every rank is accounted for."""
    stories = [make.story(rank, *make.passed()) for rank in range(6)]
    stories[1] = failing(make, 1, ValueError("boom"))
    stories[4] = make.waited(4, "call", make.report("setup"))

    assert titles(merged(make, stories)) == [
        "rank 1 of 6 (pid 101): failed in call <- the cause",
        "rank 4 of 6 (pid 104): was still in call when the grace of 0.5 s was over, and was ended",
        "ranks 0, 2-3, 5 of 6: came to the end of the test",
    ]


def test_nobody_came_to_the_end_if_all_had_a_share(make: Make) -> None:
    """A rank that failed itself is not listed again, nor is one that died or was ended before its end."""
    stories = [
        failing(make, 0, ValueError("boom")),
        make.died(1, "call", make.report("setup")),
        make.waited(2, "teardown", *make.passed("setup", "call")),
        make.timed_out(3, "call", make.report("setup")),
    ]

    shown = titles(merged(make, stories))

    assert len(shown) == 4
    assert not any("came to the end" in title for title in shown)


@pytest.mark.parametrize("other", ["skipped", "xfailed", "failed subtest"])
def test_rank_with_a_report_that_did_not_pass_did_not_come_to_the_end(make: Make, other: str) -> None:
    """Only ranks all of whose reports passed are listed as having come to the end of the test."""
    setup, teardown = make.report("setup"), make.report("teardown")
    failed_subtest = make.subreport("a", "failed", make.longrepr(ValueError("sub")))
    reports = {
        "skipped": [setup, make.skipped("call", "no data"), teardown],
        "xfailed": [setup, make.xfailed("call", ValueError("known")), teardown],
        "failed subtest": [setup, failed_subtest, make.report("call"), teardown],
    }
    stories = [
        make.story(0, *reports[other]),
        make.died(1, "call", setup),
        make.story(2, setup, make.subreport("a"), make.report("call"), teardown),
    ]

    assert titles(merged(make, stories)) == [
        "rank 1 of 3 (pid 101): died in call: killed by SIGKILL <- the cause",
        "rank 2 of 3: came to the end of the test",
    ]


# Bodies.


def test_identical_tracebacks_are_shown_once(make: Make) -> None:
    """Ranks that failed in the same way share one traceback, under one title with all pids."""
    errors = {0: "same", 1: "other", 2: "same", 3: "same"}
    stories = [failing(make, rank, ValueError(text), at=rank) for rank, text in errors.items()]

    report = merged(make, stories)

    assert titles(report) == [
        "ranks 0, 2-3 of 4 (pid 100, 102, 103): failed in call <- the cause",
        "rank 1 of 4 (pid 101): failed in call",
    ]
    assert report.longreprtext.count("E   ValueError: same") == 1
    assert report.longreprtext.count("E   ValueError: other") == 1


def test_tracebacks_that_differ_in_addresses_are_shown_once(make: Make) -> None:
    """Where an object lies in a rank's memory does not make its failure another one."""

    def fail(_world: object) -> None:
        raise ValueError("same")

    stories = []
    for rank, argument in enumerate([object(), object()]):
        try:
            fail(argument)
        except ValueError:
            longrepr = pytest.ExceptionInfo.from_current().getrepr(style="long", funcargs=True)
        call = make.report("call", "failed", longrepr)
        stories.append(make.story(rank, make.report("setup"), call, make.report("teardown"), arrivals=(0, rank, 9)))

    report = merged(make, stories)

    assert titles(report) == ["ranks 0-1 of 2 (pid 100, 101): failed in call <- the cause"]
    assert crash_of(report)[2] == "ranks 0-1: ValueError: same"


def test_equal_deaths_in_different_phases_are_not_folded(make: Make) -> None:
    """Only ranks that failed in the same phase share a title."""
    stories = [make.died(0, "call", make.report("setup"), at=1), make.died(1, "setup", at=2)]

    assert len(titles(merged(make, stories))) == 2


def test_different_deaths_in_one_phase_are_not_folded(make: Make) -> None:
    """Two ranks that left no output, and died in different ways, are told one by one."""
    stories = [make.died(0, "call"), make.died(1, "call", how="exited with status 3")]

    assert titles(merged(make, stories)) == [
        "rank 0 of 2 (pid 100): died in call: killed by SIGKILL <- the cause",
        "rank 1 of 2 (pid 101): died in call: exited with status 3",
    ]


def test_rank_that_ended_as_planned_is_told_beside_the_failure(make: Make) -> None:
    """A rank whose end the test had planned says so, after the failure of another."""
    how = "was ended by the test's own fault (SIGKILL on rank 1 at step 3)"
    ended = make.story(1, make.report("setup"), fate=Fate.PLANNED, phase="call", how=how)

    assert titles(merged(make, [failing(make, 0, ValueError("boom")), ended])) == [
        "rank 0 of 2 (pid 100): failed in call <- the cause",
        f"rank 1 of 2 (pid 101): {how}, in call",
    ]


def test_lost_connections_are_folded_to_one_line(make: Make) -> None:
    """The echo of another rank's end is one line with its place, without a traceback."""
    stories = [failing(make, 0, GONE, at=1), failing(make, 1, ValueError("own"), at=2)]

    report = merged(make, stories)

    assert titles(report) == [
        "rank 1 of 2 (pid 101): failed in call <- the cause",
        "rank 0 of 2 (pid 100): lost its connection to a peer in call",
    ]
    chain = report.longreprtext.partition("To run this test alone")[0].rpartition("\n")[0]
    folded = chain.partition("lost its connection to a peer")[2].strip().splitlines()[1:]
    place = stories[0].reports[1].longrepr.reprcrash  # type: ignore[union-attr]
    assert folded == [f"{place.path}:{place.lineno}: RuntimeError: Connection closed by peer"]


def test_lost_connections_alone_are_shown_in_full(make: Make) -> None:
    """If nothing but lost connections was heard there is no cause that would explain them: nothing is folded."""
    others = raised_in_torch(RuntimeError("Connection reset by peer"))

    report = merged(make, [failing(make, 0, GONE, at=1), failing(make, 1, others, at=2)])

    assert titles(report) == [
        "rank 0 of 2 (pid 100): lost its connection to a peer in call <- the cause",
        "rank 1 of 2 (pid 101): lost its connection to a peer in call",
    ]
    assert "E   RuntimeError: Connection closed by peer" in report.longreprtext
    assert "E   RuntimeError: Connection reset by peer" in report.longreprtext


def test_story_of_a_death_has_its_last_output_and_stacks(make: Make) -> None:
    """What a rank can not tell any more is shown for it: how it ended, its stacks, its last lines."""
    story = make.died(
        1,
        "call",
        make.report("setup"),
        how="KeyboardInterrupt was raised\nTraceback: here",
        stacks='Current thread 0x1 (most recent call first):\n  File "test_it.py", line 3 in test_it\n',
        last_output="".join(f"line {number}\n" for number in range(30)),
    )

    text = merged(make, [make.waited(0, "call", make.report("setup")), story]).longreprtext
    text = text.partition("______ rank 0 of 2")[0].rstrip("\n")

    assert "died in call: KeyboardInterrupt was raised <- the cause" in text
    assert "\nTraceback: here\nPython stacks:\nCurrent thread 0x1 (most recent call first):\n  File" in text
    assert "\nlast output:\n  line 10\n" in text
    assert text.endswith("\n  line 29")
    assert "line 9\n" not in text


def test_own_and_chained_exceptions_are_kept(make: Make) -> None:
    """The whole chain of a rank's exception is shown under its title."""
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")

    text = merged(make, [make.story(0, *make.passed()), failing(make, 1, error)]).longreprtext

    assert "KeyError: 'inner'" in text
    assert "direct cause of the following exception" in text
    assert "ValueError: outer" in text


def test_failure_without_a_traceback_is_shown(make: Make) -> None:
    """A failed report that holds only text, as ``pytest.fail`` may make, is shown as text."""
    broken = make.report("call", "failed", "just a text")
    stories = [make.story(0, *make.passed()), make.story(1, make.report("setup"), broken, make.report("teardown"))]

    report = merged(make, stories)

    assert "\njust a text" in report.longreprtext


def test_failure_without_any_text_is_shown(make: Make) -> None:
    """An item of another plugin may fail with an empty text; its rank is named all the same."""
    broken = make.report("call", "failed", "")
    stories = [make.story(0, *make.passed()), make.story(1, make.report("setup"), broken, make.report("teardown"))]

    report = merged(make, stories)

    assert titles(report) == ["rank 1 of 2 (pid 101): failed in call <- the cause", CAME_TO_THE_END]
    assert crash_of(report)[2].startswith("rank 1 failed in call")


STACKS_HERE = """Current thread 0x2 (most recent call first):
  File "/home/me/test_it.py", line 7 in test_it
"""
STACKS = """Thread 0x1 (most recent call first):
  File "/lib/threading.py", line 320 in wait
  File "/lib/threading.py", line 1002 in _bootstrap

Current thread 0x2 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 5 in barrier
  File "/home/me/test_it.py", line 7 in test_it
  File "/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/site-packages/pluggy/_callers.py", line 121 in _multicall
  File "/home/me/run.py", line 3 in <module>
"""


def test_command_that_runs_the_test_alone_is_a_section(make: Make) -> None:
    """Below the failure of a test stands the command that runs it again; a passed test has none."""
    failed = merged(make, [failing(make, 0, ValueError("own")), make.story(1, *make.passed())])
    passed = merged(make, [make.story(0, *make.passed()), make.story(1, *make.passed())])

    assert failed.longreprtext.splitlines()[-2].strip("- ") == "To run this test alone"
    assert failed.longreprtext.splitlines()[-1] == COMMAND
    assert passed.longreprtext == ""


def test_state_of_a_rank_stands_above_its_stacks(make: Make) -> None:
    """A rank that was ended says what it waited in, then where, then what py-spy saw; threads of ours are left out."""
    native = (
        "Process 101: python -m pytest\nPython v3.11.7 (/bin/python)\n\n"
        'Thread 101 (active): "MainThread"\n    sleep (libc.so)\n    test_it (test_it.py:7)\n'
        "    pytest_pyfunc_call (_pytest/python.py:166)\n"
        'Thread 102 (idle): "Thread-1"\n    _serve (lightning_disttest/engine/answering.py:66)\n'
    )
    own = (
        "Thread 0x9 (most recent call first):\n"
        + '  File "/lightning_disttest/engine/answering.py", line 6 in _serve\n'
    )
    waiting = make.waited(1, "call", stacks=f"{own}\n{STACKS}", native_stacks=native)

    text = merged(make, [failing(make, 0, ValueError("own")), waiting]).longreprtext

    assert text.partition("was ended ______\n")[2].partition("\n-")[0].strip().splitlines() == [
        "is in barrier of torch.distributed",
        "Python stacks:",
        *trim_stacks(STACKS).splitlines(),
        "Stacks that py-spy sees:",
        'Thread 101 (active): "MainThread"',
        "    sleep (libc.so)",
        "    test_it (test_it.py:7)",
    ]


def test_explanation_of_a_deadlock_stands_first_and_in_the_crash_line(make: Make) -> None:
    """Why nobody came further is the first line of a failure at the time limit and part of its short form."""
    stories = [make.timed_out(rank, "call", collectives=(make.collective(name),)) for rank, name in enumerate("ab")]

    report = merged(make, stories)

    explanation = "The ranks do not call the same as number 1 of the default group: a on rank 0, b on rank 1."
    assert report.longreprtext.splitlines()[0] == explanation
    assert report.longrepr.reprcrash.message == (  # type: ignore[union-attr]
        f"rank 0 was still in call at the time limit of 300 s: {explanation}"
    )


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"is_stopped": True, "stacks": STACKS_HERE}, ": is stopped, by SIGSTOP or a debugger"),
        ({"stacks": STACKS_HERE}, ": at /home/me/test_it.py:7 in test_it"),
        ({}, ""),
    ],
    ids=["state", "place", "nothing"],
)
def test_crash_line_of_a_time_limit_says_where(make: Make, details: dict[str, Any], reason: str) -> None:
    """The short form of a time limit has the state of the rank, else its place, else nothing."""
    report = merged(make, [make.timed_out(0, "call", **details), make.story(1, *make.passed())])

    message = report.longrepr.reprcrash.message  # type: ignore[union-attr]
    assert message == f"rank 0 was still in call at the time limit of 300 s{reason}"


def test_reason_of_a_crash_is_kept() -> None:
    """The line that faulthandler writes above the stacks of a crash is kept."""
    assert trim_stacks(f"Fatal Python error: Segmentation fault\n\n{STACKS}").splitlines()[:3] == [
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x1 (most recent call first):",
    ]


def test_stacks_end_where_pytest_begins() -> None:
    """Of each thread, the frames below the test are shown, and none of those that every test stands on."""
    assert trim_stacks(STACKS).splitlines() == [
        "Thread 0x1 (most recent call first):",
        '  File "/lib/threading.py", line 320 in wait',
        '  File "/lib/threading.py", line 1002 in _bootstrap',
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "/lib/torch/distributed/distributed_c10d.py", line 5 in barrier',
        '  File "/home/me/test_it.py", line 7 in test_it',
    ]


def test_file_named_like_pytest_is_no_frame_of_pytest() -> None:
    """Only the folders of pytest and pluggy are cut off."""
    stacks = 'Current thread 0x1 (most recent call first):\n  File "/home/my_pytest_suite/pluggy.py", line 1 in f\n'

    assert trim_stacks(stacks) == stacks.rstrip("\n")


# The one line by which summaries and JUnit know the failure.


def crash_of(report: pytest.TestReport) -> tuple[str, int, str]:
    """Return path, line and message of the crash line."""
    crash: Any = report.longrepr.reprcrash  # type: ignore[union-attr]
    return crash.path, crash.lineno, crash.message


def test_crash_line_names_the_rank_of_the_cause(make: Make) -> None:
    """The short summary shows the cause's own place and message, with its rank."""
    story = failing(make, 1, ValueError("boom"))
    own: Any = story.reports[1].longrepr

    crash = crash_of(merged(make, [make.story(0, *make.passed()), story]))

    assert crash == (own.reprcrash.path, own.reprcrash.lineno, "rank 1: ValueError: boom")


def test_crash_line_of_a_death_is_at_the_test(make: Make) -> None:
    """A death has no traceback: the line of the test stands for it."""
    crash = crash_of(merged(make, [make.story(0, *make.passed()), make.died(1, "call", make.report("setup"))]))

    assert crash == ("test_it.py", 7, "rank 1 died in call: killed by SIGKILL")


def test_crash_line_of_a_fresh_process(make: Make) -> None:
    """A standalone test that launched no ranks has no rank to speak of, neither in its title nor in the summary."""
    story = make.died(0, "call", make.report("setup"))

    report = merged(make, [story], frame=make.frame(1, is_fresh_process=True))

    assert titles(report) == ["the fresh process (pid 100): died in call: killed by SIGKILL"]
    assert crash_of(report) == ("test_it.py", 7, "the fresh process died in call: killed by SIGKILL")


def test_crash_line_of_a_world_of_one(make: Make) -> None:
    """A distributed test on one rank has a rank, which is named; nobody else is there to be the cause."""
    report = merged(make, [make.died(0, "call", make.report("setup"))])

    assert titles(report) == ["rank 0 (pid 100): died in call: killed by SIGKILL"]
    assert crash_of(report) == ("test_it.py", 7, "rank 0 died in call: killed by SIGKILL")


@pytest.mark.parametrize("kind", ["failed", "died"])
def test_crash_line_names_all_ranks_with_the_error_of_the_cause(make: Make, kind: str) -> None:
    """Ranks that failed in the same way as the cause are named with it, in the order of their numbers."""
    errors = {0: "other", 1: "same", 2: "same", 3: "same"}
    if kind == "failed":
        stories = [failing(make, rank, ValueError(text), at=9 - rank) for rank, text in errors.items()]
    else:
        stories = [make.story(0, *make.passed())]
        stories += [make.died(rank, "call", make.report("setup"), at=9 - rank) for rank in (1, 2, 3)]

    message = crash_of(merged(make, stories))[2]

    assert (
        message
        == {
            "failed": "ranks 1-3: ValueError: same",
            "died": "ranks 1-3 died in call: killed by SIGKILL",
        }[kind]
    )


def test_crash_line_of_a_text_is_its_first_line(make: Make) -> None:
    """A failure without a traceback is summarised by the first line of its text."""
    broken = make.report("call", "failed", "first\nsecond")
    story = make.story(1, make.report("setup"), broken, make.report("teardown"))

    assert crash_of(merged(make, [make.story(0, *make.passed()), story]))[2] == "rank 1 failed in call: first"


# What else a report carries.


def test_passed_report_has_no_text(make: Make) -> None:
    """A phase that all ranks passed looks like that of a plain test."""
    report = merged(make, [make.story(rank, *make.passed()) for rank in range(2)])

    assert report.outcome == "passed"
    assert report.longrepr is None


# In a test of 10 seconds: how each rank left, and how long the phases took that it reported.
SETUP, SETUP_LONGER = {"setup": 1.0}, {"setup": 2.0}
ALL: dict[str, float] = {"setup": 1.0, "call": 3.0, "teardown": 0.5}
DURATIONS: dict[str, tuple[list[tuple[Fate, str, dict[str, float]]], tuple[float, float, float]]] = {
    "all finished": (
        [(Fate.FINISHED, "exit", ALL), (Fate.FINISHED, "exit", {"setup": 0.5, "call": 4.0, "teardown": 0.25})],
        (1.0, 4.0, 0.5),
    ),
    "hang in setup": ([(Fate.FINISHED, "exit", ALL), (Fate.TIMED_OUT, "setup", {})], (10.0, 3.0, 0.5)),
    "hang before setup": ([(Fate.FINISHED, "exit", ALL), (Fate.TIMED_OUT, "start", {})], (10.0, 3.0, 0.5)),
    "hang in call": ([(Fate.TIMED_OUT, "call", SETUP), (Fate.TIMED_OUT, "call", SETUP_LONGER)], (2.0, 8.0, 0.0)),
    "hang in call without a report": ([(Fate.TIMED_OUT, "call", {})] * 2, (0.0, 10.0, 0.0)),
    "hang in call of one rank": ([(Fate.FINISHED, "exit", ALL), (Fate.TIMED_OUT, "call", SETUP)], (1.0, 9.0, 0.5)),
    "hang in call after a longer setup of another": (
        [(Fate.FINISHED, "exit", {"setup": 0.5, "call": 9.0, "teardown": 0.5}), (Fate.TIMED_OUT, "call", SETUP_LONGER)],
        (2.0, 9.0, 0.5),
    ),
    "hang in teardown": (
        [(Fate.FINISHED, "exit", ALL), (Fate.TIMED_OUT, "teardown", {"setup": 2.0, "call": 1.0})],
        (2.0, 3.0, 5.0),
    ),
    "death in call": ([(Fate.FINISHED, "exit", ALL), (Fate.DIED, "call", SETUP_LONGER)], (2.0, 3.0, 0.5)),
    "death in call, nobody reported": ([(Fate.DIED, "call", SETUP), (Fate.WAITED, "call", SETUP)], (1.0, 9.0, 0.0)),
    "wait in call": ([(Fate.FINISHED, "exit", ALL), (Fate.WAITED, "call", SETUP)], (1.0, 3.0, 0.5)),
    "hang in call beside a death": (
        [(Fate.FINISHED, "exit", ALL), (Fate.DIED, "call", SETUP), (Fate.TIMED_OUT, "call", SETUP)],
        (1.0, 9.0, 0.5),
    ),
}


@pytest.mark.parametrize(("ranks", "expected"), DURATIONS.values(), ids=DURATIONS)
def test_duration_of_a_phase(
    make: Make, ranks: list[tuple[Fate, str, dict[str, float]]], expected: tuple[float, float, float]
) -> None:
    """It is that of the slowest rank; a phase that did not end has the rest, and the controller's own time no say."""
    stories = []
    for rank, (fate, phase, seconds) in enumerate(ranks):
        reports = [make.report(when, duration=duration) for when, duration in seconds.items()]
        stories.append(make.story(rank, *reports, fate=fate, phase=phase))
    merged_reports = [make.report(when, duration=50.0) for when in PHASES]

    for report in merged_reports:
        merge.apply_verdict(report, PhaseVerdict("passed"), stories, make.frame(len(stories), seconds=10.0))

    assert tuple(report.duration for report in merged_reports) == expected


def test_duration_of_a_subtest_is_not_that_of_its_test(make: Make) -> None:
    """A rank that reported a subtest before it died has not reported the body."""
    sub = make.subreport("a")
    sub.duration = 4.0
    story = make.died(0, "call", make.report("setup", duration=1.0), sub)

    assert merged(make, [story], frame=make.frame(1, seconds=10.0)).duration == 9.0


def test_skipped_report_has_the_reason(make: Make) -> None:
    """A merged skip looks like a plain one."""
    stories = [
        make.story(rank, make.report("setup"), make.skipped("call", "no data"), make.report("teardown"))
        for rank in range(2)
    ]

    report = merged(make, stories)

    assert report.skipped
    assert report.longrepr == ("test_it.py", 7, "Skipped: no data")


def test_xfailed_report_has_its_reason(make: Make) -> None:
    """A merged expected failure is counted by pytest as such."""
    stories = [
        make.story(rank, make.report("setup"), make.xfailed("call", ValueError("x")), make.report("teardown"))
        for rank in range(2)
    ]

    report = merged(make, stories)

    assert report.skipped
    assert report.wasxfail == "known"


def test_disagreement_is_shown_as_it_is(make: Make) -> None:
    """The table of a disagreement is the whole text of the failure."""
    verdict = PhaseVerdict("failed", disagreement="the ranks disagree")

    assert merge.describe_failure(verdict, make.frame(), [make.story(0, *make.passed())]) == "the ranks disagree"


@pytest.mark.parametrize(("option", "ranks"), [("first", [1]), ("failed", [0, 1]), ("all", [0, 1, 2])])
def test_output_of_a_failed_test(make: Make, option: RankOutput, ranks: list[int]) -> None:
    """The option chooses whose output is shown: that of the cause, of each failed rank, or of all."""
    stories = []
    for rank, at in ((0, 2), (1, 1)):
        call = make.failed("call", ValueError(str(rank)), **OUTPUT)
        stories.append(make.story(rank, make.report("setup"), call, make.report("teardown"), arrivals=(0, at, 9)))
    stories.append(make.story(2, make.report("setup"), make.report("call", **OUTPUT), make.report("teardown")))

    report = merged(make, stories, frame=make.frame(3, option))

    assert report.sections == [(f"Captured stdout call (rank {rank})", "hello") for rank in ranks]


@pytest.mark.parametrize(("option", "ranks"), [("first", [0]), ("failed", [0]), ("all", [0, 1])])
def test_output_of_a_passed_test(make: Make, option: RankOutput, ranks: list[int]) -> None:
    """If nothing failed, as ``-rP`` shows it, the output of rank 0 stands for all, unless all are asked for."""
    stories = [
        make.story(rank, make.report("setup"), make.report("call", **OUTPUT), make.report("teardown"))
        for rank in range(2)
    ]

    report = merged(make, stories, frame=make.frame(2, option))

    assert report.sections == [(f"Captured stdout call (rank {rank})", "hello") for rank in ranks]


@pytest.mark.parametrize(("option", "ranks"), [("first", [1]), ("failed", [1]), ("all", [0, 1])])
def test_output_of_a_rank_that_lost_its_peer(make: Make, option: RankOutput, ranks: list[int]) -> None:
    """What is only an echo of the cause brings no output of its own, unless that of all ranks is asked for."""
    stories = []
    for rank, error in ((0, GONE), (1, ValueError("own"))):
        call = make.failed("call", error, **OUTPUT)
        stories.append(make.story(rank, make.report("setup"), call, make.report("teardown"), arrivals=(0, rank, 9)))

    report = merged(make, stories, frame=make.frame(2, option))

    assert report.sections == [(f"Captured stdout call (rank {rank})", "hello") for rank in ranks]


def test_output_in_a_world_of_one_has_no_rank(make: Make) -> None:
    """A fresh process has the headings of a plain test."""
    call = make.report("call", **OUTPUT)

    report = merged(make, [make.story(0, make.report("setup"), call, make.report("teardown"))])

    assert report.sections == [("Captured stdout call", "hello")]


def test_output_of_a_rank_that_died_is_that_of_its_last_report(make: Make) -> None:
    """What was captured before the phase in which a rank died is still shown."""
    setup = make.report("setup", sections=[("Captured stdout setup", "early")])

    report = merged(make, [make.story(0, *make.passed()), make.died(1, "call", setup)])

    assert report.sections == [("Captured stdout setup (rank 1)", "early")]


# Subtests.


def with_subtests(make: Make, rank: int, *subs: pytest.TestReport) -> RankStory:
    """Return the story of a rank with sub-reports in its body."""
    return make.story(rank, make.report("setup"), *subs, make.report("call"), make.report("teardown"))


def test_passed_subtests_are_reported_once(make: Make) -> None:
    """One report per subtest comes out of all ranks, in order."""
    stories = [with_subtests(make, rank, make.subreport("a"), make.subreport("b")) for rank in range(2)]

    reports = merge.merge_subreports(stories, make.frame())

    assert reports == list(stories[0].reports[1:3])


def test_failed_subtest_shows_every_rank_that_failed_it(make: Make) -> None:
    """A subtest that failed on some ranks is one failed report with all of their tracebacks."""
    stories = [
        with_subtests(make, 0, make.subreport("a")),
        with_subtests(make, 1, make.subreport("a", "failed", make.longrepr(ValueError("one")))),
        with_subtests(make, 2, make.subreport("a", "failed", make.longrepr(ValueError("two")))),
    ]

    (report,) = merge.merge_subreports(stories, make.frame(3))

    assert report.failed
    assert titles(report) == [
        "rank 1 of 3 (pid 101): failed in call <- the cause",
        "rank 2 of 3 (pid 102): failed in call",
    ]


def test_lost_connection_in_a_subtest_is_not_its_cause(make: Make) -> None:
    """The order of causes holds in subtests too."""
    stories = [
        with_subtests(make, 0, make.subreport("a", "failed", make.longrepr(GONE))),
        with_subtests(make, 1, make.subreport("a", "failed", make.longrepr(ValueError("own")))),
    ]

    (report,) = merge.merge_subreports(stories, make.frame())

    assert titles(report)[0] == "rank 1 of 2 (pid 101): failed in call <- the cause"


def test_failed_subtest_in_a_world_of_one_is_left_as_it_is(make: Make) -> None:
    """A single rank's sub-report is shown as a plain test's."""
    sub = make.subreport("a", "failed", make.longrepr(ValueError("own")))
    shown = sub.longrepr

    (report,) = merge.merge_subreports([with_subtests(make, 0, sub)], make.frame(1))

    assert report.longrepr is shown


@pytest.mark.parametrize(
    ("failed", "text"), [(["a"], "contains 1 failed subtest"), (["a", "b"], "contains 2 failed subtests")]
)
def test_test_with_failed_subtests_counts_them(make: Make, failed: list[str], text: str) -> None:
    """The report of the test itself tells how many different subtests failed on any rank."""
    stories = [
        with_subtests(make, rank, *(make.subreport(name, "failed", make.longrepr(ValueError(name))) for name in failed))
        for rank in range(2)
    ]

    assert merged(make, stories).longrepr == f"{text}\nTo run this test alone: {COMMAND}"


def test_own_failure_beside_a_failed_subtest_is_shown(make: Make) -> None:
    """A rank's own error in the body is shown, not hidden behind the count."""
    sub = make.subreport("a", "failed", make.longrepr(ValueError("sub")))
    story = make.story(1, make.report("setup"), sub, make.failed("call", KeyError("own")), make.report("teardown"))

    report = merged(make, [make.story(0, *make.passed()), story])

    assert "KeyError: 'own'" in report.longreprtext
    assert titles(report) == ["rank 1 of 2 (pid 101): failed in call <- the cause", CAME_TO_THE_END]


# What travels further.


@pytest.mark.parametrize("kind", ["failed", "died", "lost"])
def test_merged_failure_survives_the_way_through_xdist(make: Make, request: pytest.FixtureRequest, kind: str) -> None:
    """Pytest can make the merged report serialisable and back: the text and the crash line are the same."""
    cause = make.died(1, "call", make.report("setup")) if kind == "died" else failing(make, 1, ValueError("boom"))
    other = failing(make, 0, GONE) if kind == "lost" else make.story(0, *make.passed())
    report = merged(make, [other, cause])
    config = request.config

    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    revived = config.hook.pytest_report_from_serializable(config=config, data=json.loads(json.dumps(data)))

    assert report.longreprtext == revived.longreprtext
    assert crash_of(report) == crash_of(revived)
    assert titles(revived) != []


# Problems at the end of a world.


def test_problems_at_the_end_of_a_world_are_the_text_of_the_teardown(make: Make) -> None:
    """A teardown that all ranks passed, and after which the world did not end well, shows these problems alone."""
    stories = [make.story(rank, *make.passed()) for rank in range(2)]
    report = make.report("teardown")

    merge.apply_verdict(report, add_problems(judge(stories)["teardown"], ["rank 0: a"]), stories, make.frame())

    assert report.failed
    assert str(report.longrepr).splitlines() == [
        "errors while these ranks were ended, after the last test that they ran:",
        "rank 0: a",
        f"To run this test alone: {COMMAND}",
    ]


@pytest.mark.parametrize("world_size", [1, 2])
def test_problems_at_the_end_of_a_world_stand_below_a_failed_teardown(make: Make, world_size: int) -> None:
    """A rank's own error in the teardown is shown first, in a world of one too, then how the world ended."""
    late = make.story(0, *make.passed("setup", "call"), make.failed("teardown", ValueError("late")))
    stories = [late, *(make.story(rank, *make.passed()) for rank in range(1, world_size))]
    report = make.report("teardown")
    verdict = add_problems(judge(stories)["teardown"], ["rank 0: held open"])

    merge.apply_verdict(report, verdict, stories, make.frame(world_size))

    error, _, problems = report.longreprtext.partition("errors while these ranks were ended")
    assert "ValueError: late" in error
    assert "rank 0: held open" in problems
    assert crash_of(report)[2] == "rank 0: ValueError: late"
