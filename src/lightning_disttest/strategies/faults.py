"""The fixture ``faults``, and faults as callbacks of a Trainer."""

from __future__ import annotations

import difflib
import functools
import math
import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine.context import own_rank
from lightning_disttest.engine.injection import Delay, Exit, Fault, Kill, Plan, Stop, Throw, find_rank
from lightning_disttest.errors import FaultMisused, FaultNeverHappened
from lightning_disttest.strategies.packages import import_trainers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lightning_disttest.engine.injection import Action

_BATCH_START = "on_train_batch_start"
# Methods of a LightningModule that a Trainer calls after the hook ``setup``, and that no callback has.
MODULE_HOOKS = (
    "backward",
    "configure_gradient_clipping",
    "configure_model",
    "configure_optimizers",
    "forward",
    "lr_scheduler_step",
    "on_after_batch_transfer",
    "on_before_batch_transfer",
    "on_predict_model_eval",
    "on_test_model_eval",
    "on_test_model_train",
    "on_validation_model_eval",
    "on_validation_model_train",
    "on_validation_model_zero_grad",
    "optimizer_step",
    "optimizer_zero_grad",
    "predict_dataloader",
    "predict_step",
    "test_dataloader",
    "test_step",
    "train_dataloader",
    "training_step",
    "transfer_batch_to_device",
    "val_dataloader",
    "validation_step",
)
_STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NOT_FOR_KILL = (*_STOPPING, signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH)


