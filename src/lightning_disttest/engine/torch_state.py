"""Settings of torch and process groups that a test changes, see ``isolation``; torch is looked at only if imported."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine.isolation import REPLACED, Leak

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_disttest.engine.isolation import Values

_MIXED = "(set in two ways at once)"
# Attributes of torch.
_ATTRIBUTES = (
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "utils.deterministic.fill_uninitialized_memory",
)
# A change of one shows in others: they are read, written in this order, and told of, together.
_PRECISIONS = (
    "backends.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.mkldnn.fp32_precision",
    "float32_matmul_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.cudnn.allow_tf32",
)
_DETERMINISTIC = "torch.use_deterministic_algorithms"
_THREADS = "torch's number of threads"
_BENCHMARK = "backends.cudnn.benchmark"
# Lightning sets the number of threads in the fit of several ranks, together with this variable, which it leaves alone.
_THREADS_VARIABLE = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class _Setting:
    """One setting; ``write`` takes what ``read`` gave, and is None if the setting cannot be set back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None


# What functions under ``excuse`` have set, by the name of the setting: how many were set until then, and the value.
_excused: dict[str, tuple[int, Any]] = {}
_numbers = itertools.count()


def excuse(genuine: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, one of Lightning, such that what it sets is set back after the test, and is no leak."""

    @functools.wraps(genuine)
    def noting(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules["torch"]
        settings = [_deterministic(torch), *filter(None, [_attribute(torch, _BENCHMARK)])]
        before = [setting.read() for setting in settings]
        result = genuine(*args, **kwargs)
        for setting, value in zip(settings, before, strict=True):
            if (new := setting.read()) != value:
                _excused[setting.name] = (next(_numbers), new)
        return result

    return noting


class TorchSettings:
    """The global settings of torch. Those that Lightning has set are set back silently."""

    def __init__(self) -> None:
        self._settings: dict[str, _Setting] = {}

    def read(self) -> Values:
        """Return the settings by name; empty if torch is not imported."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "set_default_device"):
            return {}
        if not self._settings:
            self._settings = {setting.name: setting for setting in _settings_of(torch)}
        values = {name: setting.read() for name, setting in self._settings.items()}
        values[_THREADS_VARIABLE] = os.environ.get(_THREADS_VARIABLE)
        values |= {_key_of_excused(name): noted for name, noted in _excused.items()}
        return values

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Set back what differs; what the base does not know was not there to be changed."""
        leaks = []
        for name, setting in self._settings.items():
            if name not in base or base[name] == now[name]:
                continue
            if setting.write is not None:
                setting.write(base[name])
            undone = setting.read() == base[name]
            if not undone or not _is_of_lightning(name, base, now):
                what = f"changed {_difference(name, base[name], now[name])}"
                leaks.append(Leak(what) if undone else Leak(what, REPLACED, undone=False))
        return leaks


def _key_of_excused(name: str) -> tuple[str, str]:
    return ("excused", name)


def _is_of_lightning(name: str, base: Values, now: Values) -> bool:
    """Tell whether Lightning has set a setting to what it is now, between the two states."""
    if name == _THREADS:
        return bool(now.get(_THREADS_VARIABLE)) and not base.get(_THREADS_VARIABLE)
    noted = now.get(_key_of_excused(name))
    return noted is not None and noted != base.get(_key_of_excused(name)) and noted[1] == now[name]


def _difference(name: str, base: Any, now: Any) -> str:
    if isinstance(base, dict):
        return ", ".join(_difference(f"torch.{key}", base[key], now[key]) for key in base if base[key] != now[key])
    return f"{name} from {base} to {now}"


def _settings_of(torch: Any) -> list[_Setting]:
    """Return the settings that this torch has."""
    settings = [
        _Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        _Setting("torch's default device", functools.partial(_default_device, torch), torch.set_default_device),
        _Setting(_THREADS, torch.get_num_threads, torch.set_num_threads),
        _Setting("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        _Setting("torch's inference mode", torch.is_inference_mode_enabled, None),
        _Setting("torch.set_warn_always", torch.is_warn_always_enabled, torch.set_warn_always),
        _precisions(torch),
        _deterministic(torch),
        _anomaly(torch),
    ]
    settings += [setting for path in _ATTRIBUTES if (setting := _attribute(torch, path)) is not None]
    return settings + _attention(torch)


def _default_device(torch: Any) -> Any:
    """Return the device that ``torch.set_default_device`` has set; None if it has not: that is not set to the CPU."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _deterministic(torch: Any) -> _Setting:
    def read() -> tuple[bool, bool]:
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warn_only

    def write(value: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])

    return _Setting(_DETERMINISTIC, read, write)


