"""The rules of the source, enforced by reading it; each rule is shown to find an offender."""

from __future__ import annotations

import ast
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lightning_disttest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = "lightning_disttest"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# From the top down. A module may import what stands below its own layer, and its own package.
LAYERS = (
    (PACKAGE,),
    (f"{PACKAGE}.plugin",),
    (f"{PACKAGE}.strategies", f"{PACKAGE}.world"),
    (f"{PACKAGE}.engine",),
    (f"{PACKAGE}.reporting",),
    (f"{PACKAGE}.selection",),
    (f"{PACKAGE}.settings", f"{PACKAGE}.hookspecs", f"{PACKAGE}.imports"),
    (f"{PACKAGE}.errors",),
)
LIGHTNING = re.compile(r"(lightning|lightning_fabric|lightning_utilities|pytorch_lightning)(\.[\w.]*)?")
MAY_NAME_LIGHTNING = f"{PACKAGE}.strategies"
PROCESS_CALLS = {"fork", "forkpty", "kill", "killpg", "waitpid", "waitid", "wait", "wait3", "wait4"}
MAY_CALL_PROCESSES = {f"{PACKAGE}.engine.processes"}
MAY_IMPORT_PRIVATE_PYTEST = {
    f"{PACKAGE}.engine.pytest_bridge",
    f"{PACKAGE}.engine.pytest_in_rank",
    f"{PACKAGE}.reporting.merge",
}
MOST_LINES_OF_A_FUNCTION = 60
MEDIAN_LINES_OF_A_FUNCTION = 10
MOST_LINES_OF_A_MODULE = 400


@dataclass(frozen=True)
class Module:
    """One module of the source: its dotted name and its text."""

    name: str
    source: str

    @property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source)


def read_modules() -> dict[str, Module]:
    """Return all modules of the package."""
    assert lightning_disttest.__file__ is not None
    root = Path(lightning_disttest.__file__).parent
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(part for part in parts if part != "__init__")
        modules[name] = Module(name, path.read_text())
    return modules


MODULES = read_modules()

every_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())


def is_type_only(node: ast.AST) -> bool:
    """Tell whether a node is ``if TYPE_CHECKING:``, whose body does not run."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def walk_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes whose code may run, those in functions included."""
    yield node
    children = node.orelse if is_type_only(node) and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in children:
        yield from walk_run_time(child)


def imports_of(module: Module) -> set[str]:
    """Return the dotted names that a module imports at run time; of ``from a import b`` both ``a`` and ``a.b``."""
    names: set[str] = set()
    for node in walk_run_time(module.tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name} imports relatively"
            names.add(str(node.module))
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_in(name: str, package: str) -> bool:
    """Tell whether a module is ``package`` or inside it."""
    return name == package or name.startswith(f"{package}.")


def layer_of(name: str) -> tuple[int, str] | None:
    """Return the number of a module's layer, from the top, and its part of the layer; None if it has no place."""
    if name == PACKAGE:
        return 0, PACKAGE
    for number, parts in enumerate(LAYERS[1:], start=1):
        for part in parts:
            if is_in(name, part):
                return number, part
    return None


def upward_imports(module: Module) -> list[str]:
    """Return the imports of a module that do not go down."""
    own = layer_of(module.name)
    if own is None:
        return [f"{module.name} has no place in the layers"]
    wrong = []
    for name in sorted(imports_of(module)):
        other = layer_of(name)
        # Who imports one module names the package as well; only the module counts.
        if other is None or other[1] == own[1] or name == PACKAGE:
            continue
        if other[0] <= own[0]:
            wrong.append(name)
    return wrong


def import_cycle(modules: Mapping[str, Module]) -> list[str]:
    """Return the modules of one cycle of run time imports, empty if there is none."""
    graph = {name: sorted((imports_of(module) & modules.keys()) - {name}) for name, module in modules.items()}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        for other in graph[name]:
            if cycle := visit(other, [*path, name]):
                return cycle
        done.add(name)
        return []

    for name in graph:
        if cycle := visit(name, []):
            return cycle
    return []


