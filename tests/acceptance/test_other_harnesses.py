"""Ways in which a failed rank has been taken for a pass, or has spoilt the tests after it, elsewhere: not here.

Each test of the inner suite is written as a user would write it; the verdict over all ranks must be the right one.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

KINDS = ("static", "dynamic")
_WIDE = {"COLUMNS": "200"}  # the short summary is not cut
_HELPERS = """
    import time
    import pytest

    KINDS = {"static": pytest.mark.distributed(2), "dynamic": pytest.mark.distributed(2, static=False)}
    every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=mark) for kind, mark in KINDS.items()])

    def wait_for(path):
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never came"
            time.sleep(0.005)
"""
ENDINGS = """
    import ctypes, os, signal, sys, threading
    import pytest
    import torch
    import torch.distributed as dist
    from helpers import every_kind, wait_for

    @every_kind
    def test_killed_while_the_other_passes(kind, world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @every_kind
    def test_leaves_while_the_other_passes(kind, world):
        if world.rank == 1:
            os._exit(3)

    @every_kind
    def test_terminated_rank_0(kind, world):
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    @every_kind
    def test_killed_while_the_other_takes_long(kind, world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(90)

    @every_kind
    def test_segfault_at_once(kind, world):
        if world.rank == 1:
            ctypes.string_at(0)
        dist.barrier()

    @every_kind
    def test_fails_on_every_rank(kind, world):
        raise ValueError("on every rank")

    @every_kind
    def test_skips(kind):
        pytest.skip("not on this machine")

    @every_kind
    def test_raises_while_the_other_is_blocked(kind, world):
        if world.rank == 0:
            raise ValueError("the real reason")
        dist.barrier()

    @pytest.fixture
    def told(world, tmp_path):
        yield
        if world.rank == 1:
            (tmp_path / "told").touch()  # its failure was reported before fixtures end

    @every_kind
    def test_rank_1_is_first(kind, world, tmp_path, told):
        if world.rank == 1:
            raise KeyError("first in time")
        wait_for(tmp_path / "told")
        raise ValueError("second in time")

    @pytest.mark.parametrize("kind", [
        pytest.param("static", marks=pytest.mark.distributed(2, timeout=0.7)),
        pytest.param("dynamic", marks=pytest.mark.distributed(2, static=False, timeout=0.7)),
    ])
    def test_hangs(kind, world):
        if world.rank == 0:
            dist.barrier()
        threading.Event().wait(90)

    @every_kind
    def test_exits(kind, world):
        if world.rank == 1:
            sys.exit(0)
        dist.barrier()

    @every_kind
    def test_last(kind):
        dist.barrier()
"""
THREE = """
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(2)

    def test_a(): dist.barrier()

    def test_b(world):
        assert world.rank != 1, "rank 1 fails before the barrier"
        dist.barrier()

    def test_c(): dist.barrier()
"""
CLASSES = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2)
    class TestBase:
        def test_1(self, world):
            assert type(self) is not TestBase or world.rank != 1
            dist.barrier()

        def test_2(self): dist.barrier()

        def test_3(self): dist.barrier()

    class TestDerived(TestBase):
        pass
"""
STANDALONE = """
    import ctypes, os, signal
    import pytest
    import torch.distributed as dist

    @pytest.fixture
    def fit(tmp_path):
        from lightning.pytorch import Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel

        def fit():
            trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, fast_dev_run=True,
                              default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False)
            trainer.fit(BoringModel())
            return trainer

        return fit

    @pytest.mark.standalone
    def test_fails_after_fit(fit):
        trainer = fit()
        assert trainer.global_rank == 0, "rank 1 fails after fit"

    @pytest.mark.standalone
    def test_fails_everywhere_after_fit(fit):
        fit()
        raise ValueError("on every rank")

    @pytest.mark.standalone
    def test_killed_after_fit(fit):
        if fit().global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @pytest.mark.standalone
    def test_skips_after_fit(fit):
        fit()
        pytest.skip("not on this machine")

    @pytest.mark.standalone
    def test_segfault():
        ctypes.string_at(0)

    @pytest.mark.standalone
    def test_terminated():
        os.kill(os.getpid(), signal.SIGTERM)

    @pytest.mark.standalone
    def test_passes_after_fit(fit):
        fit()
        dist.barrier()
"""
ONCE = """
    import pytest
    import torch.distributed as dist
    from helpers import every_kind

    @every_kind
    def test_fails_once(kind, world, pytestconfig):
        flag = pytestconfig.rootpath / f"flag-{kind}"
        if world.rank == 1 and not flag.exists():
            flag.touch()
            raise RuntimeError("the first time")
        dist.barrier()

    @every_kind
    def test_fails_each_time(kind, world):
        assert world.rank == 0
        dist.barrier()

    @pytest.mark.distributed(2)
    class TestGroup:
        def test_1(self, world):
            assert world.rank == 0
            dist.barrier()

        def test_2(self): dist.barrier()
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of tests on ranks that end badly; its grace is longer than by default, for a slow machine."""
    files = {"helpers.py": _HELPERS, "test_endings.py": ENDINGS, "test_three.py": THREE, "test_classes.py": CLASSES}
    return run_once(files, "--disttest-grace=1", env=_WIDE)


@pytest.fixture(scope="module")
def standalone(run_once: RunOnce) -> Run:
    """Return one run of standalone tests, most of which have their ranks from Lightning's launcher."""
    return run_once({"test_alone.py": STANDALONE}, env=_WIDE | {"PL_RUN_STANDALONE_TESTS": "1"})


def _seconds(run: Run, name: str) -> float:
    (path,) = run.folder.glob("*.xml")
    return sum(float(case.get("time", "")) for case in ET.parse(path).iter("testcase") if case.get("name") == name)


def _counts(run: Run) -> dict[str, str | None]:
    (path,) = run.folder.glob("*.xml")
    (suite,) = ET.parse(path).getroot().iter("testsuite")
    return {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("test", "rank", "end"),
    [
        ("test_killed_while_the_other_passes", 1, "killed by SIGKILL"),
        ("test_leaves_while_the_other_passes", 1, "exited with status 3"),
        ("test_terminated_rank_0", 0, "killed by SIGTERM"),
        ("test_segfault_at_once", 1, "killed by SIGSEGV"),
    ],
)
def test_a_rank_that_dies_fails_its_test(run: Run, test: str, rank: int, end: str, kind: str) -> None:
    """A rank that is killed or leaves fails its test, though the other one passes, and is named with how it ended."""
    name = f"{test}[{kind}]"
    assert run.outcome(name) == "failed", run.output
    assert lines_with(run.text(name), f"rank {rank} of 2", f"died in call: {end}", "<- the cause"), run.text(name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_is_told_at_once(run: Run, kind: str) -> None:
    """A killed rank is named with its signal while the other one would go on for long."""
    name = f"test_killed_while_the_other_takes_long[{kind}]"
    text = run.text(name)
    assert run.outcome(name) == "failed"
    assert lines_with(text, "rank 1 of 2", "died in call: killed by SIGKILL", "<- the cause"), text
    assert lines_with(text, "rank 0 of 2", "was still in call when the grace of 1 s was over")
    assert _seconds(run, name) < 20


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_on_every_rank(run: Run, kind: str) -> None:
    """A test that fails alike on all ranks fails, with all of them named and one traceback."""
    text = run.text(f"test_fails_on_every_rank[{kind}]")
    assert run.outcome(f"test_fails_on_every_rank[{kind}]") == "failed"
    assert lines_with(text, "ranks 0-1 of 2", "failed in call", "<- the cause"), text
    assert text.count("E       ValueError: on every rank") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_skip_is_no_pass(run: Run, kind: str) -> None:
    """A test that all ranks skip is skipped, with the reason."""
    assert run.outcome(f"test_skips[{kind}]") == "skipped"
    assert "not on this machine" in run.text(f"test_skips[{kind}]")


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_rank_0_while_the_other_is_blocked(run: Run, kind: str) -> None:
    """What rank 0 raised is shown as the cause, and not that the other one waited for it."""
    name = f"test_raises_while_the_other_is_blocked[{kind}]"
    assert run.outcome(name) == "failed"
    assert lines_with(run.text(name), "rank 0 of 2", "failed in call", "<- the cause"), run.text(name)
    assert "ValueError: the real reason" in run.text(name)
    assert lines_with(run.output, "FAILED", name, "rank 0: ValueError: the real reason")


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_in_time_is_the_cause(run: Run, kind: str) -> None:
    """Of two errors the one that came first is the cause, whatever the numbers of the ranks."""
    text = run.text(f"test_rank_1_is_first[{kind}]")
    assert lines_with(text, "rank 1 of 2", "failed in call", "<- the cause"), text
    assert text.index("KeyError: 'first in time'") < text.index("ValueError: second in time")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("test", ["test_hangs", "test_exits"])
def test_a_hang_and_an_exit_end_one_test(run: Run, test: str, kind: str) -> None:
    """A rank that hangs, or calls sys.exit while the other waits for it, fails its test; the run goes on."""
    assert run.outcome(f"{test}[{kind}]") == "failed"
    wanted = "was still in call at the time limit of 0.7 s" if test == "test_hangs" else "failed in call"
    assert lines_with(run.text(f"{test}[{kind}]"), "rank 1 of 2", wanted, "<- the cause"), run.output
    assert run.outcome(f"test_last[{kind}]") == "passed"


def test_one_of_three_fails(run: Run) -> None:
    """When rank 1 fails in one test of a static world, this test alone fails, and rank 1 is named."""
    assert [run.outcome(f"test_{letter}") for letter in "abc"] == ["passed", "failed", "passed"], run.output
    assert lines_with(run.text("test_b"), "rank 1 of 2", "failed in call", "<- the cause"), run.text("test_b")
    assert lines_with(run.text("test_b"), "rank 0 of 2", "was still in call")


def test_a_failure_poisons_no_class(run: Run) -> None:
    """After a failure the other tests of the class run, and all those of a class that is derived from it."""
    outcomes = {name: outcome for name, outcome in run.outcomes.items() if "::" in name}
    assert outcomes == {
        "TestBase::test_1": "failed",
        "TestBase::test_2": "passed",
        "TestBase::test_3": "passed",
        **{f"TestDerived::test_{number}": "passed" for number in (1, 2, 3)},
    }


def test_every_test_is_counted_once(run: Run) -> None:
    """Exit code, summary and the one JUnit file agree; no test has disappeared."""
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "22 failed, 9 passed, 2 skipped" in run.output
    assert _counts(run) == {"tests": "33", "failures": "22", "errors": "0", "skipped": "2"}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("test_fails_after_fit", ("rank 1 of 2", "failed in call", "<- the cause")),
        ("test_fails_everywhere_after_fit", ("ranks 0-1 of 2", "failed in call", "<- the cause")),
        ("test_killed_after_fit", ("rank 1 of 2", "died in call: killed by SIGKILL", "<- the cause")),
        ("test_segfault", ("the fresh process", "died in call: killed by SIGSEGV")),
        ("test_terminated", ("the fresh process", "died in call: killed by SIGTERM")),
    ],
)
def test_standalone_failures(standalone: Run, name: str, parts: tuple[str, ...]) -> None:
    """A standalone test fails when any of its processes does, launched by Lightning or not, and says which."""
    assert standalone.outcome(name) == "failed", standalone.output
    assert lines_with(standalone.text(name), *parts), standalone.text(name)


def test_standalone_run_is_counted(standalone: Run) -> None:
    """Failures on launched ranks give exit code 1, neither 0 nor 137, with a summary and one JUnit file."""
    assert standalone.returncode == pytest.ExitCode.TESTS_FAILED, standalone.output
    assert "5 failed, 1 passed, 1 skipped" in standalone.output
    assert lines_with(standalone.output, "FAILED", "test_fails_after_fit", "rank 1: AssertionError: rank 1 fails")
    assert standalone.outcome("test_skips_after_fit") == "skipped"
    assert _counts(standalone) == {"tests": "7", "failures": "5", "errors": "0", "skipped": "1"}


def test_reruns(run_once: RunOnce) -> None:
    """With reruns a test that failed once on one rank passes, one that always fails does not, and no test is lost."""
    run = run_once({"helpers.py": _HELPERS, "test_once.py": ONCE}, "--reruns", "1", env=_WIDE)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "3 failed, 3 passed, 5 rerun" in run.output, run.output
    assert len(lines_with(run.output, "FAILED", "rank 1: ")) == 3
    assert not lines_with(run.output, "FAILED", "test_fails_once")
