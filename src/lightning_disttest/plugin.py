"""The pytest plugin: options, marks, hooks and fixtures. It delegates, and imports neither torch nor Lightning."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import pytest

from lightning_disttest import hookspecs
from lightning_disttest.engine import guard, running_tests, stopped_runs
from lightning_disttest.engine.context import current_rank
from lightning_disttest.errors import ConditionUnclear, InvalidMarks, MarkTooLate, RequirementMissing, UsageFault
from lightning_disttest.selection import factories, filters, marks, nothing_ran, removals, requirements
from lightning_disttest.settings import SETTINGS, add_options, find_option, resolve
from lightning_disttest.strategies import flags, launchers, multiprocess, packages

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from lightning_disttest.engine.context import RankContext
    from lightning_disttest.strategies.fabric import FabricFactory
    from lightning_disttest.strategies.faults import Faults
    from lightning_disttest.strategies.trainer import TrainerFactory
    from lightning_disttest.world import World

_REFUSAL = "disttest-refuse-all"
_PLANNED = pytest.StashKey[int]()
_RAISED = pytest.StashKey[bool]()
_WATCH = pytest.StashKey[guard.CollectionWatch]()
# Lightning's RunIf reads the first when it decorates a test, and copies of Lightning's conftest read all three.
_LIGHTNING_SWITCHES = ("standalone", "cuda_only", "tpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that this plugin calls."""
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prepare for the import of torch and Lightning, which a conftest may do already."""
    guard.watch_torch()
    launchers.watch_lightning()
    multiprocess.watch_lightning()
    flags.watch_trainers()
    with _usage_errors():
        settings = resolve(early_config, namespace=early_config.known_args_namespace)
    for field in _LIGHTNING_SWITCHES:
        if getattr(settings, field):
            _set_variable(early_config, find_option(field).environment, "1")


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options and declare the marks."""
    for marker in marks.MARKERS:
        config.addinivalue_line("markers", marker)
    with _usage_errors():
        config.stash[SETTINGS] = resolve(config)
    config.stash[_WATCH] = guard.CollectionWatch()
    if fields := filters.selecting(config.stash[SETTINGS]):
        config.pluginmanager.register(nothing_ran.NothingRan(fields), "disttest-nothing-ran")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(stopped_runs.StoppedRuns(config), "disttest-stopped-runs")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Get in before ``--stepwise``: of hooks alike, the one that was registered last is called first."""
    if session.config.pluginmanager.has_plugin("stepwiseplugin"):
        session.config.pluginmanager.register(_EarlyGrouping(), "disttest-early-grouping")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note which module does what a fork can not stand."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    watch = collector.config.stash[_WATCH]
    watch.begin()
    report = yield
    watch.end(collector.nodeid)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests whose mark has a list of world sizes."""
    marks.parametrize_world_size(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Translate marks before pytest and others select; then check the marks, select, and sort tests into groups."""
    marks.translate_aliases(items)
    fields = filters.selecting(config.stash[SETTINGS])
    watch = removals.Removals(items, fields) if fields else None
    if watch is not None:
        config.pluginmanager.register(watch, "disttest-removals")
    yield
    if watch is not None:
        watch.compare(items)
    _plan(config, items)


class _EarlyGrouping:
    """Sorts tests into groups before ``--stepwise`` looks where the run stopped: it goes by the order of the run."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort; what is wrong with marks is told later, of those tests that are left."""
        with contextlib.suppress(InvalidMarks):
            marks.plan_items(items)
        filters.group(items)


def _plan(config: pytest.Config, items: list[pytest.Item]) -> None:
    try:
        config.stash[_PLANNED] = marks.plan_items(items)
    except InvalidMarks as fault:
        _refuse(config, fault)
    fields = filters.selecting(config.stash[SETTINGS])
    if fields and (removed := filters.select(items, fields)):
        config.hook.pytest_deselected(items=removed)
    if config.stash.get(_PLANNED, 0):
        filters.group(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the test; skip it if this machine lacks a device for it, or fail it if that was required."""
    running_tests.begin(item)
    if current_rank() is not None:
        return  # decided in the controller
    problem = lack = None
    try:
        lack = requirements.missing_requirement(item, item.config.stash[SETTINGS])
    except (RequirementMissing, ConditionUnclear) as missing:
        problem = str(missing)
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    if lack is not None:
        from lightning_disttest.engine import pytest_bridge

        pytest_bridge.skip_item(lack)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that a fixture has marked: it runs here already, and the mark would be ignored."""
    if current_rank() is None and (late := marks.late_mark(item)) is not None:
        pytest.fail(str(MarkTooLate(item.nodeid, late)), pytrace=False)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note whether the test has failed before its fixtures end."""
    failed_before = call.when != "setup" and item.stash.get(_RAISED, False)
    item.stash[_RAISED] = failed_before or call.excinfo is not None


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note that the test has ended: what is launched now has no time limit of a test."""
    running_tests.end(nodeid)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say how many tests run on ranks."""
    return filters.summarize(items) if config.stash.get(_PLANNED, 0) else []


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run the loop with a controller around it, if any item needs one.

    trylast makes this the innermost wrapper, so that ranks are forked with what others set up around the loop, such
    as the handlers of --log-file.
    """
    _plan_latecomers(session)
    _watch_makers(session)
    needs_ranks = _needs_ranks(session)
    if not needs_ranks:
        guard.release_torch()
    # The main process of pytest-xdist is not told which tests its workers run on ranks.
    if not needs_ranks and not session.config.pluginmanager.has_plugin("dsession"):
        return (yield)
    from lightning_disttest.engine import termination

    with termination.in_order(session):
        return (yield from _with_controller(session)) if needs_ranks else (yield)


def _with_controller(session: pytest.Session) -> Generator[None, object, object]:
    from lightning_disttest.engine.controller import Controller

    _import_for_ranks(session.items)
    controller = Controller(session, session.config.stash[SETTINGS])
    try:
        try:
            controller.start(session.config.stash[_WATCH].culprits)
            # Not before the fork: ranks are to run their items without it.
            session.config.pluginmanager.register(controller, "disttest-controller")
        except UsageFault as fault:
            _refuse(session.config, fault)
        return (yield)
    finally:
        controller.stop()
        if session.config.pluginmanager.is_registered(controller):
            session.config.pluginmanager.unregister(controller)


def pytest_unconfigure() -> None:
    """End what the run has started, and leave torch as it was in a process that goes on, however the run ended."""
    guard.release_torch()
    if "lightning_disttest.engine.warm_spawn" in sys.modules:
        from lightning_disttest.engine import warm_spawn

        warm_spawn.stop_interpreter()


def pytest_disttest_rank_start(rank: RankContext) -> None:
    """Answer Lightning's launchers in ranks."""
    launchers.prepare_rank(rank)


@pytest.fixture(scope="session")
def world() -> World:
    """Return the world as this process sees it, for tests and fixtures of any scope; a plain test is a world of one."""
    from lightning_disttest.world import make_world

    return make_world()


@pytest.fixture
def rank_tmp_path(tmp_path: Path) -> Path:
    """Return a folder of this rank alone, beside the ``tmp_path`` that all ranks of a test share."""
    from lightning_disttest.world import make_world

    path = tmp_path.with_name(f"{tmp_path.name}-rank{make_world().rank}")
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def trainer_factory(tmp_path: Path) -> Iterator[TrainerFactory]:
    """Return a function that makes quick and quiet Trainers, fitted to the world of this test."""
    from lightning_disttest.strategies.trainer import TrainerMaker
    from lightning_disttest.world import make_world

    maker = TrainerMaker(tmp_path, make_world())
    yield maker
    maker.tear_down()


@pytest.fixture
def faults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    """Return an object that plans faults of ranks: they are killed, stopped or delayed, or raise, at a step or hook."""
    from lightning_disttest.errors import FaultNeverHappened
    from lightning_disttest.strategies.faults import Faults

    planned = Faults(tmp_path_factory.getbasetemp())
    yield planned
    problem = ""
    try:
        planned.tear_down(body_failed=request.node.stash.get(_RAISED, False))
    except FaultNeverHappened as never:
        problem = str(never)
    if problem:
        pytest.fail(problem, pytrace=False)


@pytest.fixture
def fabric_factory(tmp_path: Path) -> Iterator[FabricFactory]:
    """Return a function that makes Fabrics, fitted to the world of this test."""
    from lightning_disttest.strategies.fabric import FabricMaker
    from lightning_disttest.world import make_world

    maker = FabricMaker(tmp_path, make_world())
    yield maker
    maker.tear_down()


class _RefuseAll:
    """Fails every test of a pytest-xdist worker that found what ends a run with a usage error."""

    def __init__(self, fault: UsageFault) -> None:
        self._fault = fault

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Fail the test before anything of it runs."""
        pytest.fail(str(self._fault), pytrace=False)


def _plan_latecomers(session: pytest.Session) -> None:
    """Plan tests that got their marks after this plugin's turn in the collection, from hooks that come later."""
    try:
        session.config.stash[_PLANNED] = marks.plan_items(session.items)
    except InvalidMarks as fault:
        _refuse(session.config, fault)


def _watch_makers(session: pytest.Session) -> None:
    """Look at what plain tests leave behind that make Trainers or Fabrics; others are not touched."""
    if any(factories.uses_factory_here(item) for item in session.items):
        from lightning_disttest.engine.leak_guard import LeakGuard

        strict = session.config.stash[SETTINGS].strict_leaks
        watch = LeakGuard(None, strict, factories.uses_factory_here)
        session.config.pluginmanager.register(watch, "disttest-makers")


def _needs_ranks(session: pytest.Session) -> bool:
    option = session.config.option
    if option.collectonly or getattr(option, "setupplan", False):
        return False
    if session.testsfailed and not option.continue_on_collection_errors:
        return False
    planned = session.config.stash.get(_PLANNED, 0)
    return bool(planned) and any(marks.plan_of(item) is not None for item in session.items)


def _import_for_ranks(items: list[pytest.Item]) -> None:
    """Import once, before the fork, what every rank would import for itself."""
    plans = [plan for item in items if (plan := marks.plan_of(item)) is not None]
    if any(plan.backend for plan in plans):
        import torch.distributed  # noqa: F401
    names = {name for item in items for name in getattr(item, "fixturenames", ())}
    packages.import_for(names)
    if "faults" in names:
        from lightning_disttest.strategies import faults  # noqa: F401

        packages.import_trainers()


def _refuse(config: pytest.Config, fault: UsageFault) -> None:
    """End the run with a usage error; in a worker of pytest-xdist, which would be replaced for ever, fail all tests."""
    if not hasattr(config, "workerinput"):
        raise pytest.UsageError(str(fault)) from None
    if not config.pluginmanager.has_plugin(_REFUSAL):
        config.pluginmanager.register(_RefuseAll(fault), _REFUSAL)


@contextlib.contextmanager
def _usage_errors() -> Generator[None, None, None]:
    try:
        yield
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None


def _set_variable(config: pytest.Config, name: str, value: str) -> None:
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    config.add_cleanup(restore)
