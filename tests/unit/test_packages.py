"""Which Lightning package the factories use, and what happens where there is none."""

from __future__ import annotations

import sys

import pytest

from lightning_disttest.errors import MissingPackage
from lightning_disttest.strategies import packages


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_OF_FIXTURE", {"trainer_factory": ("no_such_lightning",)})


def test_import_before_the_fork_passes_over_what_is_missing() -> None:
    """The whole run must not end because the fixture of one test lacks its package."""
    packages.import_for({"trainer_factory", "fabric_factory"})

    assert "no_such_lightning" not in sys.modules


def test_the_fixture_says_what_is_missing() -> None:
    """The test that uses the fixture is told which packages would do."""
    with pytest.raises(MissingPackage, match=r"trainer_factory needs one of these packages.*: no_such_lightning"):
        packages.import_lightning("trainer_factory")
