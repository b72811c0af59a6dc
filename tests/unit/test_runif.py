"""RunIf: each condition, met and not, compared with Lightning's own answer on the same facts."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import lightning.pytorch.utilities.testing._runif as lightning_rules
import pytest

from lightning_disttest.errors import InvalidCondition
from lightning_disttest.selection import marks
from lightning_disttest.selection.runif import RunIf
from tests.harness import run_pytest, write_tests
from tests.unit.facts import PACKAGES, Facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeItem = Callable[..., pytest.Item]

KEYWORDS = [
    "min_cuda_gpus",
    "min_torch",
    "max_torch",
    "min_python",
    "bf16_cuda",
    "tpu",
    "mps",
    "skip_windows",
    "standalone",
    "deepspeed",
    "dynamo",
    "linux_only",
    "rich",
    "omegaconf",
    "psutil",
    "sklearn",
    "onnx",
    "onnxscript",
    "tensorrt",
]
HEAVY = ["torch", "lightning", "lightning_fabric", "pytorch_lightning", "lightning_utilities", "numpy"]
ALL_UNMET: dict[str, Any] = {
    **dict.fromkeys(KEYWORDS, True),
    "min_cuda_gpus": 3,
    "min_torch": "99",
    "max_torch": "1.0",
    "min_python": "9.9",
}


def nothing(_: Facts) -> None:
    """Leave the bare machine."""


# Keyword, value, facts, whether the condition is met.
CASES: list[tuple[str, Any, Callable[[Facts], object], bool]] = [
    ("min_cuda_gpus", 0, nothing, True),
    ("min_cuda_gpus", 1, nothing, False),
    ("min_cuda_gpus", 1, lambda f: f.gpus(4, cuda=None), False),
    ("min_cuda_gpus", 2, lambda f: f.gpus(1), False),
    ("min_cuda_gpus", 2, lambda f: f.gpus(2), True),
    ("min_cuda_gpus", 2, lambda f: f.gpus(3), True),
    ("min_cuda_gpus", 2, lambda f: f.gpus(-1), False),
    ("min_cuda_gpus", 2, lambda f: f.gpus(2, cuda=None, hip="7.0"), True),
    ("min_cuda_gpus", 3, lambda f: f.gpus(2, cuda=None, hip="7.0"), False),
    ("min_cuda_gpus", True, lambda f: f.gpus(1), True),
    ("min_cuda_gpus", True, nothing, False),
    ("min_torch", None, nothing, True),
    ("min_torch", "2.4", lambda f: f.torch_version("2.4.0"), True),
    ("min_torch", "2.4.1", lambda f: f.torch_version("2.4.0"), False),
    ("min_torch", "2.4", lambda f: f.torch_version("2.4.0a0+git1"), True),
    ("min_torch", "2.4", lambda f: f.torch_version("2.4.0.dev20240601+cu121"), True),
    ("min_torch", "2.10", lambda f: f.torch_version("2.9.1+cpu"), False),
    ("max_torch", None, nothing, True),
    ("max_torch", "2.4", lambda f: f.torch_version("2.3.1+cpu"), True),
    ("max_torch", "2.4", lambda f: f.torch_version("2.4.0"), False),
    ("max_torch", "2.4", lambda f: f.torch_version("2.4.0rc1"), False),
    ("max_torch", "2.10", lambda f: f.torch_version("2.9.1"), True),
    ("min_python", None, nothing, True),
    ("min_python", "3.10", nothing, True),
    ("min_python", ".".join(str(number) for number in sys.version_info[:3]), nothing, True),
    ("min_python", f"3.{sys.version_info.minor}.{sys.version_info.micro + 1}", nothing, False),
    ("min_python", "3.100", nothing, False),
    ("bf16_cuda", False, nothing, True),
    ("bf16_cuda", True, nothing, False),
    ("bf16_cuda", True, lambda f: f.gpus(1).bf16(True), True),
    ("bf16_cuda", True, lambda f: f.gpus(1).bf16(False), False),
    ("tpu", False, nothing, True),
    ("tpu", True, nothing, False),
    ("tpu", True, lambda f: f.tpu("return 4", "return 4"), True),
    ("tpu", True, lambda f: f.tpu("return 0", "return 0"), False),
    ("tpu", True, lambda f: f.tpu("return 4", "raise OSError('metadata')"), False),
    ("tpu", True, lambda f: f.tpu("return 4", "raise ValueError('topology')"), False),
    ("tpu", True, lambda f: f.tpu("return 4", "raise AssertionError"), False),
    ("mps", None, nothing, True),
    ("mps", True, nothing, False),
    ("mps", False, nothing, True),
    ("mps", True, lambda f: f.mps(), True),
    ("mps", True, lambda f: f.mps(processor="arm64"), True),
    ("mps", False, lambda f: f.mps(), False),
    ("mps", True, lambda f: f.mps(processor="i386"), False),
    ("mps", True, lambda f: f.mps(available=False), False),
    ("mps", True, lambda f: f.mps().env("DISABLE_MPS", "1"), False),
    ("mps", True, lambda f: f.mps().env("DISABLE_MPS", "0"), True),
    ("skip_windows", False, lambda f: f.platform("win32"), True),
    ("skip_windows", True, lambda f: f.platform("win32"), False),
    ("skip_windows", True, lambda f: f.platform("linux"), True),
    ("skip_windows", True, lambda f: f.platform("darwin"), True),
    ("standalone", False, nothing, True),
    ("standalone", True, lambda f: f.env("PL_RUN_STANDALONE_TESTS", "1"), True),
    ("standalone", True, lambda f: f.env("PL_RUN_STANDALONE_TESTS", "true"), False),
    ("standalone", True, lambda f: f.env("PL_RUN_STANDALONE_TESTS", "0"), False),
    ("standalone", True, lambda f: f.env("PL_RUN_STANDALONE_TESTS", ""), False),
    ("standalone", True, lambda f: f.env("PL_RUN_STANDALONE_TESTS", None), False),
    ("deepspeed", False, nothing, True),
    ("deepspeed", True, lambda f: f.torch_version("2.4.0"), False),
    ("deepspeed", True, lambda f: f.torch_version("2.4.0").installed("deepspeed", "0.15"), True),
    ("deepspeed", True, lambda f: f.torch_version("2.4.0+cpu").module("deepspeed"), True),
    ("deepspeed", True, lambda f: f.torch_version("2.3.1").installed("deepspeed", "0.15"), False),
    ("deepspeed", True, lambda f: f.torch_version("2.4.0a0").installed("deepspeed", "0.15"), False),
    ("dynamo", False, lambda f: f.dynamo(False), True),
    ("dynamo", True, lambda f: f.dynamo(False), False),
    ("dynamo", True, lambda f: f.dynamo(True), True),
    ("linux_only", False, lambda f: f.platform("darwin"), True),
    ("linux_only", True, lambda f: f.platform("darwin"), False),
    ("linux_only", True, lambda f: f.platform("win32"), False),
    ("linux_only", True, lambda f: f.platform("linux"), True),
    ("rich", False, nothing, True),
    ("rich", True, nothing, False),
    ("rich", True, lambda f: f.installed("rich", "10.2.2"), True),
    ("rich", True, lambda f: f.installed("rich", "11.0.0rc1"), True),
    ("rich", True, lambda f: f.installed("rich", "10.2.1"), False),
    ("rich", True, lambda f: f.module("rich"), False),
    ("omegaconf", False, nothing, True),
    ("omegaconf", True, nothing, False),
    ("omegaconf", True, lambda f: f.module("omegaconf"), True),
    ("omegaconf", True, lambda f: f.installed("omegaconf", "2.3"), False),
    ("sklearn", True, lambda f: f.module("sklearn"), False),
    *((keyword, False, nothing, True) for keyword in ("psutil", "sklearn", "onnx", "onnxscript", "tensorrt")),
    *((keyword, True, nothing, False) for keyword in ("psutil", "sklearn", "onnx", "onnxscript", "tensorrt")),
    *(
        (keyword, True, lambda f, name=PACKAGES[keyword]: f.installed(name, "0.1"), True)
        for keyword in ("psutil", "sklearn", "onnx", "onnxscript", "tensorrt")
    ),
    *(
        (keyword, True, lambda f, name=PACKAGES[keyword]: f.module(name), True)
        for keyword in ("psutil", "onnx", "onnxscript", "tensorrt")
    ),
]


@pytest.mark.parametrize(
    ("keyword", "value", "change", "is_met"), CASES, ids=[f"{case[0]}={case[1]}-{case[3]}" for case in CASES]
)
def test_same_as_lightning(
    facts: Facts, keyword: str, value: Any, change: Callable[[Facts], object], is_met: bool
) -> None:
    """A condition is met or not as this list says, and the whole mark is Lightning's, on the same facts."""
    facts.platform("linux")
    change(facts)
    facts.forget()

    mark = RunIf(**{keyword: value}).mark

    assert mark.kwargs["condition"] is not is_met
    assert mark.kwargs == facts.ask_lightning(**{keyword: value})
    assert (mark.name, mark.args) == ("skipif", ())


