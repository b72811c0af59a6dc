"""Folders that ranks share: there until the last rank is done, and no hidden barrier that makes a race pass."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

SOURCE = """
    import time
    import pytest
    import torch.distributed as dist

    def wait_for(path):
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} never came"
            time.sleep(0.005)

    @pytest.fixture
    def flag(pytestconfig):
        return pytestconfig.rootpath / "rank-0-has-ended-its-tmp_path"

    @pytest.fixture
    def last(world, flag):
        yield
        if world.rank == 0:
            flag.touch()  # tmp_path, which was made later, has been ended before

    @pytest.mark.distributed(2)
    def test_slow_rank(last, tmp_path, world, flag):
        if world.rank == 0:
            (tmp_path / "written").touch()
        else:
            wait_for(flag)
            assert (tmp_path / "written").exists()

    @pytest.mark.distributed(2)
    def test_saves_before_the_folder_is_there(tmp_path, world):
        try:
            if world.rank == 0:
                wait_for(tmp_path / "saved")
                (tmp_path / "folder").mkdir()
            else:
                (tmp_path / "folder" / "file").touch()
        finally:
            (tmp_path / "saved").touch()
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return a run whose folders are removed as soon as a test has passed."""
    return run_once({"test_files.py": SOURCE}, "--basetemp=base", "-o", "tmp_path_retention_policy=failed")


def test_the_folder_is_there_for_the_slowest_rank(run: Run) -> None:
    """A rank finds what another one wrote though that one has ended its tmp_path; then the folder is removed."""
    assert run.outcome("test_slow_rank") == "passed", run.text("test_slow_rank")
    assert list((run.folder / "base").glob("test_slow_rank*")) == []


def test_a_race_for_a_folder_shows(run: Run) -> None:
    """A rank that saves into a folder which another one has not made yet fails: nothing has made it wait."""
    text = run.text("test_saves_before_the_folder_is_there")
    assert run.outcome("test_saves_before_the_folder_is_there") == "failed"
    assert lines_with(text, "rank 1 of 2", "failed in call", "<- the cause"), text
    assert "FileNotFoundError" in text
