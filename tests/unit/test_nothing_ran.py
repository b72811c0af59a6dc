"""A run with a selecting option in which nothing ran is red and says why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.selection.nothing_ran import NothingRan

if TYPE_CHECKING:
    from tests.unit.conftest import Make

WAYS = {
    "standalone": "--standalone (PL_RUN_STANDALONE_TESTS, ini disttest_standalone)",
    "cuda_only": "--cuda-only (RUN_ONLY_CUDA_TESTS, ini disttest_cuda_only)",
    "tpu": "--tpu (PL_RUN_TPU_TESTS, ini disttest_tpu)",
    "multigpu_static": "--multigpu-static (DISTTEST_MULTIGPU_STATIC, ini disttest_multigpu_static)",
    "multigpu_dynamic": "--multigpu-dynamic (DISTTEST_MULTIGPU_DYNAMIC, ini disttest_multigpu_dynamic)",
}
EXPECTED_FAILURE: dict[str, Any] = {"wasxfail": "known"}


class FakeSession:
    """What is read of a session, and the exit code that it ends with."""

    def __init__(self, worker: bool = False, **options: bool) -> None:
        self.exitstatus = -1
        self.config = SimpleNamespace(option=SimpleNamespace(**({"collectonly": False} | options)))
        if worker:
            self.config.workerinput = {}


def end_run(watch: NothingRan, status: int, session: FakeSession | None = None) -> tuple[int, list[str]]:
    """End a run; return the exit code that was set, -1 for none, and what was written about it."""
    written: list[str] = []
    reporter: Any = SimpleNamespace(write_line=lambda line, **_: written.append(line))
    ended: Any = session or FakeSession()
    watch.pytest_sessionfinish(ended, status)
    watch.pytest_terminal_summary(reporter)
    return ended.exitstatus, written


def line_of(*fields: str, skipped: int = 0) -> str:
    """Return the line that says that nothing ran, with all ways to set these switches."""
    kept = f"tests kept: {skipped}, all skipped" if skipped else "no test was kept"
    kept_by = " and ".join(WAYS[field] for field in fields)
    return f"disttest: nothing ran with {kept_by}: {kept}, so this run proves nothing"


def watch_reports(*reports: pytest.TestReport) -> NothingRan:
    """Return what has seen these reports of a run."""
    watch = NothingRan(["standalone"])
    for report in reports:
        watch.pytest_runtest_logreport(report)
    return watch


@pytest.mark.parametrize("fields", [[field] for field in WAYS] + [["cuda_only", "multigpu_static"]], ids="+".join)
def test_run_without_tests_fails_with_its_switches(fields: list[str]) -> None:
    """The line names the option, the variable and the ini option of each switch that selects."""
    status, written = end_run(NothingRan(fields), pytest.ExitCode.NO_TESTS_COLLECTED)

    assert status == pytest.ExitCode.TESTS_FAILED
    assert written == [line_of(*fields)]


@pytest.mark.parametrize(
    ("when", "outcome", "more", "executed"),
    [
        ("call", "passed", {}, True),
        ("call", "failed", {}, True),
        ("setup", "failed", {}, True),
        ("teardown", "failed", {}, True),
        ("call", "skipped", EXPECTED_FAILURE, True),
        ("call", "skipped", {}, False),
        ("setup", "skipped", {}, False),
        ("setup", "passed", {}, False),
        ("teardown", "passed", {}, False),
    ],
)
def test_what_counts_as_executed(make: Make, when: str, outcome: str, more: dict[str, Any], executed: bool) -> None:
    """A body that ran counts, however it ended, and any error; a skip does not, nor do the phases around it."""
    status, written = end_run(watch_reports(make.report(when, outcome, **more)), pytest.ExitCode.OK)

    red = (pytest.ExitCode.TESTS_FAILED, [line_of("standalone", skipped=1)])
    assert (status, written) == ((-1, []) if executed else red)


def test_skipped_tests_are_counted(make: Make) -> None:
    """Each test counts once, however many reports it has: "no test" would send the reader after a wrong selection."""
    reports = []
    for name in ("a", "b", "c"):
        phases = [make.skipped("setup", "no"), make.report("teardown")]
        for report in phases:
            report.nodeid = f"test_it.py::test_{name}"
        reports += phases

    assert end_run(watch_reports(*reports), pytest.ExitCode.OK)[1] == [line_of("standalone", skipped=3)]


def test_one_executed_test_is_enough(make: Make) -> None:
    """It may be the first one, and skipped ones may follow."""
    watch = watch_reports(*make.passed(), make.skipped("setup", "no"), make.report("teardown"))

    assert end_run(watch, pytest.ExitCode.OK) == (-1, [])


@pytest.mark.parametrize(
    "status",
    [
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.INTERRUPTED,
        pytest.ExitCode.INTERNAL_ERROR,
        pytest.ExitCode.USAGE_ERROR,
    ],
)
def test_run_that_has_failed_keeps_its_exit_code(status: pytest.ExitCode) -> None:
    """A run that is red for another reason is left alone."""
    assert end_run(watch_reports(), status) == (-1, [])


@pytest.mark.parametrize(
    "session",
    [
        FakeSession(collectonly=True),
        FakeSession(setuponly=True),
        FakeSession(setupplan=True),
        FakeSession(worker=True),
    ],
    ids=["--collect-only", "--setup-only", "--setup-plan", "worker of xdist"],
)
def test_run_that_is_to_run_nothing_is_left_alone(session: FakeSession) -> None:
    """Options that run no bodies, and a worker, which has only a part of the tests, decide nothing."""
    assert end_run(watch_reports(), pytest.ExitCode.OK, session) == (-1, [])
