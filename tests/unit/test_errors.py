"""The texts of all errors: what happened, to whom, why, and what to do."""

from __future__ import annotations

import pytest

from lightning_disttest import errors

TEXTS: list[tuple[errors.DisttestError, str]] = [
    (
        errors.InvalidMarks([("t.py::a", "bad"), ("t.py::b", "worse")]),
        "lightning_disttest: 2 tests with invalid marks\n  t.py::a: bad\n  t.py::b: worse",
    ),
    (
        errors.InvalidMarks([("t.py::a", "bad")]),
        "lightning_disttest: 1 test with invalid marks\n  t.py::a: bad",
    ),
    (
        errors.InvalidSetting("disttest_timeout", "soon", "the ini option disttest_timeout", "a number"),
        "lightning_disttest: the ini option disttest_timeout gives disttest_timeout the value 'soon'; "
        "legal is a number",
    ),
    (
        errors.MarkTooLate("t.py::a", "distributed"),
        "t.py::a got the mark distributed from a fixture, while it was running in the pytest process already. Marks "
        "that say where a test runs must be there when collection ends: on the test, its class or module, or added in "
        "pytest_collection_modifyitems.",
    ),
    (
        errors.RequirementMissing("t.py::a", "needs 2 GPUs, 0 found", "--tpu (its ways)"),
        "t.py::a cannot run here: needs 2 GPUs, 0 found. It is not skipped because of --tpu (its ways).",
    ),
    (
        errors.LeakWarning("set the environment variable A", "it was removed"),
        "the test set the environment variable A; it was removed. Undo it at the end of the test or of its fixture",
    ),
    (
        errors.StateLeaked(
            "t.py::a",
            "on rank 1 of 2",
            True,
            [("set A", "it was removed"), ("left a thread", "the world is replaced")],
            "--an-option",
        ),
        "t.py::a left something behind on rank 1 of 2, where the next test would find it:\n"
        "  - it set A; it was removed\n"
        "  - it left a thread; the world is replaced\n"
        "Undo it at the end of the test or of its fixture (monkeypatch undoes variables and the working directory). "
        "What several tests share belongs into a fixture of wider scope. "
        "It is an error and no warning because of --an-option.",
    ),
    (
        errors.StateLeaked("t.py::a", "on rank 0", False, [("set A", "it was removed")], "--an-option"),
        "t.py::a left something behind on rank 0:\n"
        "  - it set A; it was removed\n"
        "Undo it at the end of the test or of its fixture (monkeypatch undoes variables and the working directory). "
        "What several tests share belongs into a fixture of wider scope. "
        "It is an error and no warning because of --an-option.",
    ),
    (
        errors.InvalidCondition("min_gpus", "is not a condition"),
        "RunIf: min_gpus is not a condition",
    ),
    (
        errors.ConditionUnclear("the number of GPUs", "exit code 1 after ''"),
        "the number of GPUs could not be found out; the process that was asked said: exit code 1 after ''",
    ),
    (
        errors.UnsafeFork("it has opened a GPU", ["a.py", "b.py"]),
        "ranks cannot be forked from this process: it has opened a GPU.\n"
        "It happened while a.py, b.py was collected.\n"
        "Move that work out of import time, into a fixture or a test, and ranks can be forked again.",
    ),
    (
        errors.UnsafeFork("it has opened a GPU", []),
        "ranks cannot be forked from this process: it has opened a GPU.\n"
        "No test module could be identified: a conftest, a plugin or the caller of pytest did it.\n"
        "Move that work out of import time, into a fixture or a test, and ranks can be forked again.",
    ),
    (
        errors.UnsafeFork("a trial fork of it failed", None),
        "ranks cannot be forked from this process: a trial fork of it failed.",
    ),
    (
        errors.TmpdirSwitchedOff(),
        "lightning_disttest: tests on ranks and in fresh processes need pytest's tmpdir plugin, where their ranks "
        "meet and share files; leave out -p no:tmpdir",
    ),
    (errors.RanksFailed("rank 1 died in call: killed by SIGKILL"), "rank 1 died in call: killed by SIGKILL"),
    (
        errors.BenchmarkOnRanks(),
        "it uses the fixture 'benchmark' of pytest-benchmark, whose results would stay on the ranks and be in no "
        "table. Run it with --benchmark-disable, which calls the function once, or benchmark in a plain test.",
    ),
    (
        errors.RankNotStarted(3, "too many open files"),
        "rank 3 could not be started: too many open files. Each rank takes several file descriptors in the pytest "
        "process and one process of the machine; see ulimit -n and ulimit -u, or run fewer ranks at once.",
    ),
    (
        errors.ZygoteLost(4711),
        "the process that ranks are forked from (pid 4711) has ended, so no rank can be started any more; "
        "was it killed by hand or by the kernel (out of memory)? A new one can not be made in this run: it would be a "
        "copy of a process in which tests have run already. Run the remaining tests again.",
    ),
    (errors.ChannelBroken("it ended early"), "a channel between processes broke: it ended early"),
    (
        errors.CoverageNotRead("coverage-7", "file is not a database"),
        "the coverage of a rank is lost, its file coverage-7 cannot be read: file is not a database",
    ),
    (
        errors.WorldNotJoined(1, 2, "nccl", "RuntimeError: no GPU"),
        "rank 1 could not join the nccl world of 2: RuntimeError: no GPU. "
        "Is the backend built into this torch, and is the device there?",
    ),
    (
        errors.GroupAlreadyExists("t.py::a", 2, "gloo"),
        "t.py::a called torch.distributed.init_process_group, but a distributed test runs in a process group "
        "already (gloo, world_size 2). "
        "Remove the call; or mark the test with @pytest.mark.standalone to start without a group.",
    ),
    (
        errors.RelaunchRefused("t.py::a", 3, "Mark it."),
        "t.py::a: this strategy would launch 2 more process(es) by running the current command line, "
        "which is pytest itself, again. Mark it.",
    ),
    (
        errors.LaunchFailed("no more memory"),
        "the other ranks of this standalone test could not be started: no more memory",
    ),
    (
        errors.WarmInterpreterLost("it has ended"),
        "no process could be started from the warm interpreter, in which torch and Lightning are imported already: "
        "it has ended. With --disttest-real-spawn each process starts from a new interpreter, as without the plugin.",
    ),
    (
        errors.LaunchRefused("t.py::a", 3, 2),
        "t.py::a: this strategy would launch 3 process(es), but the test is distributed and runs on 2 rank(s) with a "
        "process group already. Let the Trainer use these (trainer_factory, or strategy='ddp'); or have it launch its "
        "own in a plain test, without the mark, or in one marked @pytest.mark.standalone.",
    ),
    (errors.LaunchedRanksFailed("rank 1 of 2 raised ValueError: bad", []), "rank 1 of 2 raised ValueError: bad"),
    (
        errors.WorldMismatch("devices", 3, 2),
        "devices=3 does not fit this test, which runs on each rank of a world of 2. "
        "Leave devices out, or change world_size in the test's mark.",
    ),
    (
        errors.WorldMismatch("strategy", "ddp_spawn", 2, "launches processes", "use it in a plain test"),
        "strategy='ddp_spawn' does not fit this test, which runs on each rank of a world of 2: it launches processes. "
        "Leave strategy out, or use it in a plain test.",
    ),
    (
        errors.BarrierTimeout(0, 1.53, 1.5, "rank 1 did not come"),
        "rank 0 waited 1.5 s (limit 1.5 s) in world.barrier() for the other ranks: rank 1 did not come",
    ),
    (
        errors.NotRecordable("loss", "loss['a']", "it is a sparse tensor"),
        "world.record('loss', ...) can not record loss['a']: it is a sparse tensor",
    ),
    (
        errors.InvalidTolerance("loss", "rtol", -1),
        "world.record('loss', ...): rtol is -1; it has to be a finite number, 0 or more",
    ),
    (
        errors.OneProcessRefused("loss", "t.py::a"),
        "t.py::a called world.record('loss', ..., one_process=True) in a standalone test, whose body decides itself "
        "on how many processes it runs. Mark the test with @pytest.mark.distributed(world_size) and leave the devices "
        "to trainer_factory; or record the value without one_process.",
    ),
    (
        errors.FaultMisused("faults.kill: rank=-1 is no rank"),
        "faults.kill: rank=-1 is no rank",
    ),
    (
        errors.FaultRefused("kill(rank=0, step=3)", "kill"),
        "the fault kill(rank=0, step=3) would kill pytest itself: this test runs in the pytest process, and so does "
        'this Trainer or loop. Have the Trainer start processes of its own (strategy="ddp_spawn" or "ddp_fork"), or '
        "mark the test with @pytest.mark.distributed(world_size) or @pytest.mark.standalone.",
    ),
    (
        errors.FaultNeverHappened([("kill(rank=1, step=9)", "training ended at step 4"), ("stop(rank=0)", "no loop")]),
        "the fault kill(rank=1, step=9) never happened: training ended at step 4\n"
        "the fault stop(rank=0) never happened: no loop",
    ),
    (
        errors.MissingPackage("trainer_factory", ("lightning", "pytorch_lightning")),
        "trainer_factory needs one of these packages, and none is installed: lightning, pytorch_lightning",
    ),
]

