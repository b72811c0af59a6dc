"""The files of a rank: what can be read of it while it runs and after it was killed."""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine.output import FILES_PER_RANK, RankFds, RankFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Show = Callable[[str], None]
    MakeFiles = Callable[["Show | None"], tuple[RankFiles, RankFds]]


@pytest.fixture
def make_files() -> Iterator[MakeFiles]:
    """Return a function that makes the files of rank 3 and the rank's own descriptors of them."""
    made: list[RankFiles] = []
    copies: list[int] = []

    def make(show: Show | None) -> tuple[RankFiles, RankFds]:
        files = RankFiles(3, show)
        made.append(files)
        ends = [os.dup(fd) for fd in files.rank_ends()]
        copies.extend(ends)
        files.handed_over()
        return files, RankFds(-1, *ends)

    yield make
    for fd in copies:
        try:
            os.close(fd)
        except OSError:
            continue  # the test has closed it, to end the stream
    for files in made:
        if not files._stdout.closed:
            files.close()


def test_number_of_files_is_that_of_the_descriptors() -> None:
    """What travels with a request to fork is what a rank takes."""
    assert len(RankFds.__dataclass_fields__) == FILES_PER_RANK


def test_last_output_is_captured_and_raw_output(make_files: MakeFiles) -> None:
    """Captured stdout, captured stderr and raw output are read together, in this order."""
    files, rank = make_files(None)
    os.write(rank.raw, b"raw\n")
    os.write(rank.stderr, b"err\n")
    os.write(rank.stdout, b"out\n")

    files.read_raw()

    assert files.last_output() == "out\nerr\nraw\n"


def test_reading_does_not_wait(make_files: MakeFiles) -> None:
    """With nothing there, nothing is read, and the stream is still open."""
    files, _ = make_files(None)

    files.read_raw()

    assert files.last_output() == ""
    assert files.raw_open


def test_end_of_the_raw_output_is_noticed(make_files: MakeFiles) -> None:
    """When the last process that holds the rank's output has ended, the stream is no longer open."""
    files, rank = make_files(None)
    os.write(rank.raw, b"last words")
    os.close(rank.raw)

    seen = []
    for _ in range(2):
        files.read_raw()
        seen.append(files.raw_open)

    assert seen == [True, False]
    assert files.last_output() == "last words"


def test_output_of_the_test_before_is_forgotten(make_files: MakeFiles) -> None:
    """What was written before a test began is not among its last lines."""
    files, rank = make_files(None)
    os.write(rank.raw, b"old")
    files.read_raw()

    files.begin_test()
    os.write(rank.raw, b"new")
    files.read_raw()

    assert files.last_output() == "new"


def test_only_the_end_of_much_output_is_kept(make_files: MakeFiles) -> None:
    """A rank that writes without end does not fill the controller's memory."""
    files, rank = make_files(None)
    for _ in range(10):
        os.write(rank.raw, b"r" * 10_000)
        files.read_raw()
    os.write(rank.stdout, b"o" * 100_000 + b"end of stdout|")
    os.write(rank.raw, b"end of raw")
    files.read_raw()

    text = files.last_output()

    assert len(text) == 2 * (1 << 14)
    assert "end of stdout|" in text
    assert text.endswith("end of raw")


def test_bytes_that_are_no_text_are_replaced(make_files: MakeFiles) -> None:
    """Output that is not UTF-8 does not stop the controller."""
    files, rank = make_files(None)
    os.write(rank.raw, b"\xff!")

    files.read_raw()

    assert files.last_output() == "\ufffd!"


def test_stacks_are_those_that_were_asked_for_last(make_files: MakeFiles) -> None:
    """Emptied before each question, the file holds one answer, at its start."""
    files, rank = make_files(None)
    os.write(rank.stacks, b"first answer, a long one\n")
    assert files.stacks() == "first answer, a long one\n"

    files.forget_stacks()
    os.write(rank.stacks, b"second\n")

    assert files.stacks() == "second\n"


@pytest.mark.parametrize(
    ("written", "complete"),
    [
        ("", False),
        ('Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n', False),
        ('Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\nCurrent thread 0x2', False),
        ('Current thread 0x2 (most recent call first):\n  File "a.py", li', False),
        ('Current thread 0x2 (most recent call first):\n  File "a.py", line 1 in f\n', True),
        (
            'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\n'
            'Current thread 0x2 (most recent call first):\n  File "a.py", line 1 in f\n',
            True,
        ),
    ],
    ids=["nothing", "another thread", "begun", "half a line", "one thread", "two threads"],
)
def test_stacks_are_complete_with_the_thread_of_the_test(make_files: MakeFiles, written: str, complete: bool) -> None:
    """Threads are written one after the other, that of the test last: the answer waits for it."""
    files, rank = make_files(None)
    os.write(rank.stacks, written.encode())

    assert files.stacks_are_complete() == complete


def test_stacks_that_a_process_writes_of_itself_are_complete(make_files: MakeFiles) -> None:
    """What Python itself writes of all threads is known as complete."""
    files, rank = make_files(None)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()

    faulthandler.dump_traceback(rank.stacks, all_threads=True)
    stop.set()
    thread.join()

    assert files.stacks_are_complete()
    assert "in test_stacks_that_a_process_writes_of_itself_are_complete" in files.stacks()


def test_stacks_and_progress_need_no_disk() -> None:
    """They lie in memory, so that a full disk takes neither from a rank that has to be explained."""
    files = RankFiles(0, None)
    names = [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in files.rank_ends()[3:5]]
    files.abandon()

    assert [name.partition(" ")[0] for name in names] == ["/memfd:stacks", "/memfd:progress"]


