"""Every pair of place, fault, ranks and kind: the right outcome, the right text, and a healthy world afterwards."""

from __future__ import annotations

import pytest

from tests.faults.cells import VALID, Cell, pairwise

CELLS = pairwise(VALID)


# All of them run when the first one asks for its result.
@pytest.mark.timeout(900, func_only=False)
@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_cell(problems_of: dict[Cell, list[str]], cell: Cell) -> None:
    """A fault has the outcome and the text that the rules give it, in time, and the next test passes."""
    assert problems_of[cell] == [], "\n".join(problems_of[cell])
