"""The controller: the pytest process. Sends distributed items to ranks and makes one report per phase of theirs."""

from __future__ import annotations

import functools
import itertools
import re
import secrets
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from lightning_disttest.engine import guard, measuring, one_process, processes, pytest_bridge, stand_ins
from lightning_disttest.engine.journal import Journal
from lightning_disttest.engine.messages import RunItem
from lightning_disttest.engine.one_process import OneProcess
from lightning_disttest.engine.outcomes import Outcome, exceptions_of, hidden_failure
from lightning_disttest.engine.rank import prepare_zygote, rank_main
from lightning_disttest.engine.supervisor import Supervisor
from lightning_disttest.engine.testrun import TestRun
from lightning_disttest.engine.worlds import LiveWorld, WorldPool, WorldSpec, describe_lost
from lightning_disttest.errors import BenchmarkOnRanks, RankNotStarted, UnsafeFork, ZygoteLost
from lightning_disttest.reporting.merge import Frame, apply_verdict, merge_attributes, merge_subreports
from lightning_disttest.reporting.properties import merge_values, properties_of
from lightning_disttest.reporting.stories import Fate, name_ranks
from lightning_disttest.reporting.verdict import PhaseVerdict, add_problems, describe_leaving, judge
from lightning_disttest.selection.filters import next_of_world
from lightning_disttest.selection.limits import limit_of
from lightning_disttest.selection.marks import Plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from lightning_disttest.engine.testrun import TestRecord
    from lightning_disttest.settings import Settings

_NAME_LENGTH = 30
_SEED_BITS = 32
_RETIRE_S = 300.0  # when there is no time limit


_OUTCOME = pytest.StashKey[Outcome]()


