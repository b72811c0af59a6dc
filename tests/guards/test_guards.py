"""The table of troubles is whole, its tests and texts are there, and who notices nothing is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards.__main__ import main
from tests.guards.entries import SOURCE, Guard, Kind, find_faults, switch_off
from tests.guards.kinds import KINDS
from tests.guards.page import PAGE, render
from tests.guards.taken_out import NOTICED, find_missing, judge, try_without

LETTERS = "ABCDEFGHIJKLMNOQR"
ERRORS = "lightning_disttest/errors.py"
QUICK = "tests/unit/test_errors.py::test_broken_channel_has_what_arrived_before"
KEEPS = "self.messages = tuple(messages)"


def kind_of(*guards: Guard) -> Kind:
    """Return a kind with these guards."""
    return Kind("X", "a name", "", "", (), guards)


def test_every_kind_has_an_entry() -> None:
    """Each kind is there once, in order, with a name, what hurts, what happens here, a report and a guard."""
    assert "".join(kind.letter for kind in KINDS) == LETTERS
    assert len({kind.name for kind in KINDS}) == len(LETTERS)
    whole = [all((kind.name, kind.hurts, kind.here, kind.reports, kind.guards)) for kind in KINDS]
    assert whole == [True] * len(LETTERS)


def test_every_guard_is_where_it_is_said_to_be() -> None:
    """The text of each guard is in its file exactly once."""
    assert list(find_faults(KINDS)) == []


def test_every_test_is_there() -> None:
    """Each test that the table names is found by pytest."""
    assert find_missing(test for kind in KINDS for test in kind.tests) == []


def test_page_is_up_to_date() -> None:
    """The page is the one that is made of the table."""
    assert PAGE.read_text() == render(), "run python -m tests.guards --write"


@pytest.mark.parametrize(
    ("guard", "fault"),
    [
        (Guard((QUICK,), ERRORS, "no such text", ""), "has this text 0 times"),
        (Guard((QUICK,), ERRORS, "class ", ""), f"X: {ERRORS} has this text"),
        (Guard((QUICK,), "lightning_disttest/no_such.py", "text", ""), "has this text 0 times"),
        (Guard((), ERRORS, KEEPS, ""), "no test of"),
    ],
    ids=["text", "several", "file", "test"],
)
def test_wrong_guards_are_found(guard: Guard, fault: str) -> None:
    """A text that is absent or there several times, an absent file and a guard without a test are faults."""
    (found,) = find_faults([kind_of(guard)])
    assert fault in found


def test_a_kind_without_a_guard_is_found() -> None:
    """Each kind needs a guard."""
    assert list(find_faults([kind_of()])) == ["X: no guard"]


def test_missing_tests_are_found() -> None:
    """Tests that are not there are named, whether the file, the function or the case is absent, and no others."""
    absent = [f"{QUICK}_not", f"{QUICK}[case]", "tests/unit/test_no_such.py::test_it"]
    assert find_missing([QUICK, *absent, "tests/unit/test_errors.py::test_text"]) == absent


def test_a_guard_is_taken_out_of_the_copy(tmp_path: Path) -> None:
    """What takes a guard out changes that text in the copy, and nothing in the source."""
    copy = tmp_path / ERRORS
    copy.parent.mkdir()
    before = (SOURCE / ERRORS).read_text()
    copy.write_text(before)
    switch_off(Guard((QUICK,), ERRORS, KEEPS, "self.messages = ()"), tmp_path)
    assert copy.read_text() == before.replace(KEEPS, "self.messages = ()")
    assert (SOURCE / ERRORS).read_text() == before


REPORT = """
<testsuites><testsuite>
  <testcase classname="tests.a" name="test_asserts"><failure message="assert 1 == 2">text</failure></testcase>
  <testcase classname="tests.a" name="test_says"><failure message="AssertionError: said">text</failure></testcase>
  <testcase classname="tests.a" name="test_run">
    <error message="failed on setup with &quot;assert False&quot;"/>
  </testcase>
  <testcase classname="tests.a" name="test_cases[a]"/>
  <testcase classname="tests.a" name="test_cases[b]"><failure message="assert 1 == 2">text</failure></testcase>
  <testcase classname="tests.a" name="test_passes"/>
  <testcase classname="tests.a" name="test_raises"><failure message="KeyError: 'no'">text</failure></testcase>
  <testcase classname="tests.a" name="test_hangs">
    <failure message="Failed: Timeout (&gt;60.0s) from pytest-timeout."/>
  </testcase>
  <testcase classname="" name="tests.a"><error message="collection failure">text</error></testcase>
</testsuite></testsuites>
"""


@pytest.mark.parametrize(
    ("tests", "verdict"),
    [
        (["test_asserts", "test_says", "test_run", "test_cases", "test_cases[b]"], NOTICED),
        (["test_asserts", "test_passes"], "not noticed by tests/a.py::test_passes"),
        (["test_cases[a]"], "not noticed by tests/a.py::test_cases[a]"),
        (["test_raises"], "failed, but by no assertion: tests/a.py::test_raises: KeyError: 'no'"),
        (["test_hangs"], "hung for 60 s: tests/a.py::test_hangs"),
        (["test_absent"], "did not run: tests/a.py::test_absent"),
    ],
)
def test_verdicts(tests: list[str], verdict: str) -> None:
    """Only a failed assertion of each test counts: no pass, no other error, no hang, no test that did not run."""
    assert judge([f"tests/a.py::{test}" for test in tests], REPORT) == verdict


@pytest.mark.parametrize(
    ("without", "verdict"),
    [
        ("self.messages = ()", NOTICED),
        (f"{KEEPS}  # the same", f"not noticed by {QUICK}"),
        ("self.messages = {}['no'] if messages else ()", f"failed, but by no assertion: {QUICK}: KeyError: 'no'"),
    ],
)
def test_a_guard_is_tried(without: str, verdict: str) -> None:
    """The tests of a guard run against the copy, and what becomes of them is told."""
    assert try_without(Guard((QUICK,), ERRORS, KEEPS, without)) == verdict


def test_program_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program ends with 1 for a guard that is not where it is said to be, and for one that nobody misses."""
    stray = kind_of(Guard((QUICK,), ERRORS, "no such text", ""))
    monkeypatch.setattr("tests.guards.__main__.KINDS", (stray,))
    assert main([]) == 1
    assert "has this text 0 times, not once: no such text" in capsys.readouterr().out
    monkeypatch.setattr("tests.guards.__main__.KINDS", (kind_of(Guard((QUICK,), ERRORS, KEEPS, KEEPS)),))
    assert main(["X"]) == 1
    out = capsys.readouterr().out
    assert f"not noticed by {QUICK}" in out
    assert "\nX: a name " in out
