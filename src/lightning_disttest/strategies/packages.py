"""Which Lightning package is used: it is sold as one and as two, and a suite may import either."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from lightning_disttest.errors import MissingPackage
from lightning_disttest.imports import is_importable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import ModuleType

TRAINER_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
FABRIC_PACKAGES = ("lightning.fabric", "lightning_fabric")
# Strategies and launchers live in all four: lightning ships copies of the two that are also sold singly.
PACKAGES = (*TRAINER_PACKAGES, *FABRIC_PACKAGES)
_OF_FIXTURE = {"trainer_factory": TRAINER_PACKAGES, "fabric_factory": FABRIC_PACKAGES}


def import_lightning(fixture: str) -> ModuleType:
    """Import and return the package that a fixture needs: the one that tests have imported, else the first installed.

    Raises:
        MissingPackage: if there is none.
    """
    names = _OF_FIXTURE[fixture]
    for package in _import_used(names):
        return package
    raise MissingPackage(fixture, names)


def import_for(fixtures: Collection[str]) -> None:
    """Import the packages that some fixtures need, so that ranks that are forked later have them.

    One that is not installed is left to the fixture, which fails the tests that use it and no others.
    """
    for fixture, names in _OF_FIXTURE.items():
        if fixture in fixtures:
            _import_used(names)


def import_trainers() -> list[ModuleType]:
    """Return the packages with a Trainer that have been imported, else the first that is installed, if there is one."""
    return _import_used(TRAINER_PACKAGES)


def _import_used(names: Sequence[str]) -> list[ModuleType]:
    if imported := [module for name in names if (module := sys.modules.get(name)) is not None]:
        return imported
    installed = [name for name in names if is_importable(name.partition(".")[0])]
    return [importlib.import_module(name) for name in installed[:1]]
