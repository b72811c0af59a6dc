"""What is kept of the test that runs, and the words about a run that was stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lightning_disttest.reporting.stopped_runs import Entry, describe_entry, read_entry, write_entry

ENTRY = Entry(
    nodeid="test_a.py::test_é[x y]",
    command="A=1 pytest 'test_a.py::test_é[x y]' --standalone",
    folder="/home/me/my project",
    ranks=((0, 11), (1, 12)),
    begun="2024-01-02 03:04:05 UTC",
    pid=10,
    worker="",
    parent=9,
    running=True,
)


def described(entry: Entry | None) -> str:
    """Return the lines about an entry."""
    return "\n".join(describe_entry(entry, "/cache/running-1.json", "/home/me/my project"))


@pytest.mark.parametrize("entry", [ENTRY, replace(ENTRY, running=False, worker="gw1"), replace(ENTRY, ranks=())])
def test_entries_are_read_as_written(entry: Entry) -> None:
    """What was written comes back, also with the rest of a longer entry behind it."""
    assert read_entry(write_entry(entry)) == entry
    assert read_entry(write_entry(entry) + b'_a.py"}\n') == entry


@pytest.mark.parametrize("length", range(len(write_entry(ENTRY))))
def test_torn_entries_are_none(length: int) -> None:
    """An entry that was cut anywhere is none."""
    assert read_entry(write_entry(ENTRY)[:length]) is None


@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"form": 1}\n',
        json.dumps({"form": 2, **json.loads(write_entry(ENTRY)), "more": 1}).encode() + b"\n",
        write_entry(ENTRY).replace(b'"form": 1', b'"form": 2'),
        write_entry(ENTRY).replace(b"[0, 11]", b"[0]"),
        write_entry(ENTRY).replace(b"[[0, 11], [1, 12]]", b"5"),
        write_entry(replace(ENTRY, nodeid=None)),  # type: ignore[arg-type]
        write_entry(replace(ENTRY, command=["pytest"])),  # type: ignore[arg-type]
        write_entry(replace(ENTRY, folder=0)),  # type: ignore[arg-type]
    ],
)
def test_foreign_content_is_none(content: bytes) -> None:
    """What this version did not write is no entry, and no error."""
    assert read_entry(content) is None


def test_a_test_that_ran() -> None:
    """Test, time, ranks, pids, the process and a command that a shell takes are named."""
    assert described(ENTRY) == (
        "lightning_disttest: an earlier run here was stopped in the middle of test_a.py::test_é[x y]\n"
        "  begun 2024-01-02 03:04:05 UTC on ranks 0-1 (pids 11, 12); pytest (pid 10) ended without a report\n"
        "  to run this test alone: A=1 pytest 'test_a.py::test_é[x y]' --standalone"
    )


def test_a_run_that_was_started_in_another_folder() -> None:
    """The command holds for the folder in which that run was started."""
    lines = described(replace(ENTRY, folder="/home/me")).splitlines()
    assert lines[2] == f"  to run this test alone: cd /home/me && {ENTRY.command}"
    lines = describe_entry(ENTRY, "/cache/running-1.json", "/home/me")
    assert lines[2] == f"  to run this test alone: cd '/home/me/my project' && {ENTRY.command}"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), "on ranks that were not started yet;"),
        (((0, 11),), "on rank 0 (pid 11);"),
        (((1, 0), (0, 11)), "on ranks 0-1 (pids not started yet, 11);"),
    ],
)
def test_ranks(ranks: tuple[tuple[int, int], ...], words: str) -> None:
    """Ranks that were not forked yet have no pid."""
    assert words in described(replace(ENTRY, ranks=ranks))


def test_a_worker() -> None:
    """A worker of pytest-xdist is named."""
    assert "; pytest (pid 10, worker gw1) ended without a report" in described(replace(ENTRY, worker="gw1"))


def test_between_tests() -> None:
    """No test is accused if none was running on ranks."""
    assert described(replace(ENTRY, running=False)) == (
        "lightning_disttest: an earlier run here was stopped, by no fault of a test on ranks: pytest (pid 10) ended "
        "while none ran, the last was test_a.py::test_é[x y] (begun 2024-01-02 03:04:05 UTC)"
    )


def test_a_torn_entry() -> None:
    """The file is named."""
    assert described(None) == (
        "lightning_disttest: an earlier run here was stopped in the middle; "
        "which test it ran can not be read any more (/cache/running-1.json)"
    )
