"""Every line of the compatibility table holds, and would not if the feature were switched off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.compatibility.lines import COMMON, Line, common_outcomes
from tests.compatibility.table import LINES, PAGE, render
from tests.harness import Run, lines_with, run_pytest, write_tests

RunLine = Callable[..., Run]
every_line = pytest.mark.parametrize("line", LINES, ids=lambda line: line.name.strip("`"))


@pytest.fixture(scope="module")
def run_line(tmp_path_factory: pytest.TempPathFactory) -> RunLine:
    """Return a function that runs a line, with its feature or without; runs that are the same are run once."""
    runs: dict[str, Run] = {}

    def run(line: Line, *, feature: bool) -> Run:
        way = line.way(feature=feature)
        key = repr((line.files, line.plugins, line.before, way))
        if key not in runs:
            runs[key] = _run_in(tmp_path_factory.mktemp("line"), line, *way)
        return runs[key]

    return run


def _run_in(folder: Path, line: Line, arguments: tuple[str, ...], env: Mapping[str, str], ini: str, cwd: str) -> Run:
    write_tests(folder, {"test_common.py": COMMON, **line.files})
    if line.before is not None:
        run_pytest(folder, *line.before, plugins=line.plugins)
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}")
    filled = [argument.format(folder=folder) for argument in arguments]
    return run_pytest(folder, *filled, env=env, plugins=line.plugins, cwd=cwd)


@every_line
def test_line_holds(line: Line, run_line: RunLine) -> None:
    """The outcomes on ranks are right under the line, one failing rank is named, and what the line says holds."""
    run = run_line(line, feature=True)
    assert common_outcomes(run) == line.common, run.output
    for name, outcome in line.common.items():
        if name == "test_fails[static]" and outcome == "failed":
            assert lines_with(run.text(name), "rank 1 of 2", "failed in call"), run.text(name)
    for check in (line.check, *line.also):
        check(run)


@every_line
def test_line_depends_on_its_feature(line: Line, run_line: RunLine) -> None:
    """What the line says does not hold when its feature is off, in a run that reaches its tests all the same."""
    run = run_line(line, feature=False)
    assert run.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), run.output
    assert "INTERNALERROR" not in run.output
    assert run.outcomes
    for check in (line.check, *line.also):
        with pytest.raises((AssertionError, KeyError)):
            check(run)


def test_page_is_up_to_date() -> None:
    """The page shows the lines that are proven here, and no others."""
    assert PAGE.read_text() == render(), "run python -m tests.compatibility.table"
