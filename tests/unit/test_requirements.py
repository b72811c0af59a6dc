"""What a test lacks on this machine: whether it is skipped, with which reason, and what makes it a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed  # noqa: F401  pytester forgets what a test imports, and torch stands one import only

from lightning_disttest.errors import RequirementMissing
from lightning_disttest.selection import marks, requirements
from lightning_disttest.selection.requirements import missing_requirement
from tests.unit.test_settings import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.settings import Settings

    MakeItem = Callable[..., pytest.Item]

mark = pytest.mark
skipif: Any = pytest.mark.skipif  # RunIf gives it keys of its own

NEEDS_GPUS = mark.distributed(2, device="cuda")
NEEDS_TPU = mark.tpu
REQUIRE = "--disttest-require (DISTTEST_REQUIRE, ini disttest_require)"


def requires(*reasons: str, condition: bool = True, **keys: bool) -> pytest.MarkDecorator:
    """Return the mark that RunIf makes when these reasons keep the test from running."""
    made: pytest.MarkDecorator = skipif(condition=condition, reason=f"Requires: [{' + '.join(reasons)}]", **keys)
    return made


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
    """Return a function that says what this machine has; it has nothing to begin with."""

    def has(gpus: int, tpu: bool) -> None:
        monkeypatch.setattr(requirements, "count_gpus", lambda: gpus)
        monkeypatch.setattr(requirements, "has_tpu", lambda: tpu)

    has(0, False)
    return has


@pytest.fixture
def planned(make_item: MakeItem) -> MakeItem:
    """Return a function that makes one planned item with these marks."""

    def plan(*given: pytest.MarkDecorator) -> pytest.Item:
        item = make_item("test_it", *given)
        marks.plan_items([item])
        return item

    return plan


def settings(*require: str, tpu: bool = False) -> Settings:
    """Return the settings of a run in which these must not be missing."""
    return replace(DEFAULTS, require=frozenset(require), tpu=tpu)


# Without a requirement: skipped, with the reason.


@pytest.mark.parametrize(
    ("given", "gpus", "lack"),
    [
        (mark.distributed(1, device="cuda"), 0, "needs 1 GPU, 0 found"),
        (NEEDS_GPUS, 0, "needs 2 GPUs, 0 found"),
        (NEEDS_GPUS, 1, "needs 2 GPUs, 1 found"),
        (NEEDS_GPUS, 2, None),
        (NEEDS_GPUS, 3, None),
        (mark.distributed(3, device="cuda", backend="gloo", static=False), 2, "needs 3 GPUs, 2 found"),
        (mark.distributed(2), 0, None),
        (mark.standalone, 0, None),
    ],
    ids=str,
)
def test_world_on_gpus_needs_one_for_each_rank(
    planned: MakeItem,
    machine: Callable[[int, bool], None],
    given: pytest.MarkDecorator,
    gpus: int,
    lack: str | None,
) -> None:
    """A test on GPUs is skipped where there are fewer than ranks; one on the CPU never is."""
    machine(gpus, False)

    assert missing_requirement(planned(given), DEFAULTS) == lack


@pytest.mark.parametrize(("has_one", "lack"), [(False, "needs a TPU, none found"), (True, None)])
@pytest.mark.parametrize("given", [(mark.tpu,), (mark.tpu, mark.standalone)], ids=["tpu", "tpu and standalone"])
def test_mark_tpu_needs_one(
    planned: MakeItem,
    machine: Callable[[int, bool], None],
    given: tuple[pytest.MarkDecorator, ...],
    has_one: bool,
    lack: str | None,
) -> None:
    """A test that is marked so is skipped where there is no TPU, in a fresh process or not."""
    machine(0, has_one)

    assert missing_requirement(planned(*given), DEFAULTS) == lack


@pytest.mark.parametrize("reason", ["GPUs>=2", "CUDA device bf16", "TPU", "Standalone execution", "Rich"])
def test_conditions_of_runif_are_left_to_their_own_skip(planned: MakeItem, reason: str) -> None:
    """What a skipif skips is skipped by pytest; it lacks nothing by its marks."""
    assert missing_requirement(planned(requires(reason)), DEFAULTS) is None


@pytest.mark.parametrize("given", [(), (mark.parametrize("x", [1]),)], ids=["none", "foreign"])
def test_unmarked_test_lacks_nothing(planned: MakeItem, given: tuple[pytest.MarkDecorator, ...]) -> None:
    """A plain test may run anywhere, whatever is required."""
    assert missing_requirement(planned(*given), settings("cuda", "tpu", "standalone", tpu=True)) is None


def test_devices_are_not_looked_for_without_need(planned: MakeItem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that ask for no device do not cost a look at the machine, which loads torch."""

    def fail() -> int:
        raise AssertionError("looked at the machine")

    monkeypatch.setattr(requirements, "count_gpus", fail)
    monkeypatch.setattr(requirements, "has_tpu", fail)
    everything = settings("cuda", "tpu", "standalone", tpu=True)

    for given in ([], [mark.standalone], [mark.distributed(2)], [requires("Rich")], [NEEDS_GPUS, mark.skip]):
        assert missing_requirement(planned(*given), everything) is None
    with pytest.raises(AssertionError, match="looked at the machine"):
        missing_requirement(planned(NEEDS_GPUS), everything)


