"""Trainers for tests: quick, quiet, and fitted to the world that the test runs in."""

from __future__ import annotations

from typing import Any, Protocol

from lightning_disttest.strategies.making import Maker


class TrainerFactory(Protocol):
    """What the fixture ``trainer_factory`` returns."""

    def __call__(self, **arguments: Any) -> Any:
        """Return a ``Trainer``; every argument of Trainer may be given and goes before the defaults."""


class TrainerMaker(Maker):
    """Makes Trainers for one test in one process and tears them down after it."""

    fixture = "trainer_factory"
    class_name = "Trainer"

    def __call__(self, **arguments: Any) -> Any:
        """Return a Trainer.

        Defaults: one epoch of two batches, on the CPU or the world's device, no logger, progress bar, model summary
        or checkpoints, ``default_root_dir`` the ``tmp_path`` that all ranks share; in a distributed test
        ``strategy="ddp"``, ``devices`` the number of ranks, and the world's process group.

        Raises:
            WorldMismatch: if the arguments do not fit the world of the test.
            MissingPackage: if Lightning is not installed.
        """
        __tracebackhide__ = True
        trainer = self.make(self._quick_and_quiet() | arguments)
        self.at_end(lambda: trainer.strategy.teardown())
        return trainer

    def _quick_and_quiet(self) -> dict[str, Any]:
        return {
            "max_epochs": 1,
            "limit_train_batches": 2,
            "limit_val_batches": 2,
            "limit_test_batches": 2,
            "limit_predict_batches": 2,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "default_root_dir": self._tmp_path,
        }
