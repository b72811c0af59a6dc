"""What is said of ranks that are still in a test: what they wait for, who did not come, who does not answer."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with

# Notes when the report of a test comes, by the clock that its ranks have as well.
CONFTEST = """
    import json
    import time
    from pathlib import Path

    def note(name):
        with Path(__file__).with_name("moments.jsonl").open("a") as file:
            file.write(json.dumps([name, time.monotonic()]) + "\\n")

    def pytest_runtest_logreport(report):
        if report.when == "call":
            note(f"{report.location[2]} was reported")
"""
HUNG = """
    import ctypes, os, signal, threading, time
    import pytest
    import torch
    import torch.distributed as dist
    from conftest import note

    LIMIT = pytest.mark.distributed(2, timeout=1.2)

    @pytest.mark.distributed(2, timeout=90)
    def test_one_fails(world):
        dist.barrier()
        if world.rank == 1:
            time.sleep(0.3)  # the other one is in its collective by then
            note("test_one_fails failed")
            raise ValueError("own error")
        dist.all_reduce(torch.ones(2, 3))

    @LIMIT
    def test_mismatch(world):
        dist.barrier()
        if world.rank == 0:
            dist.all_reduce(torch.ones(4))
        else:
            dist.broadcast(torch.ones(4, dtype=torch.int32), src=0)

    @LIMIT
    def test_absent(world):
        dist.all_reduce(torch.ones(5))
        if world.rank == 0:
            dist.barrier()
        threading.Event().wait(60)

    @LIMIT
    def test_subgroup(world):
        pair = dist.new_group([0, 1], group_desc="pair")
        if world.rank == 0:
            dist.all_reduce(torch.ones(1), group=pair)
        threading.Event().wait(60)

    @LIMIT
    def test_never_waited_for(world):
        if world.rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)
        threading.Event().wait(60)

    @LIMIT
    def test_receives(world):
        if world.rank == 0:
            dist.all_reduce(torch.ones(1))
        dist.recv(torch.ones(1), src=0)

    @LIMIT
    def test_no_collective_at_all(world):
        threading.Event().wait(60)

    @LIMIT
    def test_made_again(world):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=world.rank, world_size=2)
        dist.barrier()
        if world.rank == 0:
            dist.all_reduce(torch.ones(1))
        threading.Event().wait(60)

    @LIMIT
    def test_stopped(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    @pytest.mark.standalone(timeout=20)
    def test_launched():
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        fabric.barrier()
        if fabric.global_rank == 1:
            raise ValueError("own error of the second process")
        dist.all_reduce(torch.ones(7))

    @LIMIT
    def test_next(world):
        dist.barrier()
"""
HELD = """
    import ctypes
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2, timeout=1)
    def test_held(world):
        if world.rank == 1:
            ctypes.PyDLL(None).sleep(60)
        dist.barrier()
"""
NO_PY_SPY = """
    import shutil

    genuine = shutil.which
    shutil.which = lambda name, *args, **more: None if name == "py-spy" else genuine(name, *args, **more)
"""
# A test during which nothing is heard for three seconds, that fails if a system call of it was disturbed.
QUIET = """
    import ctypes, select, time
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed(2)
    def test_quiet(world):
        if world.rank == 1:
            time.sleep(1)
            libc = ctypes.CDLL(None)
            assert libc.sleep(1) == 0
            assert libc.poll(None, 0, 1300) == 0
        dist.barrier()
"""
NEWS = re.compile(r"^disttest: no news for (\d+) s of test_quiet.py::test_quiet$", re.MULTILINE)


@pytest.fixture(scope="module")
def run(run_once: RunOnce, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return one run of tests that hang, each in its own way."""
    files = {"conftest.py": CONFTEST, "test_hung.py": HUNG, "test_held.py": HELD}
    env = {"STORE": str(tmp_path_factory.mktemp("store") / "store")}
    return run_once(files, "--disttest-progress=0", env=env)


