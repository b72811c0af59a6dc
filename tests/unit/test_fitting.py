"""What a world refuses of a strategy that Lightning has made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_disttest.engine import context
from lightning_disttest.errors import WorldMismatch
from lightning_disttest.strategies.fitting import Fitting
from lightning_disttest.world import make_world
from tests.unit.contexts import make_context


def test_device_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that computes elsewhere than its world is refused: ranks would wait for it on another backend."""
    import lightning.pytorch as package

    monkeypatch.setattr(context, "_current", make_context(0, 2, "static"))
    strategy: Any = SimpleNamespace(world_size=2, root_device=SimpleNamespace(type="cuda"))
    expected = r"accelerator='auto' does not fit .* it uses a device of type cuda, and the world has cpu\. Leave"

    fitting = Fitting(make_world())
    with pytest.raises(WorldMismatch, match=expected):
        fitting.check({"accelerator": "auto"}, strategy, package)
    strategy.root_device.type = "cpu"
    fitting.check({"accelerator": "auto"}, strategy, package)