# With a requirement: a failure.

LACKS: list[tuple[str, pytest.MarkDecorator, str]] = [
    ("cuda", NEEDS_GPUS, "needs 2 GPUs, 0 found"),
    ("cuda", requires("GPUs>=2", min_cuda_gpus=True), "requires GPUs>=2"),
    ("cuda", requires("CUDA device bf16"), "requires CUDA device bf16"),
    ("tpu", NEEDS_TPU, "needs a TPU, none found"),
    ("tpu", requires("TPU", tpu=True), "requires TPU"),
    (
        "standalone",
        requires("Standalone execution", standalone=True),
        "requires Standalone execution, which --standalone (PL_RUN_STANDALONE_TESTS, ini disttest_standalone) gives",
    ),
]
every_lack = pytest.mark.parametrize(("name", "given", "reason"), LACKS, ids=[reason for _, _, reason in LACKS])


@every_lack
def test_lack_of_what_is_required_is_a_failure(
    planned: MakeItem, name: str, given: pytest.MarkDecorator, reason: str
) -> None:
    """Whoever asks for it, by a mark of ours or by RunIf, fails with what it lacks and why that is no skip."""
    item = planned(given)

    with pytest.raises(RequirementMissing) as caught:
        missing_requirement(item, settings(name))

    assert str(caught.value) == f"{item.nodeid} cannot run here: {reason}. It is not skipped because of {REQUIRE}."


@every_lack
def test_lack_of_something_else_is_no_failure(
    planned: MakeItem, name: str, given: pytest.MarkDecorator, reason: str
) -> None:
    """Only what is named is required."""
    others = {"cuda", "tpu", "standalone"} - {name}

    lack = missing_requirement(planned(given), settings(*others))

    assert lack == (reason if given in (NEEDS_GPUS, NEEDS_TPU) else None)


@pytest.mark.parametrize("reasons", [("GPUs>=2", "Rich"), ("torch>=9, 2.1 installed", "GPUs>=2")])
def test_lack_is_found_among_others(planned: MakeItem, reasons: tuple[str, ...]) -> None:
    """A RunIf that lacks several things fails for the one that is required, and names that one."""
    with pytest.raises(RequirementMissing, match=r"cannot run here: requires GPUs>=2\. It"):
        missing_requirement(planned(requires(*reasons)), settings("cuda"))


@pytest.mark.parametrize(
    "given",
    [
        requires("GPUs>=2", condition=False),
        skipif(True, reason="GPUs>=2"),
        skipif("True", reason="Requires: [GPUs>=2]"),
        skipif(condition=True, reason="GPUs>=2 are required"),
        skipif(condition=True),
        requires("no TPU"),
        requires("MPS"),
    ],
    ids=["met", "by position", "a string", "another's reason", "no reason", "no TPU", "MPS"],
)
def test_other_skips_are_no_failure(planned: MakeItem, given: pytest.MarkDecorator) -> None:
    """A condition that is met, and a skip that RunIf did not make or that is for another lack, fail nothing."""
    assert missing_requirement(planned(given), settings("cuda", "tpu", "standalone")) is None


@pytest.mark.parametrize("given", [NEEDS_GPUS, NEEDS_TPU, requires("GPUs>=2")], ids=str)
def test_test_that_is_skipped_anyway_is_no_failure(planned: MakeItem, given: pytest.MarkDecorator) -> None:
    """An unconditional skip is nobody's lack."""
    assert missing_requirement(planned(given, mark.skip(reason="later")), settings("cuda", "tpu")) is None


def test_what_is_there_is_no_failure(planned: MakeItem, machine: Callable[[int, bool], None]) -> None:
    """On a machine that has all that is required, tests run."""
    machine(2, True)
    everything = settings("cuda", "tpu", "standalone", tpu=True)

    for given in ([NEEDS_GPUS], [NEEDS_TPU], [NEEDS_TPU, mark.standalone], [mark.standalone]):
        assert missing_requirement(planned(*given), everything) is None


# With --tpu.


@pytest.mark.parametrize(
    ("given", "reason"), [(NEEDS_TPU, "needs a TPU, none found"), (requires("TPU", tpu=True), "requires TPU")], ids=str
)
def test_switch_of_tpu_tests_requires_a_tpu(planned: MakeItem, given: pytest.MarkDecorator, reason: str) -> None:
    """A run of TPU tests on a machine without one fails, and names the switch."""
    with pytest.raises(RequirementMissing) as caught:
        missing_requirement(planned(given), settings("cuda", tpu=True))

    switch = "--tpu (PL_RUN_TPU_TESTS, ini disttest_tpu)"
    assert f"cannot run here: {reason}. It is not skipped because of {switch}." in str(caught.value)


def test_requirement_is_named_before_the_switch_of_tpu_tests(planned: MakeItem) -> None:
    """If both are set, the option that says it outright is named."""
    with pytest.raises(RequirementMissing, match="because of --disttest-require "):
        missing_requirement(planned(NEEDS_TPU), settings("tpu", tpu=True))


def test_switch_of_tpu_tests_requires_nothing_else(planned: MakeItem) -> None:
    """Other tests that ``--tpu`` leaves in, by whatever way, are skipped as ever."""
    assert missing_requirement(planned(NEEDS_GPUS), settings(tpu=True)) == "needs 2 GPUs, 0 found"
