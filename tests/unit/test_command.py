"""The command that runs one test alone: what is left out of the command line of the run, and how the rest is quoted."""

from __future__ import annotations

import shlex

import pytest

from lightning_disttest.reporting.command import command_alone

NODEID = "test_it.py::test_it"
# As argparse has it: options that take one value, those that may, and those that take several.
WITH_VALUE = (
    "-c",
    "-k",
    "-m",
    "-n",
    "-o",
    "-p",
    "-r",
    "-W",
    "--deselect",
    "--maxfail",
    "--rootdir",
    "--tb",
    "--timeout",
)
ARITY = dict.fromkeys(WITH_VALUE, "1") | {
    "--cov": "?",
    "--shade": "?",
    "--pair": "2",
    "--words": "*",
    "--some": "+",
}


def kept(line: str) -> str:
    """Return what is kept of the arguments in ``line``."""
    program, nodeid, *rest = shlex.split(command_alone(NODEID, ("pytest",), shlex.split(line), ARITY, {}))
    assert (program, nodeid) == ("pytest", NODEID)
    return shlex.join(rest)


@pytest.mark.parametrize(
    "line",
    [
        "tests",
        "test_it.py::test_it[a] 'test_it.py::test_it[b c]' other",
        "-kexpression",
        "-k expression",
        "-k '-expression'",
        "-n2",
        "-n 2",
        "-rA",
        "-xvq",
        "-xk expression",
        "-xkexpression",
        "--maxfail=1",
        "--maxfail 1",
        "--tb=short --tb long",
        "--cov",
        "--cov=src",
        "--cov src",
        "--cov -x",
        "--lf --stepwise --pdb",
        "--deselect test_it.py::test_other",
        "-- --strange-name.py",
        "-m 'not slow' tests -x more",
        "-",
    ],
)
def test_left_out(line: str) -> None:
    """Tests, and what selects, distributes, stops or only reports, are left out with their values."""
    assert kept(line) == ""


@pytest.mark.parametrize(
    "line",
    [
        "-c FILE",
        "-cFILE",
        "--rootdir tests",
        "--rootdir=tests",
        "-o x=y",
        "-ox=y",
        "-p no:x -pno:y",
        "-W error::UserWarning",
        "-s",
        "--timeout 5",
        "--unknown --unknown=value",
        "--shade blue --shade",
        "--pair a b",
        "--words a b c",
        "--some a b",
        "-o 'addopts=-k it'",
    ],
)
def test_kept(line: str) -> None:
    """What changes how a test runs is kept as it was, with its values."""
    assert kept(line) == line


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("--rootdir tests tests", "--rootdir tests"),
        ("tests --rootdir tests", "--rootdir tests"),
        ("-svx", "-s"),
        ("-sx -kx", "-s"),
        ("-xp no:x", "-p no:x"),
        ("--pair a b c", "--pair a b"),
        ("--shade tests -s", "--shade tests -s"),
        ("--words a -x b", "--words a"),
        ("-s -- -p", "-s"),
    ],
)
def test_values_are_told_from_tests(line: str, left: str) -> None:
    """A word is the value of the option before it as far as that takes values, and a test otherwise."""
    assert kept(line) == left


def test_test_is_no_value_of_an_option() -> None:
    """The test stands before the options: an option that may do without a value would take it for one."""
    command = command_alone(NODEID, ("python", "-m", "pytest"), ["--shade"], ARITY, {})

    assert command == f"python -m pytest {NODEID} --shade"


def test_all_is_quoted_for_the_shell() -> None:
    """Variables go first; brackets, spaces and quotes of test, values and options are what they were for a shell."""
    nodeid = "test it.py::test_it[a b-'c'-\"d\"-$HOME]"

    command = command_alone(nodeid, ("pytest",), ["-o", "x=a b"], ARITY, {"PL_RUN_STANDALONE_TESTS": "1", "A": "b c"})

    assert command.startswith("PL_RUN_STANDALONE_TESTS=1 A='b c' pytest ")
    assert shlex.split(command)[2:] == ["pytest", nodeid, "-o", "x=a b"]
