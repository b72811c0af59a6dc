"""Wrong marks and options end the run with a usage error; a hostile environment changes nothing."""

from __future__ import annotations

import socket

import pytest

from tests.acceptance.conftest import RunOnce

MARKS = {
    "distributed(0)": "world_size must be a whole number of 1 or more, not 0",
    "distributed('2')": "world_size must be a whole number of 1 or more, not '2'",
    "distributed(2.0)": "world_size must be a whole number of 1 or more, not 2.0",
    "distributed(1_000_000)": "world_size 1000000 is more than the 1024 ranks that one machine is asked for",
    "distributed()": "world_size is missing",
    "distributed([])": "the list of world sizes is empty",
    "distributed(2, world=3)": "unknown keyword 'world'",
    "distributed(2, 3)": "more than one positional argument",
    "distributed(2, static='yes')": "static must be True or False, not 'yes'",
    "distributed(2, device='tpu')": "device must be one of cpu, cuda, not 'tpu'",
    "distributed(2, backend='mpi')": "backend 'mpi' is not built into this torch, which has",
    "distributed(2, timeout=-1)": "timeout must be a number of seconds",
    "standalone(limit=3)": "unknown keyword 'limit'",
    "standalone(timeout='long')": "timeout must be a number of seconds",
}


def test_all_bad_marks_are_named_at_once(run_once: RunOnce) -> None:
    """Each test with a bad mark is named with what is wrong, in one usage error, and nothing runs."""
    source = "import pytest\ndef test_fine(): raise AssertionError('nothing runs')\n"
    for number, mark in enumerate(MARKS):
        source += f"@pytest.mark.{mark}\ndef test_{number}(): pass\n"
    source += "@pytest.mark.distributed(2)\n@pytest.mark.standalone\ndef test_both(): pass\n"
    run = run_once({"test_bad.py": source})
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.output
    for number, problem in enumerate(MARKS.values()):
        assert [line for line in run.output.splitlines() if f"test_bad.py::test_{number}:" in line and problem in line]
    assert "test_bad.py::test_both: it is marked both distributed and standalone" in run.output
    assert f"{len(MARKS) + 1} tests with invalid marks" in run.output


def test_list_of_sizes_on_a_unittest_case(run_once: RunOnce) -> None:
    """A list of world sizes on a TestCase, which pytest can not parametrise, is a usage error."""
    source = """
        import unittest
        import pytest

        @pytest.mark.distributed([1, 2])
        class Case(unittest.TestCase):
            def test_it(self): pass
    """
    run = run_once({"test_bad.py": source})
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "a list of world sizes needs a test function" in run.output


@pytest.mark.parametrize(
    ("arguments", "env", "text"),
    [
        (("--disttest-timeout=soon",), {}, "the option --disttest-timeout gives disttest_timeout the value 'soon'"),
        ((), {"DISTTEST_GRACE": "-1"}, "the environment variable DISTTEST_GRACE gives disttest_grace"),
        (("-o", "disttest_rank_output=none"), {}, "the ini option disttest_rank_output gives"),
        ((), {"PL_RUN_STANDALONE_TESTS": "perhaps"}, "the environment variable PL_RUN_STANDALONE_TESTS gives"),
    ],
)
def test_bad_option_values(run_once: RunOnce, arguments: tuple[str, ...], env: dict[str, str], text: str) -> None:
    """A value that is not legal is a usage error that names where it came from."""
    run = run_once({"test_fine.py": "def test_fine(): pass"}, *arguments, env=env)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.output
    assert text in run.output
    assert "legal is" in run.output


def test_second_process_group(run_once: RunOnce) -> None:
    """A test that calls init_process_group in its world fails with what, where and what to do."""
    source = """
        import pytest
        import torch.distributed as dist

        @pytest.mark.distributed(2)
        def test_second():
            dist.init_process_group("gloo")

        @pytest.mark.distributed(2)
        def test_own_group_instead():
            dist.destroy_process_group()
            dist.init_process_group("gloo")  # from the environment, as torchrun's scripts do
            assert dist.get_world_size() == 2
            dist.barrier()
    """
    run = run_once({"test_group.py": source})
    assert run.outcome("test_second") == "failed"
    text = run.text("test_second")
    assert "test_group.py::test_second called torch.distributed.init_process_group" in text
    assert "(gloo, world_size 2)" in text
    assert "Remove the call" in text
    assert run.outcome("test_own_group_instead") == "passed", run.text("test_own_group_instead")


def test_world_that_cannot_be_formed(run_once: RunOnce) -> None:
    """A rank that can not join its world is an error of the test, with the reason; the next test runs."""
    conftest = """
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def nothing(): yield

        def pytest_collection_finish(session):
            import torch.distributed as dist
            genuine = dist.FileStore

            def broken(path, size):
                if size == 3:
                    raise OSError("no such disk")
                return genuine(path, size)

            dist.FileStore = broken
    """
    source = """
        import pytest

        @pytest.mark.distributed(3)
        def test_three(): pass

        @pytest.mark.distributed(2)
        def test_two(): pass
    """
    run = run_once({"conftest.py": conftest, "test_join.py": source})
    assert run.outcome("test_three") == "error", run.output
    text = run.text("test_three")
    assert "could not join the gloo world of 3: OSError: no such disk" in text
    assert "Is the backend built into this torch" in text
    assert run.outcome("test_two") == "passed"


def test_hostile_environment_changes_nothing(run_once: RunOnce) -> None:
    """Leftover launcher variables and a busy port 29500 are not seen by ranks, and stay for plain tests."""
    source = """
        import os
        import pytest
        import torch.distributed as dist

        def test_plain():
            assert os.environ["RANK"] == "7"

        @pytest.mark.distributed(2)
        def test_static(world):
            assert os.environ["RANK"] == str(world.rank)
            assert not [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_", "OMPI_"))]
            dist.barrier()

        @pytest.mark.standalone
        def test_standalone():
            assert "RANK" not in os.environ
            from lightning.fabric import Fabric
            fabric = Fabric(strategy="ddp", devices=2, accelerator="cpu")
            fabric.launch()
            assert fabric.world_size == 2
    """
    env = {
        "RANK": "7",
        "LOCAL_RANK": "7",
        "WORLD_SIZE": "8",
        "NODE_RANK": "3",
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": "29500",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_NAME": "train",
        "SLURM_PROCID": "7",
        "TORCHELASTIC_RUN_ID": "x",
        "OMPI_COMM_WORLD_RANK": "7",
    }
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        except OSError:
            pass  # somebody else holds it, which is just as good
        run = run_once({"test_env.py": source}, env=env)
    assert run.returncode == 0, run.output
