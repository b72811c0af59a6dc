"""The devices of this machine, looked up so that this process can still be forked into ranks afterwards.

What has to touch a device to know does so in a process of its own: a pytest process that has opened a GPU or started
the XLA runtime can not be forked any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING

from lightning_disttest.errors import ConditionUnclear
from lightning_disttest.imports import is_importable

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWER_S = 60.0
_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
_ASK_BF16 = "import torch; print(int(torch.cuda.is_available() and torch.cuda.is_bf16_supported()))"
# The number of devices asks a metadata server, which may not answer; the number of chips only looks at the PCI bus.
# Errors that mean "no TPU" are those of Lightning's XLAAccelerator, and that torch_xla cannot be imported.
_COUNT_TPUS = """
try:
    from torch_xla._internal import tpu
    print(tpu.num_available_chips() and tpu.num_available_devices())
except (ImportError, ValueError, AssertionError, OSError):
    print(0)
"""


def count_gpus() -> int:
    """Return the number of GPUs that are visible to this process.

    ``torch.cuda.device_count`` initialises the driver where NVML has no answer: with MIG, on ROCm, in containers
    without libnvidia-ml. There a process of its own is asked, unless there is no driver at all.
    """
    import torch

    if torch.version.hip is not None:
        return _ask("the number of GPUs", _COUNT_GPUS)
    if torch.version.cuda is None:
        return 0
    counted = _count_gpus_by_nvml()
    if counted is not None:
        return counted
    return _ask("the number of GPUs", _COUNT_GPUS) if _has_cuda_driver() else 0


def has_bf16() -> bool:
    """Tell whether the current GPU can compute in bfloat16.

    Asked in a process of its own: torch has to initialise CUDA to know, and ranks can not be forked after that.
    """
    return count_gpus() > 0 and _ask("whether the GPU computes in bfloat16", _ASK_BF16) == 1


def has_tpu() -> bool:
    """Tell whether there is a TPU; asked in a process of its own, which may neither block nor touch this one."""
    return is_importable("torch_xla") and _ask("the number of TPU chips", _COUNT_TPUS) > 0


def _count_gpus_by_nvml() -> int | None:
    import torch

    count: Callable[[], int] = getattr(torch.cuda, "_device_count_nvml", lambda: -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that NVML does not work; the answer then comes from elsewhere
        counted = count()
    return counted if counted >= 0 else None


def _has_cuda_driver() -> bool:
    import ctypes  # this module is imported at each start of pytest

    try:
        ctypes.CDLL("libcuda.so.1")  # opens no device before cuInit
    except OSError:
        return False
    return True


def _ask(what: str, code: str) -> int:
    """Return the number that ``code`` prints in a fresh process; asked once per set of visible GPUs.

    Raises:
        ConditionUnclear: if it prints none.
    """
    answer, problem = _ask_once(code, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not answer.isdecimal():
        raise ConditionUnclear(what, problem)
    return int(answer)


@cache
def _ask_once(code: str, _: str | None) -> tuple[str, str]:
    """Return the last word on stdout, and what to say if that is no answer."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_ANSWER_S:g} s"
    problem = done.stderr.strip() or f"exit code {done.returncode} after {done.stdout.strip()!r}"
    return (done.stdout.split() or [""])[-1] if done.returncode == 0 else "", problem
