"""The text of launched ranks that failed, and what a launched process tells of its error."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from lightning_disttest import errors
from lightning_disttest.engine import running_tests
from lightning_disttest.engine.context import current_rank, enter_rank, leave_rank
from lightning_disttest.engine.launched import LaunchedFiles, LaunchedFunction, describe_error
from lightning_disttest.engine.launched_errors import make_error
from lightning_disttest.reporting.launched import (
    LaunchedStory,
    LaunchFrame,
    describe_launch,
    list_failures,
    sort_causes,
)
from lightning_disttest.reporting.raised import RaisedError
from lightning_disttest.reporting.stories import Fate
from tests.unit.contexts import make_context

FRAME = LaunchFrame(grace=0.5, limit=4.0, early=1.0)
TORCH = "/site-packages/torch/autograd/graph.py"
HANG = """Current thread 0x00007f00 (most recent call first):
  File "/lib/python3.11/threading.py", line 10 in wait
  File "/home/me/test_it.py", line 20 in hang
  File "/src/lightning_disttest/engine/launched.py", line 99 in __call__
  File "/home/me/test_it.py", line 30 in test_it
"""
BARRIER = """Current thread 0x00007f00 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 10 in barrier
  File "/home/me/test_it.py", line 21 in step
"""
BACKWARD = f"""Current thread 0x00007f00 (most recent call first):
  File "{TORCH}", line 10 in _engine_run_backward
  File "/home/me/test_it.py", line 22 in step
"""


def error(
    name: str = "ValueError", text: str = "bad", at: float = 1.0, path: str = "/me.py", **more: Any
) -> RaisedError:
    """Return an error of the test's own code, raised at the moment ``at``."""
    message = f"{name}: {text}"
    traceback = f'Traceback (most recent call last):\n  File "{path}", line 3, in step\n{message}\n'
    return RaisedError(name, text, traceback, message, path, 3, at, **{"leaves": False, "exits": False, **more})


def raised(rank: int, told: RaisedError) -> LaunchedStory:
    """Return the story of a rank that raised an exception."""
    return LaunchedStory(rank, 100 + rank, Fate.DIED, told, exitcode=1, how="exited with status 1", moment=told.moment)


def echo(rank: int, at: float) -> LaunchedStory:
    """Return the story of a rank that lost its connection to a peer."""
    return raised(rank, error("RuntimeError", "Connection closed by peer\nsee the logs", at, TORCH))


def died(rank: int, at: float = 1.0, **more: Any) -> LaunchedStory:
    """Return the story of a rank that was killed."""
    fields: dict[str, Any] = {"how": "killed by SIGKILL", "exitcode": -9, "moment": at}
    return LaunchedStory(rank, 100 + rank, Fate.DIED, **{**fields, **more})


def told(*stories: LaunchedStory) -> list[str]:
    """Return the lines of the text about these ranks."""
    return describe_launch(stories, FRAME).splitlines()


def test_one_error_as_a_whole() -> None:
    """The first line is for the summary; then the cause with its traceback, the echo, and who came to the end."""
    assert told(echo(0, at=0.5), raised(1, error()), LaunchedStory(2, 102, Fate.FINISHED)) == [
        "rank 1 of 3 raised ValueError: bad",
        "",
        "______ rank 1 of 3 (pid 101): raised ValueError <- the cause ______",
        "Traceback (most recent call last):",
        '  File "/me.py", line 3, in step',
        "ValueError: bad",
        "",
        "______ rank 0 of 3 (pid 100): lost its connection to a peer ______",
        f"{TORCH}:3: RuntimeError: Connection closed by peer",
        "see the logs",
        "",
        "______ rank 2 of 3: came to the end ______",
    ]


def test_the_only_rank_is_not_called_the_cause() -> None:
    """Where there are no others, there is nothing to tell them apart by."""
    assert "______ rank 0 of 1 (pid 100): raised ValueError ______" in told(raised(0, error()))


def test_echoes_alone_are_not_folded() -> None:
    """If nobody says more than that a peer is gone, the first of these is the cause, with its traceback."""
    lines = told(echo(0, at=2.0), echo(1, at=1.0))
    assert lines[0] == "ranks 0-1 of 2 lost their connection to a peer: RuntimeError: Connection closed by peer"
    assert "Traceback (most recent call last):" in lines


def test_words_of_a_lost_connection_in_own_code_are_an_own_error() -> None:
    """An error that torch did not raise is none of those, whatever it says."""
    assert told(raised(0, error("RuntimeError", "Connection closed by peer")))[0] == (
        "rank 0 of 1 raised RuntimeError: Connection closed by peer"
    )