class Controller:
    """Runs the distributed and standalone items of one session; registered as a plugin while it does."""

    def __init__(self, session: pytest.Session, settings: Settings) -> None:
        self._session = session
        self._config = session.config
        self._settings = settings
        self._indices = {item: index for index, item in enumerate(session.items)}
        self._next = next_of_world(session.items)
        self._folders = itertools.count()
        self._journal = Journal()
        self._supervisor = Supervisor(pytest_bridge.live_output(session.config), self._journal.refresh)
        self._pool: WorldPool | None = None
        self._refusal: UnsafeFork | None = None
        self._log_switch = pytest_bridge.switch_off_log_capture(session)

    def start(self, culprits: list[str]) -> None:
        """Fork the zygote, if this process can be forked, and take over the items that need ranks."""
        folder = pytest_bridge.tmp_path_factory(self._config).mktemp("disttest-worlds")
        try:
            self._fork_zygote(culprits)
        except UnsafeFork as refusal:
            self._refusal = refusal
        else:
            self._pool = WorldPool(self._supervisor, folder)
            self._journal.open(self._config)
        guard.release_torch()
        processes.freeze_memory()
        for item in self._session.items:
            if plan_of(item) is not None:
                _replace_phases(item, self)

    def _fork_zygote(self, culprits: list[str]) -> None:
        guard.check_fork(culprits)
        session = self._session
        try:
            self._supervisor.start(lambda: prepare_zygote(session), functools.partial(rank_main, session))
        except OSError as error:
            raise UnsafeFork(f"the fork failed ({error})", None) from error

    def stop(self) -> None:
        """End all worlds in order, then the zygote."""
        try:
            if self._pool is not None:
                self._retire_kept(self._pool)
        finally:
            if self._pool is not None:
                self._pool.end_all()
            self._supervisor.stop()
            self._journal.close()
            processes.thaw_memory()
        if self._pool is not None:
            measuring.take_over(self._pool.folder)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Spare the empty phases of an item that runs on ranks the capture of logs."""
        self._log_switch.on = plan_of(item) is not None
        try:
            return (yield)
        finally:
            self._log_switch.on = False

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the merged outcome in place of the controller's own, which is empty.

        trylast makes this the innermost wrapper: every other plugin sees the merged report.
        """
        report = yield
        outcome = item.stash.get(_OUTCOME, None)
        if outcome is None:
            return report
        if report.when == "teardown":
            del item.stash[_OUTCOME]  # items live as long as the session; what the ranks sent need not
        if call.excinfo is None:
            self._put_in(report, call, item, outcome, outcome.verdicts.get(str(report.when), PhaseVerdict("passed")))
        elif (verdict := hidden_failure(outcome, str(report.when))) is not None:
            raised = report.longrepr
            self._put_in(report, call, item, outcome, verdict)
            text = raised[2] if isinstance(raised, tuple) else str(raised)
            report.sections.append((f"Raised in {report.when} by a hook in the pytest process", text))
        return report

    def _put_in(
        self,
        report: pytest.TestReport,
        call: pytest.CallInfo[None],
        item: pytest.Item,
        outcome: Outcome,
        verdict: PhaseVerdict,
    ) -> None:
        pytest_bridge.forget_xfail(item)
        apply_verdict(report, verdict, outcome.stories, outcome.frame)
        merge_attributes(report, outcome.stories)
        report.user_properties = outcome.properties
        if verdict.outcome != "failed":
            return
        # With --pdb there is none, as it has no frames to debug; but what a hook raised must not speak for the ranks.
        debugged = getattr(self._config.option, "usepdb", False) and call.excinfo is None
        call.excinfo = None if debugged else stand_ins.stand_in(exceptions_of(verdict, report))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Keep the timer of pytest-timeout off a test on ranks: its limit is taken over (``selection.limits``)."""
        return True if plan_of(item) is not None else None

    def setup(self, item: pytest.Item) -> None:
        """Run all phases of an item on its ranks; stands in for ``item.setup``."""
        if _OUTCOME in item.stash:  # a rerun starts anew
            del item.stash[_OUTCOME]
        plan = plan_of(item)
        assert plan is not None
        if self._refusal is not None:
            _fail(item, self._refusal)
        if pytest_bridge.is_benchmarked(item):
            _fail(item, BenchmarkOnRanks())
        assert self._pool is not None
        reason: Exception | None = None
        try:
            with self._journal.around_test():
                record, outcome = self._run(item, plan, self._pool)
        except (ZygoteLost, RankNotStarted) as error:
            reason = error
        finally:
            self._pool.remove_values()
        if reason is not None:  # not in the except clause, or pytest would show both exceptions
            _fail(item, reason)
        item.stash[_OUTCOME] = outcome
        self._pass_on_warnings(record)
        self._pass_on_properties(record)
        if record.exit is not None:
            rank, stop = record.exit
            pytest.exit(f"{stop.text} (pytest.exit was called on rank {rank} in {item.nodeid})", stop.returncode)

    def runtest(self, item: pytest.Item) -> None:
        """Report the subtests of an item; stands in for ``item.runtest``."""
        outcome = item.stash[_OUTCOME]
        for report in merge_subreports(outcome.stories, outcome.frame):
            pytest_bridge.log_report(item, report)

    def teardown(self, item: pytest.Item) -> None:
        """Stand in for ``item.teardown``: the ranks have ended their fixtures."""

    def _run(self, item: pytest.Item, plan: Plan, pool: WorldPool) -> tuple[TestRecord, Outcome]:
        timeout = limit_of(item, plan, self._settings)
        command = pytest_bridge.command_for(item)
        world, record, message = self._run_on_ranks(item, plan, pool, timeout, command)
        if lost := _lost_before(world, record, timeout):
            self._report_late(world, lost)
            pool.end(world)
            # On new ranks: it never began.
            world, record, message = self._run_on_ranks(item, plan, pool, timeout, command)
        world.last_nodeid = item.nodeid
        world.limit = timeout or _RETIRE_S
        problems = self._release(world, record, pool, message)
        outcome = self._judge(item, plan, record, problems, timeout, command)
        if outcome.passed and one_process.is_wanted(record.stories):
            alone = OneProcess(self._supervisor, pool, self._settings, self._journal)
            outcome = outcome.after_one_process(*alone.run(item, world.spec, message, outcome.stories, outcome.frame))
        pytest_bridge.retain_tmp_path(self._config, Path(message.tmp_path), outcome.passed)
        return record, outcome

    def _run_on_ranks(
        self, item: pytest.Item, plan: Plan, pool: WorldPool, timeout: float, command: str
    ) -> tuple[LiveWorld, TestRecord, RunItem]:
        deadline = time.monotonic() + timeout if timeout else None
        spec = WorldSpec(plan.kind, plan.world_size, plan.device, plan.backend)
        if (dead := pool.take_dead(spec)) is not None:
            self._report_late(dead, dead.problems)
            pool.end(dead)
        world = pool.take(spec)
        tmp_path = self._make_tmp_path(item)
        pytest_bridge.stand_in_for_fixtures(item, tmp_path)
        seed = secrets.randbits(_SEED_BITS)
        message = RunItem(self._indices[item], self._next.get(item), str(tmp_path), seed, deadline, timeout)
        self._journal.begin(item.nodeid, command, world.ranks)
        run = TestRun(self._supervisor, pool, world, message, self._settings, item)
        try:
            record = run.run()
        except BaseException:
            pool.interrupt(world)
            raise
        if record.inherited:
            self._report_late(world, list(record.inherited))
        return world, record, message

    def _release(self, world: LiveWorld, record: TestRecord, pool: WorldPool, message: RunItem) -> list[str]:
        """Keep the world for the next test, or end it; return the problems of fixtures that ended with it."""
        in_order = all(story.fate in (Fate.FINISHED, Fate.PLANNED) for story in record.stories)
        if world.spec.kind != "static" or not in_order:
            pool.end(world)
        elif not world.healthy or message.next_index is None or self._has_outgrown(world):
            return pool.retire(world)
        else:
            pool.give_back(world)
        return []

    def _has_outgrown(self, world: LiveWorld) -> bool:
        return world.memory.has_outgrown([rank.pid for rank in world.ranks], self._settings.world_memory)

    def _judge(
        self, item: pytest.Item, plan: Plan, record: TestRecord, problems: list[str], timeout: float, command: str
    ) -> Outcome:
        path, lineno, _ = item.location
        frame = Frame(
            path=path,
            lineno=(lineno or 0) + 1,
            world_size=len(record.stories),
            is_fresh_process=plan.kind == "standalone" and len(record.stories) == 1,
            timeout=timeout,
            grace=self._settings.grace,
            seconds=record.seconds,
            rank_output=self._settings.rank_output,
            command=command,
        )
        verdicts = judge(record.stories)
        if problems:
            verdicts["teardown"] = add_problems(verdicts["teardown"], problems)
        return Outcome(verdicts, record.stories, frame, properties_of(record.stories, plan.kind))

    def _make_tmp_path(self, item: pytest.Item) -> Path:
        """Make the folder that all ranks share, as ``tmp_path`` names it; only name it if no fixture asks for it."""
        factory = pytest_bridge.tmp_path_factory(self._config)
        name = re.sub(r"\W", "_", item.name)[:_NAME_LENGTH]
        if "tmp_path" in getattr(item, "fixturenames", ()):
            return factory.mktemp(name, numbered=True)
        return factory.getbasetemp() / f"{name}-{next(self._folders)}"

    def _pass_on_warnings(self, record: TestRecord) -> None:
        """Record each warning of the ranks once in this process, for the summary."""
        ranks_of: dict[Any, list[int]] = {}
        for rank, warning in record.warnings:
            ranks_of.setdefault(warning, []).append(rank)
        for warning, ranks in ranks_of.items():
            where = f" ({name_ranks(sorted(set(ranks)))})" if len(record.stories) > 1 else ""
            message = warnings.WarningMessage(
                message=f"{warning.message}{where}",
                category=stand_ins.find_class(warning.category, Warning) or UserWarning,
                filename=warning.filename,
                lineno=warning.lineno,
            )
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": message,
                    "when": warning.when,
                    "nodeid": warning.nodeid,
                    "location": None,
                }
            )

    def _pass_on_properties(self, record: TestRecord) -> None:
        """Record what ranks recorded with ``record_testsuite_property``."""
        in_order = sorted(record.properties, key=lambda recorded: recorded[0])  # not in that of their arrival
        values = merge_values([(rank, event.name, event.value) for rank, event in in_order])
        for name, value in values:
            pytest_bridge.add_suite_property(self._config, name, value)

    def _retire_kept(self, pool: WorldPool) -> None:
        for world in pool.kept():
            if problems := pool.retire(world):
                self._report_late(world, problems)

    def _report_late(self, world: LiveWorld, problems: list[str]) -> None:
        """Report an error at the last test of a world, whose own report has been given already."""
        last = next((item for item in self._session.items if item.nodeid == world.last_nodeid), None)
        if last is None:
            return
        item = pytest_bridge.reported_item(self._session, last)
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="failed",
            longrepr=f"{last.nodeid}: {describe_leaving(problems)}",
            when="teardown",
        )
        pytest_bridge.log_report(item, report)


def _lost_before(world: LiveWorld, record: TestRecord, timeout: float) -> list[str]:
    """Return what to say of ranks of a kept world that were lost by what the last test had left there.

    They died, or hung until the time limit, before they began with this item.
    """
    if not world.last_nodeid or record.exit is not None:
        return []
    hows = {Fate.DIED: "", Fate.TIMED_OUT: f"did not take the next test within {timeout:g} s, and was killed: it hung"}
    return [
        describe_lost(handle, story.how or hows[story.fate], handle.files.previous_output() + story.last_output)
        for handle, story in zip(world.ranks, record.stories, strict=True)
        if story.phase == "start" and story.fate in hows
    ]


def _fail(item: pytest.Item, reason: Exception) -> NoReturn:
    """Fail a test that never began, whatever failure of its body was expected."""
    pytest_bridge.forget_xfail(item)
    pytest.fail(f"{item.nodeid} cannot run: {reason}", pytrace=False)


def _replace_phases(item: pytest.Item, controller: Controller) -> None:
    """Have pytest's runner call the controller for this item; the protocol and every plugin around it stay."""
    for phase in ("setup", "runtest", "teardown"):
        setattr(item, phase, functools.partial(getattr(controller, phase), item))