def docstrings_of(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes of all docstrings, and of other strings that stand for themselves."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def names_of_lightning(module: Module) -> list[str]:
    """Return how a module names Lightning: in imports, for types too, and in strings that are module names."""
    tree = module.tree
    docstrings = docstrings_of(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if LIGHTNING.fullmatch(alias.name)]
        elif isinstance(node, ast.ImportFrom) and LIGHTNING.fullmatch(str(node.module)):
            found.append(str(node.module))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            found += [node.value] if LIGHTNING.fullmatch(node.value) else []
    return found


def attributes_of(module: Module, of: str) -> set[str]:
    """Return the attributes of an imported module that a module uses, or imports by name."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == of:
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == of:
            found |= {alias.name for alias in node.names}
    return found


def imports_private_pytest(module: Module) -> bool:
    """Tell whether a module imports a private module of pytest, for types too."""
    for node in ast.walk(module.tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        if any(is_in(name, "_pytest") for name in names):
            return True
    return False


def function_lengths(module: Module) -> dict[str, int]:
    """Return the number of lines of each function."""
    functions = [node for node in ast.walk(module.tree) if isinstance(node, FunctionNode)]
    return {f"{module.name}:{node.name}:{node.lineno}": (node.end_lineno or 0) - node.lineno + 1 for node in functions}


def without_docstring(module: Module) -> list[str]:
    """Return what is public, not nested in a function, and has no docstring: the module, its classes and functions."""

    def visit(node: ast.Module | ast.ClassDef) -> Iterator[str]:
        for child in node.body:
            if not isinstance(child, (ast.ClassDef, FunctionNode)) or child.name.startswith("_"):
                continue
            if ast.get_docstring(child) is None:
                yield child.name
            if isinstance(child, ast.ClassDef):
                yield from visit(child)

    tree = module.tree
    missing = [] if ast.get_docstring(tree) else [module.name]
    return missing + list(visit(tree))


# The rules, on the real source.


def test_source_was_found() -> None:
    """The rules below are checked on the whole package, not on nothing."""
    assert {PACKAGE, f"{PACKAGE}.plugin", f"{PACKAGE}.engine.processes", f"{PACKAGE}.errors"} <= MODULES.keys()
    assert len(MODULES) > 20


@every_module
def test_imports_go_down(module: Module) -> None:
    """A module imports at run time only from the layers below its own."""
    assert upward_imports(module) == []


def test_there_is_no_import_cycle() -> None:
    """No module imports itself through others at run time."""
    assert import_cycle(MODULES) == []


@every_module
def test_only_strategies_name_lightning(module: Module) -> None:
    """Only the strategies know Lightning, by whatever name it is installed."""
    if not is_in(module.name, MAY_NAME_LIGHTNING):
        assert names_of_lightning(module) == []


def test_strategies_do_name_lightning() -> None:
    """The rule above would notice the names that the strategies use."""
    named = {name for module in MODULES.values() for name in names_of_lightning(module)}

    assert {"lightning.pytorch", "pytorch_lightning", "lightning.fabric"} <= named


def test_processes_are_forked_and_signalled_in_one_module() -> None:
    """Only one module forks, signals and reaps."""
    users = {name for name, module in MODULES.items() if attributes_of(module, "os") & PROCESS_CALLS}

    assert users == MAY_CALL_PROCESSES


def test_private_parts_of_pytest_are_used_in_few_modules() -> None:
    """Just the listed modules import pytest's private ones."""
    assert {name for name, module in MODULES.items() if imports_private_pytest(module)} == MAY_IMPORT_PRIVATE_PYTEST


@every_module
def test_wall_clock_is_not_used(module: Module) -> None:
    """Deadlines and durations use the monotonic clock."""
    assert attributes_of(module, "time") & {"time", "time_ns"} == set()


def test_functions_are_short() -> None:
    """No function is longer than the limit, and half of them are much shorter."""
    lengths = {name: length for module in MODULES.values() for name, length in function_lengths(module).items()}

    assert [name for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION] == []
    assert statistics.median(lengths.values()) <= MEDIAN_LINES_OF_A_FUNCTION


@every_module
def test_modules_are_short(module: Module) -> None:
    """No module is longer than the limit."""
    assert len(module.source.splitlines()) <= MOST_LINES_OF_A_MODULE


def test_no_module_is_called_utils() -> None:
    """Every module has a name that says what is in it."""
    assert [name for name in MODULES if re.search(r"\b_?(utils?|helpers?|misc|common)$", name)] == []


@every_module
def test_what_is_public_has_a_docstring(module: Module) -> None:
    """Every module, and every public class, method and function, has a docstring."""
    assert without_docstring(module) == []


# Each rule, on an offender.


def made(source: str, name: str = f"{PACKAGE}.reporting.merge") -> Module:
    """Return a module of that source."""
    return Module(name, source)


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("reporting.merge", "from lightning_disttest.engine.channel import Channel", "engine.channel"),
        ("reporting.merge", "from lightning_disttest.engine import channel", "engine.channel"),
        ("engine.rank", "import lightning_disttest.plugin", "plugin"),
        ("engine.rank", "def f():\n    from lightning_disttest.strategies import trainer", "strategies.trainer"),
        ("strategies.trainer", "from lightning_disttest.world import World", "world"),
        ("settings", "from lightning_disttest import imports", "imports"),
        ("errors", "from lightning_disttest import settings", "settings"),
        ("selection.marks", "if TYPE_CHECKING:\n    pass\nelse:\n    import lightning_disttest.reporting", "reporting"),
    ],
)
def test_import_that_goes_up_is_found(name: str, source: str, wrong: str) -> None:
    """Imports from above, or from the side, are found in every form and place."""
    assert f"{PACKAGE}.{wrong}" in upward_imports(made(source, f"{PACKAGE}.{name}"))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "reporting.merge",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lightning_disttest import world",
        ),
        ("engine.rank", "from lightning_disttest.engine import channel"),
        ("engine.rank", "from lightning_disttest.errors import LaunchFailed"),
        ("plugin", "from lightning_disttest import hookspecs\nimport pytest"),
    ],
)
def test_import_that_goes_down_or_is_for_types_is_allowed(name: str, source: str) -> None:
    """Imports from below, from the own package, and for types are no offence."""
    assert upward_imports(made(source, f"{PACKAGE}.{name}")) == []


