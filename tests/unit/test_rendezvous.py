"""How ranks meet: variables, a port that is held for them, and patches of the environment that must not undo them."""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lightning_disttest.engine import rendezvous
from lightning_disttest.engine.rendezvous import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Iterator

IP_LOCAL_PORT_RANGE = 51


@pytest.fixture
def port() -> Iterator[ReservedPort]:
    """Return a reserved port, given back after the test."""
    reserved = ReservedPort()
    yield reserved
    reserved.close()


def run_program(code: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "STANDALONE_PORT",
        "SLURM_NTASKS",
        "TORCHELASTIC_RUN_ID",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "LSB_JOBID",
        "JSM_NAMESPACE_RANK",
    ],
)
def test_variables_of_launchers_are_known(name: str) -> None:
    """What a launcher or a scheduler sets is found, with its value."""
    assert rendezvous.launcher_variables({name: "1", "HOME": "/"}) == {name: "1"}


@pytest.mark.parametrize("name", ["HOME", "MY_RANK", "RANKS", "PYTEST_CURRENT_TEST", "OMP_NUM_THREADS", "SLURM"])
def test_other_variables_are_none_of_a_launcher(name: str) -> None:
    """Variables that only look alike are left alone."""
    assert rendezvous.launcher_variables({name: "1"}) == {}


def test_variables_of_a_rank_are_all_known_as_a_launchers() -> None:
    """What we set ourselves is hidden from processes that are not meant to be such a rank."""
    ours = rendezvous.rank_environment(1, 2, 29500)

    assert ours == rendezvous.launcher_variables(ours)


def test_variables_of_a_rank() -> None:
    """A rank has the names that torch and Lightning know, for one node."""
    assert rendezvous.rank_environment(1, 2, 29500) == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def test_foreign_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launcher variables of the user's own environment are removed from this process; others stay."""
    environ = {"RANK": "3", "SLURM_NTASKS": "8", "HOME": "/here"}
    monkeypatch.setattr("lightning_disttest.engine.rendezvous.os.environ", environ)

    rendezvous.hide_foreign_variables()

    assert environ == {"HOME": "/here"}


# The reserved port.


def test_store_of_torch_can_listen_on_the_reserved_port(port: ReservedPort) -> None:
    """While the port is held, torch's own store listens on it, and a client finds it there."""
    limit = timedelta(seconds=20)
    server = TCPStore("127.0.0.1", port.number, is_master=True, timeout=limit, wait_for_workers=False)
    client = TCPStore("127.0.0.1", port.number, is_master=False, timeout=limit)

    client.set("key", "value")

    assert server.get("key") == b"value"


def test_nobody_else_can_bind_the_reserved_port(port: ReservedPort) -> None:
    """A socket that asks for this very port, without the consent that ours give, is refused."""
    with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("127.0.0.1", port.number))

    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("reuse", [False, True])
def test_reserved_port_is_not_given_to_who_asks_for_any(port: ReservedPort, reuse: bool) -> None:
    """The kernel does not hand the port out, though it may be the only one left; once given back, it does."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        only_this = struct.pack("I", port.number << 16 | port.number)
        try:
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only_this)
        except OSError:
            pytest.skip("this kernel can not narrow a socket's choice to one port (Linux 6.3)")
        with pytest.raises(OSError, match="in use"):
            other.bind(("", 0))

        port.close()
        other.bind(("", 0))

        assert other.getsockname()[1] == port.number


def test_reserved_ports_are_different() -> None:
    """No two worlds get the same port."""
    ports = [ReservedPort() for _ in range(20)]
    numbers = {port.number for port in ports}
    for port in ports:
        port.close()

    assert len(numbers) == 20


# Patches of the environment.

PATCHED = """
import os
from unittest import mock

os.environ.update({"PYTEST_VERSION": "9", "KEPT": "yes", "RANK": "old", "SLURM_JOBID": "7"})

@mock.patch.dict(os.environ, os.environ.copy(), clear=True)
def decorated():
    return os.environ.get("RANK"), os.environ.get("KEPT"), os.environ.get("LOCAL_RANK"), os.environ.get("SLURM_JOBID")

@mock.patch.dict(os.environ, {"ONLY": "this"}, clear=True)
def own_dict():
    return dict(os.environ)

@mock.patch.dict(os.environ, {**os.environ, "RANK": "0"})
def not_cleared():
    return os.environ["RANK"]

from lightning_disttest.engine import rendezvous

rendezvous.hide_foreign_variables()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "1"
rendezvous.keep_through_patches({"RANK": "1", "LOCAL_RANK": "1"})
"""


def test_copy_of_the_environment_that_is_older_than_the_rank_keeps_its_variables() -> None:
    """A decorator that restores the environment of import time leaves a rank its rank, and hides a foreign one."""
    assert run_program(f"{PATCHED}\nprint(decorated())") == "('1', 'yes', '1', None)"


def test_environment_is_as_before_after_the_patch() -> None:
    """The patch is undone as ever."""
    code = f"{PATCHED}\nbefore = dict(os.environ)\ndecorated()\nprint(before == dict(os.environ))"

    assert run_program(code) == "True"


def test_environment_that_somebody_wrote_is_taken_as_it_is() -> None:
    """A test that replaces the environment with its own gets exactly that."""
    assert run_program(f"{PATCHED}\nprint(own_dict())") == "{'ONLY': 'this'}"


def test_patch_that_does_not_clear_is_taken_as_it_is() -> None:
    """A test that sets variables on top of the environment gets what it set."""
    assert run_program(f"{PATCHED}\nprint(not_cleared())") == "0"


# The process group.


def test_world_of_one_is_joined_and_refuses_a_second_group() -> None:
    """A rank joins over a file store; ``init_process_group`` in the test is then refused with the test's name."""
    code = """
import tempfile
import torch.distributed as dist
from lightning_disttest.engine import rendezvous
from lightning_disttest.engine.context import RankContext, enter_rank
from lightning_disttest.engine.messages import ForkRank

store = tempfile.mktemp()
enter_rank(RankContext(0, 1, "static", "cpu", "gloo", 0, "test_it.py::test", lambda _: None, lambda _: [], None))
rendezvous.join_world(ForkRank(0, 0, 1, "static", "cpu", "gloo", store, 0, {}, False))
print(rendezvous.world_is_intact())
try:
    dist.init_process_group("gloo")
except RuntimeError as error:
    print(error)
dist.destroy_process_group()
print(rendezvous.world_is_intact())
"""
    first, refusal, last = run_program(code).splitlines()

    assert (first, last) == ("True", "False")
    assert refusal.startswith("test_it.py::test called torch.distributed.init_process_group, but ")


def test_world_that_can_not_be_formed_says_why() -> None:
    """The reason of torch is in the error, with the rank, the backend and the size."""
    code = """
import tempfile
from lightning_disttest.engine import rendezvous
from lightning_disttest.engine.messages import ForkRank
from lightning_disttest.errors import WorldNotJoined

try:
    rendezvous.join_world(ForkRank(0, 0, 1, "static", "cpu", "mpi", tempfile.mktemp(), 0, {}, False))
except WorldNotJoined as error:
    print(error)
"""
    assert run_program(code).startswith("rank 0 could not join the mpi world of 1: ")
