"""The README: every block does what the text around it says."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import README, ROOT, blocks_of, follow

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(240)
def test_readme_does_what_it_says(tmp_path: Path) -> None:
    """The files and commands of the README, followed from top to bottom, print what it shows."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    assert follow(README, tmp_path) == 5


def test_make_targets_exist() -> None:
    """Every ``make`` command that the README and CONTRIBUTING name is a target of the Makefile."""
    text = README.read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"make ([a-z]+)`", text))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "lint", "bench"} <= named <= targets


def test_readme_says_what_it_is_in_few_lines() -> None:
    """The text before the first heading is short: name, purpose, three properties, where it runs."""
    opening = README.read_text().partition("\n## ")[0]
    assert len(opening.splitlines()) <= 20
    assert blocks_of(README)


def test_license_is_the_apache_license() -> None:
    """The license file is the standard text, with nobody's name filled in."""
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License\n                           Version 2.0, January 2004")
    assert "END OF TERMS AND CONDITIONS" in text
    assert "Copyright [yyyy] [name of copyright owner]" in text
