"""Fit a linear model to synthetic points: ``python train.py --devices 2`` trains on two processes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOPES = (2.0, -1.0, 0.5)
OFFSET = 3.0


class PointsData(lightning.LightningDataModule):
    """Points on a plane with a little noise; the same points on every rank, made from a seed."""

    def __init__(self, size: int = 256, batch_size: int = 16, seed: int = 7, shuffle: bool = True) -> None:
        super().__init__()
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Make the points; three quarters are for training."""
        generator = torch.Generator().manual_seed(self.seed)
        points = torch.randn(self.size, len(SLOPES), generator=generator)
        noise = 0.01 * torch.randn(self.size, generator=generator)
        targets = points @ torch.tensor(SLOPES) + OFFSET + noise
        cut = self.size * 3 // 4
        self.train_set = TensorDataset(points[:cut], targets[:cut])
        self.val_set = TensorDataset(points[cut:], targets[cut:])

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Return batches for training; Lightning gives each rank its own part of them."""
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Return batches for validation."""
        return DataLoader(self.val_set, batch_size=self.batch_size)


class LinearModel(lightning.LightningModule):
    """A linear layer under a squared loss."""

    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.layer = torch.nn.Linear(len(SLOPES), 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return one value per point."""
        values: torch.Tensor = self.layer(points)
        return values.squeeze(1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """Return the loss of one batch."""
        points, targets = batch
        return torch.nn.functional.mse_loss(self(points), targets)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:  # noqa: ARG002
        """Log the loss, averaged over the batches of all ranks."""
        points, targets = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self(points), targets), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says, and say how well the model fits."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--devices", type=int, default=1, help="number of processes")
    parser.add_argument("--epochs", type=int, default=3, help="passes through the data")
    options = parser.parse_args(arguments)
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LinearModel(), datamodule=PointsData())
    trainer.print(f"val_loss after {options.epochs} epochs: {trainer.callback_metrics['val_loss']:.4f}")


if __name__ == "__main__":
    main()
