"""Tests that do what nobody expects of a test, and hooks that other suites have: the outcome is right all the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import json_lines, lines_with, start_pytest, wait_until_gone, write_tests


def test_a_forked_child_that_leaves_its_test(run_once: RunOnce) -> None:
    """A child that a test forks, and that returns from the test, does not report in the name of the rank."""
    source = """
        import os, time
        import pytest

        @pytest.mark.distributed(1, timeout=20)
        def test_red():
            if os.fork() == 0:
                return
            time.sleep(0.5)
            assert 0

        @pytest.mark.distributed(1, timeout=20)
        def test_innocent():
            time.sleep(0.5)
    """
    run = run_once({"test_forks.py": source})
    assert run.outcomes == {"test_red": "failed", "test_innocent": "passed"}, run.output
    assert "assert 0" in run.text("test_red")


def test_ranks_that_lightning_ends(run_once: RunOnce) -> None:
    """A rank that Lightning's launcher ends is not the cause: an expected interrupt passes, another is named."""
    source = """
        import pytest
        from lightning.pytorch import Callback, Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel

        class Interrupt(Callback):
            def on_train_batch_start(self, trainer, *_):
                if trainer.global_rank == 0:
                    raise KeyboardInterrupt

        def fit(tmp_path):
            Trainer(accelerator="cpu", strategy="ddp", devices=2, fast_dev_run=2, default_root_dir=tmp_path,
                    callbacks=[Interrupt()]).fit(BoringModel())

        @pytest.mark.standalone
        def test_expected(tmp_path):
            with pytest.raises(SystemExit):
                fit(tmp_path)

        @pytest.mark.standalone
        def test_unexpected(tmp_path):
            fit(tmp_path)
    """
    run = run_once({"test_interrupts.py": source})
    assert run.outcomes == {"test_expected": "passed", "test_unexpected": "failed"}, run.output
    text = run.text("test_unexpected")
    assert lines_with(text, "rank 0 of 2", "<- the cause")
    assert lines_with(text, "rank 1 of 2", "was ended by its launcher on rank 0")


