"""Which tests are kept and in which order they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_disttest.selection.marks import asks_for_cuda, asks_for_standalone, asks_for_tpu, plan_of
from lightning_disttest.settings import find_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_disttest.settings import Settings

_KIND_ORDER = {"static": 1, "dynamic": 2, "standalone": 3}


def _asks_for_kind(kind: str) -> Callable[[pytest.Item], bool]:
    def asks(item: pytest.Item) -> bool:
        plan = plan_of(item)
        return plan is not None and plan.kind == kind

    return asks


# The field of each selecting option in Settings, and the tests that it keeps.
_FILTERS: dict[str, Callable[[pytest.Item], bool]] = {
    "standalone": asks_for_standalone,
    "cuda_only": asks_for_cuda,
    "tpu": asks_for_tpu,
    "multigpu_static": _asks_for_kind("static"),
    "multigpu_dynamic": _asks_for_kind("dynamic"),
}


def selecting(settings: Settings) -> list[str]:
    """Return the fields of the selecting options that are on and have a say.

    standalone and cuda_only together are standalone alone: Lightning has no job that runs standalone tests without
    GPUs, so its filter keeps those too (tests/tests_pytorch/conftest.py).
    """
    fields = [field for field in _FILTERS if getattr(settings, field)]
    if "standalone" in fields and "cuda_only" in fields:
        fields.remove("cuda_only")
    return fields


def select(items: list[pytest.Item], fields: Sequence[str]) -> list[pytest.Item]:
    """Remove from ``items`` what one of the fields does not keep or is skipped anyway; return the removed."""
    kept: list[pytest.Item] = []
    removed: list[pytest.Item] = []
    for item in items:
        wanted = item.get_closest_marker("skip") is None and all(_FILTERS[field](item) for field in fields)
        (kept if wanted else removed).append(item)
    items[:] = kept
    return removed


def group(items: list[pytest.Item]) -> None:
    """Sort: plain tests, static tests with those of one world together, dynamic tests, standalone tests.

    Inside a group, and for plain tests among themselves, the order stays as it is.
    """
    worlds: dict[tuple[int, str, str], int] = {}
    for item in items:
        plan = plan_of(item)
        if plan is not None:
            worlds.setdefault(plan.world_key, len(worlds))

    def key(item: pytest.Item) -> tuple[int, int]:
        plan = plan_of(item)
        if plan is None:
            return 0, 0
        return _KIND_ORDER[plan.kind], worlds[plan.world_key] if plan.kind == "static" else 0

    items.sort(key=key)


def _runs_no_bodies(config: pytest.Config) -> bool:
    option = config.option
    return bool(option.collectonly or getattr(option, "setuponly", False) or getattr(option, "setupplan", False))


def summarize(items: list[pytest.Item]) -> list[str]:
    """Return the line that says how many tests run on ranks; none if there are none."""
    plans = [plan for item in items if (plan := plan_of(item)) is not None]
    if not plans:
        return []
    counts = {kind: sum(plan.kind == kind for plan in plans) for kind in _KIND_ORDER}
    worlds = len({plan.world_key for plan in plans if plan.kind == "static"})
    parts = []
    if counts["static"]:
        parts.append(f"{counts['static']} static in {worlds} world{'s' if worlds != 1 else ''}")
    parts += [f"{counts[kind]} {kind}" for kind in ("dynamic", "standalone") if counts[kind]]
    return [f"disttest: {', '.join(parts)} (start method: fork)"]


class NothingRan:
    """Turns a run with a selecting flag in which no test was executed into a failure: it would be green for ever."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._options = [find_option(field) for field in fields]
        self._executed = False
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether any test was executed; a skipped one was not, one that failed as expected was."""
        skipped = report.skipped and not hasattr(report, "wasxfail")
        self._executed |= not skipped and (report.when == "call" or report.failed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set exit code 1 if nothing was executed; decided by the main process only."""
        config = session.config
        is_worker = hasattr(config, "workerinput")
        if is_worker or _runs_no_bodies(config) or self._executed:
            return
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._failed = True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why the run failed."""
        if self._failed:
            wanted = " and ".join(option.flag for option in self._options)
            switches = ", ".join(f"{option.flag} or {option.environment}=1" for option in self._options)
            terminalreporter.write_line(
                f"disttest: nothing ran: no test kept by {wanted} was executed, so this run proves nothing "
                f"({switches} is set)",
                red=True,
            )
