"""The lines of the table for plugins that decide where, when, how long and how often tests run."""

from __future__ import annotations

from collections.abc import Callable

from tests.compatibility.lines import KINDS, OUTCOMES, Line
from tests.harness import Run, json_lines, lines_with

_MEETING = """
    import os, time
    import pytest

    # Each test waits until a worker other than its own has begun one of them.
    @pytest.mark.parametrize("number", range(6))
    @pytest.mark.distributed(2)
    def test_meets(number, pytestconfig):
        (pytestconfig.rootpath / f"begun-{os.environ.get('PYTEST_XDIST_WORKER')}").touch()
        deadline = time.monotonic() + float(os.environ.get("LIMIT_S", 0))
        while (workers := len(list(pytestconfig.rootpath.glob("begun-*")))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert workers == 2
"""
_WAITING = """
    import os, time
    import pytest

    # The first test waits for the others, but for those that pytest-xdist can not take away from its worker.
    @pytest.mark.parametrize("number", range(40))
    @pytest.mark.distributed(2)
    def test_waits(number, world, pytestconfig):
        if number:
            (pytestconfig.rootpath / f"begun-{number}").touch()
            return
        deadline = time.monotonic() + float(os.environ.get("LIMIT_S", 1))
        while (others := len(list(pytestconfig.rootpath.glob("begun-*")))) < 37 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert others >= 37
"""
_FIRST = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(items):
        yield
        items.sort(key=lambda item: not item.name.startswith("test_waits"))
"""
# Each rank of a test notes the scope of the test and its worker.
_NOTES_WORKERS = """
    import json, os
    import pytest

    @pytest.fixture(autouse=True)
    def note(request, pytestconfig):
        scope = request.cls or request.module
        with open(pytestconfig.rootpath / "workers.jsonl", "a") as file:
            file.write(json.dumps([scope.__name__, os.environ.get("PYTEST_XDIST_WORKER")]) + "\\n")
"""
_SCOPES = """
    import pytest
    from test_common import every_kind

    class _Scope:
        @pytest.mark.parametrize("number", range(4))
        def test_plain(self, number): pass

        @every_kind
        def test_on_ranks(self, kind): pass

    class TestOne(_Scope): pass

    class TestTwo(_Scope): pass
"""


def _runs_on_two_workers(run: Run) -> None:
    assert {run.outcome(f"test_meets[{number}]") for number in range(6)} == {"passed"}, run.output


def _steals(run: Run) -> None:
    assert {run.outcome(f"test_waits[{number}]") for number in range(40)} == {"passed"}, run.output


def _keeps_classes_together(run: Run) -> None:
    workers: dict[str, list[str | None]] = {}
    for scope, worker in json_lines(run.folder / "workers.jsonl"):
        workers.setdefault(scope, []).append(worker)
    # A test on two ranks notes its worker twice.
    assert {scope: len(noted) for scope, noted in workers.items()} == {"test_common": 16, "TestOne": 9, "TestTwo": 9}
    assert [len(set(noted)) for noted in workers.values()] == [1, 1, 1]
    assert {noted[0] for noted in workers.values()} == {"gw0", "gw1"}


XDIST = (
    *(
        Line(
            name=f"pytest-xdist `{' '.join(arguments)}`",
            on_ranks="tests on ranks run on all workers, each of which has ranks of its own",
            check=_runs_on_two_workers,
            arguments=arguments,
            off=("-p", "no:xdist"),
            files={"test_meeting.py": _MEETING},
            env={"LIMIT_S": "60"},
        )
        for arguments in (("-n", "2"), ("--tx", "2*popen", "--dist", "load"))
    ),
    Line(
        name="pytest-xdist `--dist worksteal`",
        on_ranks="an idle worker takes over tests on ranks that another one has not begun",
        check=_steals,
        arguments=("-n", "2", "--dist", "worksteal"),
        off=("-n", "2", "--dist", "load"),
        files={"test_waiting.py": _WAITING, "conftest.py": _FIRST},
        env={"LIMIT_S": "60"},
    ),
    Line(
        name="pytest-xdist `--dist loadscope`",
        on_ranks="the tests of a class or module, on ranks and plain ones, run on one worker",
        check=_keeps_classes_together,
        arguments=("-n", "2", "--dist", "loadscope"),
        off=("-n", "2", "--dist", "load"),
        files={"test_scopes.py": _SCOPES, "conftest.py": _NOTES_WORKERS},
    ),
)

_HANGING = """
    import threading
    import pytest
    from test_common import MARKS

    {mark}
    @pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS[kind]) for kind in {kinds}])
    def test_hangs(kind, world):
        if world.rank == world.world_size - 1:
            threading.Event().wait()
        world.barrier(timeout=60)
