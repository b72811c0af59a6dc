"""The outcome rules, line by line: from the stories of all ranks to one verdict per phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch.distributed

from lightning_disttest.reporting.causes import Kind
from lightning_disttest.reporting.leaves import Recorded
from lightning_disttest.reporting.stories import Fate
from lightning_disttest.reporting.verdict import (
    PhaseVerdict,
    add_problems,
    describe_leaving,
    is_communication_error,
    judge,
)
from tests.unit.conftest import raised_in_torch

if TYPE_CHECKING:
    from tests.unit.conftest import Make

PASSED = PhaseVerdict("passed")
GONE = raised_in_torch(RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"))


def outcomes(verdicts: dict[str, PhaseVerdict]) -> dict[str, str]:
    """Return the outcome of each phase."""
    return {phase: verdict.outcome for phase, verdict in verdicts.items()}


def cast_of(verdict: PhaseVerdict) -> list[tuple[int, Kind]]:
    """Return who takes part in a failure, and how, the cause first."""
    return [(trouble.story.rank, trouble.kind) for trouble in verdict.troubles]


def test_passed_when_every_rank_passed_every_phase(make: Make) -> None:
    """All passed: passed."""
    verdicts = judge([make.story(0, *make.passed()), make.story(1, *make.passed())])

    assert verdicts == {"setup": PASSED, "call": PASSED, "teardown": PASSED}


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_failure_of_one_rank_fails_its_phase(make: Make, phase: str) -> None:
    """A failure in any phase on any rank fails that phase; a plain test's phases are reported and no others."""
    reports = [make.failed(phase, ValueError("boom")) if r.when == phase else r for r in make.passed()]
    if phase == "setup":
        del reports[1]

    verdicts = judge([make.story(0, *make.passed()), make.story(1, *reports)])

    assert list(verdicts) == (["setup", "teardown"] if phase == "setup" else ["setup", "call", "teardown"])
    assert [name for name, outcome in outcomes(verdicts).items() if outcome == "failed"] == [phase]
    assert cast_of(verdicts[phase]) == [(1, Kind.OWN_ERROR)]


def test_every_failed_rank_is_part_of_the_failure(make: Make) -> None:
    """Each rank's own error is in the verdict, in the order of arrival."""
    setup = make.report("setup")
    stories = [
        make.story(
            rank, setup, make.failed("call", ValueError(str(rank))), make.report("teardown"), arrivals=(0, at, 9)
        )
        for rank, at in ((0, 3), (1, 1), (2, 2))
    ]

    assert cast_of(judge(stories)["call"]) == [(1, Kind.OWN_ERROR), (2, Kind.OWN_ERROR), (0, Kind.OWN_ERROR)]


def test_failure_in_call_and_in_teardown_are_two_failures(make: Make) -> None:
    """As in a plain test, a failed body does not hide a failed teardown."""
    body, late = make.failed("call", ValueError("body")), make.failed("teardown", ValueError("late"))

    verdicts = judge([make.story(0, make.report("setup"), body, late), make.story(1, *make.passed())])

    assert outcomes(verdicts) == {"setup": "passed", "call": "failed", "teardown": "failed"}
    assert cast_of(verdicts["teardown"]) == [(0, Kind.OWN_ERROR)]


# A rank died.


@pytest.mark.parametrize(
    ("phase", "failed"),
    [("start", "setup"), ("setup", "setup"), ("call", "call"), ("teardown", "teardown"), ("exit", "teardown")],
)
def test_death_fails_the_phase_that_it_interrupted(make: Make, phase: str, failed: str) -> None:
    """A death before the first phase counts as setup, one after the last as teardown."""
    done = {"start": 0, "setup": 0, "call": 1, "teardown": 2, "exit": 3}[phase]

    verdicts = judge([make.story(0, *make.passed()), make.died(1, phase, *make.passed()[:done])])

    assert [name for name, outcome in outcomes(verdicts).items() if outcome == "failed"] == [failed]
    assert cast_of(verdicts[failed]) == [(1, Kind.DEATH)]


def test_death_alone_fails_a_world_of_one(make: Make) -> None:
    """A fresh process that died in the body is a failed test."""
    assert outcomes(judge([make.died(0, "call", make.report("setup"))]))["call"] == "failed"


