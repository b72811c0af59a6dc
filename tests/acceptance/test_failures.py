"""A failing test shows every failing rank with its own traceback, output and number, the cause on top."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

SOURCE = """
    import atexit, ctypes, os, signal, sys, threading
    import pytest
    import torch
    import torch.distributed as dist

    static = pytest.mark.distributed(2)

    @static
    def test_one_rank_fails(world):
        print(f"output of rank {world.rank}")
        if world.rank == 1:
            raise ValueError("the real reason")
        dist.all_reduce(torch.ones(1))

    @static
    def test_both_fail_differently(world):
        raise (ValueError("reason zero") if world.rank == 0 else KeyError("reason one"))

    @static
    def test_both_fail_alike():
        raise ValueError("the same reason")

    @static
    def test_cause_beats_echo(world):
        if world.rank == 1:
            try:
                raise ValueError("the real reason")
            finally:
                dist.destroy_process_group()
        dist.all_reduce(torch.ones(1))

    @static
    def test_killed(world):
        if world.rank == 1:
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @static
    def test_leaves_with_status(world):
        if world.rank == 1:
            os._exit(3)

    @static
    def test_leaves_with_zero(world):
        if world.rank == 1:
            os._exit(0)

    @static
    def test_sys_exit(world):
        if world.rank == 1:
            sys.exit(0)

    @static
    def test_segfault(world):
        if world.rank == 1:
            ctypes.string_at(0)
        dist.barrier()

    @static
    def test_keyboard_interrupt(world):
        if world.rank == 1:
            raise KeyboardInterrupt
        dist.barrier()

    @pytest.mark.distributed(2, timeout=0.7)
    def test_hangs(world):
        if world.rank == 1:
            threading.Event().wait()

    @pytest.fixture
    def bad_setup(world):
        if world.rank == 1:
            raise RuntimeError("bad setup")

    @static
    def test_setup_fails_on_one(bad_setup):
        dist.barrier()

    @pytest.fixture
    def bad_teardown(world):
        yield
        if world.rank == 1:
            raise RuntimeError("bad teardown")

    @static
    def test_teardown_fails_on_one(bad_teardown):
        pass

    @static
    def test_one_rank_skips(world):
        if world.rank == 1:
            pytest.skip("only here")
        dist.barrier()

    @pytest.mark.distributed(2, static=False)
    def test_status_after_the_test(world):
        if world.rank == 1:
            atexit.register(os._exit, 7)

    @pytest.mark.standalone
    def test_standalone_fails():
        assert 1 == 2

    @pytest.mark.standalone
    def test_standalone_killed():
        os.kill(os.getpid(), signal.SIGKILL)

    @static
    def test_last_is_healthy():
        dist.barrier()
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return one run of failing tests; that no process of it is left is checked by the harness."""
    return run_once({"test_failing.py": SOURCE})


def test_the_failing_rank_is_the_cause(run: Run) -> None:
    """The rank that failed comes first, with its traceback and output; the other is shown as waiting, with stacks."""
    text = run.text("test_one_rank_fails")
    cause, _, waiting = text.partition("rank 0 of 2")
    assert "rank 1 of 2" in cause
    assert "failed in call <- the cause" in cause
    assert "ValueError: the real reason" in cause
    assert "was still in call when the grace of 0.5 s was over" in waiting
    assert lines_with(waiting, "test_failing.py", "in test_one_rank_fails")
    assert "_pytest" not in waiting


def test_output_is_that_of_the_failed_rank(run: Run) -> None:
    """The captured output of the failed rank is shown, with its number."""
    assert "Captured stdout call (rank 1)" in run.output
    assert "output of rank 1" in run.output


def test_all_errors_are_shown(run: Run) -> None:
    """Two ranks that fail differently are both shown."""
    text = run.text("test_both_fail_differently")
    assert "ValueError: reason zero" in text
    assert "KeyError: 'reason one'" in text


def test_identical_errors_are_shown_once(run: Run) -> None:
    """Two ranks that fail alike share one traceback."""
    text = run.text("test_both_fail_alike")
    assert "ranks 0-1 of 2" in text
    assert text.count("E       ValueError: the same reason") == 1


def test_cause_beats_echo(run: Run) -> None:
    """A rank's own error is the cause, though its peer's connection error arrived before it."""
    text = run.text("test_cause_beats_echo")
    assert lines_with(text, "rank 1 of 2", "<- the cause")
    assert lines_with(text, "rank 0 of 2", "lost its connection to a peer")
    assert text.index("ValueError: the real reason") < text.index("rank 0 of 2")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("test_killed", "died in call: killed by SIGKILL"),
        ("test_leaves_with_status", "died in call: exited with status 3"),
        ("test_leaves_with_zero", "died in call: exited with status 0"),
        ("test_segfault", "died in call: killed by SIGSEGV"),
        ("test_keyboard_interrupt", "died in call: KeyboardInterrupt was raised"),
    ],
)
def test_death_is_a_failure(run: Run, name: str, end: str) -> None:
    """A rank that dies fails its test, with rank, pid, phase and how it ended."""
    assert run.outcome(name) == "failed"
    assert lines_with(run.text(name), "rank 1 of 2 (pid ", end, "<- the cause")


def test_last_words_survive_sigkill(run: Run) -> None:
    """What a rank wrote before it was killed is in the report."""
    assert "last words" in run.text("test_killed").partition("last output:")[2]


def test_segfault_shows_its_stack(run: Run) -> None:
    """The Python stack of a rank that crashed is in the report."""
    assert lines_with(run.text("test_segfault"), "test_failing.py", "in test_segfault")


def test_sys_exit_is_a_failure(run: Run) -> None:
    """sys.exit(0) in a test is a failure, as in a plain test."""
    assert run.outcome("test_sys_exit") == "failed"
    assert "SystemExit: 0" in run.text("test_sys_exit")


def test_time_limit_shows_where_a_rank_hangs(run: Run) -> None:
    """A rank that hangs fails its test at the time limit, with the line where it hangs."""
    assert run.outcome("test_hangs") == "failed"
    text = run.text("test_hangs")
    assert lines_with(text, "rank 1 of 2", "was still in call at the time limit of 0.7 s")
    assert lines_with(text, "test_failing.py", "in test_hangs")


def test_setup_failure_is_an_error(run: Run) -> None:
    """A fixture that fails on one rank is an error of the test, and the rank in the body is shown as waiting."""
    assert run.outcome("test_setup_fails_on_one") == "error"
    text = run.text("test_setup_fails_on_one")
    assert "RuntimeError: bad setup" in text
    assert lines_with(text, "rank 0 of 2", "was still in call")


def test_teardown_failure_is_an_error(run: Run) -> None:
    """A fixture that fails to end on one rank is an error beside the passed test."""
    assert "RuntimeError: bad teardown" in run.text("test_teardown_fails_on_one")
    assert "ERROR test_failing.py::test_teardown_fails_on_one" in run.output


def test_ranks_disagree(run: Run) -> None:
    """A test that one rank skips and the other enters fails with a table of both."""
    assert run.outcome("test_one_rank_skips") == "failed"
    text = run.text("test_one_rank_skips")
    assert "the ranks disagree" in text
    assert lines_with(text, "rank 0: waited in call", "test_failing.py")
    assert lines_with(text, "rank 1: skipped in call", "only here")


def test_status_after_the_test_counts(run: Run) -> None:
    """A dynamic rank that ends with another status than 0 after its test is an error."""
    assert "exited with status 7" in run.text("test_status_after_the_test")
    assert "ERROR test_failing.py::test_status_after_the_test" in run.output


def test_standalone_failure_reads_like_a_plain_one(run: Run) -> None:
    """A standalone test of one process that fails shows its traceback without talk of ranks."""
    assert run.outcome("test_standalone_fails") == "failed"
    assert "assert 1 == 2" in run.text("test_standalone_fails")
    assert "rank" not in run.text("test_standalone_fails")


def test_standalone_death_is_a_failure(run: Run) -> None:
    """A standalone test whose process is killed fails."""
    assert run.outcome("test_standalone_killed") == "failed"
    assert "the fresh process died in call: killed by SIGKILL" in run.text("test_standalone_killed")


def test_the_run_goes_on(run: Run) -> None:
    """After all of that the last test passes in a healthy world."""
    assert run.outcome("test_last_is_healthy") == "passed"


@pytest.mark.parametrize(
    ("choice", "shown"), [("first", ["Q1"]), ("failed", ["Q0", "Q1"]), ("all", ["Q0", "Q1", "Q2"])]
)
def test_rank_output_option(run_once: RunOnce, choice: str, shown: list[str]) -> None:
    """--disttest-rank-output chooses whose output is shown: the cause's, that of the failed ranks, or everybody's."""
    source = """
        import pytest
        import torch.distributed as dist

        @pytest.mark.distributed(3)
        def test_it(world):
            print(f"Q{world.rank}")
            if world.rank == 0:
                world.barrier()
                raise ValueError("second")
            if world.rank == 1:
                try:
                    raise ValueError("first")
                finally:
                    world.barrier()
            world.barrier()
    """
    run = run_once({"test_output.py": source}, f"--disttest-rank-output={choice}", "--tb=short")
    report = run.output.partition("FAILURES")[2]
    found = [word for word in ("Q0", "Q1", "Q2") if f"\n{word}\n" in report]
    if choice == "first":
        cause = lines_with(report, "<- the cause")[0].split()[2]
        assert found == [f"Q{cause}"]
    else:
        assert found == shown


def test_a_rank_without_a_report_is_no_pass(run_once: RunOnce) -> None:
    """Hooks that keep the report of a phase back on a rank make no pass of its failure; --setup-only wants no call."""
    files = {
        "conftest.py": """
            import os
            import pytest

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_protocol():
                try:
                    return (yield)
                except RuntimeError:
                    return True

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_makereport(item, call):
                report = yield
                place = item.name.removeprefix("test_")
                if call.when == place and os.environ.get("RANK") == "1":
                    raise RuntimeError("no report")
                return report
        """,
        "test_silent.py": """
            import pytest

            pytestmark = pytest.mark.distributed(2)

            def test_setup(world): assert world.rank == 0
            def test_call(world): assert world.rank == 0
            def test_teardown(): pass
            def test_next(): pass
        """,
    }
    run = run_once(files)
    expected = {"test_setup": "error", "test_call": "failed", "test_teardown": "error", "test_next": "passed"}
    assert run.outcomes == expected, run.output
    for place in ("setup", "call", "teardown"):
        said = f"came to the end of the test, but sent no report of its {place}: a hook has kept it back"
        assert lines_with(run.text(f"test_{place}"), "rank 1 of 2", said, "<- the cause"), run.output
    only = run_once({"test_silent.py": files["test_silent.py"]}, "--setup-only")
    assert set(only.outcomes.values()) == {"passed"}, only.output
