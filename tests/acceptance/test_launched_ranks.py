"""Ranks that a Trainer or Fabric launches with multiprocessing: one error tells of all of them, and none is left."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with, read_junit, start_pytest, wait_until_gone, write_tests

# What the launched ranks run, where spawned ones can import it.
LAUNCHING = """
    import importlib, os, pathlib, signal, sys, tempfile, threading, time
    import psutil
    import torch.distributed as dist
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(lambda: "no pickle")

        def __str__(self):
            raise LookupError("no text")

    class Unloadable:
        def __reduce__(self):
            return fail_to_load, ()

    def fail_to_load():
        raise ImportError("not here")

    def has_ended(pid):
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def fine(rank): pass

    def raises_0(rank):
        if rank == 0:
            raise ValueError("bad batch of 0")

    def raises_1(rank):
        if rank == 1:
            raise ValueError("bad batch of 1")

    def raises_alike(rank): raise ValueError("bad batch of all")

    def raises_differently(rank):
        path = pathlib.Path(tempfile.gettempdir(), "pid-of-rank-0")
        if rank == 0:
            path.with_suffix(".draft").write_text(str(os.getpid()))
            path.with_suffix(".draft").rename(path)
        while rank == 1 and not (path.exists() and has_ended(int(path.read_text()))):
            time.sleep(0.005)
        raise (KeyError if rank else ValueError)(f"bad batch of {rank}")

    def raises_and_waits(rank):
        if rank == 1:
            raise ValueError("bad batch")
        wait_for_rank_1()

    def wait_for_rank_1(): threading.Event().wait()

    def is_killed(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def crashes(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    def leaves_with_0(rank):
        if rank == 0:
            os._exit(0)

    def leaves_with_3(rank):
        if rank == 1:
            os._exit(3)

    def exits_with_0(rank):
        if rank == 0:
            sys.exit(0)

    def exits_with_text(rank):
        if rank == 1:
            sys.exit("a reason")

    def is_interrupted(rank):
        if rank == 0:
            raise KeyboardInterrupt

    def raises_odd(rank):
        if rank == 1:
            raise Odd(1, 2)

    def raises_group(rank):
        if rank == 1:
            raise ExceptionGroup("two at once", [ValueError("the first"), KeyError("the second")])

    def raises_echo(rank):
        if rank == 1:
            raise RuntimeError("Connection closed by peer")

    def raises_and_stays(rank):
        if rank == 1:
            threading.Thread(target=threading.Event().wait).start()
            raise ValueError("bad batch")

    def has_children(rank):
        if rank == 0 and os.fork() == 0:
            wait_for_rank_1()
        raises_and_waits(rank)

    def is_no_rank(rank):
        from lightning_disttest.engine.context import current_rank
        assert current_rank() is None, "it is not launched from the rank of the test"

    def hang_of_1(rank):
        if rank == 1:
            threading.Event().wait()
        dist.barrier()

    def hang_before_backward(rank):
        if rank == 1:
            threading.Event().wait()

    def hang_of_both(rank): threading.Event().wait()

    class Model(BoringModel):
        def __init__(self, fault):
            super().__init__()
            self.fault = fault

        def act(self):
            globals()[self.fault](self.trainer.global_rank)

        def training_step(self, batch, batch_idx):
            self.act()
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.act()
            return super().validation_step(batch, batch_idx)

        def test_step(self, batch, batch_idx):
            self.act()
            return super().test_step(batch, batch_idx)

        def predict_step(self, batch, batch_idx):
            self.act()
            return self(batch)

    def act(fabric, fault):
        globals()[fault](fabric.global_rank)
        fabric.barrier()
        return "result of rank 0" if fabric.global_rank == 0 else None

    def launch(fault, entry="fit", strategy="ddp_fork", package="lightning.pytorch"):
        if entry == "launch":
            return Fabric(accelerator="cpu", strategy=strategy, devices=2).launch(act, fault)
        trainer = importlib.import_module(package).Trainer(
            accelerator="cpu", strategy=strategy, devices=2, max_epochs=1, limit_train_batches=2, limit_val_batches=2,
            num_sanity_val_steps=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )
        return getattr(trainer, entry)(Model(fault) if package == "lightning.pytorch" else make_model(package, fault))

    def make_model(package, fault):
        boring = importlib.import_module(f"{package}.demos.boring_classes").BoringModel

        class Other(boring):
            def training_step(self, batch, batch_idx):
                globals()[fault](self.trainer.global_rank)
                return self(batch).sum()

        return Other()
"""
CONFTEST = """
    import os, tempfile
    import psutil
    import pytest

    @pytest.fixture(autouse=True)
    def nothing_is_left(tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        before = psutil.Process().children()
        yield
        children = [child for child in psutil.Process().children() if child not in before]
        children = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
        assert children == [], "processes are left"
        assert list(tmp_path.glob("disttest-*")) == [], "files are left"
"""
FAULTS = """
    import sys
    import pytest
    from launching import launch

    everywhere = pytest.mark.parametrize("where", ["plain", pytest.param("alone", marks=pytest.mark.standalone)])

    @everywhere
    @pytest.mark.parametrize("fault", [
        "fine", "raises_0", "raises_1", "raises_alike", "raises_differently", "raises_and_waits", "is_killed",
        "leaves_with_0", "exits_with_0", "is_interrupted", "is_no_rank",
    ])
    def test_fit(fault, where): launch(fault)

    @pytest.mark.parametrize("fault", [
        "crashes", "leaves_with_3", "exits_with_text", "raises_odd", "raises_echo", "raises_and_stays", "has_children",
    ])
    def test_more(fault): launch(fault)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no ExceptionGroup")
    def test_group(): launch("raises_group")

    @pytest.mark.parametrize(("entry", "strategy"), [
        ("validate", "ddp_fork"), ("test", "ddp_fork"), ("predict", "ddp_fork"),
        ("fit", "ddp_notebook"), ("launch", "ddp_fork"), ("launch", "ddp_notebook"),
        ("fit", "ddp_spawn"), ("launch", "ddp_spawn"),
    ])
    def test_entry(entry, strategy): launch("raises_1", entry, strategy)

    def test_not_loaded():
        import launching
        launch(launching.Unloadable(), "launch", "ddp_spawn")

    def test_other_package(): launch("raises_1", package="pytorch_lightning")

    @everywhere
    def test_launch_returns(where): assert launch("fine", "launch") == "result of rank 0"

    @pytest.mark.parametrize("kind", [
        pytest.param("static", marks=pytest.mark.distributed(2)),
        pytest.param("dynamic", marks=pytest.mark.distributed(2, static=False)),
    ])
    @pytest.mark.parametrize("entry", ["fit", "launch"])
    def test_in_a_world(entry, kind): launch("fine", entry)
"""
# These pass: they expect what torch raises, as tests do that were written without this package.
EXPECTING = """
    import os, pickle
    import pytest
    import torch.multiprocessing as mp
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException
    from launching import launch

    def test_exception():
        with pytest.raises(ProcessRaisedException, match="bad batch of 1") as raised:
            launch("raises_1")
        error = raised.value
        assert (error.error_index, error.msg) == (1, str(error))
        (failure,) = [one for one in error.ranks if one.rank == 1]
        assert (failure.exception, failure.text) == ("ValueError", "bad batch of 1")
        assert error.error_pid == failure.pid != os.getpid()
        assert failure.traceback.startswith("Traceback (most recent call last)") and "in raises_1" in failure.traceback
        assert failure.how == "raised ValueError"

    @pytest.mark.parametrize("text", ["bad batch of 0", "bad batch of 1"])
    def test_text_of_any_rank(text):
        with pytest.raises(ProcessRaisedException, match=text):
            launch("raises_differently")

    def test_signal():
        with pytest.raises(ProcessExitedException, match="process 1 terminated with signal SIGKILL") as raised:
            launch("is_killed")
        assert (raised.value.error_index, raised.value.exit_code, raised.value.signal_name) == (1, -9, "SIGKILL")

    def test_status():
        with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 3") as raised:
            launch("leaves_with_3")
        assert (raised.value.exit_code, raised.value.signal_name) == (3, None)

    def test_status_0():
        with pytest.raises(ProcessExitedException) as raised:
            launch("leaves_with_0")
        assert raised.value.exit_code == 0

    def test_copy():
        with pytest.raises(ProcessRaisedException) as raised:
            launch("raises_alike")
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (str(copy), copy.ranks, copy.error_pid) == (
            str(raised.value), raised.value.ranks, raised.value.error_pid
        )

    def test_what_can_not_be_pickled():
        class Local: pass
        with pytest.raises((AttributeError, TypeError, ValueError), match="Local"):
            launch(Local(), "launch", "ddp_spawn")

    def test_launched_without_a_launcher():
        context = mp.start_processes(print, nprocs=2, start_method="fork", join=False)
        assert type(context) is mp.ProcessContext
        while not context.join():
            pass
"""
LIMITS = """
    import pytest
    from launching import launch

    @pytest.mark.standalone(timeout=4)
    @pytest.mark.parametrize("fault", ["hang_of_1", "hang_of_both"])
    def test_alone(fault): launch(fault, "launch")

    @pytest.mark.parametrize("fault", ["hang_of_1", "hang_of_both"])
    def test_plain(fault): launch(fault, "launch")

    @pytest.mark.timeout(2)
    def test_mark_of_pytest_timeout(): launch("hang_of_1", "launch")

    @pytest.mark.timeout(2)
    def test_wait_in_backward(): launch("hang_before_backward")

    def test_afterwards(): launch("fine")
"""
# The error that each fault leads to, on which rank it is the cause, and what is said of the rest.
CAUSES = {
    "raises_0": ("rank 0 of 2", "raised ValueError", "ValueError: bad batch of 0"),
    "raises_1": ("rank 1 of 2", "raised ValueError", "ValueError: bad batch of 1"),
    "raises_alike": ("ranks 0-1 of 2", "raised ValueError", "ValueError: bad batch of all"),
    "raises_differently": ("rank 0 of 2", "raised ValueError", "KeyError: 'bad batch of 1'"),
    "raises_and_waits": ("rank 1 of 2", "raised ValueError", "in wait_for_rank_1"),
    "is_killed": ("rank 1 of 2", "died: killed by SIGKILL before the end of its function", "SIGKILL"),
    "leaves_with_0": ("rank 0 of 2", "died: exited with status 0 before the end of its function", "exit code 0"),
    "exits_with_0": ("rank 0 of 2", "died: SystemExit: 0 left its function", "in exits_with_0"),
    "is_interrupted": ("rank 0 of 2", "died: KeyboardInterrupt left its function", "in is_interrupted"),
}
MORE = {
    "test_more[crashes]": ("rank 1 of 2", "died: killed by SIGSEGV", "in crashes"),
    "test_more[leaves_with_3]": ("rank 1 of 2", "died: exited with status 3", "exit code 3"),
    "test_more[exits_with_text]": ("rank 1 of 2", "died: SystemExit: a reason", "in exits_with_text"),
    "test_more[raises_odd]": ("rank 1 of 2", "raised Odd", "in raises_odd"),
    "test_more[raises_echo]": ("rank 1 of 2", "raised RuntimeError", "RuntimeError: Connection closed by peer"),
    "test_more[raises_and_stays]": ("rank 1 of 2", "raised ValueError", "ValueError: bad batch"),
    "test_more[has_children]": ("rank 1 of 2", "raised ValueError", "ValueError: bad batch"),
    "test_group": ("rank 1 of 2", "raised ExceptionGroup", "KeyError: 'the second'"),
    "test_entry[validate-ddp_fork]": CAUSES["raises_1"],
    "test_entry[test-ddp_fork]": CAUSES["raises_1"],
    "test_entry[predict-ddp_fork]": CAUSES["raises_1"],
    "test_entry[fit-ddp_notebook]": CAUSES["raises_1"],
    "test_entry[launch-ddp_fork]": CAUSES["raises_1"],
    "test_entry[launch-ddp_notebook]": CAUSES["raises_1"],
    "test_entry[fit-ddp_spawn]": CAUSES["raises_1"],
    "test_entry[launch-ddp_spawn]": CAUSES["raises_1"],
    "test_other_package": CAUSES["raises_1"],
}
FILES = {"launching.py": LAUNCHING, "conftest.py": CONFTEST}


@pytest.fixture(scope="module")
def faults(run_once: RunOnce) -> Run:
    """Return a run of tests whose launched ranks fail in many ways."""
    return run_once({**FILES, "test_faults.py": FAULTS, "test_expecting.py": EXPECTING}, "--disttest-grace=2")


@pytest.fixture(scope="module")
def limits(run_once: RunOnce) -> Run:
    """Return a run of tests whose launched ranks hang."""
    return run_once({**FILES, "test_limits.py": LIMITS}, "--disttest-timeout=3")


def _cause(text: str) -> str:
    (line,) = {line.removeprefix("E").strip() for line in lines_with(text, "<- the cause")}
    return line


@pytest.mark.parametrize("fault", CAUSES)
@pytest.mark.parametrize("where", ["plain", "alone"])
def test_one_error_tells_of_all(faults: Run, fault: str, where: str) -> None:
    """The test fails with one error, which names the rank that is the cause and has what it said or how it died."""
    who, how, said = CAUSES[fault]
    text = faults.text(f"test_fit[{fault}-{where}]")
    assert faults.outcome(f"test_fit[{fault}-{where}]") == "failed", faults.output
    assert "lightning_disttest.errors.LaunchedRanksFailed: " in text
    assert re.match(rf"______ {who} \(pid [\d, ]+\): {re.escape(how)}", _cause(text)), text
    assert said in text


@pytest.mark.parametrize("test", MORE)
def test_whatever_it_is_and_wherever(faults: Run, test: str) -> None:
    """Odd exceptions arrive, crashes have stacks, and every way of launching is watched."""
    if faults.outcome(test) == "skipped":
        assert "no ExceptionGroup" in faults.text(test)
        return
    who, how, said = MORE[test]
    assert faults.outcome(test) == "failed", faults.output
    assert re.match(rf"______ {who} \(pid [\d, ]+\): {re.escape(how)}", _cause(faults.text(test))), faults.text(test)
    assert said in faults.text(test)


@pytest.mark.parametrize("name", ["test_fit[fine", "test_fit[is_no_rank", "test_launch_returns["])
@pytest.mark.parametrize("where", ["plain", "alone"])
def test_launching_works(faults: Run, name: str, where: str) -> None:
    """Ranks that come to their end are no failure; none of them speaks in the name of the rank that launched it."""
    test = f"{name}-{where}]" if "fit" in name else f"{name}{where}]"
    assert faults.outcome(test) == "passed", faults.text(test)


@pytest.mark.parametrize("fault", ["raises_1", "is_killed"])
def test_a_lost_connection_is_folded(faults: Run, fault: str) -> None:
    """What a rank says of the end of its peer comes after the cause, in one line."""
    text = faults.text(f"test_fit[{fault}-plain]")
    _, _, echo = text.rpartition("______ rank 0 of 2")
    assert lines_with(echo, "lost its connection to a peer"), text
    assert "torch/" in echo
    assert "Traceback" not in echo


def test_identical_errors_are_shown_once(faults: Run) -> None:
    """Two ranks with the same traceback share one."""
    text = faults.text("test_fit[raises_alike-plain]")
    message, _, rest = text.partition("LaunchedRanksFailed: ranks 0-1 of 2 raised ValueError: bad batch of all")
    assert (message, rest.count("Traceback (most recent call last)")) == ("lightning_disttest.errors.", 2), text


def test_who_waited_is_shown_with_stacks(faults: Run) -> None:
    """A rank that waited until the grace was over is shown with the place where it waited."""
    text = faults.text("test_fit[raises_and_waits-plain]")
    assert lines_with(text, "rank 0 of 2", "was still running when the grace of 2 s was over, and was ended"), text
    assert lines_with(text, "at ", "launching.py", "in wait_for_rank_1")
    assert "Python stacks:" in text


def test_what_can_not_be_loaded_there(faults: Run) -> None:
    """Spawned ranks that can not unpickle what they are to run are told to have died before it began."""
    text = faults.text("test_not_loaded")
    assert "ranks 0-1 of 2 died: exited with status 1 before their function began" in text
    assert "ImportError: not here" in faults.output


def test_text_that_can_not_be_had(faults: Run) -> None:
    """An exception whose text raises is told all the same."""
    assert lines_with(faults.text("test_more[raises_odd]"), "launching.Odd: <", "str() failed>"), faults.output


@pytest.mark.parametrize("entry", ["fit", "launch"])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_refused_in_a_world(faults: Run, entry: str, kind: str) -> None:
    """A test that runs on ranks already is told so, and what to do."""
    name = f"test_in_a_world[{entry}-{kind}]"
    text = faults.text(name)
    assert faults.outcome(name) == "failed"
    assert f"LaunchRefused: test_faults.py::{name}: this strategy would launch 2 process(es)" in text
    assert "@pytest.mark.standalone" in text


@pytest.mark.parametrize(
    "name",
    [
        "test_exception",
        "test_text_of_any_rank[bad batch of 0]",
        "test_text_of_any_rank[bad batch of 1]",
        "test_signal",
        "test_status",
        "test_status_0",
        "test_copy",
        "test_what_can_not_be_pickled",
        "test_launched_without_a_launcher",
    ],
)
def test_what_tests_expect_of_torch_holds(faults: Run, name: str) -> None:
    """Tests that expect torch's exceptions and their attributes go on to pass; so does what launches without us."""
    assert faults.outcome(name) == "passed", faults.text(name)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("test_alone[hang_of_1]", "4"), ("test_plain[hang_of_1]", "3"), ("test_mark_of_pytest_timeout", "2")],
)
def test_hang_of_one_rank(limits: Run, name: str, limit: str) -> None:
    """At the time limit the rank that hangs is the cause, and the one that waits for it comes after it."""
    text = limits.text(name)
    assert limits.outcome(name) == "failed", limits.output
    assert re.match(rf"______ rank 1 of 2 .*: was still running at the time limit of {limit} s", _cause(text)), text
    assert lines_with(text, "launching.py", "in hang_of_1")
    assert lines_with(text, "is in barrier of torch.distributed"), text
    assert lines_with(text, f"The limit of {limit} s", "--disttest-timeout (DISTTEST_TIMEOUT"), text


@pytest.mark.parametrize("name", ["test_alone[hang_of_both]", "test_plain[hang_of_both]"])
def test_hang_of_both_ranks(limits: Run, name: str) -> None:
    """Ranks that hang alike are shown once, with their stacks."""
    assert re.match(r"______ ranks 0-1 of 2 .*: were still running at the time limit", _cause(limits.text(name)))
    assert lines_with(limits.text(name), "launching.py", "in hang_of_both")


def test_wait_in_a_backward_pass(limits: Run) -> None:
    """A rank that waits in the backward pass for one that hangs is not taken for the one that hangs."""
    text = limits.text("test_wait_in_backward")
    assert re.match(r"______ rank 1 of 2 .*: was still running at the time limit of 2 s", _cause(text)), text
    assert "is in a backward pass of torch" in text


def test_the_run_goes_on(limits: Run) -> None:
    """The next test launches as ever."""
    assert limits.outcome("test_afterwards") == "passed", limits.text("test_afterwards")


def test_timer_of_pytest_timeout(run_once: RunOnce) -> None:
    """An exception that breaks off the wait leaves no process behind; the fixture of the conftest looks at once."""
    source = """
        from launching import launch

        def test_it(): launch("hang_of_both", "launch")
    """
    run = run_once({**FILES, "test_it.py": source}, "--timeout=2", "--disttest-timeout=60")
    assert run.outcome("test_it") == "failed", run.output
    assert "Timeout (>2.0s) from pytest-timeout" in run.text("test_it")


@pytest.mark.parametrize("mark", ["", "@pytest.mark.standalone"])
@pytest.mark.parametrize("entry", ["fit", "launch"])
def test_ctrl_c(tmp_path: Path, entry: str, mark: str) -> None:
    """Ctrl-C while ranks hang ends them with the run."""
    source = f"""
        import pathlib, pytest
        import launching

        def ready(rank):
            pathlib.Path(f"ready-{{rank}}").touch()
            launching.wait_for_rank_1()

        launching.ready = ready

        {mark or "# no mark"}
        def test_it(): launching.launch("ready", "{entry}")
    """
    write_tests(tmp_path, {"launching.py": LAUNCHING, "test_it.py": source})
    with start_pytest(tmp_path) as running:
        until = time.monotonic() + 60
        while not all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)):
            assert time.monotonic() < until, "the ranks were not launched"
            time.sleep(0.01)
        running.process.send_signal(signal.SIGINT)
        output, _ = running.process.communicate(timeout=30)
        left = wait_until_gone(running.stamp)
    assert left == [], output
    outcomes, _ = read_junit(running.junit)
    if entry == "fit" and not mark:  # a Trainer makes SystemExit of it, and has the signal ignored
        assert outcomes == {"test_it": "failed"}, output
    else:
        assert running.process.returncode == 2, output