@pytest.mark.parametrize(
    ("stories", "order"),
    [
        ([raised(0, error(at=2.0)), raised(1, error("KeyError", at=1.0))], [1, 0]),
        ([echo(0, at=1.0), raised(1, error(at=2.0))], [1, 0]),
        ([echo(0, at=1.0), died(1, at=2.0)], [1, 0]),
        ([raised(0, error(at=2.0)), died(1, at=1.0)], [1, 0]),
        ([LaunchedStory(0, 100, Fate.WAITED), echo(1, at=5.0)], [1, 0]),
        (
            [LaunchedStory(0, 100, Fate.TIMED_OUT, stacks=BARRIER), LaunchedStory(1, 101, Fate.TIMED_OUT, stacks=HANG)],
            [1, 0],
        ),
        (
            [LaunchedStory(0, 100, Fate.TIMED_OUT, stacks=BACKWARD), LaunchedStory(1, 101, Fate.TIMED_OUT)],
            [1, 0],
        ),
        ([LaunchedStory(0, 100, Fate.FINISHED), died(1)], [1]),
    ],
)
def test_order_of_causes(stories: list[LaunchedStory], order: list[int]) -> None:
    """A death or an own error beats an echo, then the first in time; who hangs comes before who waits."""
    assert [story.rank for story in sort_causes(stories)] == order


def test_alike_errors_are_told_once() -> None:
    """What differs only in addresses is the same."""
    one, other = error(text="<object at 0x7f01>"), error(text="<object at 0x7f02>")
    lines = told(raised(1, one), raised(0, other), raised(2, error(text="else")))
    titles = [line for line in lines if line.startswith("___")]
    assert titles == [
        "______ ranks 0-1 of 3 (pid 100, 101): raised ValueError <- the cause ______",
        "______ rank 2 of 3 (pid 102): raised ValueError ______",
    ]


@pytest.mark.parametrize(
    ("story", "line"),
    [
        (died(0), "died: killed by SIGKILL before the end of its function"),
        (
            died(0, how="exited with status 0", exitcode=0),
            "died: exited with status 0 before the end of its function",
        ),
        (died(0, begun=False), "died: killed by SIGKILL before its function began"),
        (died(0, came_to_end=True), "died: killed by SIGKILL after the end of its function"),
        (
            raised(0, error("SystemExit", "was it", leaves=True, exits=True)),
            "died: SystemExit: was it left its function",
        ),
        (
            LaunchedStory(0, 100, Fate.TIMED_OUT, stacks=HANG),
            "was still running at the time limit of 4 s: at /home/me/test_it.py:20 in hang",
        ),
        (
            LaunchedStory(0, 100, Fate.TIMED_OUT, stacks=BARRIER),
            "was still running at the time limit of 4 s: is in barrier of torch.distributed, "
            "at /home/me/test_it.py:21 in step",
        ),
        (
            LaunchedStory(0, 100, Fate.TIMED_OUT, stacks=BACKWARD),
            "was still running at the time limit of 4 s: is in a backward pass of torch, "
            "at /home/me/test_it.py:22 in step",
        ),
        (
            LaunchedStory(0, 100, Fate.TIMED_OUT, begun=False),
            "was still running at the time limit of 4 s: had not begun its function",
        ),
        (
            LaunchedStory(0, 100, Fate.TIMED_OUT, came_to_end=True, stacks=HANG),
            "was still running at the time limit of 4 s: came to the end of its function, but its process did not end",
        ),
        (
            LaunchedStory(0, 100, Fate.TIMED_OUT, is_stopped=True),
            "was still running at the time limit of 4 s: is stopped, by SIGSTOP or a debugger",
        ),
    ],
)
def test_first_line(story: LaunchedStory, line: str) -> None:
    """The line of the summary says which rank it was and how it failed."""
    assert told(story)[0] == f"rank 0 of 1 {line}"
    assert told(story, LaunchedStory(1, 101, Fate.FINISHED))[0] == f"rank 0 of 2 {line}"


def test_several_deaths_at_once() -> None:
    """Of several ranks it is said in the plural, but what they said themselves stays."""
    exits = [raised(rank, error("SystemExit", "was it its fault", leaves=True, exits=True)) for rank in (0, 1)]
    assert told(died(0), died(1))[0] == "ranks 0-1 of 2 died: killed by SIGKILL before the end of their function"
    assert told(*exits)[0] == "ranks 0-1 of 2 died: SystemExit: was it its fault left their function"


