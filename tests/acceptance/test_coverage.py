"""Coverage counts what ranks run as if the code had run in one process, and costs nothing while it is off."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import (
    LIMIT_S,
    STAMP,
    clean_environment,
    json_lines,
    lines_with,
    plugins_off,
    run_pytest,
    wait_until_gone,
    write_tests,
)

# The test whose ranks run the module of this name.
TESTS = {
    "static": "test_worlds.py::test_static",
    "dynamic": "test_worlds.py::test_dynamic",
    "killed": "test_worlds.py::test_measured_before_the_kill",
    "standalone": "test_alone.py::test_standalone",
    "launched": "test_launched.py::test_launched",
}
# Each kind of world has a module of its own, that nothing but its ranks imports. Rank 0 and rank 1 take different ways
# through it, and there are lines and branches that no rank takes.
MODULE = """
    LIMIT = 2

    def work(rank):
        if rank == 0:
            text = "zero"
        elif rank == 1:
            text = "one"
        else:
            text = "no rank of that number"
        for number in range(rank):
            text += str(number)
        try:
            return text if rank < LIMIT else None
        finally:
            text = ""

    def never():
        return LIMIT
"""
WORK = """
    from importlib import import_module

    def work(name, rank):
        return import_module(f"measured.{name}").work(rank)
"""
NOTE = """
    import json, sys
    import pytest

    @pytest.fixture
    def note(pytestconfig, tmp_path_factory):
        files = [path.name for path in tmp_path_factory.getbasetemp().rglob("*coverage*")]
        with open(pytestconfig.rootpath / "notes.jsonl", "a") as file:
            file.write(json.dumps(["coverage" in sys.modules, bool(files)]) + "\\n")
