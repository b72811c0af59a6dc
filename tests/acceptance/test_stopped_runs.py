"""A run that is stopped in the middle is named by the next one, once: the test, its ranks, and how to run it alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_interrupts import IN_ORDER, wait_for
from tests.acceptance.test_run_alone import run_in_shell
from tests.harness import Run, Running, lines_with, run_pytest, start_pytest, wait_until_gone, write_tests

_LIMIT_S = 30.0
_CACHE = ("cacheprovider",)
_TOLD = "an earlier run here was stopped"

# ``hold`` is a file; while it is there the test on ranks waits.
SOURCE = """
    import os, time
    import pytest

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("what", ["a b"])
    def test_waits(world, what, pytestconfig):
        (pytestconfig.rootpath / f"pid{world.rank}").write_text(str(os.getpid()))
        world.barrier()
        (pytestconfig.rootpath / "ready").touch()
        while (pytestconfig.rootpath / "hold").exists():
            time.sleep(0.01)
"""
PLAIN = """
    def test_plain(pytestconfig):
        (pytestconfig.rootpath / "plain").touch()
        while (pytestconfig.rootpath / "hold").exists():
            time.sleep(0.01)
"""
NO_ROOM = """
    from lightning_disttest.engine import testrun
    from lightning_disttest.errors import RankNotStarted

    def fail(run, deadline):
        raise RankNotStarted(1, "no room")

    testrun.TestRun.run = fail