def test_abandoned_files_leave_no_descriptor_open() -> None:
    """Files of a rank that was not started are closed, its own ends as well."""
    files = RankFiles(0, lambda _: None)
    descriptors = [files.raw, *files.rank_ends()]

    files.abandon()

    assert not files.raw_open
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_question_reaches_the_rank_and_never_blocks(make_files: MakeFiles) -> None:
    """A question is a byte in a pipe; a rank that reads none, or closed its end, does not hold up the controller."""
    files, rank = make_files(None)

    files.ask()
    assert os.read(rank.ask, 10) == b"?"
    for _ in range(1 << 17):  # more than a pipe takes
        files.ask()
    assert len(os.read(rank.ask, 1 << 20)) >= 1 << 16
    os.close(rank.ask)
    files.ask()

    assert not os.get_blocking(files._ask)


def test_closed_files_leave_no_descriptor_open() -> None:
    """What the controller keeps of a rank that ran is closed with its files, the end for questions as well."""
    before = sorted(entry.name for entry in Path("/proc/self/fd").iterdir())
    files = RankFiles(0, None)
    files.handed_over()

    files.close()

    assert sorted(entry.name for entry in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("failing", ["memfd_create", "pipe", "second pipe"])
def test_files_that_can_not_be_made_leave_no_descriptor_open(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A process that runs out of descriptors half way gets back those it had."""

    def refuse(*_: object) -> Any:
        raise OSError(24, "Too many open files")

    genuine = os.pipe
    calls = iter([genuine, refuse])
    before = sorted(entry.name for entry in Path("/proc/self/fd").iterdir())
    if failing == "second pipe":
        monkeypatch.setattr(os, "pipe", lambda: next(calls)())
    else:
        monkeypatch.setattr(os, failing, refuse)

    with pytest.raises(OSError, match="Too many open files"):
        RankFiles(0, None)

    assert sorted(entry.name for entry in Path("/proc/self/fd").iterdir()) == before


def test_stage_is_the_one_that_the_rank_entered(make_files: MakeFiles) -> None:
    """A rank's own note of where it is can be read at any time; a new test begins before its first phase."""
    files, rank = make_files(None)
    seen = [files.stage()]

    for stage in ("setup", "call", "teardown", "exit"):
        rank.enter(stage)
        seen.append(files.stage())
    files.begin_test()
    seen.append(files.stage())

    assert seen == ["start", "setup", "call", "teardown", "exit", "start"]


def test_descriptors_of_a_rank_are_closed_together() -> None:
    """A process that hands the descriptors on keeps none of them."""
    rank = RankFds(*(os.dup(1) for _ in range(FILES_PER_RANK)))
    descriptors = [getattr(rank, name) for name in RankFds.__dataclass_fields__]

    rank.close()

    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_quiet_rank_keeps_what_it_does_not_show(make_files: MakeFiles, capfd: pytest.CaptureFixture[str]) -> None:
    """With nobody to show it to, raw output is kept for the story of the rank, and nothing is printed."""
    files, rank = make_files(None)
    os.write(rank.raw, b"line\nunfinished")

    files.read_raw()
    kept = files.last_output()
    files.close()

    assert kept == "line\nunfinished"
    assert capfd.readouterr() == ("", "")


def test_live_rank_shows_its_lines_with_its_number(make_files: MakeFiles) -> None:
    """Each complete line is shown at once, lines of one read together, with the rank's number; the rest waits."""
    shown: list[str] = []
    files, rank = make_files(shown.append)
    os.write(rank.raw, b"one\ntwo\nth")
    files.read_raw()
    assert shown == ["[rank 3] one\n[rank 3] two\n"]

    os.write(rank.raw, b"ree\n")
    files.read_raw()

    assert shown[1:] == ["[rank 3] three\n"]


def test_live_rank_is_kept_too(make_files: MakeFiles) -> None:
    """What was shown is among the last lines of a rank that dies all the same."""
    files, rank = make_files(lambda _: None)
    os.write(rank.raw, b"one\n")

    files.read_raw()

    assert files.last_output() == "one\n"


def test_live_rank_shows_a_long_line_before_its_end(make_files: MakeFiles) -> None:
    """A rank that never ends its line, as a progress bar may, is shown in pieces and does not fill the memory."""
    shown: list[str] = []
    files, rank = make_files(shown.append)
    os.write(rank.raw, b"x" * (1 << 13))
    files.read_raw()
    assert shown == []

    os.write(rank.raw, b"y")
    files.read_raw()
    assert shown == [f"[rank 3] {'x' * (1 << 13)}y\n"]

    os.write(rank.raw, b"z\n")
    files.read_raw()

    assert shown[1:] == ["[rank 3] z\n"]


def test_live_rank_shows_bytes_that_are_no_text(make_files: MakeFiles) -> None:
    """What is shown is text, whatever the rank wrote."""
    shown: list[str] = []
    files, rank = make_files(shown.append)
    os.write(rank.raw, b"\xff!\n")

    files.read_raw()

    assert shown == ["[rank 3] \ufffd!\n"]


def test_live_rank_shows_a_last_line_without_an_end(make_files: MakeFiles) -> None:
    """A rank that ends inside a line has that line shown when its files are closed."""
    shown: list[str] = []
    files, rank = make_files(shown.append)
    os.write(rank.raw, b"unfinished")
    files.read_raw()
    assert shown == []

    files.close()

    assert shown == ["[rank 3] unfinished\n"]


def test_close_leaves_no_descriptor_open(make_files: MakeFiles) -> None:
    """After ``close`` every descriptor of the controller's side is closed."""
    files, _ = make_files(None)
    descriptors = [files.raw, *files.rank_ends()[1:]]

    files.close()

    assert not files.raw_open
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