class Faults:
    """What the fixture ``faults`` returns: each method plans one fault of this test and returns it.

    A fault is a ``Callback`` for a Trainer; loops without a Trainer call its ``reach``. ``rank`` is a number, a list of
    numbers or ``"all"``. ``step`` is a number of ``trainer.global_step``: the fault happens at the beginning of the
    first training batch at which that many steps have been done, or more. With ``hook`` it happens at the first call
    of this hook, with both at the first call from that step on. Each fault happens once in a process.

    All methods raise ``FaultMisused``, a ``ValueError``, for arguments that make no sense.
    """

    def __init__(self, base: Path) -> None:
        self._planned: list[Fault] = []
        self._base = base  # one that is cleaned up though this process may not come to the end of the test
        self._folder = ""

    def kill(
        self,
        rank: int | Sequence[int] | str,
        *,
        step: int | None = None,
        hook: str | None = None,
        signum: int = signal.SIGKILL,
    ) -> Any:
        """Have ranks send themselves a signal; one for which they have a handler is handled as ever."""
        if signum not in signal.valid_signals() or signum in _NOT_FOR_KILL:
            raise FaultMisused(f"faults.kill: signum={signum!r} is no signal that ends a process; to stop: faults.stop")
        return self._plan(Kill(int(signum)), rank, step, hook)

    def exit(
        self, rank: int | Sequence[int] | str, *, step: int | None = None, hook: str | None = None, status: int = 1
    ) -> Any:
        """Have ranks leave by ``os._exit`` with this status."""
        if not _is_number(status) or status > 255:
            raise FaultMisused(f"faults.exit: status={status!r} is no exit status, which is a number from 0 to 255")
        return self._plan(Exit(status), rank, step, hook)

    def stop(
        self,
        rank: int | Sequence[int] | str,
        *,
        step: int | None = None,
        hook: str | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Stop ranks as SIGSTOP does, with all of their threads; they go on after ``seconds``, without it never."""
        return self._plan(Stop(None if seconds is None else _seconds("stop", seconds)), rank, step, hook)

    def delay(
        self, rank: int | Sequence[int] | str, *, step: int | None = None, hook: str | None = None, seconds: float
    ) -> Any:
        """Have ranks sleep for ``seconds``; their other threads go on."""
        return self._plan(Delay(_seconds("delay", seconds)), rank, step, hook)

    def error(
        self,
        rank: int | Sequence[int] | str,
        error: BaseException | type[BaseException],
        *,
        step: int | None = None,
        hook: str | None = None,
    ) -> Any:
        """Have ranks raise an exception, given as an instance or a class; it must be caught as any other."""
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not is_class and not isinstance(error, BaseException):
            raise FaultMisused(f"faults.error: {error!r} is neither an exception nor a class of exceptions")
        return self._plan(Throw(error), rank, step, hook)

    def tear_down(self, *, body_failed: bool) -> None:
        """End the test's faults.

        Raises:
            FaultNeverHappened: if one did not happen, unless the body failed: it may not have come so far.
        """
        try:
            missing = [(str(fault.plan), reason) for fault in self._planned if (reason := fault.find_missing())]
        finally:
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
        if missing and not body_failed:
            raise FaultNeverHappened(missing)

    def _plan(self, action: Action, rank: int | Sequence[int] | str, step: int | None, hook: str | None) -> Any:
        ranks = _check_ranks(action.name, rank)
        if step is None and hook is None:
            raise FaultMisused(f"faults.{action.name} needs step=, hook= or both: when is it to happen?")
        if step is not None and not _is_number(step):
            raise FaultMisused(f"faults.{action.name}: step={step!r} is no number of a step, which begin with 0")
        if hook is not None:
            _check_hook(action.name, hook)
        self._folder = self._folder or tempfile.mkdtemp(prefix="disttest-faults-", dir=self._base)
        fault = make_fault(Plan(action, ranks, step, hook), len(self._planned), self._folder, os.getpid())
        self._planned.append(fault)
        return fault


class TrainerFault(Fault):
    """A fault that a Trainer tells where it is, as it tells its callbacks.

    Methods of the LightningModule that are no hooks of callbacks are wrapped, as attributes of the module itself, from
    this callback's ``setup`` to its ``teardown``, or until an exception has ended the training.
    """

    _trainer: Any = None
    _module: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        _, *rest = super().__reduce__()
        return make_fault, *rest

    @property
    def state_key(self) -> str:
        """A name of its own: a fault in ``state_dict`` is a callback with a state for Lightning, which is empty."""
        return f"{self._plan}, fault {self._number}"

    def setup(self, trainer: Any = None, pl_module: Any = None, stage: str = "") -> None:  # noqa: ARG002
        """Look whether the fault can happen in this Trainer, and whether its hook is to be wrapped.

        Raises:
            FaultMisused: if a Trainer calls no such hook, or the module has no such method.
            FaultRefused: if the fault would end or stop pytest itself.
        """
        __tracebackhide__ = True
        self._trainer, hook = trainer, self._plan.hook
        if hook is not None and trainer is not None and hook not in _known_hooks():
            raise _unknown_hook(self._plan.action.name, hook)
        if trainer is not None and self._plan.concerns(find_rank(trainer.global_rank)):
            self._refuse_in_pytest()
        if hook in MODULE_HOOKS and pl_module is not None:
            self._module = pl_module
            _wrap(pl_module, hook, self)
        self.come_to_hook("setup")

    def teardown(self, trainer: Any = None, pl_module: Any = None, stage: str = "") -> None:  # noqa: ARG002
        """Unwrap the hook."""
        __tracebackhide__ = True
        self._leave(trainer, "teardown")

    def on_exception(self, trainer: Any = None, pl_module: Any = None, exception: Any = None) -> None:  # noqa: ARG002
        """Unwrap the hook: no teardown will come."""
        __tracebackhide__ = True
        self._leave(trainer, "on_exception")

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Come to the next step."""
        __tracebackhide__ = True
        self.come_to_hook(_BATCH_START)

    def come_to_hook(self, hook: str) -> None:
        """Let the fault happen if it is planned for this hook, or for the batch that begins."""
        __tracebackhide__ = True
        trainer = self._trainer
        if trainer is not None and self._only_launches(trainer):
            return
        rank = find_rank(None if trainer is None else trainer.global_rank)
        step = None if trainer is None else int(trainer.global_step)
        if hook == self._plan.hook or (self._plan.hook is None and hook == _BATCH_START):
            self._come_to(step, self._plan.hook, rank)

    def _leave(self, trainer: Any, hook: str) -> None:
        __tracebackhide__ = True
        self._trainer = trainer if trainer is not None else self._trainer
        self._end_training()
        try:
            self.come_to_hook(hook)
        finally:
            self._trainer = None

    def _end_training(self) -> None:
        if self._module is not None:
            _unwrap(self._module, str(self._plan.hook), self)
            self._module = None
        trainer = self._trainer
        if trainer is not None and not self._only_launches(trainer):
            self._step = int(trainer.global_step)
            self._take_part(find_rank(trainer.global_rank))
            self._come_to_end(find_rank(trainer.global_rank))

    def _only_launches(self, trainer: Any) -> bool:
        """Tell whether this process is no rank, but that which has launched the ranks and waits for them."""
        launcher = type(getattr(trainer.strategy, "launcher", None))
        is_multiprocessing = any(base.__name__ == "_MultiProcessingLauncher" for base in launcher.__mro__)
        return is_multiprocessing and os.getpid() == self._planner


def make_fault(plan: Plan, number: int, folder: str, planner: int) -> Any:
    """Return a fault that is a callback of the Lightning packages in use; where none is installed, one for loops."""
    bases = tuple(module.Callback for module in import_trainers())
    if not bases:
        return Fault(plan, number, folder, planner)
    return _make_class(bases, plan.hook)(plan, number, folder, planner)


@functools.cache
def _make_class(bases: tuple[type[Any], ...], hook: str | None) -> Any:
    """Return a class of callbacks with just the hooks that are needed: which it has makes a difference to Lightning."""
    methods: dict[str, Any] = {}
    if hook is not None and hook not in MODULE_HOOKS and not hasattr(TrainerFault, hook):

        def come_to(self: Any, *_: Any, **__: Any) -> dict[str, Any] | None:
            __tracebackhide__ = True
            self.come_to_hook(hook)
            return {} if hook == "state_dict" else None

        methods[hook] = come_to
    return type("Fault", (TrainerFault, *bases), methods)


def _is_hook(callback: type[Any], name: str) -> bool:
    return not name.startswith("_") and callable(vars(callback).get(name))


def _known_hooks() -> list[str]:
    """Return the hooks that a Trainer calls, none where Lightning is not installed."""
    callbacks = [module.Callback for module in import_trainers()]
    own = [name for callback in callbacks for name in vars(callback) if _is_hook(callback, name)]
    return sorted({*own, *MODULE_HOOKS}) if callbacks else []


def _check_hook(name: str, hook: Any) -> None:
    """Refuse what can be no hook; names that do not begin like hooks of Lightning may be those of a user's loop.

    Raises:
        FaultMisused: if that is no name, or one like those of Lightning's hooks that none of them has.
    """
    if not isinstance(hook, str) or not hook:
        raise FaultMisused(f"faults.{name}: hook={hook!r} is no name of a hook, such as 'on_train_batch_end'")
    known = _known_hooks()
    if known and hook.startswith("on_") and hook not in known:
        raise _unknown_hook(name, hook)


def _unknown_hook(name: str, hook: str) -> FaultMisused:
    near = difflib.get_close_matches(hook, _known_hooks(), n=3)
    advice = (
        f"did you mean {' or '.join(map(repr, near))}?" if near else "see the hooks of Callback and LightningModule"
    )
    return FaultMisused(f"faults.{name}: hook={hook!r} is no hook that a Trainer calls; {advice}")


def _check_ranks(name: str, rank: Any) -> tuple[int, ...] | None:
    """Return the ranks, None for all.

    Raises:
        FaultMisused: if that is no rank, or one that the world of this test has not.
    """
    if isinstance(rank, str) and rank == "all":
        return None
    ranks = tuple(rank) if isinstance(rank, (list, tuple, range, set)) else (rank,)
    if not ranks or not all(_is_number(one) for one in ranks):
        raise FaultMisused(
            f'faults.{name}: rank={rank!r} is no rank; it is a number from 0 on, a list of them, or "all"'
        )
    context = own_rank()
    if context is not None and context.kind != "standalone" and max(ranks) >= context.world_size:
        raise FaultMisused(
            f"faults.{name}: rank={rank!r} is not in the world of this test, which has the ranks 0 to "
            f"{context.world_size - 1}"
        )
    return tuple(sorted(ranks))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _seconds(name: str, seconds: Any) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise FaultMisused(f"faults.{name}: seconds={seconds!r} is no time; it is a number above 0")
    return float(seconds)


def _wrap(module: Any, name: str, fault: TrainerFault) -> None:
    """Have a method of this module tell the fault when it is called; several faults share one wrapper."""
    present = vars(module).get(name)
    if hasattr(present, "disttest_faults"):
        present.disttest_faults.append(fault)
        return
    genuine = getattr(module, name, None)
    if genuine is None:
        raise FaultMisused(
            f"faults.{fault.plan.action.name}: hook={name!r} is no method of {type(module).__name__} in this version "
            "of Lightning; take another hook"
        )

    @functools.wraps(genuine)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        for one in list(faults):
            one.come_to_hook(name)
        return genuine(*args, **kwargs)

    faults = [fault]
    changed: Any = wrapper
    changed.disttest_faults, changed.disttest_restore = faults, _restorer(module, name, present)
    setattr(module, name, wrapper)


def _restorer(module: Any, name: str, present: Any) -> Callable[[], None]:
    return (
        functools.partial(delattr, module, name)
        if present is None
        else functools.partial(setattr, module, name, present)
    )


def _unwrap(module: Any, name: str, fault: TrainerFault) -> None:
    """Have the module as it was, once none of its faults needs the wrapper; another's wrapper around it stays."""
    wrapper: Any = vars(module).get(name)
    faults = getattr(wrapper, "disttest_faults", [])
    if fault in faults:
        faults.remove(fault)
        if not faults:
            wrapper.disttest_restore()
