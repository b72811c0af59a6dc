"""Random examples of Hypothesis on ranks: all ranks of a test must draw the same ones, or their collectives differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_OPTION = "--hypothesis-seed"


def share_examples(item: pytest.Item, seed: int) -> None:
    """Have a Hypothesis test draw from ``seed``, unless it has a seed of its own; nothing happens to other tests.

    ``hypothesis.seed`` also keeps the test away from the database of examples, which ranks would read at different
    times. With ``derandomize`` ranks draw the same examples already.
    """
    function: Any = getattr(item, "function", None)
    if not getattr(function, "is_hypothesis_test", False):
        return
    settings = getattr(function, "_hypothesis_internal_use_settings", None)
    if getattr(settings, "derandomize", False) or getattr(function, "_hypothesis_internal_use_seed", None) is not None:
        return
    import hypothesis

    given = item.config.getoption(_OPTION, None)
    chosen = seed if given is None else given
    hypothesis.seed(chosen)(function)
    item.add_report_section("call", "hypothesis", f"the examples can be had again with {_OPTION}={chosen}\n")
