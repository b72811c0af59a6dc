"""What a line of the compatibility table is: a plugin or an option, the run that proves it, and how it can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.harness import Run

COMMON = """
    import pytest

    MARKS = {
        "static": pytest.mark.distributed(2),
        "dynamic": pytest.mark.distributed(2, static=False),
        "standalone": pytest.mark.standalone,
    }
    every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=mark) for kind, mark in MARKS.items()])

    @every_kind
    def test_passes(kind, world):
        assert world.world_size == (1 if kind == "standalone" else 2)

    @every_kind
    def test_fails(kind, world):
        assert world.rank < world.world_size - 1, "the last rank fails"

    @every_kind
    def test_skips(kind):
        pytest.skip("skipped on all ranks")

    def test_plain(): pass
"""
KINDS = ("static", "dynamic", "standalone")
# A conftest for runs that are to start no rank: any rank that starts leaves a file.
NOTES_RANKS = """
    def pytest_disttest_rank_start(config, rank):
        (config.rootpath / f"started-{rank.world_size}-{rank.rank}").touch()
"""
OUTCOMES = {
    "test_plain": "passed",
    **{f"test_passes[{kind}]": "passed" for kind in KINDS},
    **{f"test_fails[{kind}]": "failed" for kind in KINDS},
    **{f"test_skips[{kind}]": "skipped" for kind in KINDS},
}


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        name: what it is, as users write it: ``pytest-xdist``, ``--maxfail``.
        on_ranks: what it does to tests on ranks, for the table.
        check: looks at the run with ``arguments`` and raises AssertionError if the line does not hold; it has to
            raise for the run with ``off`` in their place, so that it is known to depend on the feature.
        also: the same for more that the line says; each of them has to raise for the run with ``off``.
        arguments: of the run that shows the feature; ``{folder}`` stands for the folder of the run.
        off: arguments of the same run without the feature.
        files: test files beside ``COMMON``, which is ``test_common.py``.
        env: environment variables of the run that shows the feature.
        ini: lines of pytest.ini.
        common: outcomes of the tests of ``COMMON``; those that are not in it must not have run.
        plugins: entry points of the plugins that the line needs, which the suite switches off otherwise.
        before: arguments of a run that goes before, in the same folder; None for no such run.
        cwd: where the run that shows the feature is started, inside the folder.
        since: the major version of pytest that has the feature first.
    """

    name: str
    on_ranks: str
    check: Callable[[Run], None]
    also: tuple[Callable[[Run], None], ...] = ()
    arguments: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    ini: str = ""
    common: Mapping[str, str] = field(default_factory=lambda: OUTCOMES)
    plugins: tuple[str, ...] = ()
    before: tuple[str, ...] | None = None
    cwd: str = "."
    since: int = 8

    def way(self, *, feature: bool) -> tuple[tuple[str, ...], Mapping[str, str], str, str]:
        """Return arguments, environment, ini lines and working folder of the run with the feature, or without."""
        return (self.arguments, self.env, self.ini, self.cwd) if feature else (self.off, {}, "", ".")

    @property
    def has_its_pytest(self) -> bool:
        """Whether the pytest that is installed has the feature."""
        return int(pytest.__version__.partition(".")[0]) >= self.since


def common_outcomes(run: Run) -> dict[str, str]:
    """Return the outcomes of the tests of ``COMMON``."""
    return {name: outcome for name, outcome in run.outcomes.items() if name in OUTCOMES}


def starts_no_rank(run: Run) -> None:
    """Look for the files of ``NOTES_RANKS``."""
    assert sorted(path.name for path in run.folder.glob("started-*")) == []


def without(*names: str) -> dict[str, str]:
    """Return the outcomes of ``COMMON`` without the tests whose names begin like one of ``names``."""
    return {name: outcome for name, outcome in OUTCOMES.items() if not name.startswith(names)}