def test_module_without_a_layer_is_found() -> None:
    """A new module has to be given a place."""
    assert upward_imports(made("", f"{PACKAGE}.stray")) == ["lightning_disttest.stray has no place in the layers"]


def test_import_cycle_is_found() -> None:
    """A cycle is found through several modules and through functions, and not where a type closes it."""
    a = made("from lightning_disttest.engine import b", f"{PACKAGE}.engine.a")
    b = made("def f():\n    import lightning_disttest.engine.c", f"{PACKAGE}.engine.b")
    closing = made("from lightning_disttest.engine.a import x", f"{PACKAGE}.engine.c")
    for_types = made("if TYPE_CHECKING:\n    from lightning_disttest.engine.a import x", f"{PACKAGE}.engine.c")

    assert import_cycle({m.name: m for m in (a, b, closing)}) == [a.name, b.name, closing.name]
    assert import_cycle({m.name: m for m in (a, b, for_types)}) == []


@pytest.mark.parametrize(
    "source",
    [
        "import lightning",
        "import pytorch_lightning as pl",
        "from lightning.pytorch import Trainer",
        "if TYPE_CHECKING:\n    from lightning_fabric import Fabric",
        "importlib.import_module('lightning.pytorch')",
        "when_imported('pytorch_lightning', f)",
    ],
)
def test_name_of_lightning_is_found(source: str) -> None:
    """Lightning is found in imports of all forms and in strings."""
    assert len(names_of_lightning(made(source))) == 1


def test_prose_about_lightning_is_allowed() -> None:
    """Docstrings and messages may speak of Lightning, and this package's own name is not its name."""
    source = '"""lightning"""\nimport lightning_disttest\nraise ValueError("lightning is missing")'

    assert names_of_lightning(made(source)) == []


@pytest.mark.parametrize(
    "source", ["os.fork()", "f = os.killpg", "from os import waitpid", "def f():\n    os.waitid()"]
)
def test_use_of_processes_is_found(source: str) -> None:
    """Forking, signalling and reaping are found as calls, as references and as imports."""
    assert attributes_of(made(source), "os") & PROCESS_CALLS != set()


@pytest.mark.parametrize(
    "source",
    ["import _pytest.tmpdir", "from _pytest import main", "if TYPE_CHECKING:\n    from _pytest.main import Session"],
)
def test_import_of_private_pytest_is_found(source: str) -> None:
    """Private modules of pytest are found in imports of all forms."""
    assert imports_private_pytest(made(source))
    assert not imports_private_pytest(made("import pytest\nfrom pytest import Item"))


@pytest.mark.parametrize("source", ["time.time()", "from time import time", "clock = time.time_ns"])
def test_use_of_the_wall_clock_is_found(source: str) -> None:
    """The wall clock is found as a call, as a reference and as an import."""
    assert attributes_of(made(source), "time") & {"time", "time_ns"} != set()
    assert attributes_of(made("time.monotonic()"), "time") == {"monotonic"}


def test_length_of_a_function_is_counted() -> None:
    """A function counts from its ``def`` to its last line, as do methods and nested functions."""
    source = (
        "class A:\n    def method(self):\n        x = 1\n        def inner():\n            return 2\n        return 3\n"
    )

    assert list(function_lengths(made(source)).values()) == [5, 2]


def test_missing_docstring_is_found() -> None:
    """Modules, classes, methods and functions without a docstring are found; private and nested ones are not asked."""
    source = """
def public():
    def nested(): ...
async def also(): ...
def _private(): ...
class Public:
    def method(self): ...
    def _private(self): ...
    def __init__(self): ...
class _Private:
    def method(self): ...
def good():
    '''Say so.'''
"""

    assert without_docstring(made(source)) == [
        f"{PACKAGE}.reporting.merge",
        "public",
        "also",
        "Public",
        "method",
    ]
