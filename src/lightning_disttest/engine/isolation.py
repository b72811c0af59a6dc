"""What tests change in a rank of a static world, found and set back after each of them; ``leak_guard`` says when.

Each kind of state is one ``Aspect``, read as a dict of values that are compared. Runs for each test twice, so it has
to be cheap, and it imports nothing that the tests have not imported.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import os
import random
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lightning_disttest.engine import rendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Values = dict[Any, Any]
REPLACED = "the world is replaced"
_RESTORED = "it was set back"
_ABSENT = object()
_ITIMER = "ITIMER_REAL"
# pytest names the phase that runs in it.
_CURRENT_TEST = b"PYTEST_CURRENT_TEST"
_MAPPING = b""  # no variable has this name
# What Lightning sets (seed_everything, Trainer.fit, its accelerators and loggers), then what torch sets.
QUIET_VARIABLES = frozenset(
    (
        "PL_GLOBAL_SEED",
        "PL_SEED_WORKERS",
        "CUBLAS_WORKSPACE_CONFIG",
        "OMP_NUM_THREADS",
        "CUDA_DEVICE_ORDER",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "PT_XLA_DEBUG",
        "XLA_USE_BF16",
        "XLA_USE_F16",
        "BITSANDBYTES_NOWELCOME",
        "COMET_DISABLE_AUTO_LOGGING",
        "WANDB_MODE",
        "DISABLE_CUPTI_LAZY_REINIT",
        "KMP_DUPLICATE_LIB_OK",
        "TEARDOWN_CUPTI",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TRITON_LIBDEVICE_PATH",
        "TRITON_PTXAS_PATH",
    )
)


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that a test has left behind: ``what`` completes "the test ...", ``done`` says what became of it.

    ``undone`` is False if it is still there, so that no other test may run in this process.
    """

    what: str
    done: str = _RESTORED
    undone: bool = True


class Aspect(Protocol):
    """One kind of state of a process."""

    def read(self) -> Values:
        """Return the state as it is now."""

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Set back what differs between two states, ``now`` being that of this moment; say what is worth saying."""


class Isolation:
    """Knows what the state was before a test, and sets it back after the test."""

    def __init__(self, aspects: Sequence[Aspect]) -> None:
        self._aspects = aspects
        self._base: list[Values] = []

    def begin(self) -> None:
        """Take the state of this moment for the one that a test has to leave."""
        self._base = self.read()

    def read(self) -> list[Values]:
        """Return the state of this moment."""
        return [aspect.read() for aspect in self._aspects]

    def adopt(self, before: list[Values]) -> None:
        """Let what has changed since ``before`` be there after the test as well."""
        for base, old, new in zip(self._base, before, self.read(), strict=False):
            for key in old.keys() | new.keys():
                value = new.get(key, _ABSENT)
                if value is _ABSENT:
                    base.pop(key, None)
                elif old.get(key, _ABSENT) != value:
                    base[key] = value

    def end(self) -> list[Leak]:
        """Set the state back to that of before the test; return what the test has left behind."""
        return [
            leak for aspect, base in zip(self._aspects, self._base, strict=False) for leak in _set_back(aspect, base)
        ]


def _set_back(aspect: Aspect, base: Values) -> list[Leak]:
    """Set one kind of state back. An error of that is a leak: the other kinds have to be set back all the same."""
    try:
        now = aspect.read()
        return aspect.undo(base, now) if now != base else []
    except Exception as error:  # noqa: BLE001  a test may have put anything into the place of what is read and written
        return [Leak(f"changed what cannot be set back ({type(error).__name__}: {error})", REPLACED, undone=False)]


class Environment:
    """Environment variables. Those of launchers, and those that Lightning and torch set, are set back silently.

    A test may put another mapping into the place of ``os.environ``: the genuine one is read and written, and put back.
    """

    def __init__(self) -> None:
        self._environ: Any = os.environ

    def read(self) -> Values:
        """Return the variables by name, as bytes: decoding all of them takes a hundred times as long."""
        values: Values = dict(self._environ._data)
        values.pop(_CURRENT_TEST, None)
        values[_MAPPING] = id(os.environ)
        return values

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Set, or remove, every variable that differs."""
        leaks = []
        if base[_MAPPING] != now[_MAPPING]:
            os.environ = self._environ  # noqa: B003  it is the one that sets variables of the process
            leaks.append(Leak("replaced os.environ"))
        for key in sorted((base.keys() | now.keys()) - {_MAPPING}):
            if base.get(key) == now.get(key):
                continue
            name = os.fsdecode(key)
            verb, done = "changed" if key in now else "removed", _RESTORED
            if key in base:
                self._environ[name] = os.fsdecode(base[key])
            else:
                del self._environ[name]
                verb, done = "set", "it was removed"
            if not (name in QUIET_VARIABLES or rendezvous.is_launcher_variable(name)):
                leaks.append(Leak(f"{verb} the environment variable {name}", done))
        return leaks


