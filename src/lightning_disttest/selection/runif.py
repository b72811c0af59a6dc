"""RunIf: skip a test unless this machine has what it needs; a drop-in for the helper of Lightning's own tests.

The marks equal Lightning's: same reasons, same order, same keys. Unlike there, nothing is looked up before a test asks
for it, and what has to touch a device does so in a process of its own: test modules call RunIf while they are
imported, and a pytest process that has opened a GPU or started the XLA runtime can not be forked into ranks any more.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from packaging.version import InvalidVersion, Version

from lightning_disttest.errors import InvalidCondition
from lightning_disttest.imports import is_importable
from lightning_disttest.selection import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def RunIf(  # noqa: N802  the name is Lightning's
    *unnamed: object,
    min_cuda_gpus: int = 0,
    min_torch: str | None = None,
    max_torch: str | None = None,
    min_python: str | None = None,
    bf16_cuda: bool = False,
    tpu: bool = False,
    mps: bool | None = None,
    skip_windows: bool = False,
    standalone: bool = False,
    deepspeed: bool = False,
    dynamo: bool = False,
    linux_only: bool = False,
    rich: bool = False,
    omegaconf: bool = False,
    psutil: bool = False,
    sklearn: bool = False,
    onnx: bool = False,
    onnxscript: bool = False,
    tensorrt: bool = False,
    **unknown: NoReturn,
) -> pytest.MarkDecorator:
    """Return a mark that skips a test unless all conditions are met, and says which are not.

    The conditions are looked at now, each only if it is asked for. CUDA is never initialised in this process, since
    ranks could not be forked from it afterwards.

    Raises:
        InvalidCondition: if a keyword is unknown or its value is not legal; it is a TypeError too.
        ConditionUnclear: if a device could not be asked.
    """
    given = dict(locals())
    del given["unnamed"], given["unknown"]
    for value in unnamed:
        raise InvalidCondition(repr(value), "has no name; a condition without one is pytest.mark.skipif(...)")
    for keyword in unknown:
        raise InvalidCondition(keyword, _name_conditions(keyword, given))
    for keyword, value in given.items():
        _CONDITIONS[keyword].takes(keyword, value)
    asked = [keyword for keyword in _CONDITIONS if given[keyword] or (keyword == "mps" and given[keyword] is not None)]
    missing = [reason for keyword in asked if (reason := _CONDITIONS[keyword].lack(given[keyword]))]
    skipif: Any = pytest.mark.skipif  # its type knows nothing of keys
    keys = {keyword: True for keyword in asked if keyword in _KEYS}
    mark: pytest.MarkDecorator = skipif(condition=bool(missing), reason=f"Requires: [{' + '.join(missing)}]", **keys)
    return mark


def _name_conditions(keyword: str, known: Iterable[str]) -> str:
    text = f"is not a condition; the conditions are {', '.join(known)}"
    if keyword == "min_gpus":
        return f"{text}. It is called min_cuda_gpus now"
    return f'{text}. For a package write pytest.importorskip("{keyword}"), for anything else pytest.mark.skipif(...)'


# What the keywords take.


def _count(keyword: str, value: object) -> None:
    # True is legal and counts as 1: Lightning's tests have min_cuda_gpus=True.
    if not isinstance(value, int) or value < 0:
        raise InvalidCondition(keyword, f"must be a whole number of 0 or more, not {value!r}")


def _version(keyword: str, value: object) -> None:
    if value is None:
        return
    try:
        Version(value)  # type: ignore[arg-type]
    except (InvalidVersion, TypeError):
        raise InvalidCondition(keyword, f'must be a version such as "2.4", or None, not {value!r}') from None


def _switch(keyword: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidCondition(keyword, f"must be True or False, not {value!r}")


def _choice(keyword: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise InvalidCondition(keyword, f"must be True, False or None, not {value!r}")


# What is lacking, for each condition; empty if nothing is. The texts are Lightning's.


@dataclass(frozen=True, slots=True)
class _Condition:
    """One condition: a check of its value, and a function of the value that returns what is lacking."""

    takes: Callable[[str, object], None]
    lack: Callable[[Any], str]


def _lack_of_gpus(wanted: int) -> str:
    return f"GPUs>={wanted}" if devices.count_gpus() < wanted else ""


def _lack_of_newer_torch(wanted: str) -> str:
    installed = _torch_version()
    is_met = installed is not None and _release(installed) >= Version(wanted)
    return "" if is_met else f"torch>={wanted}, {installed or 'none'} installed"


def _lack_of_older_torch(limit: str) -> str:
    installed = _torch_version()
    is_met = installed is not None and _release(installed) < Version(limit)
    return "" if is_met else f"torch<{limit}, {installed or 'none'} installed"


def _lack_of_python(wanted: str) -> str:
    running = ".".join(str(number) for number in sys.version_info[:3])
    return f"python>={wanted}" if Version(running) < Version(wanted) else ""


def _lack_of_mps(wanted: bool) -> str:
    if _has_mps() == wanted:
        return ""
    return "MPS" if wanted else "not MPS"


def _lack_of_standalone(_: bool) -> str:
    return "" if os.environ.get("PL_RUN_STANDALONE_TESTS") == "1" else "Standalone execution"


def _lack_of_deepspeed(_: bool) -> str:
    installed = _torch_version()
    is_met = _has_package("deepspeed") and installed is not None and Version(installed) >= Version("2.4.0")
    return "" if is_met else "Deepspeed"


def _unless(is_met: Callable[[], bool], lack: str) -> _Condition:
    return _Condition(_switch, lambda _: "" if is_met() else lack)


# In the order of Lightning's reasons. The lambdas find the facts, which stand below, when they are called.
_CONDITIONS = {
    "min_cuda_gpus": _Condition(_count, _lack_of_gpus),
    "min_torch": _Condition(_version, _lack_of_newer_torch),
    "max_torch": _Condition(_version, _lack_of_older_torch),
    "min_python": _Condition(_version, _lack_of_python),
    "bf16_cuda": _unless(lambda: devices.has_bf16(), "CUDA device bf16"),
    "skip_windows": _unless(lambda: sys.platform != "win32", "unimplemented on Windows"),
    "tpu": _unless(lambda: devices.has_tpu(), "TPU"),
    "mps": _Condition(_choice, _lack_of_mps),
    "standalone": _Condition(_switch, _lack_of_standalone),
    "deepspeed": _Condition(_switch, _lack_of_deepspeed),
    "dynamo": _unless(lambda: _has_dynamo(), "torch.dynamo"),
    "linux_only": _unless(lambda: sys.platform == "linux", "only linux"),
    "rich": _unless(lambda: _has_package("rich", "10.2.2"), "Rich"),
    "omegaconf": _unless(lambda: is_importable("omegaconf"), "omegaconf"),
    "psutil": _unless(lambda: _has_package("psutil"), "psutil"),
    "sklearn": _unless(lambda: _has_package("scikit-learn"), "scikit-learn"),
    "onnx": _unless(lambda: _has_package("onnx"), "onnx"),
    "onnxscript": _unless(lambda: _has_package("onnxscript"), "onnxscript"),
    "tensorrt": _unless(lambda: _has_package("torch_tensorrt"), "torch-tensorrt"),
}
# What Lightning's filters of tests look for on a mark.
_KEYS = frozenset(("min_cuda_gpus", "tpu", "standalone"))


# The facts.


def _has_mps() -> bool:
    if platform.system() != "Darwin" or os.environ.get("DISABLE_MPS") == "1":
        return False
    import torch

    return torch.backends.mps.is_available() and platform.processor() in ("arm", "arm64")


def _has_dynamo() -> bool:
    from torch._dynamo.eval_frame import is_dynamo_supported

    return bool(is_dynamo_supported())


def _torch_version() -> str | None:
    """Return the version of torch: of the imported one, else by its metadata; None if it is not installed."""
    if "torch" not in sys.modules:
        try:
            return metadata.version("torch")
        except metadata.PackageNotFoundError:
            if not is_importable("torch"):
                return None
    import torch

    return str(torch.__version__)


def _release(version: str) -> Version:
    """Return a version without what marks nightly and local builds, as Lightning compares torch."""
    return Version(Version(version).base_version)


def _has_package(name: str, at_least: str = "") -> bool:
    """Tell whether a package is installed, by its metadata; without metadata a module will do, if any version will."""
    try:
        installed = Version(metadata.version(name))
    except (metadata.PackageNotFoundError, InvalidVersion):
        return not at_least and is_importable(name)
    return not at_least or installed >= Version(at_least)
