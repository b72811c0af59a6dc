"""The hooks of the plugin: what becomes of marks at collection, and of a test that this machine can not run."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest import plugin
from lightning_disttest.errors import ConditionUnclear, RequirementMissing
from lightning_disttest.selection import marks, requirements
from lightning_disttest.selection.marks import Plan
from lightning_disttest.settings import SETTINGS
from tests.unit.test_settings import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeItem = Callable[..., pytest.Item]

TEXT = "world_size must be a whole number of 1 or more, not 0"


def make_config(**more: Any) -> Any:
    """Return what the hook uses of a config; with ``workerinput`` it is that of a worker of pytest-xdist."""
    stash = pytest.Stash()
    stash[SETTINGS] = DEFAULTS
    return SimpleNamespace(stash=stash, pluginmanager=pytest.PytestPluginManager(), **more)


def session_of(config: Any, items: list[pytest.Item]) -> Any:
    """Return what is read of a session before its loop."""
    config.option = SimpleNamespace(collectonly=False)
    return SimpleNamespace(config=config, items=items, testsfailed=0)


def modify_items(config: Any, items: list[pytest.Item], others: Callable[[], object] = lambda: None) -> None:
    """Run the hook around what other plugins do with the items."""
    hook = plugin.pytest_collection_modifyitems(config, items)
    next(hook)
    others()
    with contextlib.suppress(StopIteration):
        next(hook)


def test_invalid_marks_end_the_run(make_item: MakeItem) -> None:
    """In the main process invalid marks are a usage error, and no test runs."""
    items = [make_item("test_bad", pytest.mark.distributed(0)), make_item("test_fine")]

    with pytest.raises(pytest.UsageError, match=TEXT):
        modify_items(make_config(), items)


def test_invalid_marks_fail_every_test_of_a_worker(make_item: MakeItem) -> None:
    """In a worker of pytest-xdist, which a usage error would crash, each test fails with their text."""
    config = make_config(workerinput={})
    items = [make_item("test_bad", pytest.mark.distributed(0)), make_item("test_fine")]

    modify_items(config, items)

    for item in items:
        with pytest.raises(pytest.fail.Exception, match=TEXT):
            config.pluginmanager.hook.pytest_runtest_setup(item=item)


def test_valid_marks_fail_nothing_in_a_worker(make_item: MakeItem) -> None:
    """A worker whose marks are valid runs its tests as they are."""
    config = make_config(workerinput={})
    item = make_item("test_fine", pytest.mark.distributed(2))

    modify_items(config, [item])

    assert config.pluginmanager.hook.pytest_runtest_setup(item=item) == []


def test_worker_that_finds_bad_marks_twice_fails_every_test_as_before(make_item: MakeItem) -> None:
    """Marks are checked after the collection and before the loop; a worker of pytest-xdist lives through both."""
    config = make_config(workerinput={})
    items = [make_item("test_bad", pytest.mark.distributed(0)), make_item("test_late")]
    modify_items(config, items)
    items[1].add_marker(pytest.mark.distributed("two"))

    plugin._plan_latecomers(session_of(config, items))

    for item in items:
        with pytest.raises(pytest.fail.Exception, match=TEXT) as caught:
            config.pluginmanager.hook.pytest_runtest_setup(item=item)
        assert str(caught.value).startswith("lightning_disttest: 1 test with invalid marks\n")


def test_worker_that_finds_bad_marks_late_fails_every_test(make_item: MakeItem) -> None:
    """What a hook after ours has marked badly is found before the loop."""
    config = make_config(workerinput={})
    items = [make_item("test_late")]
    modify_items(config, items)
    items[0].add_marker(pytest.mark.distributed(0))

    plugin._plan_latecomers(session_of(config, items))

    with pytest.raises(pytest.fail.Exception, match=TEXT):
        config.pluginmanager.hook.pytest_runtest_setup(item=items[0])


def test_bad_marks_that_come_late_end_the_run(make_item: MakeItem) -> None:
    """In the main process they are a usage error, as early ones are."""
    config, items = make_config(), [make_item("test_late")]
    modify_items(config, items)
    items[0].add_marker(pytest.mark.distributed(0))

    with pytest.raises(pytest.UsageError, match=TEXT):
        plugin._plan_latecomers(session_of(config, items))


def test_test_that_is_marked_late_runs_on_ranks(make_item: MakeItem) -> None:
    """A hook after ours may add the first mark of the run: its test has a plan, and the run a controller."""
    config, items = make_config(), [make_item("test_late")]
    session = session_of(config, items)
    modify_items(config, items)
    assert not plugin._needs_ranks(session)
    items[0].add_marker(pytest.mark.distributed(2))

    plugin._plan_latecomers(session)

    assert Plan("static", 2, "cpu", "gloo", None) == marks.plan_of(items[0])
    assert plugin._needs_ranks(session)


def test_other_plugins_see_translated_marks_and_may_remove_tests(
    make_item: MakeItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alias has its other name before they select, with the GPUs of this machine; a removed test is not checked."""
    monkeypatch.setattr(marks, "count_gpus", lambda: 3)
    items = [make_item("test_bad", pytest.mark.distributed(0)), make_item("test_alias", pytest.mark.multigpu_static)]
    seen: list[str] = []

    def select() -> None:
        seen.extend(mark.name for item in items for mark in item.iter_markers("distributed"))
        del items[0]

    modify_items(make_config(), items, select)

    assert seen == ["distributed", "distributed"]
    assert Plan("static", 3, "cuda", "nccl", None) == marks.plan_of(items[0])