"""
NAME = "test_it.py::test_waits[a b]"


@contextlib.contextmanager
def held(folder: Path, *arguments: str, source: str = SOURCE, cwd: str = ".") -> Iterator[Running]:
    """Start a run that waits in the middle."""
    write_tests(folder, {"test_it.py": source})
    (folder / "hold").touch()
    with start_pytest(folder, *arguments, plugins=_CACHE, cwd=cwd) as running:
        wait_for(folder / "ready", running)
        yield running
        (folder / "hold").unlink(missing_ok=True)


def stop(running: Running, signum: signal.Signals = signal.SIGKILL) -> None:
    """End the run by a signal to pytest, and wait until all of its processes have gone."""
    os.kill(running.process.pid, signum)
    running.process.communicate(timeout=_LIMIT_S)
    assert _gone(running.stamp), "processes of the run are left"


def _gone(stamp: str) -> bool:
    # Workers of pytest-xdist take execnet's five seconds to notice that their main process has gone.
    return any(wait_until_gone(stamp) == [] for _ in range(4))


def collect(folder: Path, *arguments: str) -> Run:
    """Run pytest again, without running tests."""
    (folder / "hold").unlink(missing_ok=True)
    return run_pytest(folder, "--collect-only", *arguments, plugins=_CACHE)


def files_of(folder: Path) -> list[Path]:
    """Return the files in the folder of this plugin in pytest's cache."""
    return sorted((folder / ".pytest_cache/d/lightning_disttest").glob("*"))


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_killed_in_the_middle_of_a_test(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """The header of the next run names the test and its ranks; the run after that says nothing."""
    (tmp_path / "sub").mkdir()
    with held(tmp_path, *workers) as running:
        assert len(files_of(tmp_path)) >= 1
        stop(running)
    pids = [(tmp_path / f"pid{rank}").read_text() for rank in (0, 1)]

    second = run_pytest(tmp_path, "--collect-only", plugins=_CACHE, cwd="sub")
    header = second.output.partition("rootdir:")[0]
    assert lines_with(header, f"{_TOLD} in the middle of {NAME}"), second.output
    (ranks,) = lines_with(header, "on ranks 0-1", f"pids {pids[0]}, {pids[1]}", "ended without a report")
    assert re.search(r"begun \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", ranks)
    assert bool(workers) == ("worker gw" in ranks)
    assert lines_with(header, f"to run this test alone: cd {tmp_path} && python -m pytest '{NAME}'"), header
    assert second.output.count(_TOLD) == 1

    assert _TOLD not in collect(tmp_path).output
    assert files_of(tmp_path) == []


def test_hint_runs_the_test_alone(tmp_path: Path) -> None:
    """The command of the hint runs that one test, as it ran: with its switch and its ini file, from its folder."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "own.ini").write_text("[pytest]\nmarkers = mine\n")
    source = SOURCE.replace("distributed(2)", "mine\n    @RunIf(standalone=True)").replace(
        "import pytest", "import pytest\n    from lightning_disttest import RunIf"
    )
    with held(tmp_path, "--standalone", "--strict-markers", "-c", "../own.ini", "..", source=source, cwd="sub") as run:
        stop(run)
    header = collect(tmp_path).output
    (hint,) = lines_with(header, "to run this test alone: ")
    command = hint.partition("alone: ")[2]
    assert command.startswith(f"cd {tmp_path}/sub && python -m pytest '../{NAME}' "), hint
    again = run_in_shell(command, tmp_path, status=0)
    assert "= 1 passed in " in again, again


def test_quiet_runs_and_runs_without_a_terminal(tmp_path: Path) -> None:
    """With -q the summary says it; without a terminal it is kept for the next run."""
    with held(tmp_path) as running:
        stop(running)
    silent = collect(tmp_path, "-p", "no:terminal")
    assert silent.returncode == 0, silent.output
    assert len(files_of(tmp_path)) == 1
    quiet = collect(tmp_path, "-q")
    assert f"{_TOLD} in the middle of {NAME}" in quiet.output, quiet.output
    assert _TOLD not in collect(tmp_path, "-q").output


@pytest.mark.parametrize("conftest", [IN_ORDER, IN_ORDER + NO_ROOM], ids=["it passed", "it could not go on"])
def test_killed_between_tests_on_ranks(tmp_path: Path, conftest: str) -> None:
    """Of a run that ended in a plain test no test on ranks is accused, however the last one ended."""
    source = SOURCE.replace('"hold"', '"never"') + PLAIN  # the test on ranks does not wait
    write_tests(tmp_path, {"conftest.py": conftest, "test_it.py": source})
    (tmp_path / "hold").touch()
    with start_pytest(tmp_path, plugins=_CACHE) as running:
        wait_for(tmp_path / "plain", running)
        stop(running)
    output = collect(tmp_path).output
    assert lines_with(output, f"{_TOLD}, by no fault of a test on ranks", f"the last was {NAME}"), output


def test_runs_at_the_same_time_do_not_accuse_each_other(tmp_path: Path) -> None:
    """While a run goes on in the same folder, another one says nothing of it and leaves its file alone."""
    with held(tmp_path) as running:
        others = [run_pytest(tmp_path, *arguments, plugins=_CACHE) for arguments in (["--co"], ["-k", "nothing"])]
        assert all(_TOLD not in other.output for other in others)
        assert len(files_of(tmp_path)) == 1
        (tmp_path / "hold").unlink()
        running.process.communicate(timeout=_LIMIT_S)
        assert running.process.returncode == 0
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_orderly_ends_leave_no_file(tmp_path: Path, signum: signal.Signals) -> None:
    """After Ctrl-C and SIGTERM the next run has nothing to say: this one has said it."""
    with held(tmp_path) as running:
        stop(running, signum)
    assert files_of(tmp_path) == []


def test_a_killed_worker_is_told_by_its_own_run(tmp_path: Path) -> None:
    """pytest-xdist reports a worker that crashed, so the next run does not."""
    source = """
        import os, signal
        import pytest

        @pytest.mark.distributed(2)
        def test_kills(world):
            if world.rank == 0:
                import psutil
                psutil.Process(os.getppid()).parent().kill()
            world.barrier(timeout=60)
    """
    write_tests(tmp_path, {"test_it.py": source})
    run = run_pytest(tmp_path, "-n", "2", plugins=_CACHE)
    assert lines_with(run.output, "crashed while running 'test_it.py::test_kills'"), run.output
    assert files_of(tmp_path) == []


def test_a_cache_that_can_not_be_written(tmp_path: Path) -> None:
    """Where no folder can be made tests run as ever."""
    write_tests(tmp_path, {"test_it.py": SOURCE})
    run = run_pytest(tmp_path, "-o", "cache_dir=/proc/none", "-Wignore", plugins=_CACHE)
    assert run.returncode == 0, run.output
    assert set(run.outcomes.values()) == {"passed"}


def test_foreign_files(tmp_path: Path) -> None:
    """What is torn is told of and removed; what is none of our files is left alone; nothing crashes."""
    folder = tmp_path / ".pytest_cache/d/lightning_disttest"
    folder.mkdir(parents=True)
    (folder / "running-1.json").write_text('{"form": 1, "node')
    (folder / "running-2.json").write_text("")
    (folder / "running-3.json").mkdir()
    os.mkfifo(folder / "running-4.json")
    (folder / "running-5.json").symlink_to("/etc/passwd")
    (folder / "new-6").touch()
    (folder / "notes").write_text("mine")
    write_tests(tmp_path, {"test_it.py": SOURCE})
    run = collect(tmp_path)
    assert run.returncode == 0, run.output
    assert lines_with(run.output, _TOLD, "can not be read any more", "running-1.json"), run.output
    assert run.output.count(_TOLD) == 1
    assert [path.name for path in files_of(tmp_path)] == ["notes", *(f"running-{n}.json" for n in (3, 4, 5))]
