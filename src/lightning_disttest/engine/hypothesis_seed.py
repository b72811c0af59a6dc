"""Random examples of Hypothesis on ranks: all ranks of a test must draw the same ones, or their collectives differ."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest

_OPTION = "--hypothesis-seed"
SEED_NOTE = pytest.StashKey[str]()  # for the report of a test that fails
_seeded: weakref.WeakSet[Any] = weakref.WeakSet()


def share_examples(item: pytest.Item, seed: int) -> None:
    """Have Hypothesis draw from ``seed`` in this test, unless the user has chosen one; nothing happens without it.

    What is set in Hypothesis is what ``--hypothesis-seed`` sets: it holds for state machines and for functions inside
    the test, too. ``hypothesis.seed`` also keeps a test away from the database of examples, which ranks would read at
    different times. With ``derandomize`` ranks draw the same examples already.
    """
    core: Any = sys.modules.get("hypothesis.core")
    if core is not None and item.config.getoption(_OPTION, None) is None:
        core.global_force_seed = seed
    function: Any = getattr(item, "function", None)
    if not getattr(function, "is_hypothesis_test", False):
        return
    if _draws_alike_anyway(function):
        return
    import hypothesis

    given = item.config.getoption(_OPTION, None)
    chosen = seed if given is None else _as_hypothesis_reads_it(given)
    hypothesis.seed(chosen)(function)
    _seeded.add(function)
    item.stash[SEED_NOTE] = f"To draw the same examples again: {_OPTION}={chosen}"


def _draws_alike_anyway(function: Any) -> bool:
    """Tell whether the user has chosen the examples; a seed from an earlier run of the function here does not count."""
    settings = getattr(function, "_hypothesis_internal_use_settings", None)
    seed = getattr(function, "_hypothesis_internal_use_seed", None)
    return bool(getattr(settings, "derandomize", False)) or (seed is not None and function not in _seeded)


def _as_hypothesis_reads_it(seed: str) -> int | str:
    try:
        return int(seed)
    except ValueError:
        return seed
