"""Tests that a hook takes out without a word, although an option keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.selection.removals import Removals

if TYPE_CHECKING:
    from collections.abc import Callable

mark = pytest.mark


class FakeTerminal:
    """Keeps the lines that are written to it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str, **_: Any) -> None:
        """Keep a line."""
        self.lines.append(line)


def said_by(watch: Removals) -> list[str]:
    """Return what is said at the end of the run."""
    terminal: Any = FakeTerminal()
    watch.pytest_terminal_summary(terminal)
    lines: list[str] = terminal.lines
    return lines


@pytest.fixture
def items(make_item: Callable[..., pytest.Item]) -> list[pytest.Item]:
    """Return a standalone, a static, a plain and a skipped standalone test."""
    return [
        make_item("alone", mark.standalone),
        make_item("static", mark.distributed(2)),
        make_item("plain"),
        make_item("skipped", mark.standalone, mark.skip),
    ]


@pytest.mark.parametrize(("field", "name"), [("standalone", "alone"), ("multigpu_static", "static")])
def test_what_the_option_keeps_and_is_gone_is_named(items: list[pytest.Item], field: str, name: str) -> None:
    """A test that the option keeps, and that is not there any more, is counted and named."""
    watch = Removals(items, [field])
    watch.compare([item for item in items if item.name != name])
    (line,) = said_by(watch)
    assert f"would keep: 1, such as {next(item.nodeid for item in items if item.name == name)}." in line
    assert f"--{field.replace('_', '-')} would keep" in line


def test_what_is_there_or_deselected_or_not_wanted_is_not_named(items: list[pytest.Item]) -> None:
    """Nothing is said of tests that are left, were deselected, or that the option does not keep anyway."""
    kept, deselected = Removals(items, ["standalone"]), Removals(items, ["standalone"])
    kept.compare(items[:1])
    deselected.pytest_deselected(items[:1])
    deselected.compare([])
    assert said_by(kept) == said_by(deselected) == []


def test_bad_marks_are_not_told_here(make_item: Callable[..., pytest.Item]) -> None:
    """A mark that can not be served is no error here: its test may be left out."""
    bad, alone = make_item("bad", mark.distributed(0)), make_item("alone", mark.standalone)
    watch = Removals([bad, alone], ["standalone"])
    watch.compare([])
    assert len(said_by(watch)) == 1