def part(run: Run, name: str, rank: int) -> str:
    """Return what the report of a test says of one rank."""
    text = run.text(name)
    assert f"rank {rank} of 2 (pid " in text, text
    return text.partition(f"rank {rank} of 2 (pid ")[2].partition("\n______ ")[0]


def short_form(run: Run, name: str) -> str:
    """Return the one line by which JUnit and the short summary know a failure."""
    return run.text(name).lstrip("\n").partition("\n")[0]


def explanation(run: Run, name: str) -> str:
    """Return the first line of a failure, below its short form."""
    return run.text(name).lstrip("\n").partition("\n")[2].partition("\n")[0]


def test_rank_that_waits_for_a_failed_one_tells_its_collective(run: Run) -> None:
    """Under the failure of one rank the other says in which collective it is: operation, shape, number and group."""
    story = part(run, "test_one_fails", 0)

    assert "waits in all_reduce of float32 [2, 3], number 2 of the default group\nPython stacks:" in story


def test_failure_is_not_held_up_by_those_who_wait(run: Run) -> None:
    """The report comes soon after the failure, though the time limit is far away."""
    moments = dict(json_lines(run.folder / "moments.jsonl"))

    assert 0 < moments["test_one_fails was reported"] - moments["test_one_fails failed"] < 20


def test_mismatch_is_explained(run: Run) -> None:
    """Two ranks in different collectives: the first line says so, and the line of the summary too."""
    text = (
        "The ranks do not call the same as number 2 of the default group: "
        "all_reduce of float32 [4] on rank 0, broadcast of int32 [4] on rank 1."
    )

    assert explanation(run, "test_mismatch") == text
    assert short_form(run, "test_mismatch").endswith(f" was still in call at the time limit of 1.2 s: {text}")
    assert "waits in all_reduce of float32 [4], number 2 of" in part(run, "test_mismatch", 0)
    assert "waits in broadcast of int32 [4], number 2 of" in part(run, "test_mismatch", 1)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "test_absent",
            "rank 0 called number 2 of the default group, barrier; "
            "not there: rank 1 (its last one was number 1, all_reduce of float32 [5]).",
        ),
        (
            "test_subgroup",
            "rank 0 called number 1 of the group 'pair', all_reduce of float32 [1]; "
            "not there: rank 1 (it has called none there).",
        ),
        (
            "test_never_waited_for",
            "rank 0 called number 1 of the default group, all_reduce of float32 [1]; "
            "not there: rank 1 (it has called none there).",
        ),
        (
            "test_receives",
            "rank 0 called number 1 of the default group, all_reduce of float32 [1]; "
            "not there: rank 1 (it has called none there).",
        ),
        (
            "test_made_again",
            "rank 0 called number 2 of the default group, all_reduce of float32 [1]; "
            "not there: rank 1 (its last one was number 1, barrier).",
        ),
    ],
)
def test_rank_that_did_not_come_is_named(run: Run, name: str, line: str) -> None:
    """Who is missing in which collective of which group, with what it called last."""
    assert explanation(run, name) == line


def test_async_collective_is_not_waited_in(run: Run) -> None:
    """A rank that began a collective and sits elsewhere is not said to wait in it."""
    story = part(run, "test_never_waited_for", 0)

    assert "has begun all_reduce of float32 [1], number 1 of the default group, which is not done" in story
    assert "waits in" not in story


def test_receive_is_told_by_its_stack(run: Run) -> None:
    """What the flight recorder of gloo does not have, a receive, is told from the stack."""
    assert "is in recv of torch.distributed\n" in part(run, "test_receives", 1)


def test_nothing_is_made_up_without_collectives(run: Run) -> None:
    """Ranks that hang in their own code get no explanation; the short form has the place."""
    text = run.text("test_no_collective_at_all")

    assert "default group" not in text
    assert "waits in" not in text
    short = short_form(run, "test_no_collective_at_all")
    assert re.search(r" at the time limit of 1\.2 s: at \S+test_hung\.py:\d+ in test_no_collective_at_all$", short)


