"""Which tests are kept, in which order they run, and what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_disttest.selection.marks import asks_for_cuda, asks_for_standalone, asks_for_tpu, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from lightning_disttest.settings import Settings

_KIND_ORDER = {"static": 1, "dynamic": 2, "standalone": 3}


def _asks_for_kind(kind: str) -> Callable[[pytest.Item], bool]:
    def asks(item: pytest.Item) -> bool:
        plan = plan_of(item)
        return plan is not None and plan.kind == kind

    return asks


# The field of each selecting option in Settings, and the tests that it keeps.
_FILTERS: dict[str, Callable[[pytest.Item], bool]] = {
    "standalone": asks_for_standalone,
    "cuda_only": asks_for_cuda,
    "tpu": asks_for_tpu,
    "multigpu_static": _asks_for_kind("static"),
    "multigpu_dynamic": _asks_for_kind("dynamic"),
}


def selecting(settings: Settings) -> list[str]:
    """Return the fields of the selecting options that are on and have a say.

    standalone and cuda_only together are standalone alone: Lightning has no job that runs standalone tests without
    GPUs, so its filter keeps those too (tests/tests_pytorch/conftest.py).
    """
    fields = [field for field in _FILTERS if getattr(settings, field)]
    if "standalone" in fields and "cuda_only" in fields:
        fields.remove("cuda_only")
    return fields


def keeps(item: pytest.Item, fields: Sequence[str]) -> bool:
    """Tell whether each of the fields keeps an item; one that is skipped anyway is not kept."""
    return item.get_closest_marker("skip") is None and all(_FILTERS[field](item) for field in fields)


def select(items: list[pytest.Item], fields: Sequence[str]) -> list[pytest.Item]:
    """Remove from ``items`` what one of the fields does not keep or is skipped anyway; return the removed."""
    kept: list[pytest.Item] = []
    removed: list[pytest.Item] = []
    for item in items:
        (kept if keeps(item, fields) else removed).append(item)
    items[:] = kept
    return removed


def group(items: list[pytest.Item]) -> None:
    """Sort: plain tests, static tests with those of one world together, dynamic tests, standalone tests.

    Inside a group, and for plain tests among themselves, the order stays as it is.
    """
    worlds: dict[tuple[int, str, str], int] = {}
    for item in items:
        plan = plan_of(item)
        if plan is not None:
            worlds.setdefault(plan.world_key, len(worlds))

    def key(item: pytest.Item) -> tuple[int, int]:
        plan = plan_of(item)
        if plan is None:
            return 0, 0
        return _KIND_ORDER[plan.kind], worlds[plan.world_key] if plan.kind == "static" else 0

    items.sort(key=key)


def next_of_world(items: Sequence[pytest.Item]) -> dict[pytest.Item, int]:
    """Return for each static item the index of the next one that is planned for the same world."""
    following: dict[pytest.Item, int] = {}
    last_seen: dict[tuple[int, str, str], int] = {}
    for index in range(len(items) - 1, -1, -1):
        plan = plan_of(items[index])
        if plan is None or plan.kind != "static":
            continue
        if plan.world_key in last_seen:
            following[items[index]] = last_seen[plan.world_key]
        last_seen[plan.world_key] = index
    return following


def summarize(items: list[pytest.Item]) -> list[str]:
    """Return the line that says how many tests run on ranks; none if there are none."""
    plans = [plan for item in items if (plan := plan_of(item)) is not None]
    if not plans:
        return []
    counts = {kind: sum(plan.kind == kind for plan in plans) for kind in _KIND_ORDER}
    worlds = len({plan.world_key for plan in plans if plan.kind == "static"})
    parts = []
    if counts["static"]:
        parts.append(f"{counts['static']} static in {worlds} world{'s' if worlds != 1 else ''}")
    parts += [f"{counts[kind]} {kind}" for kind in ("dynamic", "standalone") if counts[kind]]
    return [f"disttest: {', '.join(parts)} (start method: fork)"]
