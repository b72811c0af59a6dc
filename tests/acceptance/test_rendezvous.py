"""Ranks meet however many worlds, runs and left-over processes there are: no port is guessed, no store used again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, json_lines, lines_with, run_pytest, write_tests

WORLDS = """
    import json, os
    import pytest
    import torch.distributed as dist

    @pytest.fixture(autouse=True)
    def note(request, world, pytestconfig):
        if world.rank == 0:
            with open(pytestconfig.rootpath / "ports.jsonl", "a") as file:
                file.write(json.dumps([request.node.name, int(os.environ["MASTER_PORT"])]) + "\\n")

    @pytest.mark.distributed(2, static=False)
    @pytest.mark.parametrize("number", range(20))
    def test_in_a_row(number, world):
        world.record("port", os.environ["MASTER_PORT"])
        dist.destroy_process_group()
        dist.init_process_group("gloo")  # at MASTER_ADDR and MASTER_PORT
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_ten_groups_in_one_process(world):
        for _ in range(10):
            dist.destroy_process_group()
            dist.init_process_group("gloo")
            dist.barrier()
"""
# In the order of the file, so that what lingers does so before the test that it must not disturb.
LINGERING = """
    import os, signal, socket
    import pytest
    import torch.distributed as dist

    def hold_a_port(folder):
        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        held.listen()
        (folder / "port").write_text(str(held.getsockname()[1]))
        return held

    def take_the_port(folder):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int((folder / "port").read_text())))

    @pytest.mark.distributed(3)
    def test_1_fails_and_lingers(world, pytestconfig):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if world.rank == 0:
            held = hold_a_port(pytestconfig.rootpath)
        dist.barrier()
        assert world.rank != 1
        while True:
            signal.pause()

    @pytest.mark.distributed(3)
    def test_2_has_the_port(world, pytestconfig):
        if world.rank == 0:
            take_the_port(pytestconfig.rootpath)
        dist.barrier()

    @pytest.mark.distributed(3, timeout=2)
    def test_3_hangs(world, pytestconfig):
        if world.rank == 0:
            held = hold_a_port(pytestconfig.rootpath)
            while True:
                signal.pause()
        dist.barrier()

    @pytest.mark.distributed(3)
    def test_4_has_the_port(world, pytestconfig):
        if world.rank == 0:
            take_the_port(pytestconfig.rootpath)
        dist.barrier()

    @pytest.mark.distributed(2)
    def test_5_is_killed_in_its_group(world):
        dist.barrier()
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @pytest.mark.distributed(2, timeout=20)
    def test_6_has_a_group(world):
        dist.barrier()
"""
LAUNCHING = """
    import pytest
    import torch.distributed as dist
    from lightning.fabric import Fabric

    @pytest.mark.distributed(2)
    @pytest.mark.parametrize("number", range(3))
    def test_static(number): dist.barrier()

    @pytest.mark.distributed(2, static=False)
    @pytest.mark.parametrize("number", range(3))
    def test_dynamic(number):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        dist.barrier()

    @pytest.mark.standalone
    @pytest.mark.parametrize("number", range(3))
    def test_standalone(number):
        fabric = Fabric(strategy="ddp", devices=2, accelerator="cpu")
        fabric.launch()
        fabric.barrier()
        assert fabric.world_size == 2
"""


@pytest.fixture(scope="module")
def run(run_once: RunOnce) -> Run:
    """Return a run of many worlds, one after the other."""
    return run_once({"test_many.py": WORLDS})


@pytest.fixture(scope="module")
def lingering(run_once: RunOnce) -> Run:
    """Return a run of worlds that end badly, with ranks that hold ports."""
    return run_once({"test_lingering.py": LINGERING}, "--basetemp=base")


def test_twenty_worlds_in_a_row(run: Run) -> None:
    """Each dynamic world has a port that is the same on all of its ranks, and not the one that everybody uses."""
    assert [run.outcome(f"test_in_a_row[{number}]") for number in range(20)] == ["passed"] * 20, run.output
    assert 29500 not in [port for _, port in json_lines(run.folder / "ports.jsonl")]


def test_ten_groups_in_one_process(run: Run) -> None:
    """A process group can be made anew in one process, at the same address, without waiting for the port."""
    assert run.outcome("test_ten_groups_in_one_process") == "passed", run.output


@pytest.mark.parametrize("name", ["test_2_has_the_port", "test_4_has_the_port"])
def test_nothing_of_a_failed_test_lingers(lingering: Run, name: str) -> None:
    """When the test after a failed one or a hanging one begins, all ranks of that one have ended, and their ports."""
    assert lingering.outcome("test_1_fails_and_lingers") == lingering.outcome("test_3_hangs") == "failed"
    assert lingering.outcome(name) == "passed", lingering.text(name)


def test_a_group_after_a_killed_one(lingering: Run) -> None:
    """What a killed rank has left in its store disturbs no other world."""
    assert lines_with(lingering.text("test_5_is_killed_in_its_group"), "rank 1 of 2", "killed by SIGKILL")
    assert lingering.outcome("test_6_has_a_group") == "passed", lingering.text("test_6_has_a_group")


def test_no_store_is_left(lingering: Run) -> None:
    """The files in which ranks meet are removed with their world."""
    folder = lingering.folder / "base" / "disttest-worlds0"
    assert list(folder.iterdir()) == []


def _run_two_workers(folder: Path) -> Run:
    return run_pytest(folder, "-n", "2")


def test_four_workers_at_once(tmp_path: Path) -> None:
    """Two runs with two workers each, all with worlds and launched ranks, need no settings to keep apart."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write_tests(folder, {"test_launching.py": LAUNCHING})
    with ThreadPoolExecutor() as executor:
        runs = list(executor.map(_run_two_workers, folders))
    for run in runs:
        assert set(run.outcomes.values()) == {"passed"}, run.output
        assert len(run.outcomes) == 9