"""


def _ends_hanging_ranks(limit: float, kinds: tuple[str, ...]) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        for kind in kinds:
            assert run.outcome(f"test_hangs[{kind}]") == "failed"
            text = run.text(f"test_hangs[{kind}]")
            ended = lines_with(text, f"was still in call at the time limit of {limit:g} s", "(pid")
            stacks = lines_with(text, 'File "', "in test_hangs")
            assert len(ended) == len(stacks) == (1 if kind == "standalone" else 2), text
            assert kind == "standalone" or lines_with(text, "rank 1 of 2", "<- the cause"), text

    return check


def _timeout_line(
    what: str, limit: float, *arguments: str, kinds: tuple[str, ...] = ("static",), mark: str = "", ini: str = ""
) -> Line:
    return Line(
        name=f"pytest-timeout {what}",
        on_ranks="at its limit all ranks of the test end, the report has the stacks of all, and the run goes on",
        check=_ends_hanging_ranks(limit, kinds),
        arguments=arguments,
        off=("-p", "no:timeout", "--disttest-timeout=0.5"),
        files={"test_a_hanging.py": _HANGING.format(mark=mark, kinds=kinds)},
        ini=ini,
    )


TIMEOUT = (
    _timeout_line('`timeout(method="thread")`', 1, kinds=KINDS, mark='@pytest.mark.timeout(1, method="thread")'),
    _timeout_line("`--timeout`, `--timeout-method=signal`", 1.5, "--timeout=1.5", "--timeout-method=signal"),
    _timeout_line("its ini options", 1.5, ini="timeout = 1.5\ntimeout_method = thread\n"),
)

# On the last rank, and in the first run of a test only.
_FAILING_ONCE = """
    import os
    import pytest

    @pytest.fixture
    def first_time(request, world):
        flag = request.config.rootpath / f"{request.node.name}.flag"
        first = world.rank == world.world_size - 1 and not flag.exists()
        if first:
            flag.write_text(str(os.getpid()))
        elif world.rank == world.world_size - 1:
            assert flag.read_text() != str(os.getpid()), "the rank of the first run"
        return first
"""
_FLAKY = """
    import os, signal
    import pytest
    from test_common import every_kind

    class Late(ConnectionError): pass

    @every_kind
    {late}
    def test_late(kind, first_time, world):
        if first_time:
            raise Late("it came too late")
        world.barrier()  # all ranks run again

    @every_kind
    {value}
    def test_value(kind, first_time):
        if first_time:
            raise ValueError("a bad value")

    @every_kind
    {killed}
    def test_killed(kind, first_time):
        if first_time:
            os.kill(os.getpid(), signal.SIGKILL)
