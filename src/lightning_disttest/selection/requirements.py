"""What a test needs of this machine: tests that lack it are skipped with the reason, or fail if it was required."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_disttest.errors import RequirementMissing
from lightning_disttest.selection.devices import count_gpus, has_tpu
from lightning_disttest.selection.marks import is_marked, plan_of
from lightning_disttest.settings import find_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from lightning_disttest.settings import Settings

# How the reasons of RunIf, ours and Lightning's, begin for each of the names of --disttest-require.
_REASONS = {"GPUs>=": "cuda", "CUDA device": "cuda", "TPU": "tpu", "Standalone execution": "standalone"}
_CURES = {"standalone": f", which {find_option('standalone').names} gives"}


def missing_requirement(item: pytest.Item, settings: Settings) -> str | None:
    """Return why a test is to be skipped, None if this machine has what its marks ask for.

    Raises:
        RequirementMissing: if it would be skipped, now or by its RunIf, for lack of something that was required.
    """
    if not is_marked(item) or item.get_closest_marker("skip") is not None:
        return None
    by_marks, by_conditions = list(_lacks_of_marks(item)), list(_lacks_of_conditions(item))
    required = settings.require | ({"tpu"} if settings.tpu else set())
    for name, reason in (*by_marks, *by_conditions):
        if name in required:
            option = find_option("require" if name in settings.require else "tpu")
            raise RequirementMissing(item.nodeid, reason, option.names)
    return by_marks[0][1] if by_marks else None


def _lacks_of_marks(item: pytest.Item) -> Iterator[tuple[str, str]]:
    plan = plan_of(item)
    if plan is not None and plan.device == "cuda" and (present := count_gpus()) < plan.world_size:
        yield "cuda", f"needs {plan.world_size} GPU{'s' if plan.world_size > 1 else ''}, {present} found"
    if item.get_closest_marker("tpu") is not None and not has_tpu():
        yield "tpu", "needs a TPU, none found"


def _lacks_of_conditions(item: pytest.Item) -> Iterator[tuple[str, str]]:
    for mark in item.iter_markers("skipif"):
        reason: Any = mark.kwargs.get("reason")
        if mark.kwargs.get("condition") is True and isinstance(reason, str) and reason.startswith("Requires: ["):
            for part in reason.removeprefix("Requires: [").removesuffix("]").split(" + "):
                yield from (
                    (name, f"requires {part}{_CURES.get(name, '')}")
                    for start, name in _REASONS.items()
                    if part.startswith(start)
                )