def test_words_of_torch_are_there() -> None:
    """Tests that look for what torch says of a death find it."""
    assert "process 1 terminated with signal SIGKILL" in told(died(1))
    assert "process 1 terminated with exit code 3" in told(died(1, how="exited with status 3", exitcode=3))


def test_who_waited() -> None:
    """A rank that was ended after the grace is told with the place and its stacks, without what it stands on."""
    lines = told(raised(1, error()), LaunchedStory(0, 100, Fate.WAITED, stacks=HANG))
    start = lines.index(
        "______ rank 0 of 2 (pid 100): was still running when the grace of 0.5 s was over, and was ended ______"
    )
    assert lines[start + 1 :] == [
        "at /home/me/test_it.py:20 in hang",
        "Python stacks:",
        "Current thread 0x00007f00 (most recent call first):",
        '  File "/lib/python3.11/threading.py", line 10 in wait',
        '  File "/home/me/test_it.py", line 20 in hang',
    ]


def test_time_limit_is_explained() -> None:
    """It is said whose limit it is, how to change it, and why it seems to be shorter."""
    assert told(LaunchedStory(0, 100, Fate.TIMED_OUT))[-1] == (
        "The limit of 4 s is that of the whole test: see --disttest-timeout (DISTTEST_TIMEOUT, ini disttest_timeout). "
        "Its launched ranks were ended 1 s before it, to tell this."
    )


def test_failures_of_ranks() -> None:
    """The error lists who failed, in order; one that only waited has not failed."""
    stories = [died(0), raised(1, error()), LaunchedStory(2, 102, Fate.WAITED), LaunchedStory(3, 103, Fate.FINISHED)]
    assert list_failures(stories, FRAME) == (
        errors.RankFailure(0, 100, "", "", "", "died: killed by SIGKILL before the end of its function"),
        errors.RankFailure(1, 101, "ValueError", "bad", error().traceback, "raised ValueError"),
    )


class Odd(Exception):
    """An exception that cannot be pickled, nor printed."""

    def __str__(self) -> str:
        raise LookupError("no text")


def describe(raising: BaseException) -> RaisedError:
    """Raise an error in a function of this file and describe it as a launched process does."""

    def step() -> None:
        raise raising

    try:
        step()
    except BaseException as caught:  # noqa: BLE001  any error may be described
        described = describe_error(caught)
    return described


def test_description_of_an_error() -> None:
    """It has class, text, place and traceback, without the frame that caught it."""
    described = describe(ValueError("bad"))
    assert (described.name, described.text, described.message) == ("ValueError", "bad", "ValueError: bad")
    assert (described.path, described.leaves, described.exits) == (__file__, False, False)
    assert described.traceback.startswith("Traceback (most recent call last):\n")
    assert "in step" in described.traceback
    assert "in describe" not in described.traceback


