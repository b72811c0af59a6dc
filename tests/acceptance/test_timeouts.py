"""Which time limit holds for a test on ranks: the nearest of its marks, the options of the run, and the default."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.acceptance.conftest import RunOnce
from tests.harness import Run, lines_with

HANG = """
    import threading

    def hang_of_rank_0():
        threading.Event().wait(20)

    def hang_of_rank_1():
        threading.Event().wait(20)

    def hang(world):
        (hang_of_rank_1 if world.rank == 1 else hang_of_rank_0)()
"""
# No limit is the smallest or the largest of those that are given at once.
WORLDS = """
    import threading
    import pytest
    from hanging import hang

    @pytest.mark.timeout(0.4)
    @pytest.mark.distributed(2, timeout=0.7)
    def test_static_mark(world): hang(world)

    @pytest.mark.timeout(9)
    @pytest.mark.distributed(2, timeout=0.8, static=False)
    def test_dynamic_mark(world): hang(world)

    @pytest.mark.timeout(0.9)
    @pytest.mark.distributed(2)
    def test_mark_of_pytest_timeout(world): hang(world)

    @pytest.mark.distributed(2)
    def test_run(world): hang(world)

    @pytest.mark.timeout(0)
    @pytest.mark.distributed(2)
    def test_no_limit():
        threading.Event().wait(0.75)  # longer than the limit of the run
"""
OTHERS = """
    import threading
    import pytest
    from hanging import hang

    @pytest.mark.timeout(0.4)
    @pytest.mark.standalone(timeout=0.6)
    def test_standalone_mark(world): hang(world)

    @pytest.mark.timeout(timeout=0.55, method="thread", func_only=True)
    @pytest.mark.standalone
    def test_mark_by_keyword(world): hang(world)

    @pytest.mark.timeout(method="signal")
    @pytest.mark.standalone
    def test_mark_without_a_limit(world): hang(world)

    @pytest.mark.timeout(5)
    @pytest.mark.standalone(timeout=0)
    def test_no_limit_by_our_mark():
        threading.Event().wait(0.75)

    @pytest.mark.timeout(0.35)
    def test_plain(world): hang(world)

    def test_plain_is_not_limited_by_our_option():
        threading.Event().wait(0.75)
"""
LIMITS = {
    "test_static_mark": "0.7",
    "test_dynamic_mark": "0.8",
    "test_standalone_mark": "0.6",
    "test_mark_of_pytest_timeout": "0.9",
    "test_mark_by_keyword": "0.55",
    "test_mark_without_a_limit": "0.5",
    "test_run": "0.5",
}
# The options of a run with one test: it hangs for ever, or is longer than the default, which is made shorter here.
DEFAULT = """
    import dataclasses
    from lightning_disttest import settings

    settings.OPTIONS = tuple(
        dataclasses.replace(option, default=0.45) if option.flag == "--disttest-timeout" else option
        for option in settings.OPTIONS
    )
"""
ONE = """
    import pytest
    from hanging import hang

    @pytest.mark.standalone
    def test_it(world): hang(world)
"""
LONG = """
    import threading
    import pytest

    @pytest.mark.standalone
    def test_it():
        threading.Event().wait(0.7)
"""


@pytest.fixture(scope="module")
def marked(run_once: RunOnce) -> Run:
    """Return a run in which most tests hang, with a limit of the run beside those of marks; two workers halve it."""
    files = {"hanging.py": HANG, "test_worlds.py": WORLDS, "test_others.py": OTHERS}
    limits = ["--disttest-timeout=0.5", "--timeout=30"]
    return run_once(files, *limits, "--disttest-grace=0.05", "-n2", "--dist=loadfile")


def _limit_in(text: str) -> set[str]:
    return set(re.findall(r"time limit of (\S+) s", text))


@pytest.mark.parametrize("name", LIMITS)
def test_marks_go_first(marked: Run, name: str) -> None:
    """The mark that puts a test on ranks goes before pytest-timeout's, and this before the options of the run."""
    assert _limit_in(marked.text(name)) == {LIMITS[name]}, marked.output


@pytest.mark.parametrize("name", ["test_static_mark", "test_dynamic_mark"])
def test_all_stacks_are_shown(marked: Run, name: str) -> None:
    """A test that reached its limit shows where every rank was."""
    assert marked.outcome(name) == "failed", marked.output
    _, first, second = re.split(r"^_+ (?=rank \d of 2 )", marked.text(name), flags=re.MULTILINE)
    for rank, story in enumerate((first, second)):
        assert story.startswith(f"rank {rank} of 2 (pid "), story
        assert f"was still in call at the time limit of {LIMITS[name]} s" in story.partition("\n")[0]
        assert lines_with(story, "hanging.py", f"in hang_of_rank_{rank}")
        assert lines_with(story, "test_worlds.py", f"in {name}")


@pytest.mark.parametrize("name", ["test_no_limit", "test_no_limit_by_our_mark"])
def test_zero_is_no_limit(marked: Run, name: str) -> None:
    """A mark with 0 lets a test run longer than the limit of the run."""
    assert marked.outcome(name) == "passed", marked.text(name)


def test_plain_tests_keep_pytest_timeout(marked: Run) -> None:
    """A plain test has pytest-timeout's own timer, and none of ours."""
    assert marked.outcome("test_plain") == "failed"
    assert "Timeout (>0.35s) from pytest-timeout" in marked.text("test_plain")
    assert marked.outcome("test_plain_is_not_limited_by_our_option") == "passed"


Sources = tuple[str, Mapping[str, str], str]
OURS_IN_INI: Sources = ("", {}, "disttest_timeout = 0.8")
THEIRS: Sources = ("--timeout=0.4", {"PYTEST_TIMEOUT": "0.9"}, "timeout = 0.3")
NOTHING: Sources = ("", {}, "")


def _run(run_once: RunOnce, source: str, ours: Sources, theirs: Sources, *arguments: str) -> Run:
    """Run one standalone test, which imports no torch, with both plugins' options, variables and ini options."""
    files = {
        "pytest.ini": f"[pytest]\n{ours[2]}\n{theirs[2]}\n",
        "conftest.py": DEFAULT,
        "hanging.py": HANG,
        "test_one.py": source,
    }
    options = [option for option in (ours[0], theirs[0]) if option]
    return run_once(files, "--disttest-grace=0.05", *options, *arguments, env={**ours[1], **theirs[1]})


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments", "limit"),
    [
        (OURS_IN_INI, THEIRS, (), "0.8"),
        (NOTHING, ("", *THEIRS[1:]), (), "0.9"),
        (NOTHING, ("", THEIRS[1], ""), ("-p", "no:timeout"), "0.45"),
    ],
    ids=["ours before theirs", "theirs", "default, pytest-timeout off"],
)
def test_limits_of_the_run(
    run_once: RunOnce, ours: Sources, theirs: Sources, arguments: tuple[str, ...], limit: str
) -> None:
    """Our limit goes before pytest-timeout's, wherever each comes from; the default is last."""
    run = _run(run_once, ONE, ours, theirs, *arguments)
    assert _limit_in(run.text("test_it")) == {limit}, run.output


def test_zero_for_the_run_is_no_limit(run_once: RunOnce) -> None:
    """A limit of 0 is none, and no other limit takes its place."""
    run = _run(run_once, LONG, ("--disttest-timeout=0", {}, ""), THEIRS)
    assert run.outcomes == {"test_it": "passed"}, run.output
