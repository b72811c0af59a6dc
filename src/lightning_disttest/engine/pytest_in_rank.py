"""Where a rank touches pytest's private parts: it runs items through pytest's own protocol and sends its reports."""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import _pytest.tmpdir
import pytest
from _pytest.junitxml import xml_key

from lightning_disttest.engine import hypothesis_seed, stand_ins
from lightning_disttest.engine.exceptions import first_of_chain
from lightning_disttest.engine.messages import PhasePassed, ReportMade, SuitePropertyRecorded, WarningRecorded
from lightning_disttest.engine.pytest_bridge import HookSwitch, tmp_path_factory
from lightning_disttest.reporting.stories import EXCEPTIONS, is_subreport

if TYPE_CHECKING:
    import warnings
    from collections.abc import Callable, Generator

    from lightning_disttest.engine.messages import FromRank
    from lightning_disttest.engine.output import RankFds

_REPORTING_HOOKS = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
    "pytest_exception_interact",
)
_INHERITED_CAPTURE = pytest.StashKey[Any]()
# What every report has; a plugin, or pytest itself for an expected failure, may have added more.
_PLAIN_ATTRIBUTES = pytest.TestReport("", ("", None, ""), {}, "passed", None, "call").__dict__.keys()
_LAST_LINES = 20
_PACKAGE = Path(__file__).parent.parent
# pytest-timeout's timer would end a rank behind our back; the controller watches the time of every rank.
_REPLACED_PLUGINS = ("timeout", "lightning_disttest")


class Outbox(Protocol):
    """Where a rank's reports go."""

    def send(self, message: FromRank) -> None:
        """Send a message now."""

    def queue(self, message: FromRank) -> None:
        """Send a message together with the next one."""

    def enter(self, stage: str) -> None:
        """Note the stage of the test that begins."""


class Recorder:
    """The one plugin whose reporting hooks run in a rank: it sends what it is told to the controller."""

    def __init__(self, config: pytest.Config, outbox: Outbox) -> None:
        self._config = config
        self._outbox = outbox
        self.active = False  # pytest replays the warnings of collection to a new plugin: they are not ours

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report; pytest and its plugins make it serialisable."""
        if not is_subreport(report):
            self._outbox.enter(_stage_after(report))
        if _says_only_passed(report):
            self._outbox.queue(PhasePassed(report.when, report.start, report.stop, report.duration))
            return
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._outbox.send(ReportMade(data))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put class and text of the exception on a failed report, and how to have its random examples again.

        If no report can be made (for lack of memory, or because of another plugin), the test's own exception is told
        with the reason for that.
        """
        try:
            report = yield
        except BaseException as error:
            if call.excinfo is not None:
                first_of_chain(error).__context__ = call.excinfo.value
            raise
        if report.failed and call.excinfo is not None:
            setattr(report, EXCEPTIONS, stand_ins.describe_chain(call.excinfo.value))
            if hypothesis_seed.SEED_NOTE in item.stash:
                report.sections.append(("Hypothesis", item.stash[hypothesis_seed.SEED_NOTE]))
        return report

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        """Send a warning as text: its objects stay in the rank."""
        if self.active:
            category = warning_message.category
            name = stand_ins.name_of(category)
            text, place = str(warning_message.message), warning_message.filename
            self._outbox.send(WarningRecorded(name, text, place, warning_message.lineno, when, nodeid))


def _stage_after(report: pytest.TestReport) -> str:
    if report.when == "teardown":
        return "exit"
    return "call" if report.when == "setup" and report.passed else "teardown"


def _says_only_passed(report: pytest.TestReport) -> bool:
    """Tell whether a report says nothing but that a phase passed: no output, no properties, nothing of a plugin."""
    return (
        report.passed
        and not report.sections
        and not report.user_properties
        and report.__dict__.keys() == _PLAIN_ATTRIBUTES
    )


