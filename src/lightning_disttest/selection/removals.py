"""Tests that a selecting option keeps, and that a conftest takes out without a word, as copies of Lightning's do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lightning_disttest.errors import InvalidMarks
from lightning_disttest.selection.filters import keeps
from lightning_disttest.selection.marks import plan_items
from lightning_disttest.settings import find_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest


class Removals:
    """Compares what the options keep with what is left after all hooks; a plugin of the run while it lasts.

    A copied filter knows the conditions of ``RunIf`` on the function alone. It drops tests with marks of this plugin,
    and the run is green without them.
    """

    def __init__(self, items: Iterable[pytest.Item], fields: Sequence[str]) -> None:
        items = list(items)
        with contextlib.suppress(InvalidMarks):  # told when it is known which tests are left
            plan_items(items)
        self._options = [find_option(field) for field in fields]
        self._wanted = [item for item in items if keeps(item, fields)]
        self._deselected: set[pytest.Item] = set()
        self._removed: list[pytest.Item] = []

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note what was taken out the way it should be."""
        self._deselected.update(items)

    def compare(self, items: Iterable[pytest.Item]) -> None:
        """Note which wanted tests are not among ``items`` any more, and were not deselected."""
        left = self._deselected.union(items)
        self._removed = [item for item in self._wanted if item not in left]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what is missing."""
        if self._removed:
            wanted = " and ".join(option.flag for option in self._options)
            terminalreporter.write_line(
                f"disttest: a pytest_collection_modifyitems hook removed tests that {wanted} would keep: "
                f"{len(self._removed)}, such as {self._removed[0].nodeid}. Is it a copy of Lightning's filter? "
                "Then delete it",
                yellow=True,
            )