def test_keywords_are_lightnings() -> None:
    """The keywords and their defaults are Lightning's."""
    ours = {name: p.default for name, p in inspect.signature(RunIf).parameters.items() if p.kind is p.KEYWORD_ONLY}
    theirs = {name: p.default for name, p in inspect.signature(lightning_rules._runif_reasons).parameters.items()}

    assert ours == theirs
    assert sorted(ours) == sorted(KEYWORDS)


def test_every_condition_is_compared() -> None:
    """The list above has each condition, asked for, both met and not met."""
    asked = {(keyword, is_met) for keyword, value, _, is_met in CASES if value not in (None, 0)}

    assert asked | {("mps", True)} == {(keyword, is_met) for keyword in KEYWORDS for is_met in (True, False)}


def test_many_lacks_are_all_named(facts: Facts) -> None:
    """All that is lacking is named, in Lightning's order, whatever the order of the keywords."""
    facts.platform("win32")
    facts.dynamo(False)
    facts.torch_version("2.4.0")
    facts.env("PL_RUN_STANDALONE_TESTS", None)
    facts.forget()

    kwargs = RunIf(**dict(reversed(ALL_UNMET.items()))).mark.kwargs

    assert kwargs == facts.ask_lightning(**ALL_UNMET)
    assert kwargs["reason"] == (
        "Requires: [GPUs>=3 + torch>=99, 2.4.0 installed + torch<1.0, 2.4.0 installed + python>=9.9 + CUDA device bf16"
        " + unimplemented on Windows + TPU + MPS + Standalone execution + Deepspeed + torch.dynamo + only linux + Rich"
        " + omegaconf + psutil + scikit-learn + onnx + onnxscript + torch-tensorrt]"
    )
    assert {key for key in kwargs if kwargs[key] is True} == {"condition", "min_cuda_gpus", "tpu", "standalone"}


