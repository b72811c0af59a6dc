"""The comparison of pages with what their commands print finds what it should find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import blocks_of, compare, run_command

if TYPE_CHECKING:
    from pathlib import Path

PRINTED = """
=== FAILURES ===
______ rank 1 of 2 (pid 4321): failed in call <- the cause ______
E   KeyError: 1
  File "/somewhere/site-packages/torch/c10d.py", line 3252 in all_reduce
========= 1 failed, 2 warnings in 1.25s =========
"""


@pytest.mark.parametrize(
    "shown",
    [
        ["______ rank 1 of 2 (pid 99): failed in call <- the cause ______", "E    KeyError: 1"],
        ["...", '  File ".../torch/c10d.py", line 1 in all_reduce', "...", "== 1 failed in 9.99s =="],
        ["=================== 1 failed in 123.45s (0:02:03) ==================="],
    ],
)
def test_what_may_differ_is_no_difference(shown: list[str], tmp_path: Path) -> None:
    """Pids, times, widths, warnings and line numbers of other packages may differ."""
    compare(shown, PRINTED, tmp_path)


@pytest.mark.parametrize(
    "shown",
    [
        ["______ rank 0 of 2 (pid 99): failed in call <- the cause ______"],
        ["E   KeyError: 1", "...", "=== FAILURES ==="],
        ["=== FAILURES ===", "E   KeyError: 1"],
        ["========= 2 failed in 1.25s ========="],
    ],
)
def test_wrong_rank_order_gap_and_count_are_found(shown: list[str], tmp_path: Path) -> None:
    """Another rank, another order, a gap that is not marked and another count are differences."""
    with pytest.raises(AssertionError, match="not printed"):
        compare(shown, PRINTED, tmp_path)


def test_blocks_are_read_with_their_language_and_name(tmp_path: Path) -> None:
    """A page's blocks are found in order, with the file name or the command that they begin with."""
    page = tmp_path / "page.md"
    page.write_text("text\n```python\n# test_a.py\nx = 1\n```\n\n```console\n$ pytest -v\n1 passed\n```\n")
    code, console = blocks_of(page)
    assert (code.language, code.file_name) == ("python", "test_a.py")
    assert (console.command, console.output) == ("pytest -v", ["1 passed"])


def test_command_runs_in_the_folder_with_its_variables(tmp_path: Path) -> None:
    """Variables before a command are set for it, and it runs in the folder of the page."""
    (tmp_path / "show.py").write_text("import os; print(os.environ['WORD'], os.listdir())")
    assert run_command("WORD=hello python show.py", tmp_path) == "hello ['show.py']\n"
