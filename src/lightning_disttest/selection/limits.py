"""How long a test on ranks may take: the limit of its mark, of our option, or of pytest-timeout."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from lightning_disttest.selection.marks import Plan
    from lightning_disttest.settings import Settings


def limit_of(item: pytest.Item, plan: Plan | None, settings: Settings) -> float:
    """Return the seconds that a test may take, 0 for no limit.

    The nearest goes first: the timeout of the mark that puts the test on ranks, pytest-timeout's mark, our option,
    pytest-timeout's option (or PYTEST_TIMEOUT, or ini), our default. A limit of pytest-timeout holds for the whole
    test on all ranks, also with ``func_only``. Without a ``plan`` it is the limit of ranks that a plain test launches.
    """
    if plan is not None and plan.timeout is not None:
        return plan.timeout
    if not item.config.pluginmanager.has_plugin("timeout"):
        return settings.timeout
    of_mark = _limit_of_mark(item)
    if of_mark is not None:
        return of_mark
    of_run = None if "timeout" in settings.given else _limit_of_run(item.config)
    return settings.timeout if of_run is None else of_run


def _limit_of_mark(item: pytest.Item) -> float | None:
    mark = item.get_closest_marker("timeout")
    if mark is None:
        return None
    given = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    return None if given is None else float(given)


def _limit_of_run(config: pytest.Config) -> float | None:
    given: Any = config.getoption("timeout", None)
    for value in (given, os.environ.get("PYTEST_TIMEOUT"), config.getini("timeout")):
        if value not in (None, ""):
            return float(value)
    return None