@pytest.mark.parametrize(
    ("raising", "name", "said"),
    [
        (Odd(lambda: None), "Odd", "str() failed"),
        (type("Local", (Exception,), {})("here"), "Local", "Local: here"),
        (ValueError("two\nlines"), "ValueError", "ValueError: two\nlines"),
        (ValueError("\ud800"), "ValueError", "ValueError: \ud800"),
        (SystemExit("a reason"), "SystemExit", "SystemExit: a reason"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_odd_errors_arrive(tmp_path: Path, raising: BaseException, name: str, said: str) -> None:
    """Whatever its class, its text or its kind: an error goes through the file as it is."""
    files = LaunchedFiles(str(tmp_path), 1)
    files.tell_error(raising)
    arrived = files.told()
    assert arrived is not None
    assert (arrived.name, said in arrived.message) == (name, True)
    assert arrived.exits is not isinstance(raising, Exception)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no ExceptionGroup")
def test_group_arrives_with_its_parts() -> None:
    """A group has the tracebacks of all that is in it."""
    group: type[Exception] = getattr(__import__("builtins"), "ExceptionGroup")  # noqa: B009  not in Python 3.10
    described = describe(group("two", [ValueError("one"), KeyError("other")]))
    assert described.name == "ExceptionGroup"
    assert "ValueError: one" in described.traceback
    assert "KeyError: 'other'" in described.traceback


def test_error_that_can_not_be_formatted() -> None:
    """If even the formatting fails, the stack and the class are left."""

    class Broken(Exception):
        @property
        def __cause__(self) -> Any:  # type: ignore[override]
            raise LookupError

    described = describe(Broken())
    assert "in step" in described.traceback
    assert described.message == "Broken: <text unavailable: LookupError>"


@pytest.fixture
def stacks_are_kept_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the signals of this process as they are."""
    monkeypatch.setattr("lightning_disttest.engine.processes.keep_stack_signals", lambda _: None)


@pytest.mark.usefixtures("stacks_are_kept_off")
def test_function_tells_its_end(tmp_path: Path) -> None:
    """A function that returns has told that; while it ran, it was known to have begun."""
    files = LaunchedFiles(str(tmp_path), 1)
    begun: list[bool] = []
    LaunchedFunction(lambda *_: begun.append(files.has_begun()), str(tmp_path))(1, "argument")
    assert (begun, files.has_told(), files.told()) == ([True], True, None)


@pytest.mark.usefixtures("stacks_are_kept_off")
def test_function_tells_with_what_it_was_left(tmp_path: Path) -> None:
    """The error goes on to torch and is told as well."""

    def fail(*_: object) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        LaunchedFunction(fail, str(tmp_path))(1)
    described = LaunchedFiles(str(tmp_path), 1).told()
    assert described is not None
    assert described.text == "bad"
    assert "in __call__" not in described.traceback


@pytest.mark.usefixtures("stacks_are_kept_off")
def test_full_disk_does_not_hide_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing can be told, the exception itself goes on."""
    monkeypatch.setattr(json, "dumps", lambda _: 1 / 0)

    def fail(*_: object) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        LaunchedFunction(fail, str(tmp_path))(1)


@pytest.mark.usefixtures("stacks_are_kept_off")
def test_launched_process_is_no_rank(tmp_path: Path) -> None:
    """A process forked from a rank is not that rank."""
    enter_rank(make_context(0, 1, "standalone"))
    try:
        seen: list[object] = []
        LaunchedFunction(lambda *_: seen.append(current_rank()), str(tmp_path))(0)
        assert seen == [None]
    finally:
        leave_rank()


def test_errors_are_those_of_torch() -> None:
    """They have torch's attributes, one class for who catches them, and can be copied to another process."""
    failure = errors.RankFailure(1, 101, "ValueError", "bad", "Traceback", "raised ValueError")
    by_error = make_error("the text", [failure], 1, 101, None)
    by_signal = make_error("the text", [failure], 1, 101, -9)
    by_odd_signal = make_error("the text", [failure], 1, 101, -60)
    by_status = make_error("the text", [failure], 1, 101, 3)

    assert isinstance(by_error, ProcessRaisedException)
    for exited in (by_signal, by_odd_signal, by_status):
        assert isinstance(exited, ProcessExitedException)
    names = [getattr(exited, "signal_name", "") for exited in (by_signal, by_odd_signal, by_status)]
    assert names == ["SIGKILL", "<Unknown signal 60>", None]
    for one in (by_error, by_signal, by_status):
        copy = pickle.loads(pickle.dumps(one))
        assert type(copy) is type(one)
        assert (str(one), one.ranks) == (str(copy), copy.ranks) == ("the text", (failure,))
        assert f"{type(one).__module__}.{type(one).__qualname__}" == "lightning_disttest.errors.LaunchedRanksFailed"


def test_error_without_torch_can_be_copied() -> None:
    """The class that users see stands for itself too."""
    failure = errors.RankFailure(1, 101, "ValueError", "bad", "Traceback", "raised ValueError")
    copy = pickle.loads(pickle.dumps(errors.LaunchedRanksFailed("the text", [failure])))
    assert (str(copy), copy.ranks, asdict(copy.ranks[0])["text"]) == ("the text", (failure,), "bad")


def item(name: str, config: object) -> Any:
    """Return what is read of an item."""
    return SimpleNamespace(nodeid=name, config=config)


def test_which_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost test that has begun and not ended; a run inside a test does not make the outer one be forgotten."""
    monkeypatch.setattr(running_tests, "_running", [])
    outer, inner = object(), object()

    def running() -> str:
        test = running_tests.current()
        return "" if test is None else test.item.nodeid

    running_tests.begin(item("a", outer))
    running_tests.begin(item("b", outer))  # ranks are not told when a test has ended
    assert running() == "b"
    running_tests.begin(item("in b", inner))
    assert running() == "in b"
    running_tests.end("in b")
    assert running() == "b"
    running_tests.begin(item("aborted", inner))
    running_tests.begin(item("c", outer))
    assert running() == "c"
    running_tests.end("of another process")
    assert running() == "c"
    running_tests.end("c")
    assert running() == ""
