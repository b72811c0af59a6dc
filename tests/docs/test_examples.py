"""The examples: they pass, and the test that is meant to fail does, with the right rank as the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.pages import ROOT, run_command
from tests.harness import lines_with

if TYPE_CHECKING:
    from pathlib import Path


def test_examples_pass() -> None:
    """The folder has plain, distributed and standalone tests, and all of them pass without a warning."""
    output = run_command("pytest examples", ROOT)
    assert lines_with(output, "disttest: 7 static in 3 worlds, 1 standalone (start method: fork)"), output
    assert lines_with(output, "= 12 passed in "), output


def test_failing_rank_is_named() -> None:
    """Rank 1, which failed, is the cause; rank 0, which waited, is shown with the line on which it waited."""
    output = run_command("pytest examples/failing_rank/failing_rank.py", ROOT)
    assert len(lines_with(output, "<- the cause")) == 1, output
    assert lines_with(output, "rank 1 of 2", "failed in call <- the cause"), output
    assert lines_with(output, "rank 0 of 2", "was still in call"), output
    assert lines_with(output, "in all_reduce"), output
    assert lines_with(output, "FAILED examples/failing_rank/failing_rank.py", "rank 1: KeyError: 1"), output
    assert lines_with(output, "= 1 failed in "), output


def test_script_trains_on_two_processes(tmp_path: Path) -> None:
    """The training script works by itself, outside of pytest, and launches its second process."""
    output = run_command(f"python {ROOT}/examples/regression/train.py --devices 2 --epochs 2", tmp_path)
    assert lines_with(output, "Starting with 2 processes"), output
    assert len(lines_with(output, "val_loss after 2 epochs: 0.")) == 1, output