def test_hooks_that_look_at_fixtures(run_once: RunOnce) -> None:
    """A makereport hook that looks at funcargs, as pytest's manual shows, works for tests on ranks."""
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if report.when == "call" and report.failed:
                with open(item.config.rootpath / "failures", "a") as file:
                    extra = item.funcargs["tmp_path"] if "tmp_path" in item.fixturenames else ""
                    file.write(f"{report.nodeid} {extra} {item.funcargs['other']}\\n")
            return report
    """
    source = """
        import pytest

        @pytest.fixture
        def other():
            return 7

        @pytest.mark.distributed(1)
        def test_fails(tmp_path, other):
            (tmp_path / "seen").touch()
            assert 0
    """
    run = run_once({"conftest.py": conftest, "test_hook.py": source})
    assert run.outcomes == {"test_fails": "failed"}, run.output
    lines = (run.folder / "failures").read_text().splitlines()
    assert len(lines) == 2  # once on the rank, once in the controller
    assert len({line.split()[1] for line in lines}) == 1
    assert (Path(lines[0].split()[1]) / "seen").exists()


def test_torch_tells_its_threads_at_import(run_once: RunOnce) -> None:
    """A plain suite that asks torch for its number of threads at import is told what will hold."""
    source = """
        from torch import get_num_threads, set_num_threads

        AT_IMPORT = get_num_threads()

        def test_same():
            assert get_num_threads() == AT_IMPORT
    """
    run = run_once({"test_threads.py": source})
    assert run.returncode == 0, run.output


def test_inner_runs_leave_the_threads_alone(run_once: RunOnce) -> None:
    """A run of pytest inside a test gives torch back the number of threads that it found."""
    source = """
        pytest_plugins = ["pytester"]
        import torch

        def test_outer(pytester):
            torch.set_num_threads(1)
            pytester.makepyfile(test_inner="def test_inner(): pass")
            pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
            assert torch.get_num_threads() == 1
    """
    run = run_once({"test_outer.py": source})
    assert run.returncode == 0, run.output


@pytest.mark.skipif(int(pytest.__version__.split(".")[0]) < 9, reason="pytest has subtests since 9.0")
def test_subtests_without_a_name(run_once: RunOnce) -> None:
    """Several subtests of one name, or of none, are reported one by one."""
    source = """
        import pytest

        @pytest.mark.standalone
        def test_unnamed(subtests):
            for number in range(3):
                with subtests.test():
                    assert number == 0, f"no {number}"
    """
    run = run_once({"test_unnamed.py": source})
    assert "no 1" in run.output
    assert "no 2" in run.output
    assert "contains 2 failed subtests" in run.output


def test_fixtures_end_on_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C lets the ranks that can hear it end their fixtures."""
    source = """
        import time
        import pytest

        @pytest.fixture(scope="session")
        def server(world_folder):
            yield
            (world_folder / "ended").touch()

        @pytest.fixture(scope="session")
        def world_folder(pytestconfig):
            return pytestconfig.rootpath

        @pytest.mark.distributed(1)
        def test_waits(server, world_folder):
            (world_folder / "ready").touch()
            time.sleep(60)
    """
    write_tests(tmp_path, {"test_waits.py": source})
    with start_pytest(tmp_path) as running:
        wait_for(tmp_path / "ready")
        os.killpg(running.process.pid, signal.SIGINT)
        running.process.communicate(timeout=60)
        assert running.process.returncode == pytest.ExitCode.INTERRUPTED
        assert (tmp_path / "ended").exists()


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def test_children_of_ranks_end_with_a_killed_controller(tmp_path: Path) -> None:
    """When pytest is killed -9, children of ranks end too, also in a session of their own."""
    source = """
        import subprocess, sys
        import pytest

        @pytest.mark.distributed(1)
        def test_waits(pytestconfig):
            child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
            (pytestconfig.rootpath / "ready").touch()
            child.wait()
    """
    write_tests(tmp_path, {"test_waits.py": source})
    with start_pytest(tmp_path) as running:
        wait_for(tmp_path / "ready")
        running.process.kill()
        running.process.communicate(timeout=60)
        assert wait_until_gone(running.stamp) == []


def test_log_file_has_the_records_of_ranks(run_once: RunOnce) -> None:
    """--log-file gets what ranks log."""
    source = """
        import logging
        import pytest

        @pytest.mark.distributed(2)
        def test_logs(world):
            logging.getLogger("a").warning("from rank %d", world.rank)
    """
    run = run_once({"test_logs.py": source}, "--log-file=log.txt", "--log-file-level=INFO")
    written = (run.folder / "log.txt").read_text()
    assert "from rank 0" in written
    assert "from rank 1" in written


def test_finalizers_run_at_the_end_of_a_rank(run_once: RunOnce) -> None:
    """A temporary directory that a test keeps in a global is removed when its rank leaves."""
    source = """
        import tempfile
        import pytest

        KEPT = []

        @pytest.mark.distributed(1)
        def test_keeps(pytestconfig):
            folder = tempfile.TemporaryDirectory()
            KEPT.append(folder)
            (pytestconfig.rootpath / "folder").write_text(folder.name)
    """
    run = run_once({"test_keeps.py": source}, "-W", "ignore")
    assert run.returncode == 0, run.output
    assert not Path((run.folder / "folder").read_text()).exists()


def test_own_errors_that_sound_like_lost_connections(run_once: RunOnce) -> None:
    """An error of the test's own code is never taken for the echo of a lost peer, whatever it says."""
    source = """
        import pytest

        @pytest.mark.distributed(2)
        @pytest.mark.xfail(raises=ZeroDivisionError)
        def test_not_covered(world):
            if world.rank == 0:
                1 / 0
            raise RuntimeError("Broken pipe in the database")

        @pytest.mark.distributed(1)
        def test_alone():
            print("its output")
            raise ConnectionRefusedError("Connection refused")
    """
    run = run_once({"test_sounds.py": source})
    assert run.outcomes == {"test_not_covered": "failed", "test_alone": "failed"}, run.output
    assert "raise ConnectionRefusedError" in run.text("test_alone")
    assert "its output" in run.output


