"""What can be seen of a process from outside: that it was stopped, and its native stacks, if there is py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lightning_disttest.engine import inspection, processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = 10.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Return a process that sleeps in C, and has said so."""
    code = "import time; print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put one folder in the place of the interpreter's and of the PATH, and return where py-spy is looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path / "py-spy"


def test_stopped_process_is_told(process: subprocess.Popen[str]) -> None:
    """A process that was stopped is told from one that sleeps, and from one that is gone."""
    assert not inspection.is_stopped(process.pid)

    processes.signal_process(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT_S
    while not inspection.is_stopped(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)

    assert inspection.is_stopped(process.pid)
    process.kill()
    process.wait()
    assert not inspection.is_stopped(process.pid)


def test_without_py_spy_there_are_no_native_stacks(py_spy: Path) -> None:
    """Where py-spy is not installed nothing is shown, and nothing fails."""
    assert not py_spy.exists()
    assert inspection.native_stacks(os.getpid(), stopped=False) == ""


@pytest.mark.parametrize(
    ("script", "stacks"),
    [
        ('echo "$@"', "dump --native --pid 4711\n"),
        ("printf 'Thread \\377\\n'", "Thread �\n"),
        ("echo half; exit 1", ""),
        ("exec sleep 60", ""),
    ],
    ids=["works", "prints other than text", "may not look", "hangs"],
)
def test_what_py_spy_prints_is_taken_if_it_could_look(
    py_spy: Path, script: str, stacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found beside the interpreter; if it fails, for lack of rights, or takes too long, nothing is shown."""
    monkeypatch.setattr(inspection, "_PY_SPY_S", 0.2 if "sleep" in script else LIMIT_S)
    py_spy.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    py_spy.chmod(0o755)

    assert inspection.native_stacks(4711, stopped=False) == stacks


def test_file_that_can_not_be_run_is_no_py_spy(py_spy: Path) -> None:
    """A broken installation is as good as none."""
    py_spy.write_text("#!/nowhere/interpreter\n")
    py_spy.chmod(0o755)

    assert inspection.native_stacks(os.getpid(), stopped=False) == ""


def test_stopped_process_is_not_held_for_it(py_spy: Path) -> None:
    """py-spy cannot attach to a process that is stopped; it can read what is in its memory."""
    py_spy.write_text('#!/bin/sh\necho "$@"\n')
    py_spy.chmod(0o755)

    assert inspection.native_stacks(4711, stopped=True) == "dump --nonblocking --pid 4711\n"
    assert inspection.native_stacks(4711, stopped=False) == "dump --native --pid 4711\n"
