"""Which Lightning package is used: it is sold as one and as two, and a suite may import either."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

from lightning_disttest.errors import MissingPackage

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

_PACKAGES = {
    "trainer_factory": ("lightning.pytorch", "pytorch_lightning"),
    "fabric_factory": ("lightning.fabric", "lightning_fabric"),
}


def import_lightning(fixture: str) -> ModuleType:
    """Import and return the package that a fixture needs: the one that tests have imported, else the first installed.

    Raises:
        MissingPackage: if there is none.
    """
    names = _PACKAGES[fixture]
    for name in [name for name in names if name in sys.modules] or names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name)
    raise MissingPackage(fixture, names)


def import_for(fixtures: Collection[str]) -> None:
    """Import the packages that some fixtures need, so that ranks that are forked later have them.

    Raises:
        MissingPackage: if one is not installed.
    """
    for fixture in _PACKAGES:
        if fixture in fixtures:
            import_lightning(fixture)
