"""Writes the tests of a group of cells: each fits a model with its fault, and after it an innocent one has to pass."""

from __future__ import annotations

from collections.abc import Iterable

from tests.strategies.cells import HOOKS, LIMIT_S, STRATEGIES, Cell

_INNOCENT_LIMIT_S = 60.0
_FAULTY = '''\
"""A model with one fault, where processes that are spawned can import it."""

import os
import signal
import threading
import time
from pathlib import Path

from lightning.pytorch.demos.boring_classes import BoringModel

HERE = Path(__file__).parent
_LIMIT_S = 20.0


class Faulty(BoringModel):
    def __init__(self, cell, hook, fault, ranks):
        super().__init__()
        self.cell, self.hook, self.fault, self.ranks = cell, hook, fault, ranks

    def act(self, hook):
        rank = self.trainer.global_rank
        if hook == self.hook and rank in self.ranks:
            begin(self.cell, rank, self.ranks)
            globals()[self.fault](self.cell, rank)

'''
_ACTS = '''\

def begin(cell, rank, ranks):
    """Note that the fault begins; none begins alone, or its end would break off what another one waits in."""
    draft = HERE / f"draft-{cell}-{rank}"
    draft.write_text(str(os.getpid()))
    draft.rename(HERE / f"begun-{cell}-{rank}")
    deadline = time.monotonic() + _LIMIT_S
    while not all((HERE / f"begun-{cell}-{other}").exists() for other in ranks):
        assert time.monotonic() < deadline, "the other rank did not come"
        time.sleep(0.005)


def raises(cell, rank):
    raise ValueError(f"{cell} on rank {rank}")


def dies(cell, rank):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def hangs(cell, rank):
    threading.Event().wait()
'''
_HOOK = """\
    def {hook}(self{arguments}):
        self.act("{hook}")
        return super().{hook}({passed})

"""
_HEAD = """\
import pytest
from faulty import Faulty
from lightning.pytorch.demos.boring_classes import BoringModel


def test_first(trainer_factory):  # where the warm interpreter starts, which takes longer than the limit of a hang
    trainer_factory(strategy="ddp_spawn", devices=2).fit(BoringModel())

"""
_TEST = """
{mark}
def test_{name}(trainer_factory):
    trainer = trainer_factory({arguments})
    trainer.fit({model})

"""


def write_cells(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the files of one run: the module of tests and the module with the model."""
    hooks = [
        _HOOK.format(hook=hook, arguments=f", {arguments}" if arguments else "", passed=arguments)
        for hook, arguments in HOOKS.items()
    ]
    return {
        "faulty.py": "".join([_FAULTY, *hooks, _ACTS]),
        "test_fits.py": "\n".join([_HEAD, *map(_write_cell, cells)]),
    }


def _write_cell(cell: Cell) -> str:
    arguments = ", ".join(filter(None, [STRATEGIES[cell.strategy][1], "enable_checkpointing=True"]))
    model = f'Faulty("{cell.name}", "{cell.hook}", "{cell.fault}", {cell.hit})'
    limit = LIMIT_S if cell.fault == "hangs" else _INNOCENT_LIMIT_S
    return "".join(
        _TEST.format(mark=_marks(cell, seconds), name=name, arguments=arguments, model=fitted)
        for name, fitted, seconds in (
            (cell.name, model, limit),
            (f"{cell.name}_next", "BoringModel()", _INNOCENT_LIMIT_S),
        )
    )


def _marks(cell: Cell, limit: float) -> str:
    mark = STRATEGIES[cell.strategy][0]
    marks = [f"@pytest.mark.{mark}"] if mark else []
    return "\n".join([*marks, f"@pytest.mark.timeout({limit})"])
