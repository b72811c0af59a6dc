"""Which tests make Trainers or Fabrics with the fixtures of this package: those are looked at for what they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_disttest.selection.marks import plan_of

if TYPE_CHECKING:
    import pytest

FACTORIES = frozenset(("trainer_factory", "fabric_factory"))


def uses_factory(item: pytest.Item) -> bool:
    """Tell whether a test, or a fixture of it, asks for a Trainer or a Fabric by the name of its argument."""
    return not FACTORIES.isdisjoint(getattr(item, "fixturenames", ()))


def uses_factory_here(item: pytest.Item) -> bool:
    """Tell whether a test does so in the pytest process."""
    return uses_factory(item) and plan_of(item) is None