"""
_REPEATED = {**OUTCOMES, **{f"test_fails[{kind}]": "passed+failed" for kind in KINDS}}


def _passes_on_rerun(*repeated: str) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        for name in ("test_late", "test_value", "test_killed"):
            expected = "passed" if name in repeated else "failed"
            assert [run.outcome(f"{name}[{kind}]") for kind in KINDS] == [expected] * 3, run.output

    return check


def _reruns_line(
    what: str, on_ranks: str, repeated: tuple[str, ...], arguments: tuple[str, ...], off: tuple[str, ...], **marks: str
) -> Line:
    marks = {"late": "", "value": "", "killed": ""} | marks
    return Line(
        name=f"pytest-rerunfailures {what}",
        on_ranks=on_ranks,
        check=_passes_on_rerun(*repeated),
        arguments=arguments,
        off=off,
        files={"test_flaky.py": _FLAKY.format(**marks), "conftest.py": _FAILING_ONCE},
        common=_REPEATED if "--only-rerun" not in "".join(arguments) and not any(marks.values()) else OUTCOMES,
    )


RERUNS = (
    _reruns_line(
        "`--reruns`",
        "a test that failed on any rank, or lost one, runs again on all its ranks, which are new",
        ("test_late", "test_value", "test_killed"),
        ("--reruns", "1"),
        ("-p", "no:rerunfailures"),
    ),
    _reruns_line(
        "`--only-rerun`",
        "looks at class and text of the exception of the rank that is the cause, or at how that rank ended",
        ("test_late", "test_killed"),
        (
            "--reruns=1",
            "--only-rerun=^Late: it came",
            "--only-rerun=rank 1 .*killed by SIGKILL|process .*killed by SIGKILL",
        ),
        ("--reruns", "1"),
    ),
    _reruns_line(
        "`--rerun-except`",
        "looks at class and text of the exception of the rank that is the cause, or at how that rank ended",
        ("test_late",),
        ("--reruns=1", "--rerun-except=ValueError: a bad", "--rerun-except=killed by SIGKILL"),
        ("--reruns", "1"),
    ),
    _reruns_line(
        "`flaky(only_rerun=...)`, `flaky(condition=...)`",
        "get an exception of the rank's class with its text; for a rank that died a `RanksFailed`",
        ("test_late", "test_killed"),
        (),
        ("-p", "no:rerunfailures"),
        late="@pytest.mark.flaky(reruns=1, only_rerun=OSError)",
        value="@pytest.mark.flaky(reruns=1, only_rerun=KeyError)",
        killed="@pytest.mark.flaky(reruns=1, condition=lambda error: type(error).__name__ == 'RanksFailed')",
    ),
)
_DRAWING = """
    import random
    import numpy
    import pytest
    from test_common import every_kind

    @every_kind
    @pytest.mark.parametrize("number", range(4))
    def test_draws(kind, number, world):
        world.record("drawn", [random.random(), numpy.random.rand()])
        if world.is_rank_zero:
            random.random()  # leaves rank 0 in another state than rank 1
"""
_NUMBERS = 5
_ORDERED = f"""
    import pytest
    from test_common import every_kind

    numbers = pytest.mark.parametrize("number", range({_NUMBERS}))

    @numbers
    @every_kind
    def test_ordered(kind, number): pass

    @numbers
    @pytest.mark.parametrize("kind", ["plain"])
    def test_plain_ordered(kind, number): pass
"""


def _draws_alike_on_all_ranks(run: Run) -> None:
    drawn = {outcome for name, outcome in run.outcomes.items() if name.startswith("test_draws")}
    assert drawn == {"passed"}, run.output


def _shuffles_inside_groups(run: Run) -> None:
    """The JUnit file has the tests in the order in which they ran."""
    kinds = ("plain", *KINDS)
    ran = [next(kind for kind in kinds if kind in name) for name in run.outcomes]
    assert ran == sorted(ran, key=kinds.index)
    ordered = {kind: [name for name in run.outcomes if "ordered" in name and kind in name] for kind in kinds}
    assert [len(names) for names in ordered.values()] == [_NUMBERS] * len(kinds)
    assert [kind for kind, names in ordered.items() if names != sorted(names)] == list(kinds)


RANDOM = (
    Line(
        name="pytest-randomly",
        on_ranks="all ranks draw the same numbers: each test begins with the same seed on all of them",
        check=_draws_alike_on_all_ranks,
        arguments=("--randomly-seed=3",),
        off=("-p", "no:randomly"),
        files={"test_drawing.py": _DRAWING},
        plugins=("randomly",),
    ),
    Line(
        name="pytest-randomly, its order",
        on_ranks="shuffles plain, static, dynamic and standalone tests, each among themselves",
        check=_shuffles_inside_groups,
        arguments=("--randomly-seed=3",),
        off=("--randomly-dont-reorganize",),
        files={"test_ordered.py": _ORDERED},
        plugins=("randomly",),
    ),
    Line(
        name="pytest-random-order `--random-order`",
        on_ranks="shuffles plain, static, dynamic and standalone tests, each among themselves",
        check=_shuffles_inside_groups,
        arguments=("--random-order", "--random-order-seed=3", "--random-order-bucket=global"),
        files={"test_ordered.py": _ORDERED},
        plugins=("random_order",),
    ),
)
RUNNING = (*XDIST, *TIMEOUT, *RERUNS, *RANDOM)