"""
WORLDS = """
    import os, signal
    import pytest
    from work import work

    @pytest.mark.distributed(2)
    def test_static(world): work("static", world.rank)

    @pytest.mark.distributed(2)
    def test_after_static(note): pass

    @pytest.mark.distributed(2, static=False)
    def test_dynamic(world): work("dynamic", world.rank)

    # A world of its own, because of its size.
    @pytest.mark.distributed(3)
    def test_measured_before_the_kill(world, pytestconfig):
        if world.rank < 2:
            work("killed", world.rank)
            (pytestconfig.rootpath / f"rank-{world.rank}").write_text(str(os.getpid()))

    @pytest.mark.distributed(3)
    def test_kill(world, pytestconfig):
        if world.rank < 2:
            assert (pytestconfig.rootpath / f"rank-{world.rank}").read_text() == str(os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
"""
ALONE = """
    import pytest
    from work import work

    @pytest.mark.standalone
    def test_standalone(world): work("standalone", world.rank)

    @pytest.mark.standalone
    def test_after_standalone(note): pass
"""
LAUNCHED = """
    import pytest
    from lightning.fabric import Fabric
    from work import work

    @pytest.mark.standalone
    def test_launched():
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        work("launched", fabric.global_rank)
"""
SUMMARY = "1 failed, {} passed"
RANKS = {
    "conftest.py": NOTE,
    "work.py": WORK,
    "test_worlds.py": WORLDS,
    "test_alone.py": ALONE,
}
WITH_LAUNCHED = RANKS | {"test_launched.py": LAUNCHED}
CALLS = """
    from importlib import import_module
    import pytest

    @pytest.mark.parametrize(
        ("name", "ranks"), [("static", 2), ("dynamic", 2), ("standalone", 1), ("launched", 2), ("killed", 2)]
    )
    def test_calls(name, ranks):
        for rank in range(ranks):
            import_module(f"measured.{name}").work(rank)
"""
PACKAGE = {"measured/__init__.py": "", **{f"measured/{kind}.py": MODULE for kind in TESTS}}
COV = ("--cov=measured", "--cov-branch", "--cov-report=json:report.json")
WHAT = ("executed_lines", "missing_lines", "executed_branches", "missing_branches")


def _run_under_coverage(folder: Path) -> str:
    """Run pytest in ``folder`` under ``coverage run``, as ``run_pytest`` does without; return what it printed."""
    stamp = uuid.uuid4().hex
    measure = ["coverage", "run", "--branch", "--source=measured", "-m"]
    command = [sys.executable, "-m", *measure, "pytest", *plugins_off()]
    environment = clean_environment() | {STAMP: stamp}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert wait_until_gone(stamp) == []
    report = [sys.executable, "-m", "coverage", "json", "-o", "report.json"]
    made = subprocess.run(report, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert made.returncode == 0, done.stdout + made.stdout + made.stderr
    return done.stdout + done.stderr


def _measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the lines and branches of each file that were executed and that were not, as the report has them.

    Without any data there are no branches in it.
    """
    files: Mapping[str, Any] = json.loads((folder / "report.json").read_text())["files"]
    return {name: {what: found.get(what, []) for what in WHAT} for name, found in files.items()}


@pytest.fixture(scope="module")
def called(run_once: RunOnce) -> dict[str, dict[str, Any]]:
    """Return what is measured when plain tests call the code of all ranks."""
    run = run_once({**PACKAGE, "test_calls.py": CALLS}, *COV, plugins=["pytest_cov"])
    assert run.returncode == 0, run.output
    return _measured(run.folder)


def _keep(folder: Path, output: str, passed: int) -> Path:
    """Check that the run did what it was to do, and keep its output beside its data."""
    assert SUMMARY.format(passed) in output, output
    (folder / "output.txt").write_text(output)
    return folder


@pytest.fixture(scope="module")
def with_cov(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run in which ranks alone run the code, measured by pytest-cov."""
    folder = tmp_path_factory.mktemp("cov")
    write_tests(folder, PACKAGE | WITH_LAUNCHED)
    return _keep(folder, run_pytest(folder, *COV, "--cov-context=test", plugins=["pytest_cov"]).output, 7)


@pytest.fixture(scope="module")
def with_xdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of such a run on two workers; the tests of one file share a worker, and with it a world."""
    folder = tmp_path_factory.mktemp("xdist")
    write_tests(folder, PACKAGE | WITH_LAUNCHED)
    run = run_pytest(folder, *COV, "-n", "2", "--dist", "loadfile", plugins=["pytest_cov"])
    return _keep(folder, run.output, 7)


@pytest.fixture(scope="module")
def with_coverage_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of such a run under ``coverage run``, without the test that takes Lightning."""
    folder = tmp_path_factory.mktemp("coverage")
    write_tests(folder, PACKAGE | RANKS)
    return _keep(folder, _run_under_coverage(folder), 6)


every_run = pytest.mark.parametrize("way", ["with_cov", "with_xdist", "with_coverage_run"])


@pytest.mark.parametrize(
    ("way", "kind"),
    [(way, kind) for way in ("with_cov", "with_xdist") for kind in TESTS]
    + [("with_coverage_run", kind) for kind in TESTS if kind != "launched"],
)
def test_ranks_are_measured_like_calls(
    request: pytest.FixtureRequest, called: dict[str, dict[str, Any]], way: str, kind: str
) -> None:
    """Lines and branches of ranks are those of the same code in one process; a killed rank keeps its last test."""
    folder: Path = request.getfixturevalue(way)
    measured = _measured(folder)[f"measured/{kind}.py"]
    assert measured == called[f"measured/{kind}.py"]
    assert all(measured[what] for what in WHAT)


@every_run
def test_nothing_else_is_measured_or_left(
    request: pytest.FixtureRequest, called: dict[str, dict[str, Any]], way: str
) -> None:
    """There is one file of data, as without ranks, and no module more in the report."""
    folder: Path = request.getfixturevalue(way)
    assert [path.name for path in folder.rglob(".coverage*")] == [".coverage"]
    assert _measured(folder).keys() == called.keys()


@every_run
def test_no_warning_of_missing_data(request: pytest.FixtureRequest, way: str) -> None:
    """Nobody is told that no data was collected, or a module never imported, when ranks did it."""
    folder: Path = request.getfixturevalue(way)
    assert lines_with((folder / "output.txt").read_text(), "CoverageWarning") == []


def test_off_costs_nothing(run_once: RunOnce, with_cov: Path) -> None:
    """With pytest-cov installed, but not asked for, no rank imports coverage and nothing is written anywhere."""
    off = run_once(PACKAGE | RANKS, "test_worlds.py", "test_alone.py", "-k", "not kill", plugins=["pytest_cov"])
    assert "5 passed, 2 deselected" in off.output
    for folder, active in ((off.folder, False), (with_cov, True)):
        assert json_lines(folder / "notes.jsonl") == [[active, active]] * 3
        assert bool(list(folder.rglob(".coverage*"))) == active


def test_contexts_name_the_tests(with_cov: Path) -> None:
    """With --cov-context=test each line that a rank has run carries the name of its test."""
    data = coverage.CoverageData(str(with_cov / ".coverage"))
    data.read()
    measured = _measured(with_cov)
    for kind, test in TESTS.items():
        contexts = data.contexts_by_lineno(str(with_cov / f"measured/{kind}.py"))
        assert sorted(contexts) == measured[f"measured/{kind}.py"]["executed_lines"]
        assert {name for names in contexts.values() for name in names} == {f"{test}|run"}
    data.close()
