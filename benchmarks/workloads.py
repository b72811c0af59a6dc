"""The work that is measured: sources of generated tests, and the outcomes that a right run of them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PER_MODULE = 100

INI = """\
[pytest]
markers =
    distributed: as the plugin declares it, for runs without the plugin
    standalone: as the plugin declares it, for runs without the plugin
"""

IMPORT_ONLY = """\
import torch.distributed
"""

GROUP_OF_ONE = """\
import torch.distributed as dist


def pytest_sessionstart():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def pytest_unconfigure():
    dist.destroy_process_group()
"""

GROUP_OF_LAUNCHER = """\
import torch.distributed as dist


def pytest_sessionstart():
    dist.init_process_group("gloo")


def pytest_unconfigure():
    dist.destroy_process_group()
"""

_REDUCE = """\
import pytest
import torch
import torch.distributed as dist


def reduce_and_check():
    size = dist.get_world_size()
    tensor = torch.full((2,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size + 1) / 2] * 2

"""

_STATIC = f"{_REDUCE}\npytestmark = pytest.mark.distributed(world_size=2)\n"
_DYNAMIC = f"{_REDUCE}\npytestmark = pytest.mark.distributed(world_size=2, static=False)\n"

_SPAWN = f"""\
{_REDUCE}
import torch.multiprocessing


def run_rank(rank, path):
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    reduce_and_check()
    dist.destroy_process_group()

"""


_NOTE = f"""\
{_STATIC}
import os
import signal
import time


def note(what):
    path = os.path.join(os.environ["BENCHMARK_NOTES"], f"{{what}}.{{dist.get_rank()}}")
    with open(path, "w") as file:
        file.write(repr(time.monotonic()))

"""


def _fit(strategy: str, mark: str = "") -> str:
    return f"""\
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
{mark}

def fit(folder):
    trainer = Trainer(
        accelerator="cpu",
        strategy="{strategy}",
        devices=2,
        max_epochs=1,
        limit_train_batches=2,
        limit_val_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(BoringModel())
    assert trainer.world_size == 2
    assert trainer.state.finished

"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Generated test modules by file name, and how many tests pass and fail in a right run of them."""

    name: str
    files: Mapping[str, str]
    passed: int
    failed: int = 0


def static_tests(count: int) -> Workload:
    """Return ``count`` tests that reduce a small tensor over the default process group."""
    return _modules(f"static{count}", _STATIC, "def test_{number}():\n    reduce_and_check()\n", count)


def dynamic_tests(count: int) -> Workload:
    """Return the same tests, each in a world of its own."""
    return _modules(f"dynamic{count}", _DYNAMIC, "def test_{number}():\n    reduce_and_check()\n", count)


def spawn_tests(count: int) -> Workload:
    """Return the same tests, each of which starts its ranks by ``torch.multiprocessing.spawn``."""
    body = (
        "def test_{number}(tmp_path):\n"
        '    torch.multiprocessing.spawn(run_rank, args=(str(tmp_path / "store"),), nprocs=2)\n'
    )
    return _modules(f"spawn{count}", _SPAWN, body, count)


def fit_tests(count: int) -> Workload:
    """Return tests that fit a Trainer with ``strategy="ddp"`` on two ranks, launched by Lightning itself."""
    head = _fit("ddp", "\npytestmark = pytest.mark.standalone\n")
    return _modules(f"fit{count}", head, "def test_{number}(tmp_path):\n    fit(tmp_path)\n", count)


def spawn_fit_tests(count: int) -> Workload:
    """Return plain tests that fit a Trainer with ``strategy="ddp_spawn"`` on two ranks."""
    return _modules(f"spawnfit{count}", _fit("ddp_spawn"), "def test_{number}(tmp_path):\n    fit(tmp_path)\n", count)


def plain_tests(count: int) -> Workload:
    """Return tests that do nothing and need no rank."""
    return _modules(f"plain{count}", "", "def test_{number}():\n    assert True\n", count)


def waiting_tests(count: int) -> Workload:
    """Return tests in which rank 1 fails while rank 0 waits for it in a collective."""
    body = (
        "def test_{number}():\n"
        "    if dist.get_rank() == 1:\n"
        '        note("failure{number}")\n'
        "        assert False\n"
        "    dist.barrier()\n"
    )
    work = _modules(f"waiting{count}", _NOTE, body, count)
    return Workload(work.name, work.files, passed=0, failed=count)


def crash_tests(count: int) -> Workload:
    """Return rounds of four tests: two that pass, one in which rank 1 is killed, one that passes in a new world."""
    body = (
        "def test_{number}_before():\n"
        "    reduce_and_check()\n"
        "\n\n"
        "def test_{number}_normal():\n"
        '    note("normal{number}")\n'
        "    reduce_and_check()\n"
        "\n\n"
        "def test_{number}_crash():\n"
        '    note("crash{number}")\n'
        "    if dist.get_rank() == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "\n\n"
        "def test_{number}_next():\n"
        '    note("next{number}")\n'
        "    reduce_and_check()\n"
    )
    work = _modules(f"crash{count}", _NOTE, body, count)
    return Workload(work.name, work.files, passed=3 * count, failed=count)


def test_ids(work: Workload, count: int) -> list[str]:
    """Return the ids of the first ``count`` tests of a workload of one module."""
    return [f"{next(iter(work.files))}::test_{number}" for number in range(count)]


def _modules(name: str, head: str, body: str, count: int) -> Workload:
    files = {}
    for start in range(0, count, PER_MODULE):
        numbers = range(start, min(start + PER_MODULE, count))
        tests = "\n\n".join(body.replace("{number}", str(number)) for number in numbers)
        files[f"test_{name}_{start // PER_MODULE:03}.py"] = f"{head}\n{tests}" if head else tests
    return Workload(name, files, passed=count)
