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
    Run,
    clean_environment,
    json_lines,
    plugins_off,
    run_pytest,
    wait_until_gone,
    write_tests,
)

KINDS = ("static", "dynamic", "standalone", "launched", "killed")
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
WORLDS = """
    import os, signal
    import pytest
    from work import work

    @pytest.mark.distributed(2)
    def test_static(world): work("static", world.rank)

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
    def test_launched():
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        work("launched", fabric.global_rank)
"""
RANKS = {"work.py": WORK, "test_worlds.py": WORLDS, "test_alone.py": ALONE}
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
PACKAGE = {"measured/__init__.py": "", **{f"measured/{kind}.py": MODULE for kind in KINDS}}
COV = ("--cov=measured", "--cov-branch", "--cov-report=json:report.json")
WHAT = ("executed_lines", "missing_lines", "executed_branches", "missing_branches")


def _with_coverage_run(folder: Path, *arguments: str) -> str:
    """Run pytest in ``folder`` under ``coverage run``, as ``run_pytest`` does without; return what it printed."""
    stamp = uuid.uuid4().hex
    measure = ["coverage", "run", "--branch", "--source=measured", "-m"]
    command = [sys.executable, "-m", *measure, "pytest", *plugins_off(), *arguments]
    environment = clean_environment() | {STAMP: stamp}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert wait_until_gone(stamp) == []
    report = [sys.executable, "-m", "coverage", "json", "-o", "report.json"]
    made = subprocess.run(report, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert made.returncode == 0, done.stdout + made.stdout + made.stderr
    return done.stdout


def _measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the lines and branches of each file that were executed and that were not, as the report has them."""
    files: Mapping[str, Any] = json.loads((folder / "report.json").read_text())["files"]
    return {name: {what: found[what] for what in WHAT} for name, found in files.items()}


@pytest.fixture(scope="module")
def called(run_once: RunOnce) -> dict[str, dict[str, Any]]:
    """Return what is measured when plain tests call the code of all ranks."""
    run = run_once({**PACKAGE, "test_calls.py": CALLS}, *COV, plugins=["pytest_cov"])
    assert run.returncode == 0, run.output
    return _measured(run.folder)


@pytest.fixture(scope="module", params=["--cov", "--cov -n 2", "coverage run"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run in which ranks alone run the code, measured in one of the usual ways."""
    folder = tmp_path_factory.mktemp("ranks")
    write_tests(folder, PACKAGE | RANKS)
    if request.param == "coverage run":
        output = _with_coverage_run(folder)
    else:
        # One file for each worker: the ranks that have measured stay together with the test that kills them.
        workers = ["-n2", "--dist=loadfile"] if request.param == "--cov -n 2" else []
        output = run_pytest(folder, *COV, *workers, plugins=["pytest_cov"]).output
    assert "1 failed, 5 passed" in output, output
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_measured_like_calls(folder: Path, called: dict[str, dict[str, Any]], kind: str) -> None:
    """Lines and branches of ranks are those of the same code in one process; a killed rank keeps its last test."""
    measured = _measured(folder)[f"measured/{kind}.py"]
    assert measured == called[f"measured/{kind}.py"]
    assert all(measured[what] for what in WHAT)


def test_nothing_else_is_measured_or_left(folder: Path, called: dict[str, dict[str, Any]]) -> None:
    """There is one file of data, as without ranks, and no module more in the report."""
    assert [path.name for path in folder.rglob(".coverage*")] == [".coverage"]
    assert _measured(folder).keys() == called.keys()


NOTES = """
    import json, sys
    import pytest
    from work import work

    @pytest.fixture
    def note(pytestconfig, tmp_path_factory):
        files = [path.name for path in tmp_path_factory.getbasetemp().rglob("*coverage*")]
        with open(pytestconfig.rootpath / "notes.jsonl", "a") as file:
            file.write(json.dumps(["coverage" in sys.modules, bool(files)]) + "\\n")

    @pytest.mark.distributed(2)
    def test_static(world): work("static", world.rank)

    @pytest.mark.distributed(2)
    def test_after_static(note): pass

    @pytest.mark.standalone
    def test_standalone(world): work("standalone", world.rank)

    @pytest.mark.standalone
    def test_another(note): pass
"""
NOTING = {**PACKAGE, "work.py": WORK, "test_notes.py": NOTES}


@pytest.fixture(scope="module")
def on(run_once: RunOnce) -> Run:
    """Return a run with --cov whose ranks note what they see of it."""
    return run_once(NOTING, *COV, "--cov-context=test", plugins=["pytest_cov"])


def test_off_costs_nothing(run_once: RunOnce, on: Run) -> None:
    """With pytest-cov installed, but not asked for, no rank imports coverage and nothing is written anywhere."""
    off = run_once(NOTING, plugins=["pytest_cov"])
    for run, active in ((off, False), (on, True)):
        assert run.returncode == 0, run.output
        assert json_lines(run.folder / "notes.jsonl") == [[active, active]] * 3
        assert bool(list(run.folder.rglob(".coverage*"))) == active


def test_contexts_name_the_tests(on: Run) -> None:
    """With --cov-context=test each line that a rank has run carries the name of its test."""
    data = coverage.CoverageData(str(on.folder / ".coverage"))
    data.read()
    executed = _measured(on.folder)
    for kind in ("static", "standalone"):
        contexts = data.contexts_by_lineno(str(on.folder / f"measured/{kind}.py"))
        assert sorted(contexts) == executed[f"measured/{kind}.py"]["executed_lines"]
        assert {name for names in contexts.values() for name in names} == {f"test_notes.py::test_{kind}|run"}
    data.close()
