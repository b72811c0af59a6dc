"""The watch on imports: callbacks come right after the import, once, and leave no trace on the module."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from lightning_disttest import imports
from lightning_disttest.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

NAMES = ("watched_one", "watched_two", "watched_package", "watched_package.inner", "watched_broken")


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make importable modules that nobody knows yet; forget them, and who waits for them, afterwards."""
    (tmp_path / "watched_one.py").write_text("value = 1\nspec_loader = __spec__.loader\n")
    (tmp_path / "watched_two.py").write_text("import watched_one\n")
    (tmp_path / "watched_broken.py").write_text("raise ImportError('broken')\n")
    package = tmp_path / "watched_package"
    package.mkdir()
    (package / "__init__.py").write_text("from watched_package.inner import value\n")
    (package / "inner.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)
        imports._watch.callbacks.pop(name, None)


class Log:
    """A callback that notes with which modules it was called."""

    def __init__(self) -> None:
        self.seen: list[ModuleType] = []

    def __call__(self, module: ModuleType) -> None:
        """Note a call."""
        self.seen.append(module)


def test_callback_comes_right_after_the_import() -> None:
    """The module has been executed when the callback gets it, and nothing else was called before."""
    values: list[int] = []
    when_imported("watched_one", lambda module: values.append(module.value))
    assert values == []

    importlib.import_module("watched_one")

    assert values == [1]


def test_callback_comes_at_once_if_the_module_is_there() -> None:
    """A module that is imported already is handed over without delay."""
    module = importlib.import_module("watched_one")
    log = Log()

    when_imported("watched_one", log)

    assert log.seen == [module]


def test_callback_is_called_once() -> None:
    """Registered twice, and imported twice, a callback is called once."""
    log = Log()
    when_imported("watched_one", log)
    when_imported("watched_one", log)

    importlib.import_module("watched_one")
    importlib.import_module("watched_one")
    when_imported("watched_one", log)

    assert len(log.seen) == 1


def test_callbacks_come_in_order() -> None:
    """Several callbacks for one module are called in the order of registration."""
    order: list[str] = []
    when_imported("watched_one", lambda _: order.append("first"))
    when_imported("watched_one", lambda _: order.append("second"))

    importlib.import_module("watched_one")

    assert order == ["first", "second"]


def test_import_by_another_module_counts() -> None:
    """It does not matter who imports the module."""
    log = Log()
    when_imported("watched_one", log)

    importlib.import_module("watched_two")

    assert [module.__name__ for module in log.seen] == ["watched_one"]


@pytest.mark.parametrize("name", ["watched_package", "watched_package.inner"])
def test_packages_and_submodules_can_be_watched(name: str) -> None:
    """A package that imports its own submodule is no trap for either."""
    log = Log()
    when_imported(name, log)

    importlib.import_module("watched_package")

    assert [module.__name__ for module in log.seen] == [name]


def test_loader_of_the_module_is_the_genuine_one(modules: Path) -> None:
    """Whoever looks at the loader, while the module runs or later, finds the one that Python would have chosen."""
    genuine = type(importlib.import_module("watched_two").__loader__)
    sys.modules.pop("watched_one")
    when_imported("watched_one", Log())

    module = importlib.import_module("watched_one")

    assert type(module.__loader__) is genuine
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is genuine
    assert type(module.spec_loader) is genuine
    assert module.__file__ == str(modules / "watched_one.py")


def test_failed_import_is_not_reported() -> None:
    """A module that raises while it is imported is not there: no callback, and the error is its own."""
    log = Log()
    when_imported("watched_broken", log)

    with pytest.raises(ImportError, match="broken"):
        importlib.import_module("watched_broken")

    assert log.seen == []


def test_missing_module_is_missing_as_ever() -> None:
    """Waiting for a module that does not exist changes nothing about its absence."""
    log = Log()
    when_imported("watched_absent", log)

    with pytest.raises(ModuleNotFoundError, match="watched_absent"):
        importlib.import_module("watched_absent")
    imports._watch.callbacks.pop("watched_absent")

    assert log.seen == []


def test_other_modules_are_none_of_its_business() -> None:
    """A module that nobody waits for is imported without a wrapper."""
    assert imports._watch.find_spec("watched_one", None) is None


def test_watch_stands_once_at_the_head_of_the_finders() -> None:
    """However often a callback is registered, there is one finder."""
    when_imported("watched_one", Log())
    when_imported("watched_two", Log())

    assert sum(finder is imports._watch for finder in sys.meta_path) == 1
