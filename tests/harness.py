"""Runs pytest as its users do, in a process of its own, and proves that nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STAMP = "DISTTEST_SUITE_RUN"
LIMIT_S = 100.0
_GONE_S = 5.0
# Plugins that change what a run does or shows: on only where a test asks for them.
_OFF = (
    "cacheprovider",
    "randomly",
    "random_order",
    "pytest_cov",
    "asyncio",
    "anyio",
    "pytest_mock",
    "html",
    "html_fixtures",
    "metadata",
    "benchmark",
    "hypothesispytest",
)
# What runs keep of the environment of the suite; LTDT_CI_RUN is the mark by which .ci/run finds what is left.
_KEPT = frozenset(
    (
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "LTDT_CI_RUN",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHOME",
        "PYTHONPATH",
        "SHELL",
        "TEMP",
        "TERM",
        "TMP",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    )
)
_KEPT_PREFIXES = ("CUDA_", "LC_", "NVIDIA_")


@dataclass(frozen=True)
class Run:
    """What a run of pytest left: exit code, screen, and per test the outcomes and texts of its JUnit file."""

    returncode: int
    output: str
    outcomes: dict[str, str]
    texts: dict[str, str]
    folder: Path
    left_over: list[str] = field(default_factory=list)

    def outcome(self, name: str) -> str:
        """Return ``passed``, ``failed``, ``error``, ``skipped`` or ``xfailed``; ``passed+error`` for several."""
        return self.outcomes[name]

    def text(self, name: str) -> str:
        """Return what was reported of a test that did not pass."""
        return self.texts[name]


def write_tests(folder: Path, files: Mapping[str, str]) -> None:
    """Write source files, dedented, and an empty ini file that makes the folder pytest's root."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))


def run_pytest(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    limit: float = LIMIT_S,
    must_be_clean: bool = True,
    plugins: Collection[str] = (),
    cwd: str = ".",
) -> Run:
    """Run pytest in ``folder`` and return what it left; fail if a process of the run is still there.

    ``plugins`` are names of entry points that the suite switches off otherwise; ``cwd`` is a folder inside ``folder``.
    """
    with start_pytest(folder, *arguments, env=env, plugins=plugins, cwd=cwd) as running:
        output, _ = running.process.communicate(timeout=limit)
        left_over = wait_until_gone(running.stamp)
    if must_be_clean:
        assert left_over == [], f"processes of the run are left: {left_over}\n{output}"
    outcomes, texts = read_junit(running.junit)
    return Run(running.process.returncode, output, outcomes, texts, folder, left_over)


@dataclass(frozen=True)
class Running:
    """A run that goes on."""

    process: subprocess.Popen[str]
    stamp: str
    junit: Path


@contextlib.contextmanager
def start_pytest(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    plugins: Collection[str] = (),
    cwd: str = ".",
) -> Iterator[Running]:
    """Start pytest in ``folder``; every process that descends from it carries a stamp, and is killed at the end."""
    stamp = uuid.uuid4().hex
    junit = folder / f"junit-{stamp}.xml"
    command = [sys.executable, "-m", "pytest", *plugins_off(plugins), f"--junitxml={junit}", *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder / cwd,
        env=clean_environment() | {STAMP: stamp} | dict(env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    )
    try:
        yield Running(process, stamp, junit)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        for pid in stamped_processes(stamp):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def plugins_off(wanted: Collection[str] = ()) -> list[str]:
    """Return the arguments that switch off what the suite does not want, except the plugins ``wanted``."""
    return [argument for name in _OFF if name not in wanted for argument in ("-p", f"no:{name}")]


def clean_environment() -> dict[str, str]:
    """Return of this environment what a program needs to run, and nothing that changes what pytest or a plugin does.

    Hypothesis, for one, draws other examples where ``CI`` is set, and pytest colours its output for ``FORCE_COLOR``.
    """
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def stamped_processes(stamp: str) -> list[int]:
    """Return the pids of all living processes that were started, or forked, from a run with this stamp."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{STAMP}={stamp}".encode() in environment.split(b"\0") and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until_gone(stamp: str) -> list[str]:
    """Give the processes of a run a few seconds to end and describe those that did not."""
    deadline = time.monotonic() + _GONE_S
    while (left := stamped_processes(stamp)) and time.monotonic() < deadline:
        time.sleep(0.02)
    described = []
    for pid in left:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            described.append(f"{pid}: {command}")
    return described


def read_junit(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the outcome and the text of each test of a JUnit file; nothing if it was not written."""
    outcomes: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    if not path.exists():
        return {}, {}
    for case in ET.parse(path).iter("testcase"):
        name = _name_of(case)
        outcomes.setdefault(name, [])
        found = [_outcome_of(child) for child in case if child.tag in ("failure", "error", "skipped")]
        for outcome in found or ["passed"]:
            if outcome not in outcomes[name]:
                outcomes[name].append(outcome)
        texts[name] = texts.get(name, "") + "".join(_text_of(child) for child in case)
    return {name: "+".join(sorted(found, reverse=True)) for name, found in outcomes.items()}, texts


def _name_of(case: ET.Element) -> str:
    """Return the name of a test as in its node id, without the file: ``TestClass::test_name[param]``."""
    classes = [part for part in case.get("classname", "").split(".") if part[:1].isupper()]
    return "::".join([*classes, case.get("name", "")])


def _outcome_of(child: ET.Element) -> str:
    if child.tag == "skipped":
        return "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
    return {"failure": "failed", "error": "error"}[child.tag]


def _text_of(child: ET.Element) -> str:
    return f"{child.get('message', '')}\n{child.text or ''}\n"


def lines_with(text: str, *parts: str) -> list[str]:
    """Return the lines of ``text`` that contain all ``parts``."""
    return [line for line in text.splitlines() if all(part in line for part in parts)]


def json_lines(path: Path) -> list[Any]:
    """Return what the tests of a run wrote, one JSON value per line."""
    import json

    return [json.loads(line) for line in path.read_text().splitlines()]