def _anomaly(torch: Any) -> _Setting:
    def read() -> tuple[bool, bool]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    return _Setting("torch's anomaly mode", read, lambda value: torch.autograd.set_detect_anomaly(*value))


def _attribute(torch: Any, path: str) -> _Setting | None:
    """Return the setting that is an attribute somewhere in torch; None in a version that has it not."""
    owner_path, _, name = path.rpartition(".")
    try:
        owner = operator.attrgetter(owner_path)(torch)
        getattr(owner, name)
    except AttributeError:
        return None
    return _Setting(f"torch.{path}", lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _precisions(torch: Any) -> _Setting:
    """Return the precisions of float32 operations as one setting."""
    settings = {path: setting for path in _PRECISIONS if (setting := _attribute(torch, path)) is not None}
    settings["float32_matmul_precision"] = _Setting(
        "", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    )
    in_order = {path: settings[path] for path in _PRECISIONS if path in settings}

    def read_one(setting: _Setting) -> Any:
        try:
            return setting.read()
        except RuntimeError:  # torch does not tell one that was set through its old and its new interface
            return _MIXED

    def read() -> dict[str, Any]:
        return {path: read_one(setting) for path, setting in in_order.items()}

    def write(value: dict[str, Any]) -> None:
        for path, setting in in_order.items():
            if setting.write is not None and read_one(setting) != value[path] != _MIXED:
                setting.write(value[path])

    return _Setting("torch's precisions of float32", read, write)


def _attention(torch: Any) -> list[_Setting]:
    """Return which implementations of attention may be used."""
    cuda = torch.backends.cuda
    return [
        _Setting(f"torch.backends.cuda.{kind}_sdp_enabled", getattr(cuda, f"{kind}_sdp_enabled"), enable)
        for kind in ("flash", "math", "mem_efficient", "cudnn")
        if (enable := getattr(cuda, f"enable_{kind}_sdp", None)) is not None
    ]


# The names of groups that functions under ``excuse_groups`` have made.
_excused_groups: set[str] = set()


def excuse_groups(genuine: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, one of Lightning, such that process groups that it makes are no leaks."""

    @functools.wraps(genuine)
    def noting(*args: Any, **kwargs: Any) -> Any:
        before = _names_of_groups()
        try:
            return genuine(*args, **kwargs)
        finally:
            _excused_groups.update(_names_of_groups() - before)

    return noting


def _names_of_groups() -> set[str]:
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return set() if distributed is None else set(distributed._world.pg_names.values())


class ProcessGroups:
    """Process groups beside the default one. Those that a test has left are destroyed before the next test begins.

    Not at once, unless the process is the only one: a slower rank may still be in an operation of such a group, which
    has ended on this rank. Groups are known by their names: who holds one keeps its connections open, and the peers
    of a rank that failed would not see that it is gone.
    """

    def __init__(self, at_once: bool = False) -> None:
        self._at_once = at_once
        self._left: set[str] = set()

    def read(self) -> Values:
        """Return the names of the groups that this rank is in."""
        names = _names_of_groups()
        _excused_groups.intersection_update(names)  # another default group has the same names again
        return dict.fromkeys(names)

    def destroy_left(self) -> None:
        """Destroy the groups that the last test has left; no rank is in that test any more."""
        if self._left:
            distributed: Any = sys.modules["torch.distributed.distributed_c10d"]
            for group, name in list(distributed._world.pg_names.items()):
                if name in self._left:
                    distributed.destroy_process_group(group)
            self._left = set()

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Note the new groups to be destroyed. One that the test has destroyed cannot be had back."""
        distributed: Any = sys.modules["torch.distributed.distributed_c10d"]
        destroyed = Leak("destroyed a process group that was there before it", REPLACED, undone=False)
        if not distributed.is_initialized():
            # The default group is gone too: a rank says so at the end of each test.
            return [destroyed] if self._at_once else []
        leaks = [destroyed] if base.keys() - now.keys() else []
        self._left = now.keys() - base.keys() - {distributed._world.pg_names[distributed.GroupMember.WORLD]}
        if number := len(self._left - _excused_groups):
            what = "a process group" if number == 1 else f"{number} process groups"
            leaks.append(Leak(f"left {what}", "destroyed" if self._at_once else "destroyed before the next test"))
        if self._at_once:
            self.destroy_left()
        return leaks