def test_only_what_lacks_is_named(facts: Facts) -> None:
    """Conditions that are met leave no trace in the reason, but their key on the mark."""
    facts.gpus(2)
    facts.env("PL_RUN_STANDALONE_TESTS", None)
    facts.forget()
    conditions: dict[str, Any] = {"min_cuda_gpus": 2, "standalone": True, "linux_only": True}

    kwargs = RunIf(**conditions).mark.kwargs

    reason = "Requires: [Standalone execution]"
    assert kwargs == {"condition": True, "reason": reason, "min_cuda_gpus": True, "standalone": True}
    assert kwargs == facts.ask_lightning(**conditions)


def test_without_conditions(facts: Facts) -> None:
    """RunIf() skips nothing."""
    assert RunIf().mark.kwargs == {"condition": False, "reason": "Requires: []"} == facts.ask_lightning()


# Beyond Lightning.


def run_python(code: str, path: Path | None = None) -> Any:
    """Run code in a fresh process and return what it prints, as JSON."""
    code = f"import json, sys\nsys.path[:0] = {[str(path)] if path else []}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_and_empty_call_load_nothing() -> None:
    """Neither the import nor RunIf() loads torch, Lightning or what comes with them."""
    code = (
        "from lightning_disttest.selection.runif import RunIf\n"
        f"RunIf()\nprint(json.dumps(sorted(set(sys.modules) & set({HEAVY}))))"
    )

    assert run_python(code) == []