ABSTRACT = {"DisttestError", "UsageFault"}
# What a test that expects Python's own kind of error may catch.
ALSO: dict[str, type[Exception]] = {
    "InvalidCondition": TypeError,
    "ConditionUnclear": RuntimeError,
    "CoverageNotRead": UserWarning,
    "GroupAlreadyExists": RuntimeError,
    "RelaunchRefused": RuntimeError,
    "LaunchFailed": RuntimeError,
    "WarmInterpreterLost": RuntimeError,
    "LaunchRefused": RuntimeError,
    "WorldMismatch": ValueError,
    "BarrierTimeout": TimeoutError,
    "NotRecordable": TypeError,
    "InvalidTolerance": ValueError,
    "OneProcessRefused": RuntimeError,
    "MissingPackage": ImportError,
    "FaultMisused": ValueError,
}


def defined() -> dict[str, type[Exception]]:
    """Return all errors of the module by name."""
    return {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, Exception) and cls.__module__ == errors.__name__
    }


@pytest.mark.parametrize(("error", "text"), TEXTS, ids=lambda value: type(value).__name__)
def test_text(error: errors.DisttestError, text: str) -> None:
    """Each error says what happened, to whom, why and, where there is a remedy, what to do."""
    assert text == str(error)


@pytest.mark.parametrize(
    ("running", "last", "where"),
    [
        (["a.py::x"], "a.py::w", "in a.py::x"),
        (["a.py::x", "a.py::y"], "", "in a.py::x and a.py::y"),
        ([], "a.py::w", "between two tests, after a.py::w"),
        ([], "", "before the first test"),
    ],
)
def test_text_of_sigterm(running: list[str], last: str, where: str) -> None:
    """It names the tests that ran; tests that catch every Exception do not swallow it."""
    error = errors.RunTerminated(running, last)

    assert str(error) == f"SIGTERM ended the run {where}"
    assert not isinstance(error, Exception)


def test_broken_channel_has_what_arrived_before() -> None:
    """What came through whole in the same read is not lost with the channel."""
    assert errors.ChannelBroken("it ended early").messages == ()
    assert errors.ChannelBroken("it ended early", ["a", "b"]).messages == ("a", "b")


def test_every_error_is_tested_here() -> None:
    """No error of the module is without a text in this test."""
    assert set(defined()) - ABSTRACT == {type(error).__name__ for error, _ in TEXTS}


def test_all_errors_have_one_base() -> None:
    """Whoever wants to catch all errors of the package can."""
    assert all(issubclass(cls, errors.DisttestError) for cls in defined().values())


def test_mistakes_before_the_run_are_usage_faults() -> None:
    """Just the errors that end a run before it begins are turned into usage errors of pytest."""
    faults = {name for name, cls in defined().items() if issubclass(cls, errors.UsageFault)}

    assert faults == {"UsageFault", "InvalidMarks", "InvalidSetting", "TmpdirSwitchedOff"}


@pytest.mark.parametrize("name", ALSO)
def test_errors_in_a_test_are_of_pythons_kinds_too(name: str) -> None:
    """What is raised into the code of a test is also the kind of error that such code may expect."""
    assert issubclass(defined()[name], ALSO[name])
