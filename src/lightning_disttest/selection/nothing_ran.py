"""The end of a run with a selecting option in which no test was executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_disttest.settings import find_option

if TYPE_CHECKING:
    from collections.abc import Sequence


def runs_no_bodies(config: pytest.Config) -> bool:
    """Tell whether this run only shows what it would do: tests, or their fixtures."""
    option = config.option
    return bool(option.collectonly or getattr(option, "setuponly", False) or getattr(option, "setupplan", False))


class NothingRan:
    """Turns a run with a selecting flag in which no test was executed into a failure: it would be green for ever."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._options = [find_option(field) for field in fields]
        self._seen: set[str] = set()
        self._executed = False
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether any test was executed; a skipped one was not, one that failed as expected was."""
        self._seen.add(report.nodeid)
        skipped = report.skipped and not hasattr(report, "wasxfail")
        self._executed |= not skipped and (report.when == "call" or report.failed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set exit code 1 if nothing was executed; decided by the main process only."""
        config = session.config
        is_worker = hasattr(config, "workerinput")
        if is_worker or runs_no_bodies(config) or self._executed:
            return
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._failed = True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why the run failed."""
        if self._failed:
            wanted = " and ".join(option.names for option in self._options)
            kept = f"tests kept: {len(self._seen)}, all skipped" if self._seen else "no test was kept"
            terminalreporter.write_line(
                f"disttest: nothing ran with {wanted}: {kept}, so this run proves nothing", red=True
            )
