"""The lines of the table for pytest's own options that select tests, stop the run or change how tests run."""

from __future__ import annotations

from tests.compatibility.lines import NOTES_RANKS, OUTCOMES, Line, common_outcomes, starts_no_rank, without
from tests.harness import Run, lines_with

_FIRST_FAILURE = {"test_plain": "passed", "test_passes[static]": "passed", "test_fails[static]": "failed"}
_FAILURES = {name: outcome for name, outcome in OUTCOMES.items() if outcome == "failed"}
_DISTRIBUTED = {name: outcome for name, outcome in OUTCOMES.items() if name.endswith(("[static]", "[dynamic]"))}
_SECOND_STEP = ("test_fails[static]", "test_skips[static]", "test_passes[dynamic]", "test_fails[dynamic]")
_WARNS = """
    import warnings
    import pytest

    @pytest.mark.distributed(2)
    def test_warns(world):
        if world.rank == 1:
            warnings.warn("careful")
"""
_XFAILS = """
    import pytest

    @pytest.mark.xfail(reason="known")
    @pytest.mark.distributed(2)
    def test_xfails(world):
        assert world.rank == 0
"""
_SAME_NAME = """
    import pytest

    @pytest.mark.distributed(2)
    def test_in_{folder}(world):
        assert world.world_size == 2
"""
_FOLDERS = """
    import pytest

    pytestmark = pytest.mark.distributed(2)

    def test_tidy(tmp_path, rank_tmp_path, world):
        (tmp_path / f"of rank {world.rank}").touch()
        (rank_tmp_path / "own").touch()

    def test_untidy(tmp_path, rank_tmp_path, world):
        test_tidy(tmp_path, rank_tmp_path, world)
        assert world.rank == 0
"""
_ROOT = """
    import pytest

    @pytest.mark.distributed(2)
    def test_root(request):
        assert request.config.rootpath.name == "root"
"""
_WHERE = """
    import pathlib
    import pytest

    @pytest.mark.distributed(2)
    def test_where(request):
        assert pathlib.Path.cwd() == request.config.invocation_params.dir
        assert pathlib.Path.cwd().name == "elsewhere"
"""
_CONFTEST = """
    import pytest

    @pytest.fixture(scope="session")
    def root():
        return "{folder}"
"""
_USES_CONFTEST = """
    import pytest

    @pytest.mark.distributed(2)
    def test_of_{folder}(root):
        assert root == "{folder}"
"""


def _stops_after_the_first_failure(run: Run) -> None:
    assert run.returncode == 1
    assert run.outcomes == _FIRST_FAILURE
    assert "stopping after 1 failures" in run.output


def _stops_after_the_second_failure(run: Run) -> None:
    assert run.returncode == 1
    assert [name for name, outcome in run.outcomes.items() if outcome == "failed"] == list(_FAILURES)[:2]
    assert "stopping after 2 failures" in run.output


def _runs_the_failures_alone(run: Run) -> None:
    assert run.outcomes == _FAILURES
    assert "rerun previous 3 failures" in run.output


def _runs_the_failures_first(run: Run) -> None:
    assert list(run.outcomes)[:3] == list(_FAILURES)


def _goes_on_where_it_stopped(run: Run) -> None:
    assert tuple(run.outcomes) == _SECOND_STEP
    assert "skipping 2 already passed items" in run.output


def _runs_what_the_expression_names(run: Run) -> None:
    assert common_outcomes(run) == without("test_skips", "test_plain")
    assert "4 deselected" in run.output


def _runs_what_has_the_mark(run: Run) -> None:
    assert common_outcomes(run) == _DISTRIBUTED
    assert "4 deselected" in run.output


def _runs_what_is_not_deselected(run: Run) -> None:
    assert run.returncode == 0
    assert "4 passed, 3 skipped, 3 deselected" in run.output


def _runs_nothing_but_lists_tests(run: Run) -> None:
    assert run.outcomes == {}
    assert "10 tests collected" in run.output
    assert lines_with(run.output, "<Function test_fails[dynamic]>")


def _fails_for_a_warning_of_a_rank(run: Run) -> None:
    assert run.outcome("test_warns") == "failed"
    assert "UserWarning: careful" in run.text("test_warns")
    assert lines_with(run.text("test_warns"), "rank 1 of 2", "failed in call")


def _fails_where_it_would_be_expected(run: Run) -> None:
    assert run.outcome("test_xfails") == "failed"


def _imports_modules_of_one_name(run: Run) -> None:
    assert [run.outcome(f"test_in_{folder}") for folder in "ab"] == ["passed", "passed"]


def _makes_folders_below(run: Run) -> None:
    base = run.folder / "base"
    assert sorted(path.name for path in base.glob("test_untidy0/*")) == ["of rank 0", "of rank 1"]
    assert [(base / f"test_untidy0-rank{rank}/own").exists() for rank in (0, 1)] == [True, True]


def _keeps_folders_of_failures_alone(run: Run) -> None:
    _makes_folders_below(run)
    assert not list((run.folder / "base").glob("test_tidy*"))


def _obeys_the_variable(run: Run) -> None:
    assert run.returncode == 0
    assert run.outcomes == without("test_plain", "test_fails", "test_skips")


def _has_that_root(run: Run) -> None:
    assert run.outcome("test_root") == "passed"
    assert lines_with(run.output, "rootdir: ", "/root")


def _runs_elsewhere(run: Run) -> None:
    assert run.outcome("test_where") == "passed"
    assert lines_with(run.text("test_fails[static]"), "../test_common.py:", "AssertionError")


