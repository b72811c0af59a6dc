"""The lines of the table for pytest's own options that decide what is shown and reported."""

from __future__ import annotations

import re

from tests.compatibility.lines import NOTES_RANKS, OUTCOMES, Line, starts_no_rank
from tests.harness import Run, json_lines, lines_with

_PRINTS = """
    import os
    import pytest

    @pytest.mark.distributed(2)
    def test_prints(world):
        print(f"printed by rank {world.rank}")
        os.write(1, b"written by rank %d\\n" % world.rank)

    @pytest.mark.distributed(2)
    def test_prints_and_fails(world):
        print(f"last words of rank {world.rank}")
        os.write(1, b"last bytes of rank %d\\n" % world.rank)
        assert world.rank == 0

    def test_writes_past_sys():
        os.write(1, b"written by a plain test\\n")
"""
_SLOW = """
    import time
    import pytest

    @pytest.mark.distributed(2)
    def test_slow(world):
        time.sleep(0.1 + 0.1 * world.rank)
"""
# Each rank notes how long the test took on it.
_NOTES_DURATIONS = """
    import json, os
    import pytest

    CONTROLLER = os.getpid()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if item.name == "test_slow" and report.when == "call" and os.getpid() != CONTROLLER:
            with open(item.config.rootpath / "durations.jsonl", "a") as file:
                file.write(json.dumps(report.duration) + "\\n")
        return report
"""
_BOTH_FAIL = """
    import pytest

    @pytest.mark.distributed(2)
    def test_both_fail(world):
        if world.rank == 0:
            raise KeyError("of rank 0")
        raise ValueError("of rank 1")
"""


def _shows_output_at_once(run: Run) -> None:
    for rank in (0, 1):
        for text in (f"printed by rank {rank}", f"written by rank {rank}"):
            assert run.output.count(f"[rank {rank}] {text}\n") == run.output.count(text) == 1
    assert "Captured stdout" not in run.output


def _captures_all_of_ranks(run: Run) -> None:
    assert "written by a plain test" in run.output
    assert "by rank" not in run.output
    assert "last words of rank 1\nlast bytes of rank 1\n" in run.output.partition("Captured stdout call (rank 1)")[2]


def _shows_output_twice(run: Run) -> None:
    assert [run.output.count(f"[rank {rank}] printed by rank {rank}\n") for rank in (0, 1)] == [1, 1]
    before, captured, after = run.output.partition("Captured stdout call (rank 1)")
    assert captured
    assert "last words of rank 1" in before
    assert "last words of rank 1" in after


def _shows_the_fixtures_of_each_rank(run: Run) -> None:
    for rank in (0, 1):
        assert lines_with(run.output, f"[rank {rank}] SETUP    S world")
        assert lines_with(run.output, f"[rank {rank}] TEARDOWN S world")


def _shows_a_plan(run: Run) -> None:
    assert lines_with(run.output, "SETUP    S world")
    assert lines_with(run.output, "test_common.py::test_fails[dynamic] (fixtures used: kind, world)")
    assert "no tests ran" in run.output


def _shows_nothing(run: Run) -> None:
    assert run.returncode == 1
    assert run.output.strip() == ""


def _shows_how_long_the_slowest_rank_took(run: Run) -> None:
    on_ranks = json_lines(run.folder / "durations.jsonl")
    assert len(on_ranks) == 2
    (line,) = lines_with(run.output, "call", "test_slow") or [""]
    assert line.partition("s")[0] == f"{max(on_ranks):.2f}"


def _below_titles(run: Run) -> list[str]:
    """Return what is below the titles of rank 0 and of rank 1 in the report of ``_BOTH_FAIL``."""
    title = r"^_+ rank (\d) of 2 \(pid \d+\): failed in call(?: <- the cause)? _+$"
    _, *parts = re.split(title, run.text("test_both_fail"), flags=re.MULTILINE)
    assert sorted(parts[::2]) == ["0", "1"]
    return [text for _, text in sorted(zip(parts[::2], parts[1::2], strict=True))]


def _shows_short_tracebacks(run: Run) -> None:
    for rank, text in enumerate(_below_titles(run)):
        assert re.search(rf"^\s*test_both\.py:\d+: in test_both_fail\n    raise \w+\(\"of rank {rank}\"\)$", text, re.M)
        assert "def test_both_fail" not in text


def _shows_no_source_lines(run: Run) -> None:
    failures = run.output.partition("= FAILURES =")[2]
    assert lines_with(failures, "/test_common.py:", ": rank 1: AssertionError: the last rank fails")
    assert "assert world.rank" not in failures


