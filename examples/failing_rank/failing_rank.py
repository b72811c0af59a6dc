"""A test that is meant to fail: rank 1 has an error while rank 0 waits for it. Its name keeps it out of normal runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from lightning_disttest import World


@pytest.mark.distributed(world_size=2)
def test_sum_of_losses(world: World) -> None:
    """Rank 1 finds no batch, so rank 0 would wait for its part of the sum for ever."""
    batches_of = {0: [1.0, 2.0]}
    loss = torch.tensor(sum(batches_of[world.rank]))
    dist.all_reduce(loss)
    assert loss == 3.0