def test_stopped_rank_is_told(run: Run) -> None:
    """A rank that was stopped is the cause, says so, and has its stack."""
    story = part(run, "test_stopped", 1)

    assert "<- the cause" in story.partition("\n")[0]
    assert "is stopped, by SIGSTOP or a debugger\nStacks that py-spy sees:" in story
    assert lines_with(story, "test_stopped (test_hung.py:")


def test_ranks_of_a_launcher_tell_as_well(run: Run) -> None:
    """A standalone process and those that its launcher made answer once they have a group."""
    story = part(run, "test_launched", 0)

    assert "own error of the second process" in run.text("test_launched")
    assert lines_with(story, "waits in all_reduce of float32 [7], number ", " of the default group")


def check_held(run: Run) -> str:
    """Check what is said of a rank whose interpreter is held; return it."""
    story = part(run, "test_held", 1)
    assert "its interpreter does not answer: native code holds the GIL, or the machine is busy\n" in story
    assert lines_with(story.partition("Native stacks")[0], "test_held.py", "in test_held")
    assert "waits in barrier, number 1 of the default group" in part(run, "test_held", 0)
    return story


def test_held_interpreter_is_told_with_native_stacks(run: Run) -> None:
    """Native code that holds the GIL is named by py-spy; stacks of Python need no interpreter."""
    native = check_held(run).partition("Stacks that py-spy sees:\n")[2]

    assert "nanosleep" in native
    assert lines_with(native, "test_held (test_held.py:")
    assert "_pytest" not in native


def test_zero_means_no_notices(run: Run) -> None:
    """With --disttest-progress=0 the terminal says nothing of tests that are quiet."""
    assert run.outcome("test_next") == "passed"
    assert "no news" not in run.output


@pytest.fixture(scope="module")
def quiet(run_once: RunOnce) -> Run:
    """Return a run with a quiet test, and with one that hangs while there is no py-spy."""
    files = {"conftest.py": NO_PY_SPY, "test_held.py": HELD, "test_quiet.py": QUIET}
    return run_once(files, "-q", "--disttest-progress=1")


def test_without_py_spy_the_rest_is_there(quiet: Run) -> None:
    """Where there is no py-spy the report lacks native stacks, and nothing else."""
    assert "py-spy" not in check_held(quiet)


def test_quiet_test_is_not_disturbed(quiet: Run) -> None:
    """A test that is asked where it is while it sleeps, in Python and in C, passes."""
    assert quiet.outcome("test_quiet") == "passed", quiet.output
    assert len(NEWS.findall(quiet.output)) >= 2


def test_notices_name_rank_phase_collective_and_place(quiet: Run) -> None:
    """Each notice has a line for each rank, and says who did not come; the next one comes after twice the time."""
    first, second, *_ = (int(seconds) for seconds in NEWS.findall(quiet.output))
    block = quiet.output[NEWS.search(quiet.output).end() :].splitlines()[1:4]  # type: ignore[union-attr]
    place = r", at \S+test_quiet\.py:\d+ in test_quiet"

    assert second >= 2 * first >= 2
    assert re.fullmatch(
        rf"  rank 0 \(pid \d+\): in call, waits in barrier, number 1 of the default group{place}", block[0]
    )
    assert re.fullmatch(rf"  rank 1 \(pid \d+\): in call{place}", block[1])
    assert block[2] == (
        "  rank 0 called number 1 of the default group, barrier; not there: rank 1 (it has called none there)."
    )


@pytest.mark.parametrize("arguments", [("-n2",), ("-p", "no:terminal")], ids=" ".join)
def test_notices_need_a_terminal(run_once: RunOnce, arguments: tuple[str, ...]) -> None:
    """A worker of pytest-xdist, and a run without pytest's terminal, have nowhere to show a notice, and go on."""
    run = run_once({"test_quiet.py": QUIET}, *arguments, "--disttest-progress=0.2")

    assert run.outcome("test_quiet") == "passed", run.output
    assert run.returncode == 0
    assert "no news" not in run.output
