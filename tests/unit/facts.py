"""What the machine looks like, changed at the bottom, so that Lightning's RunIf and ours see the same."""

from __future__ import annotations

import contextlib
import importlib.metadata
import operator
import platform
import sys
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

from lightning_disttest.selection import devices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@contextlib.contextmanager
def bare_machine(folder: Path) -> Iterator[Facts]:
    """Yield a changer of facts on a machine with no device and none of the packages."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        facts = Facts(patch, folder)
        facts.gpus(0, cuda=None)
        for package in PACKAGES.values():
            facts.missing(package)
        yield facts
        patch.undo()
        facts.forget()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in PACKAGES.values():
            del sys.modules[name]