def test_light_conditions_load_nothing(tmp_path: Path) -> None:
    """Conditions that can be told without torch are, the versions of torch and the packages among them."""
    facts = {keyword: value for keyword, value in ALL_UNMET.items() if keyword not in ("min_cuda_gpus", "bf16_cuda")}
    del facts["dynamo"]
    heavy = [*HEAVY, "rich", "omegaconf", "psutil", "sklearn", "onnx", "onnxscript", "deepspeed", "torch_xla"]
    folder = tmp_path / "torch-2.13.0.dev20260101+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0.dev20260101+cpu\n")
    code = (
        "from lightning_disttest.selection.runif import RunIf\n"
        f"reason = RunIf(**{facts}).mark.kwargs['reason']\n"
        "met = not RunIf(min_torch='2.13', max_torch='2.14').mark.kwargs['condition']\n"
        f"print(json.dumps([sorted(set(sys.modules) & set({heavy})), met, reason]))"
    )

    loaded, is_met, reason = run_python(code, tmp_path)

    assert loaded == []
    assert is_met
    assert reason.startswith("Requires: [torch>=99, 2.13.0.dev20260101+cpu installed + torch<1.0, 2.13.0.dev2026")


def test_torch_without_metadata_is_imported_for_its_version(tmp_path: Path) -> None:
    """A torch that has no metadata tells its version itself."""
    (tmp_path / "torch.py").write_text("__version__ = '2.4.0a0'")
    code = """
from importlib import metadata
def none(name): raise metadata.PackageNotFoundError(name)
metadata.version = none
from lightning_disttest.selection.runif import RunIf
print(json.dumps([RunIf(min_torch="2.5").mark.kwargs["reason"], RunIf(min_torch="2.4").mark.kwargs["condition"]]))
"""

    assert run_python(code, tmp_path) == ["Requires: [torch>=2.5, 2.4.0a0 installed]", False]


def test_no_torch_at_all() -> None:
    """Without torch no condition on its version is met."""
    code = """
from importlib import metadata
def none(name): raise metadata.PackageNotFoundError(name)
metadata.version = none
from lightning_disttest.selection import runif
runif.is_importable = lambda name: False
print(json.dumps(runif.RunIf(min_torch="2.4", max_torch="2.5", deepspeed=True).mark.kwargs["reason"]))
"""

    assert run_python(code) == "Requires: [torch>=2.4, none installed + torch<2.5, none installed + Deepspeed]"