def _uses_the_conftest_of_each_root(run: Run) -> None:
    assert [run.outcome(f"test_of_{folder}") for folder in "ab"] == ["passed", "passed"]


OPTIONS = (
    Line(
        name="`-x`",
        on_ranks="stops after the first test that failed on any rank",
        arguments=("-x",),
        common=_FIRST_FAILURE,
        check=_stops_after_the_first_failure,
    ),
    Line(
        name="`--maxfail`",
        on_ranks="stops after so many tests have failed on any rank",
        arguments=("--maxfail=2",),
        common=_FIRST_FAILURE | {name: OUTCOMES[name] for name in _SECOND_STEP},
        check=_stops_after_the_second_failure,
    ),
    Line(
        name="`--lf`",
        on_ranks="runs the tests that failed on any rank",
        before=(),
        arguments=("--lf",),
        common=_FAILURES,
        plugins=("cacheprovider",),
        check=_runs_the_failures_alone,
    ),
    Line(
        name="`--ff`",
        on_ranks="runs the tests that failed on any rank before all others",
        before=(),
        arguments=("--ff",),
        plugins=("cacheprovider",),
        check=_runs_the_failures_first,
    ),
    Line(
        name="`--sw`, `--sw-skip`",
        on_ranks="goes on with the test that failed on any rank, in the order in which tests run",
        before=("--sw",),
        arguments=("--sw", "--sw-skip"),
        common={name: OUTCOMES[name] for name in _SECOND_STEP},
        plugins=("cacheprovider",),
        check=_goes_on_where_it_stopped,
    ),
    Line(
        name="`-k`",
        on_ranks="selects tests on ranks by name",
        arguments=("-k", "passes or fails"),
        common=without("test_skips", "test_plain"),
        check=_runs_what_the_expression_names,
    ),
    Line(
        name="`-m`",
        on_ranks="selects by mark; `-m distributed` leaves standalone tests out",
        arguments=("-m", "distributed"),
        common=_DISTRIBUTED,
        check=_runs_what_has_the_mark,
    ),
    Line(
        name="`--deselect`",
        on_ranks="leaves tests on ranks out",
        arguments=("--deselect=test_common.py::test_fails",),
        common=without("test_fails"),
        check=_runs_what_is_not_deselected,
    ),
    Line(
        name="`--collect-only`",
        on_ranks="lists tests on ranks as others and starts no rank",
        arguments=("--collect-only",),
        common={},
        files={"conftest.py": NOTES_RANKS},
        check=_runs_nothing_but_lists_tests,
        also=(starts_no_rank,),
    ),
    Line(
        name="`-W error`",
        on_ranks="a warning on any rank fails the test",
        arguments=("-W", "error"),
        files={"test_warns.py": _WARNS},
        check=_fails_for_a_warning_of_a_rank,
    ),
    Line(
        name="`--runxfail`",
        on_ranks="a test that fails on any rank fails, whether or not that is expected",
        arguments=("--runxfail",),
        files={"test_xfails.py": _XFAILS},
        check=_fails_where_it_would_be_expected,
    ),
    Line(
        name="`--import-mode=importlib`",
        on_ranks="ranks have the modules as the pytest process imported them",
        arguments=("--import-mode=importlib",),
        off=("--continue-on-collection-errors",),
        files={f"{folder}/test_same.py": _SAME_NAME.format(folder=folder) for folder in "ab"},
        check=_imports_modules_of_one_name,
    ),
    Line(
        name="`--basetemp`",
        on_ranks="the `tmp_path` that ranks share and each `rank_tmp_path` are below it",
        arguments=("--basetemp={folder}/base",),
        files={"test_folders.py": _FOLDERS},
        check=_makes_folders_below,
    ),
    Line(
        name="`tmp_path_retention_policy`",
        on_ranks="decides by the outcome over all ranks, for `tmp_path` and `rank_tmp_path`",
        ini="tmp_path_retention_policy = failed\n",
        arguments=("--basetemp={folder}/base",),
        off=("--basetemp={folder}/base",),
        files={"test_folders.py": _FOLDERS},
        check=_keeps_folders_of_failures_alone,
    ),
    Line(
        name="`PYTEST_ADDOPTS`",
        on_ranks="its arguments hold as those of the command line do",
        env={"PYTEST_ADDOPTS": "-k passes"},
        common=without("test_plain", "test_fails", "test_skips"),
        check=_obeys_the_variable,
    ),
    Line(
        name="`--rootdir`",
        on_ranks="ranks have the same root",
        arguments=("--rootdir={folder}/root",),
        files={"test_root.py": _ROOT, "root/empty.txt": ""},
        check=_has_that_root,
    ),
    Line(
        name="running from another folder",
        on_ranks="ranks have the working directory of pytest, and paths in their tracebacks are relative to it",
        arguments=("..",),
        cwd="elsewhere",
        files={"test_where.py": _WHERE, "elsewhere/empty.txt": ""},
        check=_runs_elsewhere,
    ),
    Line(
        name="several folders (`pytest a b`)",
        on_ranks="each test has the fixtures of its own `conftest.py`, also if tests of both share a world",
        arguments=("a", "b", "test_common.py"),
        off=("a",),
        files={
            f"{folder}/{name}": source.format(folder=folder)
            for folder in "ab"
            for name, source in (("conftest.py", _CONFTEST), (f"test_{folder}.py", _USES_CONFTEST))
        },
        check=_uses_the_conftest_of_each_root,
    ),
)