def test_death_and_own_error_are_ordered_by_arrival(make: Make) -> None:
    """Neither a death nor an own error is the cause by its kind: the first one to arrive is."""
    failed = (make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown"))

    late_death = [make.story(0, *failed, arrivals=(0, 4, 6)), make.died(1, "call", make.report("setup"), at=5)]
    early_death = [make.story(0, *failed, arrivals=(0, 4, 6)), make.died(1, "call", make.report("setup"), at=3)]

    assert cast_of(judge(late_death)["call"]) == [(0, Kind.OWN_ERROR), (1, Kind.DEATH)]
    assert cast_of(judge(early_death)["call"]) == [(1, Kind.DEATH), (0, Kind.OWN_ERROR)]


def test_death_beats_everything_else_that_is_not_an_own_error(make: Make) -> None:
    """A death that is noticed last is still the cause of a peer's time limit, lost connection, or waiting."""
    setup = make.report("setup")
    stories = [
        make.timed_out(0, "call", setup, at=1),
        make.story(1, setup, make.failed("call", GONE), make.report("teardown"), arrivals=(0, 2, 3)),
        make.waited(2, "call", setup, at=4),
        make.died(3, "call", setup, at=9),
    ]

    assert cast_of(judge(stories)["call"]) == [
        (3, Kind.DEATH),
        (0, Kind.TIME_LIMIT),
        (1, Kind.COMMUNICATION),
        (2, Kind.WAITING),
    ]


# An own error against the echo of a peer's end.


def test_own_error_beats_a_lost_connection_that_arrived_first(make: Make) -> None:
    """A rank that tears its group down before it reports is heard after its peer, and is the cause all the same."""
    setup, teardown = make.report("setup"), make.report("teardown")
    stories = [
        make.story(0, setup, make.failed("call", GONE), teardown, arrivals=(0, 1, 2)),
        make.story(1, setup, make.failed("call", ValueError("own")), teardown, arrivals=(0, 3, 4)),
    ]

    assert cast_of(judge(stories)["call"]) == [(1, Kind.OWN_ERROR), (0, Kind.COMMUNICATION)]


def test_phase_of_the_cause_is_the_phase_that_fails(make: Make) -> None:
    """An own error in the setup is the cause of a lost connection in a peer's body: an error, no failure."""
    stories = [
        make.story(0, make.report("setup"), make.failed("call", GONE), make.report("teardown"), arrivals=(0, 1, 2)),
        make.story(1, make.failed("setup", ValueError("own")), make.report("teardown"), arrivals=(3, 4)),
    ]

    verdicts = judge(stories)

    assert outcomes(verdicts) == {"setup": "failed", "teardown": "passed"}
    assert cast_of(verdicts["setup"]) == [(1, Kind.OWN_ERROR), (0, Kind.COMMUNICATION)]


def test_lost_connections_alone_are_a_failure(make: Make) -> None:
    """If nothing but lost connections was heard, the first of them is the cause."""
    setup, teardown = make.report("setup"), make.report("teardown")
    stories = [
        make.story(rank, setup, make.failed("call", GONE), teardown, arrivals=(0, at, 9))
        for rank, at in ((0, 2), (1, 1))
    ]

    verdict = judge(stories)["call"]

    assert verdict.outcome == "failed"
    assert cast_of(verdict) == [(1, Kind.COMMUNICATION), (0, Kind.COMMUNICATION)]


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection reset by peer [127.0.0.1]:2048",
        "Connection closed by peer",
        "The client socket has failed to connect: Connection refused",
        "Broken pipe",
        "wait timeout after 30000ms, keys: /worker/1",
        "Timed out waiting 1000ms for recv operation to complete",
        "Timed out after 2ms waiting for clients. 1/2 clients joined.",
        "Socket Timeout",
        "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 30000 ms",
        "Rank 1 failed to pass monitoredBarrier in 1500 ms",
        "NCCL communicator was aborted on rank 1",
        "ncclRemoteError: A call failed possibly due to a network error",
    ],
)
def test_what_a_lost_peer_sounds_like(make: Make, text: str) -> None:
    """The words of torch and its backends for a lost peer are known, in an exception that they may raise."""
    assert is_communication_error(make.failed("call", raised_in_torch(RuntimeError(text))))


