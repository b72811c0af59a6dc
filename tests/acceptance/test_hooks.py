"""Hooks and fixtures of other suites that mark tests late, or raise in the pytest process: no failure gets lost."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import lines_with

FAILS_ON_RANK_1 = """
    import os

    def test_it():
        assert os.environ.get("RANK") != "1"
"""
LATE = {
    "a wrapper around the collection": """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(items):
            yield
            for item in items:
                item.add_marker(pytest.mark.distributed(2))
    """,
    "the end of the collection": """
        import pytest

        def pytest_collection_finish(session):
            for item in session.items:
                item.add_marker(pytest.mark.distributed(2))
    """,
}


@pytest.mark.parametrize("conftest", LATE.values(), ids=LATE.keys())
def test_marks_that_come_late_count(run_once: RunOnce, conftest: str) -> None:
    """A mark that a hook adds after the plugin has sorted the tests puts the test on ranks all the same."""
    run = run_once({"conftest.py": conftest, "test_it.py": FAILS_ON_RANK_1})
    assert run.outcomes == {"test_it": "failed"}
    assert lines_with(run.text("test_it"), "rank 1 of 2", "failed in call")


def test_bad_marks_that_come_late_are_a_usage_error(run_once: RunOnce) -> None:
    """A late mark that can not be served ends the run before its first test."""
    conftest = LATE["the end of the collection"].replace("distributed(2)", "distributed(0)")
    run = run_once({"conftest.py": conftest, "test_it.py": FAILS_ON_RANK_1})
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_it: mark distributed: world_size must be a whole number" in run.output


def test_marks_of_fixtures_come_too_late(run_once: RunOnce) -> None:
    """A test that a fixture marks fails: it runs in the pytest process already, and is no test on ranks."""
    conftest = """
        import pytest

        @pytest.fixture(autouse=True)
        def late(request):
            request.applymarker(pytest.mark.distributed(2))
    """
    run = run_once({"conftest.py": conftest, "test_it.py": FAILS_ON_RANK_1})
    assert run.outcomes == {"test_it": "failed"}
    assert "test_it.py::test_it got the mark distributed from a fixture" in run.text("test_it")


CONFTEST = """
    import os
    import pytest

    def raise_in_controller(item, place):
        if "RANK" not in os.environ and place in item.name:
            {"skip": pytest.skip, "xfail": pytest.xfail, "fail": pytest.fail}[item.name.split("_")[1]]("by a hook")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(item): raise_in_controller(item, "setup")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_call(item): raise_in_controller(item, "call")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(item): raise_in_controller(item, "teardown")
"""
RAISING = """
    import pytest

    @pytest.fixture
    def ends_badly(world):
        yield
        assert world.rank == 0, "the end of rank 1"

    every_way = pytest.mark.parametrize("way", ["on_rank_1", "nowhere"])
"""
for _how in ("skip", "xfail", "fail"):
    for _place in ("setup", "call"):
        RAISING += f"""
    @every_way
    @pytest.mark.distributed(2)
    def test_{_how}_in_{_place}(world, way):
        assert way == "nowhere" or world.rank == 0, "rank 1 fails"
"""
    RAISING += f"""
    @pytest.mark.distributed(2)
    def test_{_how}_in_teardown(ends_badly): pass
"""


def test_hooks_hide_no_failure_of_ranks(run_once: RunOnce) -> None:
    """What a hook raises in the pytest process, a skip above all, does not take the place of a rank's failure."""
    run = run_once({"conftest.py": CONFTEST, "test_it.py": RAISING}, "-rA")
    for how in ("skip", "xfail", "fail"):
        for place in ("setup", "call"):
            name = f"test_{how}_in_{place}[on_rank_1]"
            assert run.outcome(name) == ("error" if place == "setup" else "failed"), name
            assert lines_with(run.text(name), "rank 1 of 2", "failed in call"), name
        assert "error" in run.outcome(f"test_{how}_in_teardown")
        assert "the end of rank 1" in run.text(f"test_{how}_in_teardown")
    assert len(lines_with(run.output, "Raised in", "by a hook in the pytest process")) == 9


def test_hooks_decide_where_ranks_passed(run_once: RunOnce) -> None:
    """Where no rank failed, what the hook raises is the outcome, as for plain tests."""
    run = run_once({"conftest.py": CONFTEST, "test_it.py": RAISING}, "-k", "nowhere")
    assert run.outcomes == {
        "test_skip_in_setup[nowhere]": "skipped",
        "test_skip_in_call[nowhere]": "skipped",
        "test_xfail_in_setup[nowhere]": "xfailed",
        "test_xfail_in_call[nowhere]": "xfailed",
        "test_fail_in_setup[nowhere]": "error",
        "test_fail_in_call[nowhere]": "failed",
    }
