"""Coverage of what ranks run, for pytest-cov and ``coverage run``; without them nothing here does anything.

A forked process goes on measuring, but coverage writes what it measured at the exit of the interpreter, which ranks
do not reach. So each rank writes into a file of its own after each test, and the controller takes the files over into
its own measurement, which is then reported as ever. There is no public way to give a running measurement another
file; ``CoverageData`` chooses the name anew in a forked process from the attributes set here (coverage/sqldata.py).
"""

from __future__ import annotations

import contextlib
import sys
import uuid
import warnings
from typing import TYPE_CHECKING, Any

from lightning_disttest.errors import CoverageNotRead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX = "coverage-"


def measure_rank(folder: Path, token: int) -> None:
    """Have this new rank write what it measures into a file of its own in ``folder``."""
    measurement = _current()
    if measurement is not None:
        data = measurement._data
        data._basename, data._suffix, data._our_suffix = str(folder / f"{_PREFIX}{token}"), None, False


def save_rank() -> None:
    """Write what this rank has measured so far: a rank that is killed keeps it."""
    measurement = _current()
    if measurement is not None:
        measurement.save()


def take_over(folder: Path) -> None:
    """Add what the ranks have written into ``folder`` to the measurement of this process.

    A file that can not be read, because its rank was killed while it wrote for the first time, is a warning.
    """
    measurement = _current()
    if measurement is None:
        return
    import coverage
    import coverage.exceptions

    with warnings.catch_warnings():
        # That there is no data, or that a module was not imported: before the ranks' is added, that says nothing.
        warnings.simplefilter("ignore", coverage.exceptions.CoverageWarning)
        total = measurement.get_data()
    lost = []
    for path in sorted(folder.glob(f"{_PREFIX}*[0-9]")):
        try:
            with _read(path) as data:
                total.update(data)
        except coverage.CoverageException as error:
            lost.append(CoverageNotRead(path.name, str(error)))
        path.unlink()
    _give_own_hash(total)
    for warning in lost:  # after all files: where warnings are errors, the first ends this
        warnings.warn(warning, stacklevel=1)


def _give_own_hash(data: Any) -> None:
    """Tell the data of this process apart from that of another worker of pytest-xdist.

    Files are named by a hash, and one of two with the same hash is not combined. In coverage 7.16 what ``update`` adds
    is not part of it (issue 2370 of coverage), but the names of contexts are.
    """
    context = getattr(data, "_current_context", None)
    data.set_context(uuid.uuid4().hex)
    data.set_context(context)


@contextlib.contextmanager
def _read(path: Path) -> Iterator[Any]:
    import coverage

    data = coverage.CoverageData(str(path))
    try:
        data.read()
        yield data
    finally:
        data.close()


def _current() -> Any:
    """Return the measurement that runs in this process, None if there is none."""
    coverage: Any = sys.modules.get("coverage")
    return None if coverage is None else coverage.Coverage.current()
