"""Where the controller touches pytest's private parts; ``pytest_in_rank`` does it for ranks."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.junitxml import xml_key
from _pytest.skipping import xfailed_key

from lightning_disttest.errors import TmpdirSwitchedOff
from lightning_disttest.reporting.command import command_alone
from lightning_disttest.settings import OPTIONS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from lightning_disttest.engine.messages import PhasePassed


_PROGRAMS = ("pytest", "py.test")
_INI_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


class _Relay:
    """A hook relay whose reporting hooks reach the recorder alone."""

    def __init__(self, relay: Any, reporting: dict[str, Any]) -> None:
        self._relay = relay
        self.__dict__.update(reporting)

    def __getattr__(self, name: str) -> Any:
        caller = getattr(self._relay, name)
        self.__dict__[name] = caller
        return caller


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


class _FixturesOnRanks(dict[str, object]):
    """``item.funcargs`` in the controller: a fixture that lives on ranks is not in it, but can be asked for.

    A hook that asks whether a fixture is there would go on to use it; one that just takes it, as pytest's manual shows
    for makereport, must not be an error.
    """

    def __missing__(self, name: str) -> object:
        return _FixtureOnRanks(name)


def stand_in_for_fixtures(item: pytest.Item, tmp_path: Path) -> None:
    """Fill ``item.funcargs`` for hooks that look there in the controller."""
    values = _FixturesOnRanks()
    if "tmp_path" in getattr(item, "fixturenames", ()):
        values["tmp_path"] = tmp_path
    setattr(item, "funcargs", values)  # noqa: B010  only items with fixtures have it


def forget_xfail(item: pytest.Item) -> None:
    """Keep pytest's xfail mark off a merged report: the ranks have applied it already."""
    item.stash[xfailed_key] = None


def skip_item(reason: str) -> NoReturn:
    """Skip the item that runs; the summary shows where the test is, not this line."""
    raise pytest.skip.Exception(reason, _use_item_location=True)


def is_benchmarked(item: pytest.Item) -> bool:
    """Tell whether pytest-benchmark is going to measure an item."""
    session: Any = getattr(item.config, "_benchmarksession", None)
    return session is not None and not session.disabled and "benchmark" in getattr(item, "fixturenames", ())


def summary_line(report: pytest.TestReport) -> str:
    """Return the line of a failed report that the short summary shows."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message).strip().partition("\n")[0]


def add_suite_property(config: pytest.Config, name: str, value: str) -> None:
    """Add a property of the whole run to the JUnit file, if there is one and it has not got it.

    A session fixture records it once in each world, and once more if a plain test uses the fixture.
    """
    junit = config.stash.get(xml_key, None)
    if junit is not None:
        junit.add_global_property(name, value)
        *others, added = junit.global_properties
        if added in others:
            junit.global_properties.pop()


def log_report(item: pytest.Item, report: pytest.TestReport) -> None:
    """Log a report in the middle of a phase, with the capture of output suspended."""
    manager: Any = item.config.pluginmanager.get_plugin("capturemanager")
    with _capture_suspended(manager):
        item.ihook.pytest_runtest_logreport(report=report)


def reported_item(session: pytest.Session, item: pytest.Item) -> pytest.Item:
    """Return the item for which a report may be sent now: pytest-xdist takes reports of its current item only."""
    interactor: Any = session.config.pluginmanager.get_plugin("workerinteractor")
    if interactor is None:
        return item
    current: pytest.Item = session.items[interactor.item_index]
    return current


def live_output(config: pytest.Config) -> Callable[[str], None] | None:
    """Return what shows the lines that ranks write past pytest's capture, None if they are not to be shown live.

    With ``-s`` and ``--capture=tee-sys`` that is the output of tests, with ``--setup-show`` pytest's own lines.
    """
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    is_captured = manager is not None and manager._method not in ("no", "tee-sys")
    if is_captured and not getattr(config.option, "setupshow", False):
        return None

    def show(text: str) -> None:
        with _capture_suspended(manager):
            sys.stdout.write(text)
            sys.stdout.flush()

    return show


def show_line(config: pytest.Config, text: str) -> None:
    """Show a text on the terminal while a test runs; a worker of pytest-xdist has none."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        with _capture_suspended(config.pluginmanager.get_plugin("capturemanager")):
            reporter.ensure_newline()
            if reporter._tw.width_of_current_line:  # with -q there is a line of dots that the above does not know
                reporter.write_line("")
            reporter.write_line(text)
            reporter.flush()


def command_for(item: pytest.Item) -> str:
    """Return the command that runs an item again, alone, from the folder in which pytest was started."""
    config: Any = item.config
    here = config.invocation_params.dir
    _, separator, name = item.nodeid.partition("::")
    # A worker of pytest-xdist has the arguments of the process that started it, but not its program.
    program, *_ = getattr(config, "workerinput", {}).get("mainargv", sys.argv)
    return command_alone(
        os.path.relpath(item.path, here) + separator + name,
        ("pytest",) if Path(program).stem in _PROGRAMS else ("python", "-m", "pytest"),
        [*map(str, config.invocation_params.args), *_config_file_option(config, item.path)],
        {
            name: "1" if action.nargs is None else str(action.nargs)
            for action in config._parser.optparser._actions
            for name in action.option_strings
            if action.nargs != 0
        },
        _variables_set(config),
    )


def _variables_set(config: pytest.Config) -> dict[str, str]:
    """Return the variables by which options of this package were set, not those that follow from its options."""
    return {
        option.environment: value
        for option in OPTIONS
        if (value := os.environ.get(option.environment)) and getattr(config.option, option.dest, None) is None
    }


def _config_file_option(config: pytest.Config, path: Path) -> list[str]:
    """Name the ini file of this run, if pytest would take another one for the test alone: one nearer to it."""
    ini = config.inipath
    if ini is None or getattr(config.option, "inifilename", None):
        return []
    nearer = itertools.takewhile(lambda folder: folder != ini.parent, path.parents)
    if ini.parent in path.parents and not any((folder / name).exists() for folder in nearer for name in _INI_FILES):
        return []
    return ["-c", os.path.relpath(ini, config.invocation_params.dir)]


def _capture_suspended(manager: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if manager is None else manager.global_and_fixture_disabled()


def find_cache_folder(config: pytest.Config, name: str) -> Path | None:
    """Return the folder of that name in pytest's cache, which need not be there; None without a cache."""
    cache: Any = getattr(config, "cache", None)
    return None if cache is None else cache._cachedir / cache._CACHE_PREFIX_DIRS / name


def make_cache_folder(config: pytest.Config, name: str) -> Path | None:
    """Make the folder of that name in pytest's cache and return it; None without a cache.

    Raises:
        OSError: if it can not be made.
    """
    return None if find_cache_folder(config, name) is None else config.cache.mkdir(name)


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


def process_of_worker(node: Any) -> subprocess.Popen[bytes]:
    """Return a worker of pytest-xdist as the process that was started on this machine; called in its main process."""
    process: subprocess.Popen[bytes] = node.gateway._io.popen
    return process


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