class ItemRunner:
    """Runs items in a rank through pytest's own protocol, without the plugins that report or replace it."""

    def __init__(self, session: pytest.Session, outbox: Outbox) -> None:
        manager = session.config.pluginmanager
        self._session = session
        self._recorder = Recorder(session.config, outbox)
        manager.register(self._recorder, "disttest-recorder")
        others = [plugin for plugin in manager.get_plugins() if plugin is not self._recorder]
        reporting = {name: manager.subset_hook_caller(name, others) for name in _REPORTING_HOOKS}
        HookSwitch(session, lambda _: reporting).on = True
        self._protocol = manager.subset_hook_caller("pytest_runtest_protocol", _replaced_plugins(manager))
        self._recorder.active = True
        if (junit := session.config.stash.get(xml_key, None)) is not None:

            def add_global_property(name: str, value: object) -> None:
                outbox.send(SuitePropertyRecorded(name, str(value)))

            setattr(junit, "add_global_property", add_global_property)  # noqa: B010  the JUnit file is the controller's

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run all phases of an item; its reports and warnings are sent while it runs."""
        self._protocol(item=item, nextitem=nextitem)

    def end_fixtures(self, nextitem: pytest.Item | None) -> list[str]:
        """End the open fixtures that ``nextitem`` does not share; return the tracebacks of those that failed.

        The item that comes is not always the one that was planned: that one may be skipped in the controller.
        """
        try:
            self._session._setupstate.teardown_exact(nextitem)
        except BaseException as error:  # noqa: BLE001  fixtures may raise anything, and the rank has to report it
            return [format_error(error)]
        return []


def format_error(error: BaseException) -> str:
    """Return the traceback of an error as text, without the frames of pytest and of this package."""
    formatted = traceback.TracebackException.from_exception(error)
    formatted.stack[:] = [frame for frame in formatted.stack if not _is_internal(frame.filename)]
    return "".join(formatted.format())


def last_output(item: pytest.Item) -> str:
    """Return the last lines that were captured of an item, for one whose reports do not come to carry them."""
    captured = "".join(text for _, key, text in item._report_sections if key in ("stdout", "stderr"))
    lines = [f"  {line}\n" for line in captured.splitlines()[-_LAST_LINES:]]
    return "".join(["last output:\n", *lines]) if lines else ""


def _is_internal(filename: str) -> bool:
    path = Path(filename)
    return "_pytest" in path.parts or "pluggy" in path.parts or path.is_relative_to(_PACKAGE)


def _replaced_plugins(manager: pytest.PytestPluginManager) -> list[object]:
    """Return the plugins whose pytest_runtest_protocol must not run in a rank: rerunners, timers, and this one."""
    replaced = [manager.get_plugin(name) for name in _REPLACED_PLUGINS]
    for impl in manager.hook.pytest_runtest_protocol.get_hookimpls():
        is_wrapper = impl.hookwrapper or impl.wrapper
        if not is_wrapper and impl.plugin_name != "runner":
            replaced.append(impl.plugin)
    return [plugin for plugin in replaced if plugin is not None]


def redirect_output(config: pytest.Config, fds: RankFds) -> None:
    """Give this rank its own standard streams and, unless capture is off, a capture at descriptor level.

    What kept the controller's stream (log handlers do) writes to the old capture: that goes to the new one as well.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fds.raw, 1), (fds.raw, 2)):
        os.dup2(source, target)
    os.close(null)
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    if manager is None or manager._method == "no":
        # The stream was made for pytest's own output; if that is a pipe, lines would wait in it for the end.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        return
    old = manager._global_capturing
    config.stash[_INHERITED_CAPTURE] = old  # dropped, it would close the descriptors that others have kept
    manager._global_capturing = None
    if manager._method != "tee-sys":
        manager._method = "fd"
    manager.start_global_capturing()
    manager.suspend_global_capture(in_=False)
    new = manager._global_capturing
    for capture, fd in ((new.out, fds.stdout), (new.err, fds.stderr)):
        if manager._method == "fd":
            os.dup2(fd, capture.tmpfile.fileno())
    for capture, fd, name in ((old.out, fds.stdout, "stdout"), (old.err, fds.stderr, "stderr")):
        _redirect_kept_stream(capture.tmpfile, fd, name)


def _redirect_kept_stream(stream: Any, fd: int, name: str) -> None:
    """Have what is written to the stream of the controller's capture, which others keep, go to this rank's."""
    try:
        os.dup2(fd, stream.fileno())
    except OSError:  # a capture in memory has no descriptor

        def write(text: str) -> int:
            return int(getattr(sys, name).write(text))

        stream.write = write


def share_tmp_path(config: pytest.Config, assigned: Callable[[], str]) -> None:
    """Have the ``tmp_path`` of this rank's tests be the one folder that the controller assigned to the test."""
    genuine = _pytest.tmpdir._mk_tmp

    def make(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Path:
        if request.config is not config:
            return genuine(request, factory)  # a run of pytest inside this test
        path = Path(assigned())
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    setattr(_pytest.tmpdir, "_mk_tmp", make)  # noqa: B010  the fixture looks it up in its module
    # A rank must not remove what other ranks still use; the controller applies the policy after the last one.
    setattr(tmp_path_factory(config), "_retention_policy", "all")  # noqa: B010


def name_single_test(item: pytest.Item) -> None:
    """Make the command line of this process name one test, for code that runs the command line again."""
    import importlib.util

    import __main__

    spec = importlib.util.find_spec("pytest.__main__")
    assert spec is not None
    assert spec.origin is not None
    _, separator, name = item.nodeid.partition("::")
    sys.argv = [spec.origin, f"{item.path}{separator}{name}"]
    setattr(__main__, "__spec__", spec)  # noqa: B010
