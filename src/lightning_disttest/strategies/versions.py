"""Which ``version_N`` the loggers of a test write to: the same on all ranks.

A logger without a version looks for the next one that is free when it is first asked, each rank for itself: a rank
that is late finds the folder that rank 0 has made, and takes the next. Here whoever comes first looks, and notes the
version for the others. Nobody waits, so ranks that make no logger hold up nobody.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class LogVersions:
    """Gives versions to the loggers of one test in one process; ``tmp_path`` is that of all its ranks."""

    def __init__(self, tmp_path: Path) -> None:
        self._notes = tmp_path.with_name(f"{tmp_path.name}-versions")
        self._given: dict[str, list[int]] = {}

    def assign(self, loggers: Sequence[Any]) -> None:
        """Give a version to each logger of a new Trainer or Fabric that has none; those of one folder get the same."""
        by_folder: dict[str, list[Any]] = {}
        for logger in loggers:
            if getattr(logger, "_version", "") is None and hasattr(logger, "_get_next_version"):
                by_folder.setdefault(f"{os.path.abspath(logger.root_dir)}\n{logger.name}", []).append(logger)  # noqa: PTH100
        for folder, group in by_folder.items():
            version = self._agree(folder, max(logger._get_next_version() for logger in group))
            for logger in group:
                logger._version = version

    def _agree(self, folder: str, free: int) -> int:
        """Return the version of the next logger of a folder: what the first rank that came here has found free."""
        given = self._given.setdefault(folder, [])
        version = max(free, given[-1] + 1) if given else free
        self._notes.mkdir(exist_ok=True)
        note = self._notes / f"{hashlib.sha256(folder.encode()).hexdigest()[:16]}-{len(given)}"
        try:
            note.symlink_to(str(version))  # in one step, with what it says
        except FileExistsError:
            version = int(os.readlink(note))  # noqa: PTH115  it names no file
        given.append(version)
        return version
