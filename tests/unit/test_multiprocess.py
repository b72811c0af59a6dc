"""Which launches are answered: those of Lightning's launchers, where there is no world yet."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch.multiprocessing
from lightning.fabric import Fabric

from lightning_disttest.engine.context import RankContext, enter_rank, leave_rank
from lightning_disttest.errors import LaunchRefused

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(params=["static", "dynamic"])
def _world(request: pytest.FixtureRequest) -> Iterator[None]:
    enter_rank(RankContext(0, 2, request.param, "cpu", "gloo", 0, "a.py::b", lambda _: None, lambda _: []))
    yield
    leave_rank()


def run(fabric: Fabric) -> None:
    """Do nothing on a launched rank."""


@pytest.mark.usefixtures("_world")
def test_launch_in_a_world_is_refused() -> None:
    """A test on two ranks does not launch more of them; nothing is started."""
    refusal = ""
    try:
        Fabric(accelerator="cpu", strategy="ddp_fork", devices=3).launch(run)
    except LaunchRefused as error:
        refusal = str(error)
    assert refusal.startswith("a.py::b: this strategy would launch 3 process(es), but the test is distributed")
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("_world")
def test_launch_by_others_is_not_touched() -> None:
    """Whoever uses torch without Lightning gets what torch does."""
    module: Any = torch.multiprocessing
    context = module.start_processes(int, nprocs=1, start_method="fork", join=False)
    assert type(context) is module.ProcessContext
    assert context.join(timeout=30)
