"""How ranks meet: a file store on a new path, a reserved port, and no launcher variables of anybody else."""

from __future__ import annotations

import functools
import os
import socket
from typing import TYPE_CHECKING, Any
from unittest import mock

from lightning_disttest.engine.context import current_rank
from lightning_disttest.errors import GroupAlreadyExists, WorldNotJoined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_disttest.engine.messages import ForkRank

_LAUNCHER_NAMES = frozenset(
    (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "STANDALONE_PORT",
        "KUBERNETES_PORT",
    )
)
_LAUNCHER_PREFIXES = ("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "LSB_", "LSF_", "JSM_", "MPI_")


def launcher_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what is in ``environ`` by which launchers and schedulers tell a process its rank."""
    return {name: value for name, value in environ.items() if is_launcher_variable(name)}


def is_launcher_variable(name: str) -> bool:
    """Tell whether launchers and schedulers use an environment variable to tell a process its rank."""
    return name in _LAUNCHER_NAMES or name.startswith(_LAUNCHER_PREFIXES)


def hide_foreign_variables() -> None:
    """Remove launcher variables from this process, whoever set them (issue 5651 of Lightning)."""
    for name in launcher_variables(os.environ):
        del os.environ[name]


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables of one rank of a world on this node: the names that torch and Lightning know."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def keep_through_patches(variables: Mapping[str, str]) -> None:
    """Let ``variables`` survive ``mock.patch.dict(os.environ, os.environ.copy(), clear=True)`` on a test function.

    That decorator, common in Lightning's tests, copies the environment when the module is imported. In a process
    that was started with its variables the copy holds them; ranks are forked later, so their copy is too old.
    """
    genuine: Any = mock._patch_dict._patch_dict  # type: ignore[attr-defined]

    @functools.wraps(genuine)
    def patch(self: Any) -> None:
        genuine(self)
        # Only a copy of a pytest process's environment has this variable; a dict that somebody wrote has not.
        if self.in_dict is os.environ and self.clear and "PYTEST_VERSION" in self.values:
            hide_foreign_variables()
            os.environ.update(variables)

    mock._patch_dict._patch_dict = patch  # type: ignore[attr-defined]


class ReservedPort:
    """A port that nobody else gets while this object is open, and that our own ranks can bind.

    The socket is bound but does not listen. Linux then lets another socket bind and listen on the same port if
    both set SO_REUSEADDR, as torch's TCPStore does, and gives the port to nobody who asks for any free one.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def join_world(request: ForkRank) -> None:
    """Form the default process group of this rank's world.

    Raises:
        WorldNotJoined: if torch can not form it; the text says why.
    """
    import torch
    import torch.distributed as dist

    try:
        if request.device == "cuda":
            torch.cuda.set_device(request.rank)
        store = dist.FileStore(request.store, request.world_size)  # type: ignore[attr-defined]
        dist.init_process_group(request.backend, store=store, rank=request.rank, world_size=request.world_size)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise WorldNotJoined(request.rank, request.world_size, request.backend, reason) from error
    _refuse_second_group()


def world_is_intact() -> bool:
    """Tell whether the default process group is still there; a test or a fixture may have destroyed it."""
    import torch.distributed as dist

    return dist.is_initialized()


def _refuse_second_group() -> None:
    import torch.distributed as dist

    genuine = dist.init_process_group

    @functools.wraps(genuine)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        context = current_rank()
        if context is not None and dist.is_initialized():
            raise GroupAlreadyExists(context.nodeid, context.world_size, context.backend)
        return genuine(*args, **kwargs)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group
