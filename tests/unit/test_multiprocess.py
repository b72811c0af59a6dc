"""Which launches are answered: those of Lightning's launchers, where there is no world yet."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.multiprocessing
from lightning.fabric import Fabric

from lightning_disttest.engine import context, running_tests
from lightning_disttest.engine.context import enter_rank, leave_rank
from lightning_disttest.engine.warm_spawn import WarmContext
from lightning_disttest.errors import LaunchRefused
from lightning_disttest.settings import SETTINGS
from lightning_disttest.strategies import multiprocess
from tests.unit.contexts import make_context
from tests.unit.test_settings import DEFAULTS

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(params=["static", "dynamic"])
def _world(request: pytest.FixtureRequest) -> Iterator[None]:
    enter_rank(make_context(0, 2, request.param, nodeid="a.py::b"))
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
    started = module.start_processes(int, nprocs=1, start_method="fork", join=False)
    assert type(started) is module.ProcessContext
    assert started.join(timeout=30)


@pytest.mark.parametrize(
    ("start_method", "on_rank", "settings", "is_warm"),
    [
        ("spawn", True, {}, True),
        ("spawn", False, {}, False),
        ("spawn", False, {"warm_spawn_everywhere": True}, True),
        ("spawn", True, {"real_spawn": True}, False),
        ("spawn", False, {"warm_spawn_everywhere": True, "real_spawn": True}, False),
        ("fork", True, {"warm_spawn_everywhere": True}, False),
    ],
)
def test_what_starts_warm(
    start_method: str, on_rank: bool, settings: dict[str, bool], is_warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ``spawn`` starts warm: on ranks, and in plain tests if that is wanted; the other switch goes first."""
    config = SimpleNamespace(stash={SETTINGS: dataclasses.replace(DEFAULTS, **settings)})  # type: ignore[arg-type]
    item: Any = SimpleNamespace(nodeid="test_it.py::test", config=config)
    monkeypatch.setattr(running_tests, "_running", [])
    running_tests.begin(item)
    if on_rank:
        monkeypatch.setattr(context, "_current", make_context(0, 1, "standalone"))

    chosen = multiprocess._context_for(start_method)

    assert isinstance(chosen, WarmContext) == is_warm
    assert is_warm or chosen is multiprocessing.get_context(start_method)


def test_outside_of_tests_spawn_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is launched while nobody has asked for a test starts as ever."""
    monkeypatch.setattr(running_tests, "_running", [])

    assert multiprocess._context_for("spawn") is multiprocessing.get_context("spawn")