def test_machine_that_gives_no_number_of_gpus_ends_the_run(
    make_item: MakeItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark that asks for all GPUs is a usage error where nobody can count them, but not of a deselected test."""

    def fail() -> int:
        raise ConditionUnclear("the number of GPUs", "exit code 1")

    monkeypatch.setattr(marks, "count_gpus", fail)
    items = [make_item("test_alias", pytest.mark.multigpu_dynamic)]

    with pytest.raises(pytest.UsageError, match="::test_alias: mark multigpu_dynamic: the number of GPUs could not "):
        modify_items(make_config(), items)
    modify_items(make_config(), items, items.clear)


def test_tests_are_grouped_before_stepwise_without_a_word_about_bad_marks(make_item: MakeItem) -> None:
    """What stepwise leaves in place is in the order of the run; bad marks are refused only if they are left."""
    given = {"alone": pytest.mark.standalone, "bad": pytest.mark.distributed(0), "static": pytest.mark.distributed(2)}
    items = [make_item(name, mark) for name, mark in given.items()]

    plugin._EarlyGrouping().pytest_collection_modifyitems(items)

    assert [item.name for item in items] == ["bad", "static", "alone"]


# Before a test runs.


def lacking(monkeypatch: pytest.MonkeyPatch, answer: str | Exception | None) -> None:
    """Have the machine lack something, or nothing."""

    def missing_requirement(*_: object) -> str | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(requirements, "missing_requirement", missing_requirement)


def test_test_that_lacks_a_device_is_skipped_at_its_own_line(
    make_item: MakeItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The skip has the reason, and the summary names the test's place instead of the plugin's."""
    lacking(monkeypatch, "needs 2 GPUs, 0 found")

    with pytest.raises(pytest.skip.Exception) as caught:
        plugin.pytest_runtest_setup(make_item("test_it"))

    assert caught.value.msg == "needs 2 GPUs, 0 found"
    assert caught.value._use_item_location


@pytest.mark.parametrize(
    "reason",
    [
        RequirementMissing("test_it", "needs a TPU, none found", "--tpu"),
        ConditionUnclear("the number", "no answer"),
    ],
    ids=lambda reason: type(reason).__name__,
)
def test_test_that_must_not_be_skipped_fails_without_a_traceback(
    make_item: MakeItem, monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    """What was required and is not there, and what nobody can tell, is a failure of the test with the whole text."""
    lacking(monkeypatch, reason)

    with pytest.raises(pytest.fail.Exception) as caught:
        plugin.pytest_runtest_setup(make_item("test_it"))

    assert caught.value.msg == str(reason)
    assert not caught.value.pytrace
    assert caught.value.__context__ is None


def test_test_that_lacks_nothing_runs(make_item: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked about the test and the settings of its run."""
    asked: list[tuple[object, object]] = []
    monkeypatch.setattr(requirements, "missing_requirement", lambda *given: asked.append(given))
    item = make_item("test_it")

    plugin.pytest_runtest_setup(item)

    assert asked == [(item, item.config.stash[SETTINGS])]


def test_ranks_do_not_ask_again(make_item: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a test runs was decided before it was sent to its ranks."""
    lacking(monkeypatch, AssertionError("asked"))
    item = make_item("test_it")
    with pytest.raises(AssertionError, match="asked"):
        plugin.pytest_runtest_setup(item)

    monkeypatch.setattr(plugin, "current_rank", object)

    plugin.pytest_runtest_setup(item)
