"""Lightning's launchers that start processes with multiprocessing: all of their ranks are watched, and heard."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine import running_tests
from lightning_disttest.engine.context import current_rank
from lightning_disttest.errors import LaunchedRanksFailed, LaunchRefused
from lightning_disttest.imports import when_imported
from lightning_disttest.settings import SETTINGS
from lightning_disttest.strategies.packages import PACKAGES

if TYPE_CHECKING:
    from types import ModuleType

    from lightning_disttest.engine.launching import LaunchedProcesses
    from lightning_disttest.settings import Settings

# Of these the warm interpreter imports what this process has. A spawned process makes its main module from pytest.
_SLOW_TO_IMPORT = ("torch", "torch.distributed", "torchmetrics", *PACKAGES, "pytest")
_LAUNCHER_MODULE = "strategies.launchers.multiprocessing"
_launchers: list[type[Any]] = []
_patched: list[ModuleType] = []
_running: dict[int, LaunchedProcesses] = {}  # by the id of the launcher


def watch_lightning() -> None:
    """Patch the launcher of each Lightning package as soon as the package is imported, if it ever is."""
    for package in PACKAGES:
        when_imported(f"{package}.{_LAUNCHER_MODULE}", _patch)


def _patch(module: ModuleType) -> None:
    _launchers.append(module._MultiProcessingLauncher)
    _patch_launch(module._MultiProcessingLauncher)
    if module.mp not in _patched:
        _patched.append(module.mp)
        _patch_start(module.mp)


def _patch_launch(launcher: Any) -> None:
    """Have nothing survive a launch: an exception may come between the start of the processes and the wait for them."""
    genuine = launcher.launch

    @functools.wraps(genuine)
    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return genuine(self, *args, **kwargs)
        except LaunchedRanksFailed as failure:
            raise failure.with_traceback(None) from None  # pytest would show the whole source of Lightning's launcher
        finally:
            if (left := _running.pop(id(self), None)) is not None:
                left.end()

    launcher.launch = launch


def _patch_start(module: Any) -> None:
    """Answer torch's ``start_processes`` for launchers of Lightning; it goes on as ever for all others.

    It is not replaced in the launcher, whose tests replace it themselves, in torch or where the launcher has it.
    """
    genuine = module.start_processes

    @functools.wraps(genuine)
    def start_processes(fn: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        launcher = getattr(fn, "__self__", None)
        if not isinstance(launcher, tuple(_launchers)):
            return genuine(fn, *args, **kwargs)
        return _start(launcher, fn, *args, **kwargs)

    module.start_processes = start_processes


def _start(
    launcher: Any,
    function: Any,
    args: Any = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,  # noqa: ARG001  the signature is torch's; a launcher asks for none
    start_method: str = "spawn",
) -> LaunchedProcesses | None:
    __tracebackhide__ = True
    rank = current_rank()
    if rank is not None and rank.kind != "standalone":
        raise LaunchRefused(rank.nodeid, nprocs, rank.world_size)
    from lightning_disttest.engine import launching

    context = _context_for(start_method)
    started = launching.start_processes(function, args, nprocs, context, launching.limits_now())
    _running[id(launcher)] = started
    if not join:
        return started
    while not started.join():
        pass
    return None


def _context_for(start_method: str) -> Any:
    """Return the multiprocessing context that starts processes in this way, for the test that runs."""
    import multiprocessing

    test = running_tests.current()
    if start_method != "spawn" or test is None or not _starts_warm(test.item.config.stash[SETTINGS]):
        return multiprocessing.get_context(start_method)
    from lightning_disttest.engine import warm_spawn

    return warm_spawn.WarmContext([name for name in _SLOW_TO_IMPORT if name in sys.modules])


def _starts_warm(settings: Settings) -> bool:
    """Tell whether ``spawn`` starts warm: in fresh processes, and everywhere if that is wanted."""
    return not settings.real_spawn and (settings.warm_spawn_everywhere or current_rank() is not None)
