"""The lines of the table for plugins that serve test bodies, or report what they did."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.compatibility.lines import KINDS, Line
from tests.harness import Run, json_lines, lines_with

_COROUTINES = """
    import asyncio
    import pytest
    from test_common import every_kind

    {prelude}
    @every_kind
    async def test_coroutine(kind, world):
        await asyncio.sleep(0)
        world.barrier()

    @every_kind
    async def test_coroutine_fails(kind, world):
        await asyncio.sleep(0)
        assert world.rank < world.world_size - 1
"""


def _awaits_coroutines_on_ranks(run: Run) -> None:
    for kind in KINDS:
        assert run.outcome(f"test_coroutine[{kind}]") == "passed"
        assert run.outcome(f"test_coroutine_fails[{kind}]") == "failed"
    assert lines_with(run.text("test_coroutine_fails[static]"), "rank 1 of 2", "failed in call")


COROUTINES = (
    Line(
        name="pytest-asyncio",
        on_ranks="coroutines run on the event loop of each rank",
        check=_awaits_coroutines_on_ranks,
        arguments=("-o", "asyncio_default_fixture_loop_scope=function"),
        off=("-p", "no:asyncio"),
        files={"test_async.py": _COROUTINES.format(prelude="pytestmark = pytest.mark.asyncio")},
        plugins=("asyncio",),
    ),
    Line(
        name="anyio",
        on_ranks="coroutines run in the backend of each rank",
        check=_awaits_coroutines_on_ranks,
        off=("-p", "no:anyio"),
        files={
            "test_async.py": _COROUTINES.format(prelude="pytestmark = pytest.mark.anyio"),
            "conftest.py": "import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n",
        },
        plugins=("anyio",),
    ),
)

_PATCHED = {
    "inner.py": """
        def answer(): return 42
    """,
    "test_patched.py": """
        import inner
        import pytest
        from test_common import every_kind

        @every_kind
        def test_patches(kind, world, mocker, session_mocker):
            patched = mocker.patch("inner.answer", return_value=world.rank)
            session_mocker.patch("inner.answer.__doc__", "patched to the end")
            assert inner.answer() == world.rank
            patched.assert_called_once_with()

        @every_kind
        def test_unpatched(kind, mocker):
            spy = mocker.spy(inner, "answer")
            assert inner.answer() == 42
            assert spy.spy_return == 42
    """,
    "conftest.py": """
        import json

        def pytest_configure(config):
            global FILE
            FILE = config.rootpath / "controller.jsonl"

        def pytest_runtest_logreport(report):
            import inner
            with open(FILE, "a") as file:
                file.write(json.dumps([inner.answer(), inner.answer.__doc__]) + "\\n")
    """,
}


def _patches_ranks_alone(run: Run) -> None:
    for kind in KINDS:
        assert run.outcome(f"test_patches[{kind}]") == run.outcome(f"test_unpatched[{kind}]") == "passed", run.output
    seen = json_lines(run.folder / "controller.jsonl")
    assert seen == [[42, None]] * len(seen)


_EXTRAS = """
    import pytest
    import pytest_html
    from test_common import every_kind

    @every_kind
    def test_extras(kind, world, extras):
        extras.append(pytest_html.extras.text(f"of rank {world.rank}", name=f"rank {world.rank}"))
        extras.append(pytest_html.extras.json({"same": "on all ranks"}))
        print(f"printed on rank {world.rank}")
        assert world.rank < world.world_size - 1

    def test_plain_extras(extras):
        extras.append(pytest_html.extras.text("of a plain test"))
"""


def _has_one_row_per_test(run: Run) -> None:
    report = run.folder / "report.html"
    assert report.exists(), run.output
    text = report.read_text()
    assert '<link href="assets' not in text
    assert not (run.folder / "assets").exists()
    blob = re.search(r'data-jsonblob="([^"]*)"', text)
    assert blob is not None
    rows: dict[str, list[Any]] = json.loads(html.unescape(blob[1]))["tests"]
    names = [name.partition("::")[2] for name in rows]
    assert sorted(names) == sorted(run.outcomes)
    assert {len(entries) for entries in rows.values()} == {1}
    (row,) = rows["test_extras.py::test_extras[static]"]
    assert row["result"] == "Failed"
    assert [extra["name"] for extra in row["extras"]] == ["rank 0", "JSON", "rank 1"]
    assert "rank 1 of 2" in row["log"]
    assert "printed on rank 1" in row["log"]


_BENCHMARKED = """
    import pytest
    from test_common import every_kind

    @every_kind
    def test_benchmarked(kind, world, benchmark):
        calls = []
        benchmark(calls.append, 0)
        assert calls == [0]
        world.barrier()

    @every_kind
    def test_benchmark_fails(kind, world, benchmark):
        assert benchmark(lambda: world.rank) < world.world_size - 1

    def test_benchmarked_plain(benchmark):
        assert benchmark.pedantic(lambda: 3) == 3
