"""When a process looks at what a test has left behind, and how it says so: a plugin of that process.

A rank of a static world looks after each test. Elsewhere only tests that make Trainers or Fabrics are looked at.

The state is read before the test and compared in ``item.teardown``, which pytest calls after all fixtures of the
function have ended and before one of wider scope does. What fixtures of wider scope change, at their beginning or end,
is there for the tests that use them, so it is no leak. It is told of when the whole teardown is over: pytest would put
an error raised in ``item.teardown`` into a group with those of fixtures, in which ``pytest.exit`` is a plain failure.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import TYPE_CHECKING

import pytest

from lightning_disttest.engine.isolation import (
    Environment,
    Isolation,
    RandomNumbers,
    SignalHandlers,
    WorkingDirectory,
)
from lightning_disttest.engine.living import Children, Threads
from lightning_disttest.engine.torch_state import ProcessGroups, TorchSettings
from lightning_disttest.errors import LeakWarning, StateLeaked

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lightning_disttest.engine.context import RankContext
    from lightning_disttest.engine.isolation import Leak, Values


_ENDS = "that ends with the process of the test"
_STAYS = "that stays so in the tests after it"


class LeakGuard:
    """Sets back what each test has changed; ``intact`` is False once that was not possible.

    ``rank`` is None in the pytest process; ``only`` tells which tests are looked at, all of them if it is None.
    """

    def __init__(
        self, rank: RankContext | None, strict: bool, only: Callable[[pytest.Item], bool] | None = None
    ) -> None:
        self._rank = rank
        self._strict = strict
        self._only = only
        self._watching = False
        self._groups = ProcessGroups(at_once=rank is None)
        # What runs may go on changing the rest, so it is first.
        self._isolation = Isolation(
            (
                Threads(),
                Children(),
                self._groups,
                TorchSettings(),
                Environment(),
                WorkingDirectory(),
                SignalHandlers(),
                RandomNumbers(),
            )
        )
        self._leaks: list[Leak] | None = None  # of the test that runs; None until its state is compared
        self.intact = True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Read the state before a test, inside what other plugins put around it, and have it compared after."""
        if self._only is not None and not self._only(item):
            return (yield)
        setattr(item, "teardown", functools.partial(self._teardown, item.teardown))  # noqa: B010
        self._groups.destroy_left()
        self._isolation.begin()
        self._leaks = None
        self._watching = True
        try:
            return (yield)
        finally:
            self._watching = False
            delattr(item, "teardown")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Compare anew; a plugin that runs a test again does so inside the protocol."""
        self._leaks = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Tell what the test has left behind; beside an error of the teardown it is a warning, so that both are seen.

        A KeyboardInterrupt comes here at once, without ``item.teardown``.
        """
        if not self._watching:
            return (yield)
        try:
            result = yield
        except BaseException:
            for leak in self._compare():
                self._warn_in_any_case(item, leak)
            raise
        self._tell(item, self._compare())
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Let stay what a fixture of wider scope changes, until it ends.

        pytest runs finalizers from the last to the first: what is added here encloses the fixture's own end.
        """
        if fixturedef.scope == "function":
            return (yield)
        before_end: list[list[Values]] = []
        fixturedef.addfinalizer(lambda: self._isolation.adopt(before_end.pop()) if before_end else None)
        before = self._isolation.read() if self._watching else None
        try:
            return (yield)
        finally:
            if before is not None:
                self._isolation.adopt(before)
            fixturedef.addfinalizer(lambda: before_end.append(self._isolation.read()) if self._watching else None)

    def _teardown(self, genuine: Callable[[], None]) -> None:
        try:
            genuine()
        finally:
            self._compare()

    def _compare(self) -> list[Leak]:
        """Set the state back, once for each test, and return what was left behind."""
        if self._leaks is None:
            self._leaks = self._isolation.end()
            self.intact &= all(leak.undone for leak in self._leaks)
            self._leaks = [self._with_fate(leak) for leak in self._leaks]
        return self._leaks

    def _with_fate(self, leak: Leak) -> Leak:
        """Say what becomes of something that is still there: only a static world is replaced for it."""
        if leak.undone or self._is_static():
            return leak
        return dataclasses.replace(leak, done=_STAYS if self._rank is None else _ENDS)

    def _is_static(self) -> bool:
        return self._rank is not None and self._rank.kind == "static"

    def _place(self) -> str:
        if self._rank is None:
            return "in the pytest process"
        return f"on rank {self._rank.rank}" + (f" of {self._rank.world_size}" if self._rank.backend else "")

    def _tell(self, item: pytest.Item, leaks: Sequence[Leak]) -> None:
        if self._strict:
            self._fail(item, leaks, "--disttest-strict-leaks")
        errors = []
        for leak in leaks:
            try:
                _warn(item, leak)
            except LeakWarning:  # the first must not hide the others
                errors.append(leak)
        self._fail(item, errors, "a filter that makes warnings errors")

    def _fail(self, item: pytest.Item, leaks: Sequence[Leak], reason: str) -> None:
        if leaks:
            told = [(leak.what, leak.done) for leak in leaks]
            found = self._rank is None or self._is_static()
            error = StateLeaked(item.nodeid, self._place(), found, told, reason)
            pytest.fail(str(error), pytrace=False)

    def _warn_in_any_case(self, item: pytest.Item, leak: Leak) -> None:
        """Warn, also where a leak is a failure."""
        with warnings.catch_warnings():
            if self._strict:
                warnings.simplefilter("always")
            try:
                _warn(item, leak)
            except LeakWarning:
                warnings.simplefilter("always")
                _warn(item, leak)


def _warn(item: pytest.Item, leak: Leak) -> None:
    path, lineno, _ = item.location
    warning = LeakWarning(leak.what, leak.done)
    warnings.warn_explicit(warning, None, str(item.config.rootpath / path), (lineno or 0) + 1)
