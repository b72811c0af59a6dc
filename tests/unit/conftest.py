"""Makers of what the pure functions take: reports, the stories of ranks, and what surrounds them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.reporting.merge import Frame
from lightning_disttest.reporting.stories import Fate, RankStory
from lightning_disttest.reporting.waiting import Collective
from tests.harness import plugins_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from lightning_disttest.settings import RankOutput
    from tests.unit.facts import Facts


COMMAND = "pytest test_it.py::test_it"


class Make:
    """Makes reports as a rank would send them, and stories out of them."""

    def report(self, when: str, outcome: str = "passed", longrepr: Any = None, **more: Any) -> pytest.TestReport:
        """Return a report of one phase."""
        return pytest.TestReport(
            nodeid="test_it.py::test_it",
            location=("test_it.py", 6, "test_it"),
            keywords={},
            outcome=outcome,  # type: ignore[arg-type]
            longrepr=longrepr,
            when=when,  # type: ignore[arg-type]
            **more,
        )

    def passed(self, *phases: str) -> list[pytest.TestReport]:
        """Return passed reports of these phases; of all three if none is named."""
        return [self.report(phase) for phase in phases or ("setup", "call", "teardown")]

    def failed(self, when: str, error: BaseException, **more: Any) -> pytest.TestReport:
        """Return a failed report with a real traceback of ``error``."""
        return self.report(when, "failed", _represent(error), **more)

    def skipped(self, when: str, reason: str) -> pytest.TestReport:
        """Return a skipped report."""
        return self.report(when, "skipped", ("test_it.py", 7, f"Skipped: {reason}"))

    def xfailed(self, when: str, error: BaseException, reason: str = "known") -> pytest.TestReport:
        """Return the report of an expected failure."""
        return self.report(when, "skipped", _represent(error), wasxfail=reason)

    def strict_xpass(self) -> pytest.TestReport:
        """Return the report of a test that passed though xfail(strict=True) forbids it."""
        return self.report("call", "failed", "[XPASS(strict)] known")

    def story(
        self,
        rank: int,
        *reports: pytest.TestReport,
        fate: Fate = Fate.FINISHED,
        phase: str = "exit",
        arrivals: tuple[int, ...] | None = None,
        **more: Any,
    ) -> RankStory:
        """Return the story of a rank; all that it reported arrived at moment 0 unless ``arrivals`` says otherwise."""
        moments = (0,) * len(reports) if arrivals is None else arrivals
        return RankStory(rank, 100 + rank, fate, phase, tuple(reports), moments, **more)

    def died(self, rank: int, phase: str, *reports: pytest.TestReport, at: int = 0, **more: Any) -> RankStory:
        """Return the story of a rank that was killed in ``phase``, noticed at moment ``at``."""
        more.setdefault("how", "killed by SIGKILL")
        return self.story(rank, *reports, fate=Fate.DIED, phase=phase, end_arrival=at, **more)

    def waited(self, rank: int, phase: str, *reports: pytest.TestReport, at: int = 99, **more: Any) -> RankStory:
        """Return the story of a rank that was still in ``phase`` when the grace was over."""
        return self.story(rank, *reports, fate=Fate.WAITED, phase=phase, end_arrival=at, **more)

    def timed_out(self, rank: int, phase: str, *reports: pytest.TestReport, at: int = 99, **more: Any) -> RankStory:
        """Return the story of a rank that was still in ``phase`` at the time limit."""
        return self.story(rank, *reports, fate=Fate.TIMED_OUT, phase=phase, end_arrival=at, **more)

    def collective(self, name: str = "all_reduce", number: int = 1, **more: Any) -> Collective:
        """Return an operation of the default group of two ranks that was begun and is not done."""
        fields: dict[str, Any] = {
            "group": "0",
            "description": "default_pg",
            "tensors": (),
            "pending": True,
            "point_to_point": False,
            "members": (0, 1),
        }
        return Collective(name, number=number, **{**fields, **more})

    def frame(
        self,
        world_size: int = 2,
        rank_output: RankOutput = "failed",
        is_fresh_process: bool = False,
        seconds: float = 0.0,
    ) -> Frame:
        """Return what the reports of one test have in common."""
        return Frame("test_it.py", 7, world_size, is_fresh_process, 300.0, 0.5, seconds, rank_output, COMMAND)

    def subreport(self, msg: str, outcome: str = "passed", longrepr: Any = None) -> pytest.TestReport:
        """Return the report of a subtest; what tells it from others is its ``context``."""
        context: Mapping[str, str] = {"msg": msg}
        return self.report("call", outcome, longrepr, context=context)

    def longrepr(self, error: BaseException) -> Any:
        """Return what pytest shows for an error."""
        return _represent(error)


@pytest.fixture
def make() -> Make:
    """Return the maker of reports and stories."""
    return Make()


@pytest.fixture
def make_item(request: pytest.FixtureRequest) -> Callable[..., pytest.Item]:
    """Return a function that makes an item of a name and marks; quicker than collecting a module for it."""

    def make_item(name: str, *marks: pytest.MarkDecorator) -> pytest.Item:
        def test() -> None: ...

        item = pytest.Function.from_parent(request.node.parent, name=name, callobj=test)
        for mark in marks:
            item.add_marker(mark)
        return item

    return make_item


@pytest.fixture
def facts(tmp_path: Path) -> Iterator[Facts]:
    """Return a changer of facts on a machine with no device and none of the packages that RunIf knows."""
    from tests.unit.facts import bare_machine  # imports Lightning

    with bare_machine(tmp_path) as facts:
        yield facts


TORCH_FILE = "site-packages/torch/distributed/distributed_c10d.py"


def raised_in_torch(error: Exception) -> Exception:
    """Have an error look as if torch had raised it, wherever a test makes a report of it."""
    setattr(error, "raised_in", TORCH_FILE)  # noqa: B010  an attribute of these tests
    return error


def _represent(error: BaseException) -> Any:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001  any error may be represented
        longrepr: Any = pytest.ExceptionInfo.from_exception(raised).getrepr(style="short")
    if getattr(error, "raised_in", None) == TORCH_FILE:
        longrepr.reprcrash.path = TORCH_FILE
    return longrepr


@pytest.fixture(autouse=True)
def few_plugins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep plugins that change or warn of things out of the runs that ``pytester`` makes in this process."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")  # it clears the variable
        monkeypatch.setenv("PYTEST_ADDOPTS", shlex.join(plugins_off()))
