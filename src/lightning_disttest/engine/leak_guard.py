"""When a rank of a static world looks at what a test has left behind, and how it says so: a plugin of that rank.

The state is read before the test and compared in ``item.teardown``, which pytest calls after all fixtures of the
function have ended and before one of wider scope does. What fixtures of wider scope change, at their beginning or end,
is there for the tests that use them, so it is no leak. It is told of when the whole teardown is over: pytest would put
an error raised in ``item.teardown`` into a group with those of fixtures, in which ``pytest.exit`` is a plain failure.
"""

from __future__ import annotations

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


class LeakGuard:
    """Sets back what each test has changed; ``intact`` is False once that was not possible."""

    def __init__(self, rank: RankContext, strict: bool) -> None:
        self._rank = rank
        self._strict = strict
        self._groups = ProcessGroups()
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
        setattr(item, "teardown", functools.partial(self._teardown, item.teardown))  # noqa: B010
        self._groups.destroy_left()
        self._isolation.begin()
        self._leaks = None
        try:
            return (yield)
        finally:
            delattr(item, "teardown")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Tell what the test has left behind; beside an error of the teardown it is a warning, so that both are seen.

        A KeyboardInterrupt comes here at once, without ``item.teardown``.
        """
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
        before = self._isolation.read()
        try:
            return (yield)
        finally:
            self._isolation.adopt(before)
            fixturedef.addfinalizer(lambda: before_end.append(self._isolation.read()))

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
        return self._leaks

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
            error = StateLeaked(item.nodeid, self._rank.rank, self._rank.world_size, told, reason)
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
