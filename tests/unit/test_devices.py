"""The devices of this machine: what is found, and what is not touched in this process to find it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from lightning_disttest.errors import ConditionUnclear
from lightning_disttest.selection import devices

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.facts import Facts


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

    assert devices.count_gpus() == 2
    assert devices.has_bf16()


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

    assert devices.count_gpus() == 0
    assert not devices.has_bf16()


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
        assert devices.count_gpus() == 1

    assert asked.read_text() == "xx"


def test_tpu_is_not_asked_for_here(facts: Facts) -> None:
    """The XLA runtime is not even imported in this process, and no metadata server is asked without a chip."""
    facts.tpu("return 0", "raise SystemExit('asked the metadata server')")
    facts.forget()

    assert not devices.has_tpu()
    assert sys.modules.get("torch_xla") is None


def test_warnings_are_no_errors_in_the_process_that_is_asked(facts: Facts) -> None:
    """PYTHONWARNINGS=error in the environment does not spoil the answer."""
    facts.tpu("import warnings; warnings.warn('an old libtpu'); return 4", "return 4").env("PYTHONWARNINGS", "error")
    facts.forget()

    assert devices.has_tpu()


def test_no_process_is_asked_without_torch_xla(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch_xla is not installed there is no TPU, and no need to start a process."""
    monkeypatch.setattr(devices, "_ask", lambda *_: pytest.fail("a process was asked"))

    assert not devices.has_tpu()


def test_torch_xla_that_cannot_be_imported_is_no_tpu(facts: Facts) -> None:
    """A broken torch_xla is as good as none."""
    facts.tpu("return 4", "return 4")
    facts.write("torch_xla/__init__.py", "raise ImportError('libtpu')")
    facts.forget()

    assert not devices.has_tpu()
    assert facts.ask_lightning(tpu=True)["condition"] is True


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
        devices.has_tpu()

    assert str(raised.value).startswith("the number of TPU chips could not be found out; the process that was asked ")
    assert str(raised.value).endswith(reason)