class WorkingDirectory:
    """The working directory."""

    def read(self) -> Values:
        """Return the path; None if the folder is gone."""
        try:
            return {"": os.getcwd()}  # noqa: PTH109  twice as cheap as Path.cwd
        except FileNotFoundError:
            return {"": None}

    def undo(self, base: Values, now: Values) -> list[Leak]:  # noqa: ARG002  the one value of the base says it all
        """Go back."""
        try:
            os.chdir(base[""])
        except (OSError, TypeError):
            return [Leak("changed the working directory and removed the one it began in", REPLACED, undone=False)]
        return [Leak("changed the working directory")]


class SignalHandlers:
    """Handlers of signals as Python knows them, and the timer of SIGALRM."""

    def __init__(self) -> None:
        self._numbers = sorted(int(number) for number in signal.valid_signals())

    def read(self) -> Values:
        """Return the handlers by number; ``signal.getsignal`` would make an enum of each."""
        values: Values = {number: _signal.getsignal(number) for number in self._numbers}
        values[_ITIMER] = signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)
        return values

    def undo(self, base: Values, now: Values) -> list[Leak]:
        """Set the handlers back that Python has set; stop a timer."""
        leaks = []
        if now[_ITIMER] and not base[_ITIMER]:
            signal.setitimer(signal.ITIMER_REAL, 0)
            leaks.append(Leak("left a timer of SIGALRM running", "it was stopped"))
        for number in self._numbers:
            if base[number] != now[number] and base[number] is not None and not _is_for_good(now[number]):
                signal.signal(number, base[number])
                leaks.append(Leak(f"changed the handler of {_signal_name(number)}"))
        return leaks


class _State:
    """The state of a random generator; equal to no other, as comparing takes longer than setting."""

    def __init__(self, value: Any, restore: Callable[[Any], object]) -> None:
        self._value = value
        self._restore = restore

    def restore(self) -> None:
        """Set the generator back."""
        self._restore(self._value)


class RandomNumbers:
    """The global generators of ``random``, numpy and torch; using them is no leak."""

    def read(self) -> Values:
        """Return the state of each generator whose package is imported."""
        values: Values = {"random": _State(random.getstate(), random.setstate)}
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            values["numpy"] = _State(numpy.get_state(), numpy.set_state)
        torch: Any = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_rng_state"):
            values["torch"] = _State(torch.get_rng_state(), torch.set_rng_state)
            if torch.cuda.is_initialized():
                values["cuda"] = _State(torch.cuda.get_rng_state(), torch.cuda.set_rng_state)
        return values

    def undo(self, base: Values, now: Values) -> list[Leak]:  # noqa: ARG002  not compared
        """Set all generators back."""
        for state in base.values():
            state.restore()
        return []


def _is_for_good(handler: Any) -> bool:
    """Tell whether a handler is that of torch's DataLoader for its workers: torch sets it once, and never again."""
    return getattr(handler, "__module__", "") == "torch.utils.data._utils.signal_handling"


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
