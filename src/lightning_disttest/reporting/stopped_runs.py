"""What is kept of the test that runs on ranks, and what the next run says of one that never came to its end.

Only texts are made here, so that every form of a torn or foreign file can be tried without a process that is killed;
the files and their locks are in ``engine/journal.py`` and ``engine/stopped_runs.py``.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass

from lightning_disttest.reporting.stories import name_ranks

_FORM = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """The test that runs on ranks in one pytest process, or the last one that did if ``running`` is False.

    ``command`` runs this test again, alone, from ``folder``, in which pytest was started. ``ranks`` are pairs of a rank
    and its pid (0: not known yet), ``begun`` is a local time to read. ``worker`` is the name of a pytest-xdist worker,
    '' for none, and ``parent`` the pid of the process that started this one.
    """

    nodeid: str
    command: str
    folder: str
    ranks: tuple[tuple[int, int], ...]
    begun: str
    pid: int
    worker: str
    parent: int
    running: bool


def write_entry(entry: Entry) -> bytes:
    """Return an entry as one line; what is left behind it of a longer one does not count."""
    return json.dumps({"form": _FORM, **asdict(entry)}).encode() + b"\n"


def read_entry(content: bytes) -> Entry | None:
    """Return the entry of a file, None if it is torn or was not written by ``write_entry``."""
    line, end, _ = content.partition(b"\n")
    try:
        data = json.loads(line) if end else None
        if not isinstance(data, dict) or data.pop("form", None) != _FORM:
            return None
        data["ranks"] = tuple((int(rank), int(pid)) for rank, pid in data["ranks"])
        entry = Entry(**data)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (entry.nodeid, entry.command, entry.folder, entry.begun, entry.worker)
    return entry if all(isinstance(text, str) for text in texts) else None


def describe_entry(entry: Entry | None, path: str, here: str) -> list[str]:
    """Return the lines that tell of a run that was stopped; None is the entry of a file that can not be read.

    ``path`` is that file, ``here`` the folder in which pytest was started now.
    """
    if entry is None:
        return [
            "lightning_disttest: an earlier run here was stopped in the middle; "
            f"which test it ran can not be read any more ({path})"
        ]
    who = f"pytest (pid {entry.pid}{f', worker {entry.worker}' if entry.worker else ''})"
    where = _describe_ranks(entry.ranks)
    if not entry.running:
        return [
            f"lightning_disttest: an earlier run here was stopped, by no fault of a test on ranks: {who} ended while "
            f"none ran, the last was {entry.nodeid} (begun {entry.begun})"
        ]
    change = "" if entry.folder == here else f"cd {shlex.quote(entry.folder)} && "
    return [
        f"lightning_disttest: an earlier run here was stopped in the middle of {entry.nodeid}",
        f"  begun {entry.begun} on {where}; {who} ended without a report",
        f"  to run this test alone: {change}{entry.command}",
    ]


def _describe_ranks(ranks: tuple[tuple[int, int], ...]) -> str:
    if not ranks:
        return "ranks that were not started yet"
    pids = ", ".join(str(pid) if pid else "not started yet" for _, pid in ranks)
    names = name_ranks(sorted(rank for rank, _ in ranks))
    return f"{names} (pid{'s' if len(ranks) > 1 else ''} {pids})"