def test_a_suite_with_a_world_fixture_of_its_own(run_once: RunOnce) -> None:
    """A fixture called world in a suite does not disturb ours that need the world."""
    source = """
        import pytest

        @pytest.fixture
        def world():
            return "round"

        @pytest.mark.distributed(2)
        def test_own(world, rank_tmp_path):
            assert world == "round"
            assert rank_tmp_path.exists()
    """
    run = run_once({"test_own.py": source})
    assert run.returncode == 0, run.output


def test_a_tensor_of_another_type_is_another_value(run_once: RunOnce) -> None:
    """world.record tells tensors apart by type and shape too."""
    source = """
        import pytest
        import torch

        @pytest.mark.distributed(2)
        def test_types(world):
            world.record("value", torch.ones(2, dtype=torch.float32 if world.rank else torch.float64))
    """
    run = run_once({"test_types.py": source})
    assert run.outcomes == {"test_types": "failed"}
    assert "torch.float64" in run.text("test_types")


def test_inner_runs_have_folders_of_their_own(run_once: RunOnce) -> None:
    """A run of pytest inside a standalone test has its own tmp_path."""
    source = """
        import pytest

        pytest_plugins = ["pytester"]

        @pytest.mark.standalone
        def test_outer(pytester, tmp_path, pytestconfig):
            target = str(pytestconfig.rootpath / "inner")
            inner = f"def test_inner(tmp_path): open({target!r}, 'w').write(str(tmp_path))"
            pytester.makepyfile(test_inner=inner)
            pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
            (pytestconfig.rootpath / "outer").write_text(str(tmp_path))
    """
    run = run_once({"test_outer.py": source})
    assert run.returncode == 0, run.output
    assert (run.folder / "inner").read_text() != (run.folder / "outer").read_text()


def test_a_hanging_fixture_end_has_the_limit_of_its_test(run_once: RunOnce) -> None:
    """A fixture that hangs when a world retires is ended at the limit of the last test, with its stack."""
    source = """
        import json, threading, time
        import pytest

        @pytest.fixture(scope="session")
        def stuck():
            yield
            threading.Event().wait()

        @pytest.mark.distributed(1, timeout=1)
        def test_fails(stuck):
            assert 0

        @pytest.mark.distributed(1, timeout=1)
        def test_next(pytestconfig):
            with open(pytestconfig.rootpath / "times", "a") as file:
                file.write(json.dumps(time.monotonic()) + "\\n")
    """
    begin = time.monotonic()
    run = run_once({"test_stuck.py": source})
    assert run.outcomes == {"test_fails": "failed+error", "test_next": "passed"}, run.output
    assert json_lines(run.folder / "times")[0] - begin < 30
    assert lines_with(run.text("test_fails"), "did not leave within 1 s")
    assert lines_with(run.text("test_fails"), "test_stuck.py", "in stuck")


def test_a_failure_of_which_no_report_can_be_made(run_once: RunOnce) -> None:
    """A hook that breaks while the report is made does not hide the exception that it was to report."""
    files = {
        "conftest.py": """
            import os
            import pytest

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_makereport(item, call):
                report = yield
                if call.when == "call" and os.environ.get("RANK") == "1":
                    raise RuntimeError("a broken hook")
                return report
        """,
        "test_it.py": """
            import pytest

            @pytest.mark.distributed(2)
            def test_both(world):
                if world.rank == 1:
                    raise ValueError("the test's own error")

            @pytest.mark.distributed(2)
            def test_hook_alone(): pass
        """,
    }
    run = run_once(files)
    assert run.outcomes == {"test_both": "failed", "test_hook_alone": "failed"}, run.output
    text = run.text("test_both")
    assert lines_with(text, "rank 1 of 2", "died in call: an internal error of pytest", "<- the cause")
    own, _, hook = text.partition("During handling of the above exception")
    assert "ValueError: the test's own error" in own
    assert "RuntimeError: a broken hook" in hook
    assert "RuntimeError: a broken hook" in run.text("test_hook_alone")
