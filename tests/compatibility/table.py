"""Makes the table of docs/reference/compatibility.md: ``python -m tests.compatibility.table`` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.compatibility.lines import Line
from tests.compatibility.options import OPTIONS
from tests.compatibility.options_features import FEATURES
from tests.compatibility.options_output import OUTPUT
from tests.compatibility.plugins import PLUGINS
from tests.compatibility.plugins_running import RUNNING

PAGE = Path(__file__).parents[2] / "docs/reference/compatibility.md"
_TABLES = {
    "Plugins": ("plugin", (*PLUGINS, *RUNNING)),
    "Options of pytest": ("option", (*OPTIONS, *OUTPUT, *FEATURES)),
}
LINES = tuple(line for _, lines in _TABLES.values() for line in lines if line.has_its_pytest)


def render() -> str:
    """Return the page: its introduction as it is, and the tables made of the lines."""
    introduction = PAGE.read_text().partition("\n## ")[0].rstrip("\n")
    parts = [introduction]
    for title, (noun, lines) in _TABLES.items():
        parts.append(f"## {title}\n\n{_table(noun, lines)}")
    return "\n\n".join(parts) + "\n"


def _table(noun: str, lines: Iterable[Line]) -> str:
    rows = [f"| {noun} | on ranks |", "|---|---|"]
    return "\n".join([*rows, *(f"| {line.name} | {line.on_ranks} |" for line in lines)])


if __name__ == "__main__":
    PAGE.write_text(render())