def _shows_no_tracebacks(run: Run) -> None:
    assert "FAILURES" not in run.output
    causes = {"static": "rank 1: AssertionError", "dynamic": "rank 1: AssertionError", "standalone": "AssertionError"}
    for kind, cause in causes.items():
        assert lines_with(run.output, f"FAILED test_common.py::test_fails[{kind}] - {cause}")


def _shows_tracebacks_of_python(run: Run) -> None:
    for rank, text in enumerate(_below_titles(run)):
        assert text.startswith("\nTraceback (most recent call last):\n")
        assert lines_with(text, 'File "', "test_both.py", "in test_both_fail")
        assert lines_with(text, "Error: ", f"of rank {rank}")


def _shows_little(run: Run) -> None:
    assert "test session starts" not in run.output
    assert lines_with(run.output, "..Fs.Fs.Fs", "[100%]")
    assert lines_with(run.output, "3 failed, 4 passed, 3 skipped in ")


def _shows_one_line_per_test(run: Run) -> None:
    for name, outcome in OUTCOMES.items():
        assert len(lines_with(run.output, f"test_common.py::{name} {outcome.upper()}")) == 1


OUTPUT = (
    Line(
        name="`-s`",
        on_ranks="the lines of all ranks are shown while they run, with the number of the rank",
        arguments=("-s",),
        files={"test_prints.py": _PRINTS},
        check=_shows_output_at_once,
    ),
    Line(
        name="`--capture=no`",
        on_ranks="the same as `-s`",
        arguments=("--capture=no",),
        files={"test_prints.py": _PRINTS},
        check=_shows_output_at_once,
    ),
    Line(
        name="`--capture=sys`",
        on_ranks="what a rank writes past `sys.stdout` is captured as well, as with `--capture=fd`",
        arguments=("--capture=sys",),
        files={"test_prints.py": _PRINTS},
        check=_captures_all_of_ranks,
    ),
    Line(
        name="`--capture=tee-sys`",
        on_ranks="the lines of ranks are shown while they run, and those printed once more in the report of a failure",
        arguments=("--capture=tee-sys",),
        files={"test_prints.py": _PRINTS},
        check=_shows_output_twice,
    ),
    Line(
        name="`--setup-show`",
        on_ranks="shows what each rank sets up and tears down",
        arguments=("--setup-show",),
        check=_shows_the_fixtures_of_each_rank,
    ),
    Line(
        name="`--setup-plan`",
        on_ranks="shows fixtures and tests as for plain tests, and starts no rank",
        arguments=("--setup-plan",),
        common=dict.fromkeys(OUTCOMES, "passed"),
        files={"conftest.py": NOTES_RANKS},
        check=_shows_a_plan,
        also=(starts_no_rank,),
    ),
    Line(
        name="`-p no:terminal`",
        on_ranks="nothing is shown; exit code and reports are as ever",
        arguments=("-p", "no:terminal"),
        check=_shows_nothing,
    ),
    Line(
        name="`--durations`",
        on_ranks="a phase took as long as on the rank that took longest",
        arguments=("--durations=0",),
        files={"test_slow.py": _SLOW, "conftest.py": _NOTES_DURATIONS},
        check=_shows_how_long_the_slowest_rank_took,
    ),
    Line(
        name="`--tb=short`",
        on_ranks="tracebacks of ranks are short, each below the line that names its rank",
        arguments=("--tb=short",),
        files={"test_both.py": _BOTH_FAIL},
        check=_shows_short_tracebacks,
    ),
    Line(
        name="`--tb=line`",
        on_ranks="shows the rank that is the cause, where it failed and its message, and no source lines",
        arguments=("--tb=line",),
        check=_shows_no_source_lines,
    ),
    Line(
        name="`--tb=no`",
        on_ranks="no tracebacks; the short summary names the rank that is the cause",
        arguments=("--tb=no",),
        check=_shows_no_tracebacks,
    ),
    Line(
        name="`--tb=native`",
        on_ranks="tracebacks of ranks are those of Python, each below the line that names its rank",
        arguments=("--tb=native",),
        files={"test_both.py": _BOTH_FAIL},
        check=_shows_tracebacks_of_python,
    ),
    Line(
        name="`-q`",
        on_ranks="one character per test",
        arguments=("-q",),
        check=_shows_little,
    ),
    Line(
        name="`-v`",
        on_ranks="one line per test, however many ranks it has",
        arguments=("-v",),
        check=_shows_one_line_per_test,
    ),
)
