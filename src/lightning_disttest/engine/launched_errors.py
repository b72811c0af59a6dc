"""What is raised when launched ranks fail: an error of ours that is also one of torch's."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from lightning_disttest.errors import LaunchedRanksFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_disttest.errors import RankFailure


class _Raised(LaunchedRanksFailed, ProcessRaisedException):
    def __init__(self, text: str, ranks: Sequence[RankFailure], index: int, pid: int) -> None:
        ProcessRaisedException.__init__(self, text, index, pid)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> Any:
        return make_error, (self.msg, self.ranks, self.error_index, self.error_pid, None)


class _Exited(LaunchedRanksFailed, ProcessExitedException):
    def __init__(self, text: str, ranks: Sequence[RankFailure], index: int, pid: int, exitcode: int) -> None:
        ProcessExitedException.__init__(self, text, index, pid, exitcode, _signal_name(exitcode))
        self.ranks = tuple(ranks)

    def __reduce__(self) -> Any:
        return make_error, (self.msg, self.ranks, self.error_index, self.error_pid, self.exit_code)


for _cls in (_Raised, _Exited):  # users see and catch one class
    _cls.__module__ = LaunchedRanksFailed.__module__
    _cls.__name__ = _cls.__qualname__ = LaunchedRanksFailed.__name__


def make_error(
    text: str, ranks: Sequence[RankFailure], index: int, pid: int, exitcode: int | None
) -> LaunchedRanksFailed:
    """Make the error whose cause is the rank ``index``; ``exitcode`` is None if it has raised an exception."""
    if exitcode is None:
        return _Raised(text, ranks, index, pid)
    return _Exited(text, ranks, index, pid, exitcode)


def _signal_name(exitcode: int) -> str | None:
    """Name a signal as torch does."""
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"<Unknown signal {-exitcode}>"
