"""Lightning's launcher that runs the command line again: answered in standalone tests, refused elsewhere."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine.context import current_rank
from lightning_disttest.errors import RelaunchRefused
from lightning_disttest.imports import when_imported
from lightning_disttest.strategies.packages import PACKAGES

if TYPE_CHECKING:
    from types import ModuleType

    from lightning_disttest.engine.context import RankContext

_LAUNCHER_MODULE = "strategies.launchers.subprocess_script"
_GENUINE_POPEN = subprocess.Popen


class LaunchedRank:
    """A further rank of a standalone test, with the few methods of Popen that Lightning's launcher uses.

    Its end is watched by the controller, so ``poll`` has nothing to tell.
    """

    def __init__(self, pid: int, launcher: RankContext) -> None:
        self.pid = pid
        self._launcher = launcher
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return None: the controller, not this rank, learns how the other one ended."""
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal to the rank, as Lightning does to end it; one that is gone is no error."""
        from lightning_disttest.engine import processes
        from lightning_disttest.engine.messages import PeerSignalled

        self._launcher.send(PeerSignalled(self.pid, signum))
        processes.signal_process(self.pid, signum)


def watch_lightning() -> None:
    """Patch the launcher of each Lightning package as soon as the package is imported, if it ever is."""
    for root in PACKAGES:
        when_imported(f"{root}.{_LAUNCHER_MODULE}", _patch)


def prepare_rank(rank: RankContext) -> None:
    """Tell Lightning that this process is one rank of several: its messages for rank zero come from rank zero."""
    for name in ("lightning_utilities.core.rank_zero", "lightning.fabric.utilities.rank_zero"):
        when_imported(name, functools.partial(_set_rank, rank=rank.rank))


def _set_rank(module: ModuleType, rank: int) -> None:
    setattr(module.rank_zero_only, "rank", rank)  # noqa: B010  Lightning keeps the rank on the function


def _patch(module: ModuleType) -> None:
    launcher: Any = module._SubprocessScriptLauncher
    genuine = launcher._call_children_scripts

    @functools.wraps(genuine)
    def call_children_scripts(self: Any) -> None:
        __tracebackhide__ = True
        rank = current_rank()
        if self.num_processes == 1 or _command_is_mocked():
            genuine(self)
            return
        if hasattr(self, "_check_can_spawn_children"):
            self._check_can_spawn_children()  # what is wrong with the test's own environment goes before our refusal
        if rank is not None and rank.kind == "standalone":
            _launch(self, rank)
        else:
            raise _refusal(self, rank)

    launcher._call_children_scripts = call_children_scripts
    _patch_observer(module)


def _patch_observer(module: ModuleType) -> None:
    """Keep Lightning's observer away from ranks of ours: it polls each five seconds and ends by killing its parent."""
    genuine: Any = module._launch_process_observer

    @functools.wraps(genuine)
    def launch_process_observer(child_processes: list[Any]) -> None:
        # Without children it would do nothing but sleep, and outlive the test.
        if any(not isinstance(child, LaunchedRank) for child in child_processes):
            genuine(child_processes)

    setattr(module, "_launch_process_observer", launch_process_observer)  # noqa: B010


def _command_is_mocked() -> bool:
    """Tell whether no process would be started: Lightning's own tests of the launcher replace Popen."""
    return subprocess.Popen is not _GENUINE_POPEN


def _launch(launcher: Any, rank: RankContext) -> None:
    """Do what the launcher's method does, with ranks of ours in place of further runs of the command line."""
    environment = launcher.cluster_environment
    os.environ.setdefault("MASTER_PORT", str(rank.port))
    os.environ["MASTER_ADDR"] = environment.main_address
    os.environ["MASTER_PORT"] = str(environment.main_port)
    os.environ["NODE_RANK"] = str(environment.node_rank())
    os.environ["LOCAL_RANK"] = str(environment.local_rank())
    os.environ["WORLD_SIZE"] = str(launcher.num_processes * launcher.num_nodes)
    environments = [{**os.environ, "LOCAL_RANK": str(local_rank)} for local_rank in range(1, launcher.num_processes)]
    launcher.procs = [LaunchedRank(pid, rank) for pid in rank.launch(environments)]


def _refusal(launcher: Any, rank: RankContext | None) -> RelaunchRefused:
    size = launcher.num_processes
    if rank is None:
        nodeid = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] or "code outside of a test"
        advice = (
            "Mark the test with @pytest.mark.standalone to have the strategy launch its ranks from a fresh process, "
            f"or with @pytest.mark.distributed(world_size={size}) to run the body on {size} ranks."
        )
        return RelaunchRefused(nodeid, size, advice)
    advice = (
        f"This test is distributed already (world_size {rank.world_size}): leave its environment variables as they are."
    )
    return RelaunchRefused(rank.nodeid, size, advice)
