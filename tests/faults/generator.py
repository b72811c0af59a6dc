"""Writes the tests of a group of cells: each with its fault, and after it an innocent one that has to pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from tests.faults.cells import LIMITS_S, SETUPS, Cell, Effect

_INNOCENT_LIMIT_S = 30.0
_HEAD = """\
import atexit

import pytest
import torch

import injected
{imports}
"""
# Tells ranks when a test is over, and notes how long each test took. Ranks do not run these hooks.
_CONFTEST = '''\
"""Tells ranks when a test is over, and notes how long each test took."""

import json
import time
from pathlib import Path

HERE = Path(__file__).parent
BETWEEN = {between!r}
_LIMIT_S = 10.0
_begin = {{}}


def pytest_runtest_logstart(nodeid):
    _begin[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid):
    name = nodeid.rpartition("::test_")[2]
    with (HERE / "seconds.jsonl").open("a") as file:
        file.write(json.dumps([f"test_{{name}}", time.monotonic() - _begin[nodeid]]) + "\\n")
    if name in BETWEEN:
        (HERE / f"go-{{name}}").touch()
        for rank in BETWEEN[name][1]:
            _wait_for_fault(name, rank, BETWEEN[name][0])


def _wait_for_fault(name, rank, effect):
    deadline = time.monotonic() + _LIMIT_S
    while not _has_happened(name, rank, effect):
        assert time.monotonic() < deadline, f"the fault of {{name}} never happened on rank {{rank}}"
        time.sleep(0.005)


def _has_happened(name, rank, effect):
    begun = HERE / f"begun-{{name}}-{{rank}}"
    if not begun.exists():
        return False
    if effect == "DIES":
        return not Path(f"/proc/{{begun.read_text()}}").exists()
    return effect != "DONE" or (HERE / f"done-{{name}}-{{rank}}").exists()
'''
_FIXTURE = {
    "session_setup": '@pytest.fixture(scope="session")\ndef place_{name}():\n    {act}\n',
    "module_setup": '@pytest.fixture(scope="module")\ndef place_{name}():\n    {act}\n',
    "between": '@pytest.fixture(scope="session")\ndef place_{name}():\n    {act}\n',  # what a test leaves is undone
    "function_setup": "@pytest.fixture\ndef place_{name}({more}):\n    {act}\n",
    "teardown": "@pytest.fixture\ndef place_{name}({more}):\n    yield\n    {act}\n",
}


def write_cells(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the files of one run: a module of tests for each kind, the module with the faults, and a conftest."""
    cells = list(cells)
    between = {cell.name: (_wait_of(cell), cell.hit) for cell in cells if cell.place == "between"}
    files = {
        "injected.py": (Path(__file__).parent / "injected.py").read_text(),
        "conftest.py": _CONFTEST.format(between=between),
    }
    for kind in dict.fromkeys(cell.kind for cell in cells):
        own = [cell for cell in cells if cell.kind == kind]
        imports = "import lightning.fabric\n" if any(cell.launched for cell in own) else ""
        files[f"test_{kind}.py"] = "\n\n".join([_HEAD.format(imports=imports), *map(_write_cell, own)])
    return files


def write_around(cells: Sequence[Cell], innocent: int, chosen: Random) -> dict[str, str]:
    """Return the files of one run of static cells with so many innocent tests around them, in random order."""
    parts = [*map(_write_cell, cells), *(_write_innocent(number) for number in range(innocent))]
    chosen.shuffle(parts)
    return write_cells(cells) | {"test_static.py": "\n\n".join([_HEAD.format(imports=""), *parts])}


def _write_innocent(number: int) -> str:
    mark = _mark("static", _INNOCENT_LIMIT_S)
    return f"{mark}\ndef test_innocent_{number}():\n    {_innocent('static')}\n"


def _wait_of(cell: Cell) -> str:
    """Return what to wait for between two tests; a flood waits for the controller itself, which is not listening."""
    if "flood" in cell.fault:
        return "BEGUN"
    return "DONE" if cell.effect is Effect.HARMLESS else cell.effect.name


def _write_cell(cell: Cell) -> str:
    parts = [_FIXTURE[cell.place].format(name=cell.name, act=_act(cell), more=_more(cell))] if _in_fixture(cell) else []
    limit = LIMITS_S[cell.kind] if cell.effect is Effect.HANGS and cell.place != "between" else _INNOCENT_LIMIT_S
    parts.append(f"{_mark(cell.kind, limit)}\ndef test_{cell.name}({_arguments(cell)}):\n    {_body(cell)}\n")
    if cell.kind == "static" and cell.place == "exit":  # a test that fails, after which the world is ended in order
        mark = _mark(cell.kind, LIMITS_S[cell.kind])
        parts.append(f'{mark}\ndef test_{cell.name}_ends_world():\n    raise AssertionError("on purpose")\n')
    hung = cell.place == "between" and cell.effect is Effect.HANGS  # until the limit of the next test
    limit = LIMITS_S[cell.kind] if hung else _INNOCENT_LIMIT_S
    parts.append(f"{_mark(cell.kind, limit)}\ndef test_{cell.name}_next():\n    {_innocent(cell.kind)}\n")
    return "\n\n".join(parts)


def _in_fixture(cell: Cell) -> bool:
    return cell.place in (*SETUPS, "teardown", "between")


def _mark(kind: str, limit: float) -> str:
    if kind == "standalone":
        return f"@pytest.mark.standalone(timeout={limit})"
    return f"@pytest.mark.distributed(2, static={kind == 'static'}, timeout={limit})"


def _act(cell: Cell) -> str:
    if cell.place == "between":
        return f"injected.act_between_tests({_quoted(cell)})"
    more = ", subtests" if cell.effect is Effect.FAILS_SUBTEST else ""
    return f"injected.act({_quoted(cell)}{more})"


def _quoted(cell: Cell) -> str:
    return f'"{cell.name}", "{cell.fault}", "{cell.ranks}"'


def _more(cell: Cell) -> str:
    return "subtests" if cell.effect is Effect.FAILS_SUBTEST else ""


def _arguments(cell: Cell) -> str:
    return f"place_{cell.name}" if _in_fixture(cell) else _more(cell)


def _body(cell: Cell) -> str:
    lines = ["injected.launch()"] if cell.launched else []
    if cell.place == "call":
        lines.append(_act(cell))
    elif cell.place == "exit":
        lines.append(f"atexit.register(injected.act_alone, {_quoted(cell)})")
    return "\n    ".join(lines or ["pass"])


def _innocent(kind: str) -> str:
    if kind == "standalone":
        return "assert torch.ones(2).sum() == 2"
    return "total = torch.ones(1)\n    torch.distributed.all_reduce(total)\n    assert total == 2"
