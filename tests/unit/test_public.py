"""The surface that users rely on: names, options, marks, fixtures and hooks; a change of it changes this file."""

from __future__ import annotations

import importlib
import importlib.resources
import inspect
import re
import subprocess
import sys

import pytest

import lightning_disttest
from lightning_disttest import hookspecs
from lightning_disttest.selection.marks import MARKERS
from lightning_disttest.settings import OPTIONS

EXPORTED = ["FabricFactory", "Faults", "LaunchedRanksFailed", "LeakWarning", "RunIf", "TrainerFactory", "World"]
OPTION_NAMES = {
    "--standalone": ("PL_RUN_STANDALONE_TESTS", "disttest_standalone"),
    "--cuda-only": ("RUN_ONLY_CUDA_TESTS", "disttest_cuda_only"),
    "--tpu": ("PL_RUN_TPU_TESTS", "disttest_tpu"),
    "--multigpu-static": ("DISTTEST_MULTIGPU_STATIC", "disttest_multigpu_static"),
    "--multigpu-dynamic": ("DISTTEST_MULTIGPU_DYNAMIC", "disttest_multigpu_dynamic"),
    "--disttest-require": ("DISTTEST_REQUIRE", "disttest_require"),
    "--disttest-timeout": ("DISTTEST_TIMEOUT", "disttest_timeout"),
    "--disttest-grace": ("DISTTEST_GRACE", "disttest_grace"),
    "--disttest-progress": ("DISTTEST_PROGRESS", "disttest_progress"),
    "--disttest-rank-output": ("DISTTEST_RANK_OUTPUT", "disttest_rank_output"),
    "--disttest-strict-leaks": ("DISTTEST_STRICT_LEAKS", "disttest_strict_leaks"),
    "--disttest-world-memory": ("DISTTEST_WORLD_MEMORY", "disttest_world_memory"),
    "--disttest-real-spawn": ("DISTTEST_REAL_SPAWN", "disttest_real_spawn"),
    "--disttest-warm-spawn-everywhere": ("DISTTEST_WARM_SPAWN_EVERYWHERE", "disttest_warm_spawn_everywhere"),
}
MARKS = [
    'distributed(world_size, *, static=True, device="cpu", backend=None, timeout=None)',
    "standalone(timeout=None)",
    "multigpu_static(world_size=None)",
    "multigpu_dynamic(world_size=None)",
    "tpu()",
]
# With the scope that ``pytest --fixtures`` names, empty for one that lives as long as its test.
FIXTURES = {
    "fabric_factory": "",
    "faults": "",
    "rank_tmp_path": "",
    "trainer_factory": "",
    "world": "[session scope]",
}
HOOKS = {"pytest_disttest_rank_start": ["config", "rank"]}
WORLD = {"rank", "local_rank", "world_size", "device", "backend", "is_rank_zero", "barrier", "record"}


def test_exported_names() -> None:
    """The package exports these names, and every one of them can be had."""
    assert lightning_disttest.__all__ == EXPORTED
    assert all(getattr(lightning_disttest, name).__name__ == name for name in EXPORTED)


def test_unknown_name_is_an_attribute_error() -> None:
    """The lazy export does not pretend to have what it has not."""
    with pytest.raises(AttributeError, match="module 'lightning_disttest' has no attribute 'Nope'"):
        importlib.import_module("lightning_disttest").__getattr__("Nope")


def test_option_names() -> None:
    """The options, their environment variables and ini names are these."""
    assert {option.flag: (option.environment, option.ini) for option in OPTIONS} == OPTION_NAMES


def test_marks() -> None:
    """The marks and their arguments are these, and pytest knows them."""
    assert [text.partition(": ")[0] for text in MARKERS] == MARKS


def test_marks_are_registered(request: pytest.FixtureRequest) -> None:
    """With --strict-markers a test may use the marks: they are declared in this very run."""
    declared = request.config.getini("markers")

    assert [text for text in MARKERS if text not in declared] == []


def test_fixtures(pytester: pytest.Pytester) -> None:
    """The fixtures of the plugin are these, each with its scope and a text for ``pytest --fixtures``."""
    shown = pytester.runpytest_subprocess("--fixtures", "-q").stdout.str()

    section = shown.partition("fixtures defined from lightning_disttest.plugin")[2].partition("fixtures defined from")[
        0
    ]
    shown_fixtures = re.findall(r"^(\w+) (\[.+\])? ?-- ", section, re.MULTILINE)
    assert dict(shown_fixtures) == FIXTURES
    assert "no docstring available" not in section


def test_hooks() -> None:
    """The hooks that the plugin calls, and their arguments, are these."""
    functions = {name: value for name, value in vars(hookspecs).items() if name.startswith("pytest_")}

    assert {name: list(inspect.signature(value).parameters) for name, value in functions.items()} == HOOKS


def test_faults_has_these_parts() -> None:
    """The object of the ``faults`` fixture has these methods; the last one is called by the fixture."""
    names = {name for name in vars(lightning_disttest.Faults) if not name.startswith("_")}
    assert names == {"kill", "exit", "stop", "delay", "error", "tear_down"}


def test_world_has_these_parts() -> None:
    """The object of the ``world`` fixture has these attributes and methods."""
    assert {name for name in vars(lightning_disttest.World) if not name.startswith("_")} == WORLD


@pytest.mark.parametrize("module", ["lightning_disttest.plugin", "lightning_disttest"])
def test_import_is_light(module: str) -> None:
    """Neither the plugin nor the package loads torch, Lightning, torch_xla, numpy, or what makes reports of ranks."""
    heavy = {"torch", "lightning", "lightning_fabric", "pytorch_lightning", "torch_xla", "numpy"}
    heavy |= {f"lightning_disttest.{name}" for name in ("reporting.merge", "reporting.verdict", "engine.controller")}
    code = f"import sys, {module}; print(sorted(set(sys.modules) & {heavy}))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_types_are_shipped() -> None:
    """The package is marked as typed."""
    assert lightning_disttest.__file__ is not None
    assert importlib.resources.files(lightning_disttest).joinpath("py.typed").is_file()
