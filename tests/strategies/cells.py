"""The cells of the matrix as data: strategy x hook of a fit x fault x ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# For each strategy: the mark of its tests, and what the factory is given.
STRATEGIES = {
    "static": ("distributed(2)", ""),
    "dynamic": ("distributed(2, static=False)", ""),
    "standalone": ("standalone", 'strategy="ddp", devices=2'),
    "standalone_spawn": ("standalone", 'strategy="ddp_spawn", devices=2'),
    "ddp_spawn": ("", 'strategy="ddp_spawn", devices=2'),
    "ddp_fork": ("", 'strategy="ddp_fork", devices=2'),
    "ddp_notebook": ("", 'strategy="ddp_notebook", devices=2'),
}
# The main hooks in the order of a fit, with their arguments.
HOOKS = {
    "setup": "stage",
    "configure_optimizers": "",
    "on_fit_start": "",
    "validation_step": "batch, batch_idx",  # for the first time in the sanity check, before the training
    "on_train_start": "",
    "on_train_epoch_start": "",
    "on_train_batch_start": "batch, batch_idx",
    "training_step": "batch, batch_idx",
    "on_after_backward": "",
    "on_train_batch_end": "outputs, batch, batch_idx",
    "on_train_epoch_end": "",
    "on_save_checkpoint": "checkpoint",
    "on_train_end": "",
    "teardown": "stage",
}
FAULTS = ("raises", "dies", "hangs")
RANKS = ("rank0", "rank1", "both")
# Seconds that a test with a hang may take: to begin, then some to hang.
LIMIT_S = 4.0


@dataclass(frozen=True, order=True)
class Cell:
    """One combination; ``ranks`` are those on which the fault happens."""

    strategy: str
    hook: str
    fault: str
    ranks: str

    @property
    def name(self) -> str:
        """The part of the name of its test that is its own."""
        return f"{self.strategy}_{self.hook}_{self.fault}_{self.ranks}"

    @property
    def hit(self) -> tuple[int, ...]:
        """The ranks on which the fault happens."""
        return {"rank0": (0,), "rank1": (1,), "both": (0, 1)}[self.ranks]

    @property
    def seconds(self) -> float:
        """About how long it takes on two quiet cores."""
        return LIMIT_S + 0.5 if self.fault == "hangs" else 1.5


ALL = tuple(
    Cell(strategy, hook, fault, ranks)
    for strategy, hook, fault, ranks in itertools.product(STRATEGIES, HOOKS, FAULTS, RANKS)
)


def split(cells: Sequence[Cell], seconds: float) -> list[list[Cell]]:
    """Return groups of cells for one run each, of about ``seconds``."""
    count = max(1, round(sum(cell.seconds for cell in cells) / seconds))
    return [group for start in range(count) if (group := list(cells[start::count]))]
