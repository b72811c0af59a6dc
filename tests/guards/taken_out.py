"""Runs the tests of a guard against a copy of the source from which the guard was taken out."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.guards.entries import ROOT, SOURCE, Guard, switch_off

NOTICED = "noticed"
_PACKAGE = "lightning_disttest"
_TEST_S = 60
_RUN_S = 200
_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-q")
_ASSERTION = re.compile(r'(failed on setup with ")?(AssertionError|assert )')
_TIMEOUT = "from pytest-timeout"


def find_missing(tests: Iterable[str]) -> list[str]:
    """Return the node ids that pytest does not collect, of functions or of their cases.

    Whole files are collected: asked for an id twice, or for a function and a case of it, pytest looks at one of them.
    """
    wanted = list(tests)
    files = dict.fromkeys(test.partition("::")[0] for test in wanted if (ROOT / test.partition("::")[0]).is_file())
    command = [sys.executable, *_PYTEST, "--collect-only", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_RUN_S)
    found = done.stdout.splitlines()
    return [test for test in wanted if not any(line == test or line.startswith(f"{test}[") for line in found)]


def try_without(guard: Guard) -> str:
    """Return ``NOTICED`` if each test of a guard fails without it by an assertion, else what happened."""
    with tempfile.TemporaryDirectory(prefix="guards-") as name:
        folder = Path(name)
        source = folder / "src"
        shutil.copytree(SOURCE, source)
        switch_off(guard, source)
        environment = os.environ | {"PYTHONPATH": str(source)}
        imported = _imported_package(folder, environment)
        if not imported.is_relative_to(source):
            return f"the copy was not imported, but {imported}"
        junit = folder / "junit.xml"
        if not _run_tests(guard.tests, junit, environment):
            return f"no end within {_RUN_S} s"
        return judge(guard.tests, junit.read_text()) if junit.exists() else "pytest made no report"


def judge(tests: Iterable[str], junit: str) -> str:
    """Return ``NOTICED`` if each test failed by an assertion, else what became of the first that did not.

    Of a test with parameters one case has to fail.
    """
    cases = list(ET.fromstring(junit).iter("testcase"))
    for test in tests:
        messages = [_message_of(case) for case in cases if _is_of(case, test)]
        if not messages:
            return f"did not run: {test}"
        if not any(_ASSERTION.match(message) for message in messages):
            bad = next((message for message in messages if message), None)
            return _describe(bad, test)
    return NOTICED


def _describe(message: str | None, test: str) -> str:
    if message is None:
        return f"not noticed by {test}"
    if _TIMEOUT in message:
        return f"hung for {_TEST_S} s: {test}"
    return f"failed, but by no assertion: {test}: {message.splitlines()[0]}"


def _is_of(case: ET.Element, test: str) -> bool:
    file, _, name = test.partition("::")
    module = file.removesuffix(".py").replace("/", ".")
    found = case.get("name", "")
    return case.get("classname") == module and name in (found, found.partition("[")[0])


def _message_of(case: ET.Element) -> str:
    return next((child.get("message", "") for child in case if child.tag in ("failure", "error")), "")


def _imported_package(folder: Path, environment: Mapping[str, str]) -> Path:
    """Return the file of the package that a process started in ``folder`` imports."""
    command = [sys.executable, "-c", f"import {_PACKAGE}; print({_PACKAGE}.__file__)"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TEST_S)
    return Path(done.stdout.strip())


def _run_tests(tests: Iterable[str], junit: Path, environment: Mapping[str, str]) -> bool:
    """Run tests and return whether they came to an end in time."""
    limits = [f"--timeout={_TEST_S}", "-o", "timeout_func_only=false"]
    command = [sys.executable, *_PYTEST, *limits, f"--junitxml={junit}", *tests]
    with _process_group(command, environment) as process:
        try:
            process.communicate(timeout=_RUN_S)
        except subprocess.TimeoutExpired:
            return False
    return True


@contextlib.contextmanager
def _process_group(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
