"""Hooks that this plugin calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lightning_disttest.engine.context import RankContext


@pytest.hookspec
def pytest_disttest_rank_start(config: pytest.Config, rank: RankContext) -> None:
    """Called in each new rank, after it joined its world and before it runs its first test."""
