"""The command below a failure runs that test, alone and as it ran."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness import LIMIT_S, clean_environment, run_pytest, write_tests

# Fails with its name, so that it can be seen which test ran; others of the file must not.
PLAIN = """
    import pytest

    @pytest.mark.standalone
    def test_fails():
        raise ValueError("this one")

    @pytest.mark.standalone
    def test_other():
        raise ValueError("the other")
"""
ODD = """
    import pytest

    @pytest.mark.standalone
    @pytest.mark.parametrize("text", ["a b", "a b 'c' \\"d\\" $HOME [x::y]"], ids=str)
    def test_fails(text):
        assert "$" not in text, "this one"

    @pytest.mark.standalone
    def test_other():
        raise ValueError("the other")
"""
RUN_IF = """
    import pytest
    from lightning_disttest import RunIf

    @RunIf(standalone=True)
    def test_fails():
        raise ValueError("this one")

    def test_other():
        raise ValueError("the other")
"""
WANTED_INI = "[pytest]\npython_files = check_*.py\n"
OTHER_INI = "[pytest]\npython_files = nothing.py\n"


@dataclass(frozen=True)
class Case:
    """A run: its files, arguments, folder and variables, and a word that the command must have."""

    files: dict[str, str]
    arguments: tuple[str, ...]
    word: str
    cwd: str = "."
    env: dict[str, str] = field(default_factory=dict)


CASES = {
    "odd name, from a subfolder": Case(
        {"tests/test_odd.py": ODD, "sub/__init__.py": ""},
        ("-xk", "fails", "--tb", "short", "-s", "..", "-q"),
        "../tests/test_odd.py::test_fails",
        cwd="sub",
    ),
    "own ini file, with workers": Case(
        {"conf/own.ini": WANTED_INI, "check_it.py": PLAIN},
        ("-c", "conf/own.ini", "--rootdir", ".", "-n", "2", "check_it.py::test_fails", "check_it.py::test_fails"),
        "-c conf/own.ini",
    ),
    "standalone by variable": Case(
        {"test_run_if.py": RUN_IF}, (".",), "PL_RUN_STANDALONE_TESTS=1", env={"PL_RUN_STANDALONE_TESTS": "1"}
    ),
    "another ini file nearer to the test": Case(
        {"pytest.ini": WANTED_INI, "a/pytest.ini": OTHER_INI, "a/check_it.py": PLAIN, "b/check_b.py": ""},
        ("a", "b", "--deselect", "a/check_it.py::test_other", "-n0"),
        "-c pytest.ini",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_command_runs_exactly_that_test(tmp_path: Path, case: Case) -> None:
    """The command, given to a shell in the folder of the run, fails as the test did, and runs no other."""
    write_tests(tmp_path, case.files)
    run = run_pytest(tmp_path, *case.arguments, env=case.env, cwd=case.cwd)
    section = run.output.partition("To run this test alone")[2]
    assert section, run.output
    command = section.splitlines()[1]
    assert case.word in command

    again = run_in_shell(command, tmp_path / case.cwd)

    assert "this one" in again
    assert "the other" not in again
    assert "= 1 failed in " in again


def test_command_of_a_worker_is_that_of_the_run(tmp_path: Path) -> None:
    """With pytest-xdist the failure is one of a worker, whose own arguments are others."""
    write_tests(tmp_path, {"test_it.py": PLAIN})
    run = run_pytest(tmp_path, "-n2", "-o", "console_output_style=count", "-k", "fails")

    command = run.output.partition("To run this test alone")[2].splitlines()[1]

    assert command.startswith("python -m pytest test_it.py::test_fails -p no:")
    assert command.endswith(" -o console_output_style=count")


def run_in_shell(command: str, folder: Path, status: int = 1) -> str:
    """Run a command line as a user would who has activated this environment, and return what it printed."""
    environment = clean_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout
