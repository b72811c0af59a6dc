"""The command line: ``python -m benchmarks [--quick] [--full] [--rows 1,2,3] [--repeats N] [--check]``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders import Laboratory, RunFailed
from benchmarks.measure import LONG_ROW, QUICK, ROWS, Sizes, measure
from benchmarks.table import render

if TYPE_CHECKING:
    from collections.abc import Sequence

_BUSY = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; return the exit status."""
    options = _parse(arguments)
    rows = options.rows or set(ROWS) - (set() if options.full else {LONG_ROW})
    sizes = QUICK if options.quick else Sizes()
    if options.repeats:
        sizes = dataclasses.replace(
            sizes, repeats=options.repeats, plain_repeats=options.repeats, long_repeats=options.repeats
        )
    started, load = time.monotonic(), os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
            lines = measure(Laboratory(Path(folder)), sizes, rows)
    except RunFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    print(_describe(time.monotonic() - started, load))
    print(render(lines))
    return 1 if options.check and not all(line.met for line in lines) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the plugin beside other ways.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few tests, one repetition: shows that it works, no more")
    size.add_argument("--full", action="store_true", help=f"also row {LONG_ROW}, which takes minutes")
    parser.add_argument("--rows", type=_rows, help="only these rows of the table, for example 1,2,3")
    parser.add_argument("--repeats", type=int, default=0, metavar="N", help="repetitions of every run")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a goal is not met")
    return parser.parse_args(arguments)


def _rows(text: str) -> set[int]:
    rows = {int(part) for part in text.split(",")}
    if not rows <= set(ROWS):
        raise argparse.ArgumentTypeError(f"rows are {ROWS[0]} to {ROWS[-1]}")
    return rows


def _describe(seconds: float, load: float) -> str:
    busy = "; the machine was busy: times may be too high" if load > _BUSY else ""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("pytest", "torch", "lightning"))
    return (
        f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores; "
        f"load {load:.2f} before; measured in {seconds:.0f} s{busy}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