@pytest.mark.parametrize(
    "error",
    [
        torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"),
        torch.distributed.DistNetworkError("Connection refused"),
        torch.distributed.DistStoreError("wait timeout after 30000ms, keys: /worker/1"),
        ConnectionError("Connection closed by peer"),
        ConnectionResetError("Connection reset by peer"),
        BrokenPipeError("Broken pipe"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_who_speaks_of_a_lost_peer(make: Make, error: Exception) -> None:
    """Torch's own exceptions and Python's for connections tell of a lost peer, by the names that pytest shows."""
    assert is_communication_error(make.failed("call", raised_in_torch(error)))


def test_port_that_is_taken_is_no_lost_peer(make: Make) -> None:
    """A rank that cannot listen fails by itself, in the class of error that torch has for lost connections too."""
    text = "The server socket has failed to listen on any local network address. port: 58091, name: EADDRINUSE"
    assert not is_communication_error(make.failed("call", raised_in_torch(torch.distributed.DistNetworkError(text))))


class RuntimeErrorOfTheSuite(Exception):
    """An error of the tested code, whose name begins like one that torch raises."""


@pytest.mark.parametrize("kind", [ValueError, AssertionError, TimeoutError, RuntimeErrorOfTheSuite])
def test_words_of_a_lost_peer_in_another_error_are_the_ranks_own(make: Make, kind: type[Exception]) -> None:
    """An assertion about a text, or an error of the tested code, is no echo, whatever it says."""
    assert not is_communication_error(make.failed("call", raised_in_torch(kind("Connection closed by peer"))))


def test_words_of_a_lost_peer_outside_of_torch_are_the_ranks_own(make: Make) -> None:
    """The tested code may have connections of its own: what it raises itself is no echo."""
    assert not is_communication_error(make.failed("call", ConnectionRefusedError("Connection refused")))


def test_words_of_a_lost_peer_without_an_exception_are_the_ranks_own(make: Make) -> None:
    """A failure that holds only text has no exception type, so nobody knows who speaks."""
    assert not is_communication_error(make.report("call", "failed", "RuntimeError: Connection closed by peer"))


MISSED_BARRIER = "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 30000 ms"


@pytest.mark.parametrize("at", [1, 9], ids=["death first", "death last"])
def test_killed_rank_is_the_cause_of_a_missed_barrier(make: Make, at: int) -> None:
    """Gloo's words for a rank that did not come are no error of the rank that says them, whatever arrived first."""
    setup, teardown = make.report("setup"), make.report("teardown")
    missed = raised_in_torch(RuntimeError(MISSED_BARRIER))
    stories = [
        make.story(0, setup, make.failed("call", missed), teardown, arrivals=(0, 5, 6)),
        make.story(1, setup, make.failed("call", GONE), teardown, arrivals=(0, 4, 6)),
        make.died(2, "call", setup, at=at),
    ]

    assert cast_of(judge(stories)["call"]) == [(2, Kind.DEATH), (1, Kind.COMMUNICATION), (0, Kind.COMMUNICATION)]


def test_missed_barrier_of_a_tests_own_is_the_ranks_own(make: Make) -> None:
    """The same words in an exception that torch did not raise may be the cause."""
    setup, teardown = make.report("setup"), make.report("teardown")
    own = make.failed("call", RuntimeError(MISSED_BARRIER))
    stories = [make.story(0, setup, own, teardown, arrivals=(0, 5, 6)), make.died(1, "call", setup, at=9)]

    assert not is_communication_error(own)
    assert cast_of(judge(stories)["call"]) == [(0, Kind.OWN_ERROR), (1, Kind.DEATH)]


def test_words_of_a_lost_peer_that_a_test_fails_with_make_it_the_cause(make: Make) -> None:
    """A rank that fails with such words of its own goes before a rank that really lost its peer."""
    setup, teardown = make.report("setup"), make.report("teardown")
    own = ValueError("the server said: Connection closed by peer")
    stories = [
        make.story(0, setup, make.failed("call", GONE), teardown, arrivals=(0, 1, 2)),
        make.story(1, setup, make.failed("call", own), teardown, arrivals=(0, 3, 4)),
    ]

    assert cast_of(judge(stories)["call"]) == [(1, Kind.OWN_ERROR), (0, Kind.COMMUNICATION)]


@pytest.mark.parametrize("text", ["boom", "the pipe is broken", "timeout", "assert 1 == 2", "connection pool is empty"])
def test_what_an_own_error_sounds_like(make: Make, text: str) -> None:
    """Other errors are a rank's own."""
    assert not is_communication_error(make.failed("call", RuntimeError(text)))


def test_words_in_the_source_do_not_make_an_echo(make: Make) -> None:
    """Only the message of the error counts, not what else stands in its traceback."""
    try:
        raise ValueError("own")  # Connection closed by peer
    except ValueError as error:
        report = make.report("call", "failed", pytest.ExceptionInfo.from_exception(error).getrepr())

    assert "Connection closed by peer" in str(report.longrepr)
    assert not is_communication_error(report)


# Time limit and grace.


def test_time_limit_fails_the_test(make: Make) -> None:
    """A rank that is still in the test at the time limit fails it."""
    verdict = judge([make.story(0, *make.passed()), make.timed_out(1, "call", make.report("setup"))])["call"]

    assert verdict.outcome == "failed"
    assert cast_of(verdict) == [(1, Kind.TIME_LIMIT)]


def test_time_limit_beats_lost_connections(make: Make) -> None:
    """A rank that hung is the cause of what its peers lost."""
    lost = make.story(0, make.report("setup"), make.failed("call", GONE), make.report("teardown"), arrivals=(0, 1, 2))

    verdict = judge([lost, make.timed_out(1, "call", make.report("setup"))])["call"]

    assert cast_of(verdict) == [(1, Kind.TIME_LIMIT), (0, Kind.COMMUNICATION)]


STACKS_OF_A_WAIT = """Thread 0x1 (most recent call first):
  File "/home/me/test_it.py", line 2 in watch

Current thread 0x2 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 5 in barrier
  File "/home/me/test_it.py", line 7 in test_it
"""
STACKS_OF_A_HANG = """Thread 0x1 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 5 in watch

Current thread 0x2 (most recent call first):
  File "/home/me/test_it.py", line 9 in spin
  File "/site-packages/torch/distributed/distributed_c10d.py", line 8 in call_back
"""


@pytest.mark.parametrize("stacks", [STACKS_OF_A_HANG, "", "rubbish"], ids=["hangs", "unknown", "rubbish"])
def test_rank_that_waits_for_others_is_not_what_hangs(make: Make, stacks: str) -> None:
    """At the time limit the rank that is not in torch.distributed is the cause, whatever was noticed first."""
    setup = make.report("setup")
    stories = [
        make.timed_out(0, "call", setup, at=1, stacks=STACKS_OF_A_WAIT),
        make.timed_out(1, "call", setup, at=2, stacks=stacks),
        make.timed_out(2, "call", setup, at=3, stacks=STACKS_OF_A_WAIT),
    ]

    assert [story.waits_for_others for story in stories] == [True, False, True]
    assert [rank for rank, _ in cast_of(judge(stories)["call"])] == [1, 0, 2]


def test_time_limit_in_teardown_is_an_error_of_the_teardown(make: Make) -> None:
    """A rank whose teardown hangs passed its body."""
    verdicts = judge([make.story(0, *make.passed()), make.timed_out(1, "teardown", *make.passed("setup", "call"))])

    assert outcomes(verdicts) == {"setup": "passed", "call": "passed", "teardown": "failed"}


def test_ranks_that_waited_are_shown_after_the_cause(make: Make) -> None:
    """A rank that was ended when the grace was over is part of the story, last of all."""
    failed = make.story(0, make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown"))

    verdict = judge([make.waited(1, "call", make.report("setup"), at=-1), failed])["call"]

    assert cast_of(verdict) == [(0, Kind.OWN_ERROR), (1, Kind.WAITING)]


def test_setup_failed_on_one_rank_while_another_was_in_the_body(make: Make) -> None:
    """The test has an error in setup, and the other rank is shown as waiting in its body."""
    failed = make.story(0, make.failed("setup", ValueError("own")), make.report("teardown"))

    verdicts = judge([failed, make.waited(1, "call", make.report("setup"))])

    assert outcomes(verdicts) == {"setup": "failed", "teardown": "passed"}
    assert cast_of(verdicts["setup"]) == [(0, Kind.OWN_ERROR), (1, Kind.WAITING)]
    assert verdicts["setup"].troubles[1].phase == "call"


def test_rank_that_waits_in_teardown_belongs_to_the_failed_body(make: Make) -> None:
    """A rank that hangs in its teardown after a peer's failure waited; it is no second failure."""
    failed = make.story(0, make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown"))

    verdicts = judge([failed, make.waited(1, "teardown", *make.passed("setup", "call"))])

    assert outcomes(verdicts) == {"setup": "passed", "call": "failed", "teardown": "passed"}
    assert cast_of(verdicts["call"]) == [(0, Kind.OWN_ERROR), (1, Kind.WAITING)]


@pytest.mark.parametrize(("phase", "reported"), [("setup", []), ("call", ["setup"])])
def test_rank_that_waits_in_its_body_for_a_failed_teardown_makes_one_failure(
    make: Make, phase: str, reported: list[str]
) -> None:
    """A rank that waits, in its setup or body, for one whose teardown failed never came to its own: one failure."""
    failed = make.story(0, *make.passed("setup", "call"), make.failed("teardown", ValueError("own")))
    waiting = make.waited(1, phase, *[make.report(name) for name in reported])

    verdicts = judge([failed, waiting])

    assert [name for name, outcome in outcomes(verdicts).items() if outcome == "failed"] == [phase]
    assert cast_of(verdicts[phase]) == [(0, Kind.OWN_ERROR), (1, Kind.WAITING)]
    assert cast_of(verdicts["teardown"]) == []


def test_rank_that_hangs_in_teardown_belongs_to_the_failed_body(make: Make) -> None:
    """A rank that was in its teardown at the time limit, after a peer's failure, is no second failure either."""
    failed = make.story(0, make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown"))

    verdicts = judge([failed, make.timed_out(1, "teardown", *make.passed("setup", "call"))])

    assert outcomes(verdicts) == {"setup": "passed", "call": "failed", "teardown": "passed"}
    assert cast_of(verdicts["call"]) == [(0, Kind.OWN_ERROR), (1, Kind.TIME_LIMIT)]


@pytest.mark.parametrize("late", ["failed", "died"])
def test_own_failure_in_teardown_stays_one_beside_a_failed_body(make: Make, late: str) -> None:
    """A rank that failed or died in its teardown by itself is a failure of its own, whoever else was ended there."""
    body = make.passed("setup", "call")
    stories = [
        make.story(0, make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown")),
        make.waited(1, "teardown", *body),
        make.died(2, "teardown", *body)
        if late == "died"
        else make.story(2, *body, make.failed("teardown", ValueError("late"))),
    ]

    verdicts = judge(stories)

    assert outcomes(verdicts) == {"setup": "passed", "call": "failed", "teardown": "failed"}
    assert cast_of(verdicts["call"]) == [(0, Kind.OWN_ERROR), (1, Kind.WAITING)]
    assert cast_of(verdicts["teardown"]) == [(2, Kind.DEATH if late == "died" else Kind.OWN_ERROR)]


# Skips.


@pytest.mark.parametrize("phase", ["setup", "call"])
def test_skipped_when_all_ranks_skipped(make: Make, phase: str) -> None:
    """All skipped: skipped, with the reason."""
    before = make.passed("setup") if phase == "call" else []
    stories = [make.story(rank, *before, make.skipped(phase, "no data"), make.report("teardown")) for rank in range(2)]

    verdicts = judge(stories)

    assert outcomes(verdicts)[phase] == "skipped"
    assert verdicts[phase].skip == ("test_it.py", 7, "Skipped: no data")
    assert list(verdicts) == (["setup", "teardown"] if phase == "setup" else ["setup", "call", "teardown"])


def test_ranks_disagree_when_some_skipped(make: Make) -> None:
    """Some skipped and some passed: failed, with a table of all ranks."""
    skipped = make.story(1, make.report("setup"), make.skipped("call", "no data"), make.report("teardown"))

    verdict = judge([make.story(0, *make.passed()), skipped])["call"]

    assert verdict == PhaseVerdict(
        "failed",
        disagreement=(
            "the ranks disagree; a test must end the same way on all of them:\n"
            "  rank 0: passed\n"
            "  rank 1: skipped in call (no data)"
        ),
    )


def test_table_of_disagreement_tells_who_waited_where(make: Make) -> None:
    """A rank that waits for one that skipped is in the table, with the place at which it waited."""
    stacks = (
        "Thread 0x1 (most recent call first):\n"
        '  File "/lib/threading.py", line 1 in run\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/lib/torch/distributed/distributed_c10d.py", line 9 in barrier\n'
        '  File "/home/test_it.py", line 12 in test_it\n'
    )
    skipped = make.story(0, make.skipped("setup", "no data"), make.report("teardown"))

    verdict = judge([skipped, make.waited(1, "call", make.report("setup"), stacks=stacks)])["setup"]

    assert verdict.outcome == "failed"
    assert verdict.disagreement.splitlines()[1:] == [
        "  rank 0: skipped in setup (no data)",
        "  rank 1: waited in call after setup, at /home/test_it.py:12 in test_it",
    ]


def test_failure_beats_disagreement(make: Make) -> None:
    """One failed and one skipped: the failure is shown, not the table."""
    skipped = make.story(0, make.skipped("setup", "no data"), make.report("teardown"))
    failed = make.story(1, make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown"))

    verdicts = judge([skipped, failed])

    assert cast_of(verdicts["call"]) == [(1, Kind.OWN_ERROR)]
    assert all(verdict.disagreement == "" for verdict in verdicts.values())


# Expected failures.


def test_xfailed_when_all_ranks_failed_as_expected(make: Make) -> None:
    """An expected failure on all ranks is xfailed, with the reason of the mark."""
    stories = [
        make.story(rank, make.report("setup"), make.xfailed("call", ValueError("known")), make.report("teardown"))
        for rank in range(2)
    ]

    verdict = judge(stories)["call"]

    assert (verdict.outcome, verdict.wasxfail, verdict.troubles) == ("skipped", "known", ())


@pytest.mark.parametrize("other", ["passed", "waited", "strict_xpass", "lost_connection"])
def test_xfail_holds_if_one_rank_failed_as_expected(make: Make, other: str) -> None:
    """What an expected failure on one rank explains on the others is covered by it."""
    setup, teardown = make.report("setup"), make.report("teardown")
    peers = {
        "passed": make.story(1, *make.passed()),
        "waited": make.waited(1, "call", setup),
        "strict_xpass": make.story(1, setup, make.strict_xpass(), teardown),
        "lost_connection": make.story(1, setup, make.failed("call", GONE), teardown),
    }

    verdicts = judge([make.story(0, setup, make.xfailed("call", ValueError("known")), teardown), peers[other]])

    assert outcomes(verdicts) == {"setup": "passed", "call": "skipped", "teardown": "passed"}
    assert verdicts["call"].wasxfail == "known"


@pytest.mark.parametrize("other", ["died", "timed_out", "own_error"])
def test_xfail_covers_no_death_time_limit_or_other_failure(make: Make, other: str) -> None:
    """An expected failure on one rank excuses nothing that another one did by itself."""
    setup, teardown = make.report("setup"), make.report("teardown")
    peers = {
        "died": (make.died(1, "call", setup), Kind.DEATH),
        "timed_out": (make.timed_out(1, "call", setup), Kind.TIME_LIMIT),
        "own_error": (make.story(1, setup, make.failed("call", KeyError("x")), teardown), Kind.OWN_ERROR),
    }
    peer, kind = peers[other]

    verdict = judge([make.story(0, setup, make.xfailed("call", ValueError("known")), teardown), peer])["call"]

    assert verdict.outcome == "failed"
    assert verdict.wasxfail is None
    assert cast_of(verdict) == [(1, kind)]


def test_xfail_in_setup_is_xfailed(make: Make) -> None:
    """``pytest.xfail`` in a fixture of every rank is an expected failure in setup, and there is no call."""
    stories = [make.story(r, make.xfailed("setup", ValueError("known")), make.report("teardown")) for r in range(2)]

    verdicts = judge(stories)

    assert outcomes(verdicts) == {"setup": "skipped", "teardown": "passed"}
    assert verdicts["setup"].wasxfail == "known"


def test_teardown_error_beside_an_expected_failure_is_shown(make: Make) -> None:
    """As in a plain test, an expected failure does not cover an error in the teardown."""
    late = make.failed("teardown", ValueError("late"))
    stories = [
        make.story(0, make.report("setup"), make.xfailed("call", ValueError("known")), late),
        make.story(1, *make.passed()),
    ]

    assert outcomes(judge(stories)) == {"setup": "passed", "call": "skipped", "teardown": "failed"}


def test_strict_xpass_fails_if_all_ranks_passed(make: Make) -> None:
    """With xfail(strict=True), a test that passed on all ranks fails."""
    stories = [make.story(r, make.report("setup"), make.strict_xpass(), make.report("teardown")) for r in range(2)]

    assert outcomes(judge(stories))["call"] == "failed"


def test_xpass_is_kept(make: Make) -> None:
    """With a plain xfail mark, a test that passed on all ranks is xpassed."""
    stories = [
        make.story(rank, make.report("setup"), make.report("call", wasxfail="known"), make.report("teardown"))
        for rank in range(2)
    ]

    verdict = judge(stories)["call"]

    assert (verdict.outcome, verdict.wasxfail) == ("passed", "known")


def test_disagreement_beats_an_expected_failure(make: Make) -> None:
    """One skipped and one failed as expected: the ranks disagree, in the body as in the setup."""
    setup, teardown = make.report("setup"), make.report("teardown")
    xfailed = make.story(0, setup, make.xfailed("call", ValueError("known")), teardown)
    skipped_in_setup = make.story(1, make.skipped("setup", "no data"), teardown)
    skipped_in_call = make.story(1, setup, make.skipped("call", "no data"), teardown)

    assert outcomes(judge([xfailed, skipped_in_setup]))["setup"] == "failed"
    assert outcomes(judge([xfailed, skipped_in_call]))["call"] == "failed"


# Subtests and recorded values.


def test_failed_subtest_fails_the_test(make: Make) -> None:
    """A failed sub-report fails the body, though the rank's own report of the body passed."""
    sub = make.subreport("i=1", "failed", make.longrepr(ValueError("sub")))
    story = make.story(0, make.report("setup"), sub, make.report("call"), make.report("teardown"))

    assert outcomes(judge([story, make.story(1, *make.passed())]))["call"] == "failed"


def test_passed_and_skipped_subtests_change_nothing(make: Make) -> None:
    """A skipped sub-report on one rank is no disagreement of the ranks."""
    subs = [make.subreport("i=1"), make.subreport("i=2", "skipped", ("test_it.py", 3, "Skipped: x"))]
    story = make.story(0, make.report("setup"), *subs, make.report("call"), make.report("teardown"))

    assert judge([story, make.story(1, *make.passed())])["call"] == PASSED


def test_different_records_fail_a_test_that_passed(make: Make) -> None:
    """Values that differ between ranks fail the call, with a table."""
    stories = [make.story(rank, *make.passed(), records={"loss": Recorded({"loss": rank})}) for rank in range(2)]

    verdict = judge(stories)["call"]

    assert verdict.outcome == "failed"
    assert "  loss\n" in verdict.disagreement


def test_records_of_a_failed_test_are_not_compared(make: Make) -> None:
    """A rank that failed before it recorded is not accused of another value."""
    failed = (make.report("setup"), make.failed("call", ValueError("own")), make.report("teardown"))

    verdict = judge([make.story(0, *make.passed(), records={"loss": Recorded({"loss": 1})}), make.story(1, *failed)])[
        "call"
    ]

    assert verdict.disagreement == ""


@pytest.mark.parametrize("fate", ["died", "waited"])
def test_records_are_not_compared_if_a_rank_did_not_finish(make: Make, fate: str) -> None:
    """A rank that died or was ended in its teardown fails that, and is not accused of another value as well."""
    late = make.failed("teardown", ValueError("late"))
    finished = make.story(0, *make.passed("setup", "call"), late, records={"loss": Recorded({"loss": 1})})
    unfinished = getattr(make, fate)(1, "teardown", *make.passed("setup", "call"))

    verdicts = judge([finished, unfinished])

    assert outcomes(verdicts) == {"setup": "passed", "call": "passed", "teardown": "failed"}


# Problems at the end of a world.


def test_leaving_badly_is_described() -> None:
    """Problems at the end of a world are listed under one sentence."""
    assert describe_leaving(["rank 0: a", "rank 1: b"]) == (
        "errors while these ranks were ended, after the last test that they ran:\nrank 0: a\nrank 1: b"
    )


def test_problems_at_the_end_of_a_world_fail_a_passed_teardown() -> None:
    """A teardown that passed on all ranks fails if the world did not end well after it."""
    assert add_problems(PASSED, ["rank 0: a"]) == PhaseVerdict("failed", disagreement=describe_leaving(["rank 0: a"]))


def test_problems_at_the_end_of_a_world_keep_what_failed_before(make: Make) -> None:
    """The troubles of a failed teardown stay, and the problems come on top of them."""
    failed = make.story(0, *make.passed("setup", "call"), make.failed("teardown", ValueError("late")))
    before = judge([failed, make.story(1, *make.passed())])["teardown"]

    verdict = add_problems(before, ["rank 1: a"])

    assert verdict.outcome == "failed"
    assert verdict.troubles == before.troubles != ()
    assert verdict.disagreement == describe_leaving(["rank 1: a"])


# The precedence over all ranks, from the most to the least: each line beats all below it.

LEVELS = ["died", "time limit", "failed", "disagree", "xfailed", "skipped", "passed"]


@pytest.mark.parametrize("strongest", LEVELS)
def test_precedence_over_all_ranks(make: Make, strongest: str) -> None:
    """With one rank of each weaker kind that can be beside it, the strongest kind decides."""
    setup, teardown = make.report("setup"), make.report("teardown")
    stories = {
        "died": make.died(0, "call", setup, at=50),
        "time limit": make.timed_out(1, "call", setup, at=60),
        "failed": make.story(2, setup, make.failed("call", ValueError("own")), teardown, arrivals=(0, 70, 80)),
        "disagree": make.story(3, make.skipped("setup", "no data"), teardown),
        "xfailed": make.story(4, setup, make.xfailed("call", ValueError("known")), teardown),
        "passed": make.story(6, *make.passed()),
    }
    weaker = LEVELS[LEVELS.index(strongest) :]
    present = [stories[level] for level in weaker if level in stories]
    if strongest == "skipped":
        present = [make.story(rank, setup, make.skipped("call", "no data"), teardown) for rank in range(2)]

    verdicts = judge(present)

    expected = {
        "died": (0, Kind.DEATH),
        "time limit": (1, Kind.TIME_LIMIT),
        "failed": (2, Kind.OWN_ERROR),
    }
    if strongest in expected:
        assert verdicts["call"].outcome == "failed"
        assert expected[strongest] in cast_of(verdicts["call"])
    elif strongest == "disagree":
        assert verdicts["setup"].disagreement != ""
    elif strongest == "xfailed":
        assert verdicts["call"].wasxfail == "known"
    else:
        assert verdicts["call"].outcome == strongest


def test_stories_know_their_main_reports(make: Make) -> None:
    """The report of a phase is never a sub-report; a phase that was not reported has none."""
    sub, call = make.subreport("i=1"), make.report("call")
    story = make.story(0, sub, call, fate=Fate.DIED, phase="teardown")

    assert story.report_of("call") is call
    assert story.report_of("teardown") is None


@pytest.mark.parametrize(
    "stacks",
    ["", "Current thread 0x1 (most recent call first):\n  <no Python frame>\n", "rubbish"],
    ids=["none", "no frame", "rubbish"],
)
def test_unknown_place_is_empty(make: Make, stacks: str) -> None:
    """Stacks without a frame of the test name no place."""
    assert make.waited(0, "call", stacks=stacks).place == ""


def test_deadlock_is_explained_where_the_time_limit_is_the_cause(make: Make) -> None:
    """In body and teardown alike; but a death explains by itself why others wait, and is not to be overshadowed."""
    apart = [(make.collective(name),) for name in ("all_reduce", "barrier")]
    before = {"call": [make.report("setup")], "teardown": make.passed("setup", "call")}
    hung = {
        phase: [make.timed_out(rank, phase, *before[phase], collectives=apart[rank]) for rank in range(2)]
        for phase in ("call", "teardown")
    }

    for phase, stories in hung.items():
        assert judge(stories)[phase].explanation.startswith("The ranks do not call the same as number 1 of "), phase
    assert judge([*hung["call"], make.died(2, "call", make.report("setup"))])["call"].explanation == ""


HOW = "was ended by the test's own fault (SIGKILL on rank 1 at step 3)"


def test_planned_end_leaves_the_outcome_to_the_others(make: Make) -> None:
    """A rank that ended as planned is neither a death, nor a rank that did not pass; values are compared without it."""
    records = {"x": Recorded({"x": 1})}
    ended = make.story(1, *make.passed()[:1], fate=Fate.PLANNED, phase="call", how=HOW, records=records)
    passed = make.story(0, *make.passed(), records={"x": Recorded({"x": 2})})
    other = make.story(2, *make.passed(), records={"x": Recorded({"x": 3})})

    assert outcomes(judge([passed, ended])) == {"setup": "passed", "call": "passed", "teardown": "passed"}
    assert "rank 2  3" in judge([passed, ended, other])["call"].disagreement
    assert "rank 1" not in judge([passed, ended, other])["call"].disagreement


def test_planned_end_is_shown_last_beside_a_failure(make: Make) -> None:
    """What another rank says of it, a lost connection, is the failure; the planned end comes after all."""
    ended = make.story(1, *make.passed()[:1], fate=Fate.PLANNED, phase="call", how=HOW)
    failed = make.story(0, make.passed()[0], make.failed("call", GONE), make.passed()[2])

    verdict = judge([ended, failed, make.waited(2, "call", make.passed()[0])])["call"]

    assert cast_of(verdict) == [(0, Kind.COMMUNICATION), (2, Kind.WAITING), (1, Kind.PLANNED)]


def test_skip_of_all_that_are_left_is_a_skip(make: Make) -> None:
    """Ranks that ended as planned disagree with nobody."""
    ended = make.story(1, *make.passed()[:1], fate=Fate.PLANNED, phase="call", how=HOW)
    reports = [make.passed()[0], make.report("call", "skipped", ("f.py", 1, "Skipped: no")), make.passed()[2]]

    assert judge([make.story(0, *reports), ended])["call"].outcome == "skipped"


def test_nobody_left_after_planned_ends_is_a_failure(make: Make) -> None:
    """If all ranks ended as planned, none is left that could pass the test."""
    ended = make.story(0, *make.passed()[:1], fate=Fate.PLANNED, phase="call", how=HOW)

    verdict = judge([ended])["call"]

    assert verdict.outcome == "failed"
    assert cast_of(verdict) == [(0, Kind.DEATH)]
    assert verdict.troubles[0].story.how == f"{HOW[4:]}, and no rank is left that could come to the end of the test"