def test_double_of_a_package_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in in sys.modules, which has no spec, counts as the package."""
    monkeypatch.setitem(sys.modules, "torch_tensorrt", object())

    assert RunIf(tensorrt=True).mark.kwargs["condition"] is False


NUMBER = "a whole number of 0 or more"
VERSION = 'a version such as "2.4", or None'
NO_CONDITION = f"is not a condition; the conditions are {', '.join(KEYWORDS)}"
HINT = 'For a package write pytest.importorskip("{}"), for anything else pytest.mark.skipif(...)'
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"min_cuda_gpus": "two"}, f"min_cuda_gpus must be {NUMBER}, not 'two'"),
    ({"min_cuda_gpus": "2"}, f"min_cuda_gpus must be {NUMBER}, not '2'"),
    ({"min_cuda_gpus": 1.0}, f"min_cuda_gpus must be {NUMBER}, not 1.0"),
    ({"min_cuda_gpus": None}, f"min_cuda_gpus must be {NUMBER}, not None"),
    ({"min_cuda_gpus": -1}, f"min_cuda_gpus must be {NUMBER}, not -1"),
    ({"min_torch": 2}, f"min_torch must be {VERSION}, not 2"),
    ({"max_torch": 2.4}, f"max_torch must be {VERSION}, not 2.4"),
    ({"min_python": (3, 10)}, f"min_python must be {VERSION}, not (3, 10)"),
    ({"min_torch": "new"}, f"min_torch must be {VERSION}, not 'new'"),
    ({"min_torch": ""}, f"min_torch must be {VERSION}, not ''"),
    ({"min_torch": False}, f"min_torch must be {VERSION}, not False"),
    ({"mps": "no"}, "mps must be True, False or None, not 'no'"),
    ({"mps": 1}, "mps must be True, False or None, not 1"),
    *(
        ({keyword: "no"}, f"{keyword} must be True or False, not 'no'")
        for keyword in KEYWORDS
        if keyword not in ("min_cuda_gpus", "min_torch", "max_torch", "min_python", "mps")
    ),
    ({"rich": 1}, "rich must be True or False, not 1"),
    ({"rich": None}, "rich must be True or False, not None"),
    ({"horovod": True}, f"horovod {NO_CONDITION}. {HINT.format('horovod')}"),
    ({"min_cuda_gpus": "two", "gpu": 2}, f"gpu {NO_CONDITION}. {HINT.format('gpu')}"),
    ({"min_gpus": 2}, f"min_gpus {NO_CONDITION}. It is called min_cuda_gpus now"),
]


@pytest.mark.parametrize(("conditions", "problem"), WRONG, ids=[str(conditions) for conditions, _ in WRONG])
def test_mistake_is_a_type_error(conditions: dict[str, Any], problem: str) -> None:
    """A keyword that there is not, or a value that it does not take, is named with what is legal."""
    with pytest.raises(TypeError, match=f"^RunIf: {re.escape(problem)}$") as raised:
        RunIf(**conditions)

    assert isinstance(raised.value, InvalidCondition)


@pytest.mark.parametrize(
    ("unnamed", "conditions"),
    [((test_without_conditions,), {}), ((True, False), {}), ((None,), {"min_torch": "2.4"}), (("a",), {"gpu": 2})],
    ids=["forgotten parentheses", "several", "beside a condition", "beside an unknown keyword"],
)
def test_condition_without_a_name_is_a_type_error(unnamed: tuple[object, ...], conditions: dict[str, Any]) -> None:
    """RunIf takes nothing by position, so that ``@RunIf`` on a test is noticed, and says what does."""
    problem = f"{unnamed[0]!r} has no name; a condition without one is pytest.mark.skipif(...)"

    with pytest.raises(InvalidCondition, match=f"^RunIf: {re.escape(problem)}$") as raised:
        RunIf(*unnamed, **conditions)

    assert isinstance(raised.value, TypeError)


def test_plugin_knows_it_as_standalone(make_item: MakeItem) -> None:
    """The plugin finds the key of standalone on our mark as on Lightning's."""
    assert marks.asks_for_standalone(make_item("test_it", RunIf(standalone=True)))
    assert not marks.asks_for_standalone(make_item("test_it", RunIf(linux_only=True)))


def test_usage(tmp_path: Path) -> None:
    """It decorates functions and classes, marks single parameters, and modules by pytestmark."""
    header = "import pytest\nfrom lightning_disttest.selection.runif import RunIf\n"
    mixed = """
        @RunIf(min_python="3.100")
        def test_unmet(): raise AssertionError

        @RunIf(min_python="3.10")
        @RunIf(linux_only=True)
        def test_met(): pass

        @RunIf(linux_only=True)
        @RunIf(min_python="3.100", max_torch="0.1")
        def test_one_of_two_unmet(): raise AssertionError

        @RunIf(mps=True)
        class TestUnmet:
            def test_method(self): raise AssertionError

        @pytest.mark.parametrize("value", [
            pytest.param(1, marks=RunIf(min_python="3.100"), id="unmet"),
            pytest.param(2, marks=[RunIf(min_python="3.10")], id="met"),
        ])
        def test_param(value): assert value == 2
    """
    files = {
        "test_mixed.py": header + textwrap.dedent(mixed),
        "test_marked.py": header + 'pytestmark = RunIf(min_python="3.100")\ndef test_module(): raise AssertionError',
        "test_listed.py": header + "pytestmark = [RunIf(linux_only=True), RunIf(mps=True)]\ndef test_list(): 1 / 0",
    }
    write_tests(tmp_path, files)

    run = run_pytest(tmp_path, "-rs")

    assert run.outcomes == {
        "test_unmet": "skipped",
        "test_met": "passed",
        "test_one_of_two_unmet": "skipped",
        "TestUnmet::test_method": "skipped",
        "test_param[unmet]": "skipped",
        "test_param[met]": "passed",
        "test_module": "skipped",
        "test_list": "skipped",
    }, run.output
    assert "Requires: [python>=3.100]" in run.text("test_module")
    assert "Requires: [MPS]" in run.text("test_list")
    assert re.search(r"Requires: \[torch<0.1, \S+ installed \+ python>=3.100\]", run.text("test_one_of_two_unmet"))
    assert run.returncode == 0
