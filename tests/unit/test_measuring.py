"""Coverage of what ranks run: written by each rank into a file of its own, taken over by the controller."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from lightning_disttest.engine import measuring
from lightning_disttest.errors import CoverageNotRead
from tests.harness import clean_environment

pytest.importorskip("coverage")

LIMIT_S = 60
# Each has a line of its own and one for its body, and an empty line behind it.
FUNCTIONS = ("in_parent", "in_rank_0", "in_rank_1", "after", "killed", "never")
PARENT = """
import os, signal, sys, warnings
from pathlib import Path
import measured
from lightning_disttest.engine import measuring

folder = Path({folder!r})

def fork(token, run):
    pid = os.fork()
    if pid == 0:
        try:
            measuring.measure_rank(folder, token)
            run()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

{body}
measuring.take_over(folder)
print("left:", sorted(path.name for path in folder.iterdir()))
"""


def environment() -> dict[str, str]:
    """Return this environment without what a measurement of this very run would put into it."""
    return {name: value for name, value in clean_environment().items() if not name.startswith("COVERAGE_")}


def run_measured(tmp_path: Path, body: str, *options: str, measured: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a process that forks ranks, under ``coverage run``; the file that it leaves is ``total``."""
    (tmp_path / "measured.py").write_text("\n".join(f"def {name}():\n    return 1\n" for name in FUNCTIONS))
    folder = tmp_path / "worlds"
    folder.mkdir()
    (tmp_path / "parent.py").write_text(PARENT.format(folder=str(folder), body=body))
    under = ["-m", "coverage", "run", f"--data-file={tmp_path / 'total'}", "--include=*measured.py", *options]
    command = [sys.executable, *(under if measured else []), "parent.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done


def functions_run(tmp_path: Path) -> set[str]:
    """Return the functions whose body the measurement has."""
    shown = subprocess.run(
        [sys.executable, "-m", "coverage", "json", f"--data-file={tmp_path / 'total'}", "-o", "-", "-q"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    (measured,) = json.loads(shown.stdout)["files"].values()
    return {name for number, name in enumerate(FUNCTIONS) if 3 * number + 2 in measured["executed_lines"]}


@pytest.mark.parametrize("options", [[], ["--branch"]], ids=["lines", "branches"])
def test_what_ranks_run_is_measured(tmp_path: Path, options: list[str]) -> None:
    """Two ranks of their own, and what the controller runs before and after them, are one measurement."""
    body = """
measured.in_parent()
for token, function in enumerate((measured.in_rank_0, measured.in_rank_1)):
    fork(token, lambda: (function(), measuring.save_rank()))
print("written:", sorted(path.name for path in folder.iterdir()))
measured.after()
"""

    done = run_measured(tmp_path, body, *options)

    assert functions_run(tmp_path) == {"in_parent", "in_rank_0", "in_rank_1", "after"}
    assert done.stdout.splitlines() == ["written: ['coverage-0', 'coverage-1']", "left: []"]
    assert done.stderr == ""


def test_what_a_rank_saved_stays_when_it_is_killed(tmp_path: Path) -> None:
    """A rank writes after each test: what it ran before its last save is measured, the test it dies in is not."""
    body = """
def run():
    measured.in_rank_0()
    measuring.save_rank()
    measured.in_rank_1()
    measuring.save_rank()
    measured.killed()
    os.kill(os.getpid(), signal.SIGKILL)

fork(12, run)
"""

    done = run_measured(tmp_path, body)

    assert functions_run(tmp_path) == {"in_rank_0", "in_rank_1"}
    assert done.stderr == ""  # not that this process itself has measured nothing


def test_rank_that_saves_nothing_leaves_nothing(tmp_path: Path) -> None:
    """A rank that was killed before its first save has no file; the measurement of the others is whole."""
    body = """
measured.in_parent()
fork(0, measured.killed)
fork(1, lambda: (measured.in_rank_1(), measuring.save_rank()))
"""

    run_measured(tmp_path, body)

    assert functions_run(tmp_path) == {"in_parent", "in_rank_1"}


def test_file_that_can_not_be_read_is_a_warning(tmp_path: Path) -> None:
    """A file that was cut off costs its own rank's coverage, and says so; the other files are taken over."""
    body = """
fork(0, lambda: (measured.in_rank_0(), measuring.save_rank()))
fork(1, lambda: (measured.in_rank_1(), measuring.save_rank()))
path = folder / "coverage-0"
path.write_bytes(path.read_bytes()[:100] + b"rubbish" * 1000)
"""

    done = run_measured(tmp_path, body)

    assert functions_run(tmp_path) == {"in_rank_1"}
    assert done.stdout == "left: []\n"
    assert "CoverageNotRead: the coverage of a rank is lost, its file coverage-0 cannot be read: " in done.stderr


def test_other_files_of_worlds_are_no_measurements(tmp_path: Path) -> None:
    """The folder holds stores, too, and what sqlite keeps beside a file that was cut off."""
    body = """
for name in ("store-0", "coverage-0-journal"):
    (folder / name).write_bytes(b"other")
measured.in_parent()
"""

    done = run_measured(tmp_path, body)

    assert done.stdout == "left: ['coverage-0-journal', 'store-0']\n"
    assert done.stderr == ""
    assert functions_run(tmp_path) == {"in_parent"}


def test_without_a_measurement_nothing_is_written(tmp_path: Path) -> None:
    """A run without coverage has no files, whatever the ranks do, and does not load the package."""
    body = """
fork(0, lambda: (measured.in_rank_0(), measuring.save_rank()))
print("loaded:", "coverage" in sys.modules)
"""

    done = run_measured(tmp_path, body, measured=False)

    assert done.stdout.splitlines() == ["loaded: False", "left: []"]


def test_package_that_is_loaded_but_measures_nothing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plugin may import coverage without measuring."""
    import coverage

    monkeypatch.setattr(coverage.Coverage, "current", lambda: None)
    (tmp_path / "coverage-0").write_bytes(b"rubbish")

    measuring.measure_rank(tmp_path, 0)
    measuring.save_rank()
    measuring.take_over(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["coverage-0"]


class FakeMeasurement:
    """A measurement that notes whose data it was given."""

    def __init__(self) -> None:
        self.updates = 0
        self.contexts: list[str | None] = []
        self._current_context = "own"

    def get_data(self) -> Any:
        """Return itself as the data."""
        return self

    def update(self, _: object) -> None:
        """Note that there was something to take over."""
        self.updates += 1

    def set_context(self, name: str | None) -> None:
        """Note the name of a context."""
        self.contexts.append(name)


def test_warning_names_the_file_and_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that can not be read has a warning of its own kind, is removed, and adds nothing."""
    total = FakeMeasurement()
    monkeypatch.setattr(measuring, "_current", lambda: total)
    for name in ("coverage-0", "coverage-17"):
        (tmp_path / name).write_bytes(b"rubbish" * 100)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measuring.take_over(tmp_path)

    assert [warning.category for warning in caught] == [CoverageNotRead, CoverageNotRead]
    assert [name for name in ("coverage-0 ", "coverage-17 ") for w in caught if name in str(w.message)] == [
        "coverage-0 ",
        "coverage-17 ",
    ]
    assert list(tmp_path.iterdir()) == []
    assert total.updates == 0


def test_data_of_each_process_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of pytest-xdist name contexts that no other has, and then go on with the ones they had."""
    totals = [FakeMeasurement(), FakeMeasurement()]
    for total in totals:
        monkeypatch.setattr(measuring, "_current", lambda total=total: total)
        measuring.take_over(tmp_path)

    (first, *after), (second, *_) = (total.contexts for total in totals)
    assert first != second
    assert after == ["own"]


def test_warning_that_is_an_error_comes_after_the_other_files(tmp_path: Path) -> None:
    """With ``-W error`` nothing else is lost."""
    body = """
fork(0, lambda: (measured.in_rank_0(), measuring.save_rank()))
fork(1, lambda: (measured.in_rank_1(), measuring.save_rank()))
(folder / "coverage-0").write_bytes(b"rubbish" * 1000)
warnings.simplefilter("error")
try:
    measuring.take_over(folder)
except Warning as warning:
    print(type(warning).__name__)
"""

    done = run_measured(tmp_path, body)

    assert done.stdout.splitlines() == ["CoverageNotRead", "left: []"]
    assert functions_run(tmp_path) == {"in_rank_1"}
