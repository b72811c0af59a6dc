"""The ways to run tests that are compared, and how one run of one of them is started, timed and checked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import stopwatch, workloads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.workloads import Workload

_LIMIT_S = 900
_OURS = "lightning_disttest"
_PYTEST = (sys.executable, "-m", "pytest")
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pytest")
_NOT_PASSED_ON = (
    "PYTHONDONTWRITEBYTECODE",  # the plugin would be compiled anew in each run
    "PYTHONUNBUFFERED",
    "PYTEST_",
    "DISTTEST_",
    "PL_",
    "COV_",
    "SLURM_",
    "TORCHELASTIC_",
    "OMPI_",
    "MASTER_",
    "RANK",
    "LOCAL_",
    "WORLD_SIZE",
    "NODE_RANK",
    "GROUP_",
    "ROLE_",
)


class RunFailed(Exception):
    """A run that is to be measured did not do what it should: its time means nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run a workload: its command, whether our plugin is loaded, its conftest, and how many pytests it has."""

    name: str
    command: tuple[str, ...] = _PYTEST
    with_plugin: bool = False
    conftest: str = ""
    processes: int = 1
    options: tuple[str, ...] = ()


PLAIN = Contender("plain pytest, a group of one", conftest=workloads.GROUP_OF_ONE)
TORCHRUN = Contender("torchrun static", _TORCHRUN, conftest=workloads.GROUP_OF_LAUNCHER, processes=2)
OURS = Contender("lightning-disttest", with_plugin=True, conftest=workloads.IMPORT_ONLY)
SPAWN = Contender("mp.spawn per test", conftest=workloads.IMPORT_ONLY)
PER_ID = Contender("one pytest per test and rank", processes=2)
REAL_SPAWN = Contender("a new interpreter for each rank", with_plugin=True)
WARM_SPAWN = Contender("warm", with_plugin=True, options=("--disttest-warm-spawn-everywhere",))
STANDALONE = Contender("lightning-disttest", with_plugin=True)
WITHOUT = Contender("without the plugin")
INSTALLED = Contender("with the plugin, unused", with_plugin=True)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took; the notes are those of the stopwatch in the process of rank 0, moments are monotonic."""

    wall: float
    moments: Mapping[str, float]
    finished: tuple[float, ...]
    verdicts: Mapping[str, float]
    memory: tuple[int, ...]
    written: Mapping[str, float]

    @property
    def loop(self) -> float:
        """Seconds from the start of collection to the end of the last test and of all ranks."""
        return self.moments["finish"] - self.moments["collection"]

    @property
    def cpu_loop(self) -> float:
        """CPU seconds of the pytest process in the same time."""
        return self.moments["cpu_finish"] - self.moments["cpu_collection"]

    @property
    def start(self) -> float:
        """Seconds of the run that are not in the loop."""
        return self.wall - self.loop

    @property
    def per_test(self) -> float:
        """Seconds per test, from the start of the first to the end of the last."""
        return (self.finished[-1] - self.moments["first_test"]) / len(self.finished)


class Laboratory:
    """Runs workloads in folders below one temporary folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs = 0

    def run(self, contender: Contender, work: Workload, test_id: str | None = None) -> Run:
        """Run a workload, or one test of it, and return what it took.

        Raises:
            RunFailed: if another number of tests passed or failed than should.
        """
        folder = self._prepare(contender, work)
        self._runs += 1
        output = self._root / f"run{self._runs}"
        for name in ("watch", "notes", "temporary"):
            (output / name).mkdir(parents=True)
        command = [*contender.command, *_options(contender), *([] if test_id is None else [test_id])]
        wall, status, text = _execute(command, folder, _environment(output))
        watches = [json.loads(path.read_text()) for path in (output / "watch").iterdir()]
        _check(contender, work if test_id is None else workloads.Workload(test_id, {}, 1), watches, status, text)
        run = _make_run(wall, watches, output / "notes")
        shutil.rmtree(output, ignore_errors=True)
        return run

    def _prepare(self, contender: Contender, work: Workload) -> Path:
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{contender.name}-{work.name}")
        folder = self._root / name
        if not folder.exists():
            folder.mkdir()
            own = {"pytest.ini": workloads.INI, "stopwatch.py": Path(stopwatch.__file__).read_text()}
            if contender.conftest:
                own["conftest.py"] = contender.conftest
            for file, text in {**own, **work.files}.items():
                (folder / file).write_text(text)
        return folder


def _options(contender: Contender) -> list[str]:
    """Return pytest's options: the same for all, but for the plugin under test; no other plugin is loaded."""
    names = {entry.name for entry in metadata.entry_points(group="pytest11")} | {"randomly", "random_order"}
    blocked = sorted({*names, "cacheprovider"} - ({_OURS} if contender.with_plugin else set()))
    plugins = [option for name in blocked for option in ("-p", f"no:{name}")]
    return ["-q", "-c", "pytest.ini", "-p", "stopwatch", *plugins, *contender.options]


def _environment(output: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    return {
        **kept,
        "BENCHMARK_WATCH": str(output / "watch"),
        "BENCHMARK_NOTES": str(output / "notes"),
        "PYTEST_DEBUG_TEMPROOT": str(output / "temporary"),
    }


def _execute(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, int, str]:
    """Return the seconds that a command took, its exit status and its output."""
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=_LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return time.monotonic() - started, process.returncode, text


def _check(contender: Contender, work: Workload, watches: list[dict[str, Any]], status: int, text: str) -> None:
    wanted = {"passed": work.passed, "failed": work.failed}
    right = [watch for watch in watches if {**dict.fromkeys(wanted, 0), **watch["outcomes"]} == wanted]
    if status == (1 if work.failed else 0) and len(right) == len(watches) == contender.processes:
        return
    found = [watch["outcomes"] for watch in watches]
    raise RunFailed(
        f"{contender.name} on {work.name}: exit status {status}, outcomes {found}, "
        f"wanted {wanted} from {contender.processes} process(es)\n{text[-4000:]}"
    )


def _make_run(wall: float, watches: list[dict[str, Any]], notes: Path) -> Run:
    first = next(watch for watch in watches if watch["rank"] == 0)
    return Run(
        wall=wall,
        moments=first["moments"],
        finished=tuple(first["finished"]),
        verdicts=first["verdicts"],
        memory=tuple(first["memory"]),
        written={path.name: float(path.read_text()) for path in notes.iterdir()},
    )
