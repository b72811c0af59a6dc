"""RunIf: each condition, met and not, compared with Lightning's own answer on the same facts."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import operator
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.fabric.utilities.testing._runif as fabric_rules
import lightning.pytorch.utilities.testing._runif as lightning_rules
import pytest
import torch
import torch._dynamo.eval_frame
from lightning.fabric.accelerators import xla as fabric_xla
from lightning.fabric.accelerators.mps import MPSAccelerator
from lightning.fabric.accelerators.xla import XLAAccelerator
from lightning_utilities.core import imports as lightning_imports

from lightning_disttest.errors import ConditionUnclear, InvalidCondition
from lightning_disttest.selection import devices, marks
from lightning_disttest.selection.runif import RunIf
from tests.harness import run_pytest, write_tests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeItem = Callable[..., pytest.Item]

PACKAGES = {
    "deepspeed": "deepspeed",
    "rich": "rich",
    "omegaconf": "omegaconf",
    "psutil": "psutil",
    "sklearn": "scikit-learn",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "tensorrt": "torch_tensorrt",
    "tpu": "torch_xla",
}
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


class Facts:
    """Changes what the machine looks like, at the bottom, so that both implementations see the same."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch = patch
        self._folder = folder
        self._hidden: set[str] = set()
        genuine = importlib.metadata.Distribution.from_name.__func__  # type: ignore[attr-defined]

        def find(cls: type, name: str) -> importlib.metadata.Distribution:
            if name in self._hidden:
                raise importlib.metadata.PackageNotFoundError(name)
            return genuine(cls, name)  # type: ignore[no-any-return]

        patch.setattr(importlib.metadata.Distribution, "from_name", classmethod(find))
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))

    def gpus(self, number: int, cuda: str | None = "13.0", hip: str | None = None) -> Facts:
        """Let torch be built for CUDA or ROCm, and find so many GPUs; a negative number is NVML's failure."""
        self._patch.setattr(torch.version, "cuda", cuda)
        self._patch.setattr(torch.version, "hip", hip)
        self._patch.setattr(torch.cuda, "_is_compiled", lambda: bool(cuda or hip))
        self._patch.setattr(torch.cuda, "_device_count_nvml", lambda: number)
        self._patch.setattr(torch.cuda, "_device_count_amdsmi", lambda: number)
        self._patch.setattr(torch._C, "_cuda_getDeviceCount", lambda: max(0, number), raising=False)
        self._patch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        self.write("torch/cuda.py", f"def device_count(): return {max(0, number)}")
        return self

    def bf16(self, supported: bool) -> Facts:
        """Let the current GPU compute in bfloat16, or not: for Lightning here, for us in the process that is asked."""
        self._patch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
        self.write("torch/cuda.py", f"def is_available(): return True\ndef is_bf16_supported(): return {supported}")
        return self

    def torch_version(self, version: str) -> Facts:
        """Let torch have this version."""
        self._patch.setattr(torch, "__version__", version)
        return self

    def platform(self, name: str) -> Facts:
        """Let this be another operating system."""
        self._patch.setattr(sys, "platform", name)
        return self

    def mps(self, available: bool = True, processor: str = "arm") -> Facts:
        """Let this be a Mac."""
        self._patch.setattr(platform, "system", lambda: "Darwin")
        self._patch.setattr(platform, "processor", lambda: processor)
        self._patch.setattr(torch.backends.mps, "is_available", lambda: available)
        return self

    def dynamo(self, supported: bool) -> Facts:
        """Let torch.compile be supported, or not."""
        self._patch.setattr(torch._dynamo.eval_frame, "is_dynamo_supported", lambda: supported)
        return self

    def env(self, name: str, value: str | None) -> Facts:
        """Set an environment variable, or remove it."""
        if value is None:
            self._patch.delenv(name, raising=False)
        else:
            self._patch.setenv(name, value)
        return self

    def tpu(self, chips: str, devices: str) -> Facts:
        """Let torch_xla be there, with these two bodies of its functions."""
        self.installed("torch_xla", "2.9.0")
        self.module("torch_xla")
        body = f"def num_available_chips(): {chips}\ndef num_available_devices(): {devices}"
        self.write("torch_xla/_internal/tpu.py", body)
        return self

    def installed(self, package: str, version: str) -> Facts:
        """Let the metadata of a package be found."""
        self._hidden.discard(package)
        name = package.replace("-", "_")
        self.write(f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
        return self

    def module(self, name: str) -> Facts:
        """Let a module be found."""
        self._patch.delitem(sys.modules, name, raising=False)
        self.write(f"{name}/__init__.py", "")
        return self

    def missing(self, package: str) -> Facts:
        """Let neither the metadata nor the module of a package be found."""
        self._hidden.add(package)
        self._patch.setitem(sys.modules, package, None)
        return self

    def write(self, name: str, text: str) -> Facts:
        """Write a module of a package, which needs an __init__ that imports nothing but this module."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name == "torch/cuda.py":
            (path.parent / "__init__.py").write_text("from . import cuda")
        return self

    def ask_lightning(self, **conditions: Any) -> dict[str, Any]:
        """Return the arguments of skipif that Lightning's RunIf makes of these conditions."""
        reasons, keys = lightning_rules._runif_reasons(**conditions)
        return {"condition": len(reasons) > 0, "reason": f"Requires: [{' + '.join(reasons)}]", **keys}

    def forget(self) -> None:
        """Let Lightning look again at what it has looked up once."""
        renew = lightning_imports.RequirementCache
        for module in (lightning_rules, fabric_rules, fabric_xla):
            for name, value in vars(module).copy().items():
                if isinstance(value, renew):
                    self._patch.setattr(module, name, renew(value.requirement, value.module))
        for cached in (
            lightning_imports.package_available,
            lightning_imports.module_available,
            XLAAccelerator.is_available,
            XLAAccelerator.auto_device_count,
            MPSAccelerator.is_available,
            devices._ask_once,
        ):
            cached.cache_clear()
        newer = lightning_imports.compare_version("torch", operator.ge, "2.4.0")
        self._patch.setattr(fabric_rules, "_TORCH_GREATER_EQUAL_2_4", newer)
        self._patch.setattr(lightning_rules, "_OMEGACONF_AVAILABLE", lightning_imports.package_available("omegaconf"))


@pytest.fixture
def facts(tmp_path: Path) -> Iterator[Facts]:
    """Return a changer of facts on a machine with no device and none of the packages."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        facts = Facts(patch, tmp_path)
        facts.gpus(0, cuda=None)
        for package in PACKAGES.values():
            facts.missing(package)
        yield facts
        patch.undo()
        facts.forget()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in PACKAGES.values():
            del sys.modules[name]


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


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_cuda_is_not_initialised_here(facts: Facts, monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    """Not even where NVML has no answer is the driver touched in this process: another one is asked."""

    def touch(*_: object) -> int:
        raise AssertionError("this process touched CUDA")

    facts.gpus(-1, cuda=cuda, hip=None if cuda else "7.0")
    facts.write(
        "torch/cuda.py",
        "def device_count(): return 2\ndef is_available(): return True\ndef is_bf16_supported(): return True",
    )
    facts.forget()
    monkeypatch.setattr(devices, "_has_cuda_driver", lambda: True)
    for name in ("_lazy_init", "device_count", "is_available", "is_bf16_supported", "init"):
        monkeypatch.setattr(torch.cuda, name, touch)

    assert RunIf(min_cuda_gpus=2, bf16_cuda=True).mark.kwargs["reason"] == "Requires: []"
    assert RunIf(min_cuda_gpus=3, bf16_cuda=True).mark.kwargs["reason"] == "Requires: [GPUs>=3]"


def test_no_process_is_asked_without_a_driver(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual torch on a machine without GPUs is told apart quickly, and NVML's warning is no error here."""

    def fail(*_: object) -> int:
        raise AssertionError("a process was asked")

    def warn() -> int:
        import warnings

        warnings.warn("Can't initialize NVML", stacklevel=2)
        return -1

    facts.gpus(-1)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", warn)
    monkeypatch.setattr(devices, "_ask", fail)
    monkeypatch.setattr("ctypes.CDLL", lambda name: open(f"/nonexistent/{name}"))  # noqa: SIM115, PTH123

    assert RunIf(min_cuda_gpus=1, bf16_cuda=True).mark.kwargs["reason"] == "Requires: [GPUs>=1 + CUDA device bf16]"


def test_driver_is_looked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a driver where its library can be loaded."""
    asked: list[str] = []
    monkeypatch.setattr("ctypes.CDLL", asked.append)

    assert devices._has_cuda_driver()
    assert asked == ["libcuda.so.1"]


def test_process_is_asked_once_per_visible_gpus(facts: Facts, tmp_path: Path) -> None:
    """The answer is kept for the run, but not beyond a change of CUDA_VISIBLE_DEVICES."""
    facts.gpus(0, cuda=None, hip="7.0")
    facts.forget()
    asked = tmp_path / "asked"
    facts.write("torch/cuda.py", f"def device_count():\n  open({str(asked)!r}, 'a').write('x')\n  return 1")

    for visible in ("0", "0", "1", "0"):
        facts.env("CUDA_VISIBLE_DEVICES", visible)
        assert RunIf(min_cuda_gpus=1).mark.kwargs["condition"] is False

    assert asked.read_text() == "xx"


def test_tpu_is_not_asked_for_here(facts: Facts) -> None:
    """The XLA runtime is not even imported in this process, and no metadata server is asked without a chip."""
    facts.tpu("return 0", "raise SystemExit('asked the metadata server')")
    facts.forget()

    assert RunIf(tpu=True).mark.kwargs == {"condition": True, "reason": "Requires: [TPU]", "tpu": True}
    assert sys.modules.get("torch_xla") is None


def test_warnings_are_no_errors_in_the_process_that_is_asked(facts: Facts) -> None:
    """PYTHONWARNINGS=error in the environment does not spoil the answer."""
    facts.tpu("import warnings; warnings.warn('an old libtpu'); return 4", "return 4").env("PYTHONWARNINGS", "error")
    facts.forget()

    assert RunIf(tpu=True).mark.kwargs["reason"] == "Requires: []"


def test_no_process_is_asked_without_torch_xla(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch_xla is not installed there is no TPU, and no need to start a process."""
    monkeypatch.setattr(devices, "_ask", lambda *_: pytest.fail("a process was asked"))

    assert RunIf(tpu=True).mark.kwargs["reason"] == "Requires: [TPU]"


def test_torch_xla_that_cannot_be_imported_is_no_tpu(facts: Facts) -> None:
    """A broken torch_xla is as good as none."""
    facts.tpu("return 4", "return 4")
    facts.write("torch_xla/__init__.py", "raise ImportError('libtpu')")
    facts.forget()

    assert RunIf(tpu=True).mark.kwargs == facts.ask_lightning(tpu=True)
    assert RunIf(tpu=True).mark.kwargs["condition"] is True


@pytest.mark.parametrize(
    ("body", "limit", "reason"),
    [
        ("raise RuntimeError('the chip is on fire')", 60.0, "RuntimeError: the chip is on fire"),
        ("print('well')", 60.0, "exit code 0 after 'well\\nNone'"),
        ("import os; os._exit(7)", 60.0, "exit code 7 after ''"),
        ("import os; print(4, flush=True); os._exit(7)", 60.0, "exit code 7 after '4'"),
        ("import threading; threading.Event().wait()", 0.5, "no answer within 0.5 s"),
    ],
)
def test_device_that_does_not_answer_is_an_error(
    facts: Facts, monkeypatch: pytest.MonkeyPatch, body: str, limit: float, reason: str
) -> None:
    """A device that is there and cannot be asked is an error, with what it said, and not a silent skip; nor a hang."""
    monkeypatch.setattr(devices, "_ANSWER_S", limit)
    facts.tpu("return 4", body)
    facts.forget()

    with pytest.raises(ConditionUnclear) as raised:
        RunIf(tpu=True)

    assert str(raised.value).startswith("tpu could not be checked; a process of its own was asked")
    assert str(raised.value).endswith(reason)


NUMBER = "a whole number of 0 or more"
VERSION = 'a version such as "2.4", or None'
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
    ({"gpus": 2}, f"gpus is not a condition; the conditions are {', '.join(KEYWORDS)}"),
    ({"min_cuda_gpus": "two", "gpu": 2}, f"gpu is not a condition; the conditions are {', '.join(KEYWORDS)}"),
]


@pytest.mark.parametrize(("conditions", "problem"), WRONG, ids=[str(conditions) for conditions, _ in WRONG])
def test_mistake_is_a_type_error(conditions: dict[str, Any], problem: str) -> None:
    """A keyword that there is not, or a value that it does not take, is named with what is legal."""
    with pytest.raises(TypeError, match=f"^RunIf: {re.escape(problem)}$") as raised:
        RunIf(**conditions)

    assert isinstance(raised.value, InvalidCondition)


def test_forgotten_parentheses_are_a_type_error() -> None:
    """RunIf takes nothing by position, so that ``@RunIf`` on a test is noticed."""
    bare: Any = RunIf

    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        bare(test_without_conditions)


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