"""


def _refuses_to_lose_benchmarks(run: Run) -> None:
    for kind in KINDS:
        for name in ("test_benchmarked", "test_benchmark_fails"):
            assert run.outcome(f"{name}[{kind}]") == "error"
            text = run.text(f"{name}[{kind}]")
            assert "cannot run" in text
            assert "Run it with --benchmark-disable" in text
    assert run.outcome("test_benchmarked_plain") == "passed"


def _calls_what_is_benchmarked_once(run: Run) -> None:
    for kind in KINDS:
        assert run.outcome(f"test_benchmarked[{kind}]") == "passed"
        assert run.outcome(f"test_benchmark_fails[{kind}]") == "failed"


# The runs without the feature have the plugin, but not what this package does for it.
_NOT_MEASURED = """
    from lightning_disttest.engine import measuring

    measuring.measure_rank = lambda folder, token: None
    measuring.save_rank = lambda: None
"""
_NOT_SHARED = """
    from lightning_disttest.engine import hypothesis_seed

    hypothesis_seed.share_examples = lambda item, seed: None
"""
_COVERED = {
    "inner.py": """
        def on_ranks(kind, rank):
            if kind == "static":
                if rank == 1:
                    return 1
                return 0
            if kind == "dynamic":
                return 2
            return 3

        def never():
            return 4
    """,
    "test_covered.py": """
        import inner
        from test_common import every_kind

        @every_kind
        def test_covers(kind, world):
            assert inner.on_ranks(kind, world.rank) < 4
    """,
    "without_measuring.py": _NOT_MEASURED,
    ".coveragerc": "[json]\nshow_contexts = true\n",
}
_COV = ("--cov=inner", "--cov-config=.coveragerc", "--cov-report=json:cov.json", "--cov-report=term-missing")


def _coverage_of(run: Run) -> Mapping[str, Any]:
    path = run.folder / "cov.json"
    assert path.exists(), run.output
    inner: Mapping[str, Any] = json.loads(path.read_text())["files"]["inner.py"]
    return inner


def _covers_ranks(run: Run) -> None:
    coverage = _coverage_of(run)
    assert coverage["missing_lines"] == [12]
    assert coverage.get("missing_branches", []) == []
    assert lines_with(run.output, "inner.py", " 12"), run.output
    assert "CoverageWarning" not in run.output
    assert sorted(path.name for path in run.folder.rglob(".coverage*")) == [".coverage", ".coveragerc"]


def _has_contexts_of_tests_on_ranks(run: Run) -> None:
    contexts = _coverage_of(run)["contexts"]
    assert contexts["5"] == contexts["6"] == ["test_covered.py::test_covers[static]|run"]
    assert contexts["8"] == ["test_covered.py::test_covers[dynamic]|run"]
    assert contexts["9"] == ["test_covered.py::test_covers[standalone]|run"]


def _cov_line(
    name: str,
    *arguments: str,
    on_ranks: str = "the lines that ranks run are covered",
    check: Callable[[Run], None] = _covers_ranks,
    off: tuple[str, ...] = ("-p", "without_measuring"),
) -> Line:
    return Line(
        name=name,
        on_ranks=on_ranks,
        check=check,
        arguments=(*_COV, *arguments),
        off=(*_COV, *off),
        files=_COVERED,
        plugins=("pytest_cov",),
    )


COVERAGE = (
    _cov_line("pytest-cov"),
    _cov_line("pytest-cov `--cov-branch`", "--cov-branch", on_ranks="the branches that ranks take are covered"),
    _cov_line("pytest-cov with pytest-xdist `-n 2`", "-n", "2"),
    _cov_line(
        "pytest-cov `--cov-context=test`",
        "--cov-context=test",
        on_ranks="lines that ranks run have the test and its phase as their context",
        check=_has_contexts_of_tests_on_ranks,
        off=(),
    ),
)

_PROPERTIES = """
    import json
    import pytest
    from hypothesis import given, settings, strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
    from test_common import MARKS, every_kind

    DRAWN = []

    @every_kind
    @settings(max_examples=20)
    @given(numbers=st.lists(st.integers(0, 10**9), min_size=3))
    def test_draws(kind, world, numbers):
        DRAWN.append(numbers)
        world.record("examples", DRAWN)
        world.barrier()

    @pytest.mark.parametrize("kind", ["plain", *(pytest.param(kind, marks=mark) for kind, mark in MARKS.items())])
    @settings(max_examples=20)
    @given(numbers=st.lists(st.integers(0, 10**9), min_size=3))
    def test_draws_again(kind, world, pytestconfig, numbers):
        if world.is_rank_zero:
            with open(pytestconfig.rootpath / f"drawn-{kind}", "a") as file:
                file.write(json.dumps(numbers) + "\\n")

    class Machine(RuleBasedStateMachine):
        drawn = []

        @rule(number=st.integers())
        def step(self, number): self.drawn.append(number)

    @every_kind
    def test_machine_and_function_inside(kind, world):
        @settings(max_examples=10)
        @given(number=st.integers())
        def draw(number): Machine.drawn.append(number)

        draw()
        run_state_machine_as_test(Machine, settings=settings(max_examples=5, stateful_step_count=5))
        world.record("drawn", Machine.drawn)
        assert Machine.drawn

    @every_kind
    @settings(max_examples=200)
    @given(number=st.integers())
    def test_property(kind, world, number):
        assert world.rank < world.world_size - 1 or number < 100
