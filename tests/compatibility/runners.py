"""The lines of the table for plugins that decide where, when, how long and how often tests run."""

from __future__ import annotations

from collections.abc import Callable

from tests.compatibility.lines import KINDS, Line
from tests.harness import Run, json_lines

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
_SCOPES = """
    import json, os
    import pytest
    from test_common import every_kind

    class _Scope:
        @pytest.fixture(autouse=True)
        def note(self, pytestconfig):
            with open(pytestconfig.rootpath / "workers.jsonl", "a") as file:
                file.write(json.dumps([type(self).__name__, os.environ.get("PYTEST_XDIST_WORKER")]) + "\\n")

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
    workers: dict[str, set[str | None]] = {}
    for scope, worker in json_lines(run.folder / "workers.jsonl"):
        workers.setdefault(scope, set()).add(worker)
    assert workers.keys() == {"TestOne", "TestTwo"}
    assert [len(found) for found in workers.values()] == [1, 1]


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
        files={"test_scopes.py": _SCOPES},
    ),
)

_HANGING = """
    import threading
    import pytest
    from test_common import every_kind

    {mark}
    @every_kind
    def test_hangs(kind, world):
        if world.rank == world.world_size - 1:
            threading.Event().wait()
        world.barrier(timeout=60)
"""


def _ends_a_hanging_rank(limit: float) -> Callable[[Run], None]:
    def check(run: Run) -> None:
        for kind in KINDS:
            name = f"test_hangs[{kind}]"
            assert run.outcome(name) == "failed"
            text = run.text(name)
            assert f"was still in call at the time limit of {limit:g} s" in text, text
            assert "in wait" in text and "in test_hangs" in text, text

    return check


def _timeout_line(name: str, limit: float, *arguments: str, mark: str = "", ini: str = "") -> Line:
    return Line(
        name=f"pytest-timeout, {name}",
        on_ranks="",
        check=_ends_a_hanging_rank(limit),
        arguments=arguments,
        off=("-p", "no:timeout", "--disttest-timeout=0.5"),
        files={"test_a_hanging.py": _HANGING.format(mark=mark)},
        ini=ini,
    )


TIMEOUT = (
    _timeout_line("its mark with `method=\"signal\"`", 1, mark='@pytest.mark.timeout(1, method="signal")'),
    _timeout_line("its mark with `method=\"thread\"`", 1, mark='@pytest.mark.timeout(1, method="thread")'),
    _timeout_line("`--timeout`", 1.5, "--timeout=1.5"),
    _timeout_line("its ini `timeout`", 1.5, ini="timeout = 1.5\ntimeout_method = thread\n"),
)
RUNNERS = (*XDIST, *TIMEOUT)
