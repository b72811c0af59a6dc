"""Where the engine touches pytest's private parts; everything else uses pytest's and pluggy's public interface."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import _pytest.tmpdir
import pytest
from _pytest.skipping import xfailed_key

from lightning_disttest.engine.messages import PhasePassed, ReportMade, WarningRecorded
from lightning_disttest.errors import TmpdirSwitchedOff
from lightning_disttest.reporting.stories import is_subreport

if TYPE_CHECKING:
    import warnings
    from collections.abc import Callable

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

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        """Send a warning as text: its objects stay in the rank."""
        if self.active:
            category = warning_message.category
            name = f"{category.__module__}:{category.__qualname__}"
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


class _Relay:
    """A hook relay whose reporting hooks reach the recorder alone."""

    def __init__(self, relay: Any, reporting: dict[str, Any]) -> None:
        self._relay = relay
        self.__dict__.update(reporting)

    def __getattr__(self, name: str) -> Any:
        caller = getattr(self._relay, name)
        self.__dict__[name] = caller
        return caller


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


def _is_internal(filename: str) -> bool:
    path = Path(filename)
    return "_pytest" in path.parts or "pluggy" in path.parts or path.is_relative_to(_PACKAGE)


class HookSwitch:
    """While it is on, the hooks that items of a session call are replaced; it starts switched off.

    ``replace`` gets the relay that pytest made for a folder, which leaves out the conftests of other folders, and
    returns the hook callers to use instead of some of its own.
    """

    def __init__(self, session: pytest.Session, replace: Callable[[Any], dict[str, Any]]) -> None:
        self.on = False
        genuine = session.gethookproxy
        relays: dict[str, _Relay] = {}

        def gethookproxy(fspath: os.PathLike[str]) -> Any:
            if not self.on:
                return genuine(fspath)
            key = os.fspath(fspath)
            if key not in relays:
                relay = genuine(fspath)
                relays[key] = _Relay(relay, replace(relay))
            return relays[key]

        setattr(session, "gethookproxy", gethookproxy)  # noqa: B010  the method of this one session


def switch_off_log_capture(session: pytest.Session) -> HookSwitch:
    """Return a switch that, while on, keeps pytest's logging plugin out of the phases of an item.

    An item's log is caught where its body runs. In the controller the phases of such an item are empty, and the
    plugin would attach its handlers to all loggers of torch that do not propagate, twice for each of them.
    """
    manager = session.config.pluginmanager
    plugin = manager.get_plugin("logging-plugin")
    phases = ("pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown")

    def without_logging(relay: Any) -> dict[str, Any]:
        removed = {plugin, *getattr(relay, "remove_mods", ())}
        return {name: manager.subset_hook_caller(name, removed) for name in phases}

    return HookSwitch(session, without_logging)


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

    What kept the controller's stream (log handlers do) holds the descriptor of the old capture's file: that
    descriptor becomes the new file as well.
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
    manager._method = "fd"
    manager.start_global_capturing()
    manager.suspend_global_capture(in_=False)
    new = manager._global_capturing
    for capture, fd in ((new.out, fds.stdout), (new.err, fds.stderr)):
        os.dup2(fd, capture.tmpfile.fileno())
    for capture, fd in ((old.out, fds.stdout), (old.err, fds.stderr)):
        with contextlib.suppress(OSError, AttributeError):  # a capture in memory has no descriptor
            os.dup2(fd, capture.tmpfile.fileno())


def revive_report(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """Return the report that a rank sent: JSON knows no tuples, and pytest quotes a subtest's values once too often."""
    if isinstance(data.get("longrepr"), list):
        data["longrepr"] = tuple(data["longrepr"])
    data["sections"] = [tuple(section) for section in data["sections"]]
    data["user_properties"] = [tuple(pair) for pair in data["user_properties"]]
    data["location"] = tuple(data["location"])
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    context = data.get("_subtest.context")
    if context is not None:
        object.__setattr__(report.context, "kwargs", context["kwargs"])
    return report


def passed_report(message: PhasePassed) -> pytest.TestReport:
    """Return the report of a phase of which a rank only said that it passed."""
    return pytest.TestReport(
        nodeid="",
        location=("", None, ""),
        keywords={},
        outcome="passed",
        longrepr=None,
        when=message.when,  # type: ignore[arg-type]
        duration=message.duration,
        start=message.start,
        stop=message.stop,
    )


class _FixtureOnRanks:
    """Stands in the controller for the value of a fixture, which lives on the ranks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<the fixture {self._name!r} lives on the ranks of this test>"


def stand_in_for_fixtures(item: pytest.Item, tmp_path: Path) -> None:
    """Fill ``item.funcargs`` for hooks that look there in the controller, as pytest's manual shows for makereport."""
    names = getattr(item, "fixturenames", ())
    values: dict[str, object] = {name: _FixtureOnRanks(name) for name in names}
    if "tmp_path" in values:
        values["tmp_path"] = tmp_path
    setattr(item, "funcargs", values)  # noqa: B010  only items with fixtures have it


def forget_xfail(item: pytest.Item) -> None:
    """Keep pytest's xfail mark off a merged report: the ranks have applied it already."""
    item.stash[xfailed_key] = None


def skip_item(reason: str) -> NoReturn:
    """Skip the item that runs; the summary shows where the test is, not this line."""
    raise pytest.skip.Exception(reason, _use_item_location=True)


def log_report(item: pytest.Item, report: pytest.TestReport) -> None:
    """Log a report in the middle of a phase, with the capture of output suspended."""
    manager: Any = item.config.pluginmanager.get_plugin("capturemanager")
    with manager.global_and_fixture_disabled() if manager is not None else contextlib.nullcontext():
        item.ihook.pytest_runtest_logreport(report=report)


def reported_item(session: pytest.Session, item: pytest.Item) -> pytest.Item:
    """Return the item for which a report may be sent now: pytest-xdist takes reports of its current item only."""
    interactor: Any = session.config.pluginmanager.get_plugin("workerinteractor")
    if interactor is None:
        return item
    current: pytest.Item = session.items[interactor.item_index]
    return current


def capture_is_off(config: pytest.Config) -> bool:
    """Tell whether the user asked for live output (``-s``)."""
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    return manager is None or manager._method == "no"


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


def tmp_path_factory(config: pytest.Config) -> pytest.TempPathFactory:
    """Return the session's factory without a fixture request.

    Raises:
        TmpdirSwitchedOff: with ``-p no:tmpdir``.
    """
    factory: pytest.TempPathFactory | None = getattr(config, "_tmp_path_factory", None)
    if factory is None:
        raise TmpdirSwitchedOff
    return factory


def retain_tmp_path(config: pytest.Config, path: Path, passed: bool) -> None:
    """Apply pytest's ``tmp_path_retention_policy`` to the folders of a test after its last rank has left it."""
    if tmp_path_factory(config)._retention_policy == "failed" and passed:
        for folder in (path, *path.parent.glob(f"{path.name}-rank[0-9]*")):
            shutil.rmtree(folder, ignore_errors=True)


def detach_from_worker(config: pytest.Config) -> None:
    """Let go of the pipes of an xdist worker: held open by a hung rank, they keep pytest-xdist waiting."""
    interactor: Any = config.pluginmanager.get_plugin("workerinteractor")
    if interactor is None:
        return
    pipes = interactor.channel.gateway._io
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (pipes.infile, pipes.outfile):
        os.dup2(null, stream.fileno())
    os.close(null)


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