"""


def _draws_the_same_examples(run: Run) -> None:
    assert {run.outcome(f"test_draws[{kind}]") for kind in KINDS} == {"passed"}, run.output
    assert {run.outcome(f"test_machine_and_function_inside[{kind}]") for kind in KINDS} == {"passed"}, run.output
    for kind in KINDS:
        assert run.outcome(f"test_property[{kind}]") == "failed"
        text = run.text(f"test_property[{kind}]")
        assert lines_with(text, "number=100")
    assert lines_with(run.text("test_property[static]"), "rank 1 of 2", "failed in call")
    assert lines_with(run.text("test_property[static]"), "rank 0 of 2", "came to the end of the test")
    assert len(lines_with(run.output, "To draw the same examples again: --hypothesis-seed=")) == 3


def _draws_from_the_given_seed(run: Run) -> None:
    drawn = [json_lines(run.folder / f"drawn-{kind}") for kind in ("plain", *KINDS)]
    assert drawn == [drawn[0]] * 4
    assert lines_with(run.output, "To draw the same examples again: --hypothesis-seed=7")


EXAMPLES = (
    Line(
        name="hypothesis",
        on_ranks="all ranks of a test draw the same examples; a failure names the rank and `--hypothesis-seed`",
        check=_draws_the_same_examples,
        off=("-p", "without_sharing"),
        files={"test_properties.py": _PROPERTIES, "without_sharing.py": _NOT_SHARED},
        plugins=("hypothesispytest",),
    ),
    Line(
        name="hypothesis `--hypothesis-seed`",
        on_ranks="ranks draw what a plain test draws from that seed",
        check=_draws_from_the_given_seed,
        arguments=("--hypothesis-seed=7",),
        files={"test_properties.py": _PROPERTIES},
        plugins=("hypothesispytest",),
    ),
)
USED_IN_BODIES = (
    Line(
        name="pytest-mock",
        on_ranks="`mocker` patches the process of each rank, and no other",
        check=_patches_ranks_alone,
        off=("-p", "no:pytest_mock"),
        files=_PATCHED,
        plugins=("pytest_mock",),
    ),
    Line(
        name="pytest-benchmark",
        on_ranks="an error that names `--benchmark-disable`: results of ranks would be lost",
        check=_refuses_to_lose_benchmarks,
        off=("--benchmark-disable",),
        files={"test_benchmarks.py": _BENCHMARKED},
        plugins=("benchmark",),
    ),
    Line(
        name="pytest-benchmark `--benchmark-disable`",
        on_ranks="calls the function once on each rank",
        check=_calls_what_is_benchmarked_once,
        arguments=("--benchmark-disable",),
        files={"test_benchmarks.py": _BENCHMARKED},
        plugins=("benchmark",),
    ),
    Line(
        name="pytest-html",
        on_ranks="one row per test, with the `extras` and the output of its ranks; the same extra of all is there once",
        check=_has_one_row_per_test,
        arguments=("--html=report.html", "--self-contained-html"),
        files={"test_extras.py": _EXTRAS},
        plugins=("html", "html_fixtures", "metadata"),
    ),
)
PLUGINS = (*COROUTINES, *USED_IN_BODIES, *COVERAGE, *EXAMPLES)
