"""The pairwise selection is run once, when its first test asks for it."""

from __future__ import annotations

import pytest

from tests.faults.cells import VALID, Cell, pairwise
from tests.faults.running import run_cells


@pytest.fixture(scope="session")
def problems_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, list[str]]:
    """Return what is wrong with each cell of the pairwise selection that this run of pytest has chosen."""
    chosen = {item.name for item in request.session.items}
    cells = [cell for cell in pairwise(VALID) if f"test_cell[{cell.name}]" in chosen]
    return run_cells(cells, tmp_path_factory.mktemp("faults"))
