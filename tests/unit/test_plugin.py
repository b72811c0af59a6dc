"""The hooks of the plugin that decide what becomes of invalid marks, in the main process and in a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest import plugin
from lightning_disttest.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "world_size must be a whole number of 1 or more, not 0"


def make_config(**more: Any) -> Any:
    """Return what the hook uses of a config; with ``workerinput`` it is that of a worker of pytest-xdist."""
    stash = pytest.Stash()
    stash[SETTINGS] = Settings(standalone=False, timeout=300.0, grace=0.5, rank_output="failed")
    return SimpleNamespace(stash=stash, pluginmanager=pytest.PytestPluginManager(), **more)


def test_invalid_marks_end_the_run(make_item: Callable[..., pytest.Item]) -> None:
    """In the main process invalid marks are a usage error, and no test runs."""
    items = [make_item("test_bad", pytest.mark.distributed(0)), make_item("test_fine")]

    with pytest.raises(pytest.UsageError, match=TEXT):
        plugin.pytest_collection_modifyitems(make_config(), items)


def test_invalid_marks_fail_every_test_of_a_worker(make_item: Callable[..., pytest.Item]) -> None:
    """In a worker of pytest-xdist, which a usage error would crash, each test fails with their text."""
    config = make_config(workerinput={})
    items = [make_item("test_bad", pytest.mark.distributed(0)), make_item("test_fine")]

    plugin.pytest_collection_modifyitems(config, items)

    for item in items:
        with pytest.raises(pytest.fail.Exception, match=TEXT):
            config.pluginmanager.hook.pytest_runtest_setup(item=item)


def test_valid_marks_fail_nothing_in_a_worker(make_item: Callable[..., pytest.Item]) -> None:
    """A worker whose marks are valid runs its tests as they are."""
    config = make_config(workerinput={})
    item = make_item("test_fine", pytest.mark.distributed(2))

    plugin.pytest_collection_modifyitems(config, [item])

    assert config.pluginmanager.hook.pytest_runtest_setup(item=item) == []
