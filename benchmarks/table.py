"""The table of results: one line per figure, with the goal beside it and whether it is met."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Unit = Literal["s", "ms", "ratio", "part", "MB"]

_HEAD = ("row", "measured", "median", "range", "runs", "goal", "met")


@dataclass(frozen=True, slots=True)
class Line:
    """One figure; times are in seconds whatever the unit that they are shown in. A goal is an upper limit."""

    row: int
    what: str
    value: float
    unit: Unit
    goal: float | None = None
    samples: tuple[float, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the goal, if there is one, is met."""
        return self.goal is None or self.value <= self.goal


def sampled(row: int, what: str, samples: Sequence[float], unit: Unit, goal: float | None = None) -> Line:
    """Return a line with the median of samples."""
    return Line(row, what, median(samples), unit, goal, tuple(samples))


def render(lines: Iterable[Line]) -> str:
    """Return the table as text."""
    rows = [_HEAD, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(_join(row, widths) for row in (rows[0], rule, *rows[1:]))


def _cells(line: Line) -> tuple[str, ...]:
    several = len(line.samples) > 1
    spread = f"{_show(min(line.samples), line.unit)} - {_show(max(line.samples), line.unit)}" if several else ""
    goal = "" if line.goal is None else f"<= {_show(line.goal, line.unit)}"
    met = "" if line.goal is None else "yes" if line.met else "NO"
    runs = str(len(line.samples)) if line.samples else ""
    return (str(line.row), line.what, _show(line.value, line.unit), spread, runs, goal, met)


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    left = ("<", "<", ">", ">", ">", ">", "<")
    return "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, left, widths, strict=True)).rstrip()


def _show(value: float, unit: Unit) -> str:
    if unit == "s":
        return f"{value:.2f} s"
    if unit == "ms":
        return f"{value * 1e3:.4g} ms"
    if unit == "MB":
        return f"{value / 1e6:.1f} MB"
    if unit == "part" and value > 0:
        return f"1/{1 / value:.3g}"
    return f"{value:.3f}"
