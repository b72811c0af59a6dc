"""A small GRU that reads a row of symbols and says them again, and a callback that makes the rows longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

SYMBOLS = 4
_GO = SYMBOLS


def make_rows(count: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (symbols, then as many "go" signs) and the symbols that are to be said."""
    rows = torch.randint(SYMBOLS, (count, length), generator=torch.Generator().manual_seed(seed))
    return torch.cat((rows, torch.full_like(rows, _GO)), dim=1), rows


class CopyModel(lightning.LightningModule):
    """Reads ``length`` symbols, then says them; ``length`` may grow while it trains."""

    def __init__(self, length: int = 1, hidden: int = 32, rows: int = 128) -> None:
        super().__init__()
        self.length = length
        self.rows = rows
        self.embedding = torch.nn.Embedding(SYMBOLS + 1, hidden)
        self.gru = torch.nn.GRU(hidden, hidden, batch_first=True)
        self.head = torch.nn.Linear(hidden, SYMBOLS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores for each symbol that is to be said: (batch, length, symbols)."""
        states, _ = self.gru(self.embedding(inputs))
        scores: torch.Tensor = self.head(states[:, inputs.shape[1] // 2 :])
        return scores

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """Return the loss of one batch and log the part of the symbols that are right on all ranks."""
        inputs, rows = batch
        scores = self(inputs)
        accuracy = (scores.argmax(dim=2) == rows).float().mean()
        self.log("accuracy", accuracy, on_step=False, on_epoch=True, sync_dist=True)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), rows.flatten())

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Return rows of the length that is trained now."""
        return DataLoader(TensorDataset(*make_rows(self.rows, self.length, seed=self.length)), batch_size=16)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.02)


class GrowLength(lightning.Callback):
    """Makes the rows one symbol longer after each epoch that reached ``goal``.

    It decides on the accuracy over all ranks: if each rank took its own, they would train on rows of different
    lengths. The Trainer needs ``reload_dataloaders_every_n_epochs=1``.
    """

    def __init__(self, goal: float = 0.95) -> None:
        self.goal = goal
        self.lengths: list[int] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the length that was trained and set the next one."""
        assert isinstance(pl_module, CopyModel)
        self.lengths.append(pl_module.length)
        if trainer.callback_metrics["accuracy"] >= self.goal:
            pl_module.length += 1
