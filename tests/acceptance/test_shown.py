"""What is shown of ranks: each has a voice, whatever it wrote and raised, and the run has one line per test."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

SOURCE = """
    import logging, os, sys, threading
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2)
    def test_reason_past_python(world):
        if world.rank == 1:
            os.write(2, b"the reason, written to descriptor 2\\n")
            os._exit(1)
        dist.barrier()

    @pytest.mark.distributed(2, timeout=0.8)
    def test_prints_and_hangs(world):
        sys.stdout.write("printed, and not flushed")
        if world.rank == 1:
            threading.Event().wait(90)
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_error_that_no_pickle_can_carry(world):
        class Local(Exception):
            def __init__(self, first, second):
                super().__init__(f"{first} and {second}")
                self.lock = threading.Lock()

        if world.rank == 1:
            raise Local("one", "two")
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_logs(world):
        logging.getLogger("suite").warning("logged on rank %d", world.rank)
        assert world.rank == 0
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_passes(): dist.barrier()
"""
INNER = """
    import pytest

    pytest_plugins = ["pytester"]

    @pytest.mark.standalone(timeout=5)
    def test_outer(pytester):
        pytester.makepyfile(test_inner='''
            import threading

            def test_hangs_inside():
                threading.Event().wait(90)
        ''')
        pytester.runpytest_inprocess("-p", "no:cacheprovider")
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return a run of tests that write and raise."""
    return run_once({"test_shown.py": SOURCE}, "-v", env={"COLUMNS": "200"})


def test_what_a_rank_wrote_past_python(run: Run) -> None:
    """What a rank wrote to its descriptors before it left is in the report."""
    text = run.text("test_reason_past_python")
    assert lines_with(text, "rank 1 of 2", "exited with status 1", "<- the cause"), text
    assert "the reason, written to descriptor 2" in text.partition("last output:")[2]


def test_what_a_rank_did_not_flush(run: Run) -> None:
    """What a rank printed before it hung is in the report, with the test and the place where it hung."""
    text = run.text("test_prints_and_hangs")
    assert "printed, and not flushed" in text.partition("last output:")[2], text
    assert lines_with(text, "test_shown.py", "in test_prints_and_hangs")
    assert lines_with(run.output, "FAILED", "test_prints_and_hangs", "rank 1", "time limit of 0.8 s")


def test_any_exception_arrives(run: Run) -> None:
    """An exception of a local class that can be neither pickled nor made again from its text is shown as it is."""
    text = run.text("test_error_that_no_pickle_can_carry")
    assert lines_with(text, "rank 1 of 2", "failed in call", "<- the cause"), text
    assert "Local: one and two" in text
    assert "INTERNALERROR" not in run.output


def test_the_log_is_that_of_the_failed_rank(run: Run) -> None:
    """A failing report has what the rank has logged, with its number."""
    shown = run.output.partition("Captured log call (rank 1)")[2]
    assert lines_with(shown, "suite", "logged on rank 1"), run.output
    assert "logged on rank 0" not in run.output


def test_one_line_per_test(run: Run) -> None:
    """With -v each test has one line, however many ranks it has."""
    lines = [line for line in run.output.splitlines() if line.startswith("test_shown.py::")]
    assert [line.split()[1] for line in lines] == ["FAILED"] * 4 + ["PASSED"], lines


def test_stacks_reach_into_inner_runs(run_once: RunOnce) -> None:
    """At the time limit the stacks show where a run of pytest inside the test is."""
    run = run_once({"test_outer.py": INNER})
    assert run.outcome("test_outer") == "failed"
    assert lines_with(run.text("test_outer"), "test_inner.py", "in test_hangs_inside"), run.text("test_outer")
