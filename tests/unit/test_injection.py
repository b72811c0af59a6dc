"""Faults: when one is due, what it says of itself, what is refused, and that it needs no Lightning."""

from __future__ import annotations

import copy
import pickle
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest import Faults
from lightning_disttest.engine import context
from lightning_disttest.engine.injection import Exit, Fault, Kill, Plan, Stop, Throw
from lightning_disttest.errors import FaultMisused, FaultNeverHappened, FaultRefused
from lightning_disttest.strategies import packages
from tests.unit.contexts import make_context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    """Return an object as the fixture of this name gives it to tests, which tells nothing at its end."""
    faults = Faults(tmp_path)
    yield faults
    faults.tear_down(body_failed=True)


def plan(step: int | None = None, hook: str | None = None) -> Plan:
    """Return a plan to kill rank 1."""
    return Plan(Kill(signal.SIGKILL), (1,), step, hook)


@pytest.mark.parametrize(
    ("planned", "now", "due"),
    [
        (plan(step=3), (2, None), False),
        (plan(step=3), (3, None), True),
        (plan(step=3), (5, None), True),
        (plan(step=3), (None, "setup"), False),
        (plan(step=3), (3, "setup"), True),
        (plan(hook="setup"), (7, "teardown"), False),
        (plan(hook="setup"), (7, None), False),
        (plan(hook="setup"), (None, "setup"), True),
        (plan(step=3, hook="setup"), (2, "setup"), False),
        (plan(step=3, hook="setup"), (None, "setup"), False),
        (plan(step=3, hook="setup"), (4, "setup"), True),
        (plan(step=3, hook="setup"), (4, None), False),
    ],
)
def test_due(planned: Plan, now: tuple[int | None, str | None], due: bool) -> None:
    """A step is due from that step on, a hook in that hook, both where both hold."""
    assert planned.is_due(*now) is due


@pytest.mark.parametrize(
    ("planned", "name", "happening"),
    [
        (plan(step=3), "kill(rank=1, step=3)", "SIGKILL on rank 1 at step 4"),
        (plan(hook="setup"), "kill(rank=1, hook='setup')", "SIGKILL on rank 1 in setup"),
        (
            Plan(Exit(3), (0, 1), 3, "setup"),
            "exit(rank=[0, 1], step=3, hook='setup')",
            "exit with status 3 on rank 1 in setup at step 4",
        ),
        (Plan(Stop(2.5), None, 0, None), "stop(rank='all', step=0)", "SIGSTOP for 2.5 s on rank 1 at step 4"),
        (Plan(Throw(KeyError()), (1,), 3, None), "error(rank=1, step=3)", "KeyError on rank 1 at step 4"),
        (Plan(Kill(40), (1,), 3, None), "kill(rank=1, step=3)", "signal 40 on rank 1 at step 4"),
    ],
)
def test_words(planned: Plan, name: str, happening: str) -> None:
    """A fault is named as it was planned, and told as it happens."""
    assert str(planned) == name
    assert planned.describe(1, 4, planned.hook) == happening


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("kill", {"rank": 1}, "faults.kill needs step=, hook= or both: when is it to happen?"),
        ("kill", {"rank": -1, "step": 3}, "rank=-1 is no rank"),
        ("kill", {"rank": True, "step": 3}, "rank=True is no rank"),
        ("kill", {"rank": [], "step": 3}, r"rank=\[\] is no rank"),
        ("kill", {"rank": "1", "step": 3}, "rank='1' is no rank; it is a number from 0 on, a list of them, or \"all\""),
        ("kill", {"rank": 1, "step": -3}, "step=-3 is no number of a step"),
        ("kill", {"rank": 1, "step": 3.0}, r"step=3\.0 is no number of a step"),
        ("kill", {"rank": 1, "step": 3, "signum": 0}, "signum=0 is no signal that ends a process"),
        ("kill", {"rank": 1, "step": 3, "signum": signal.SIGSTOP}, r"to stop: faults\.stop"),
        ("kill", {"rank": 1, "step": 3, "signum": signal.SIGCHLD}, "is no signal that ends a process"),
        ("kill", {"rank": 1, "step": 3, "signum": signal.SIGWINCH}, "is no signal that ends a process"),
        ("kill", {"rank": 1, "hook": ""}, "faults.kill: hook='' is no name of a hook"),
        ("kill", {"rank": 1, "hook": "on_train_bach_start"}, "did you mean 'on_train_batch_start'"),
        (
            "kill",
            {"rank": 1, "hook": "on_holiday_with_family"},
            "faults.kill: hook='on_holiday_with_family' is no hook that a Trainer calls; ",
        ),
        (
            "exit",
            {"rank": 1, "step": 3, "status": 256},
            "status=256 is no exit status, which is a number from 0 to 255",
        ),
        ("stop", {"rank": 1, "step": 3, "seconds": 0}, "faults.stop: seconds=0 is no time"),
        ("delay", {"rank": 1, "step": 3, "seconds": float("inf")}, "faults.delay: seconds=inf is no time"),
        ("delay", {"rank": 1, "step": 3, "seconds": "1"}, "seconds='1' is no time"),
        ("error", {"rank": 1, "step": 3, "error": "boom"}, "'boom' is neither an exception nor a class of exceptions"),
        ("error", {"rank": 1, "step": 3, "error": int}, "neither an exception nor a class of exceptions"),
    ],
)
def test_misuse(faults: Faults, method: str, arguments: dict[str, Any], text: str) -> None:
    """Arguments that make no sense are refused where they are given, in words that say what would."""
    with pytest.raises(FaultMisused, match=text):
        getattr(faults, method)(**arguments)


def test_reach_needs_a_place(faults: Faults) -> None:
    """A loop says where it is."""
    fault = faults.error(0, KeyError, step=3)
    with pytest.raises(FaultMisused, match="reach\\(\\) needs step=, hook= or both: where is the loop"):
        fault.reach()


def test_loop(faults: Faults) -> None:
    """In a loop it happens at its step, once; a hook of the same step comes after it."""
    fault = faults.error(0, KeyError("planned"), step=3)
    other = faults.error(0, KeyError("in hook"), step=3, hook="saved")
    for step in range(3):
        fault.reach(step=step)
        other.reach(step=step)
        other.reach(hook="saved")
    with pytest.raises(KeyError, match="planned"):
        fault.reach(step=3)
    fault.reach(step=3)
    other.reach(step=3)
    with pytest.raises(KeyError, match="in hook"):
        other.reach(hook="saved")


def test_another_rank_goes_on(faults: Faults) -> None:
    """A plain test is rank 0: a fault of rank 1 does not happen in it."""
    fault = faults.kill(1, step=0)
    fault.reach(step=0)
    with pytest.raises(FaultNeverHappened, match="there was no rank 1"):
        faults.tear_down(body_failed=False)


def test_pytest_is_spared(faults: Faults) -> None:
    """A fault that would end this process is refused, and has not happened."""
    fault = faults.kill("all", step=0)
    with pytest.raises(FaultRefused, match="would kill pytest itself"):
        fault.reach(step=0)
    with pytest.raises(FaultNeverHappened, match="training ended at step 0"):
        faults.tear_down(body_failed=False)


def test_folder_is_removed(faults: Faults, tmp_path: Path) -> None:
    """What faults leave word in is a folder in that of the run, and gone after the test."""
    faults.error(0, KeyError, step=3)
    assert len(list(tmp_path.iterdir())) == 1
    faults.tear_down(body_failed=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("copied", [lambda fault: pickle.loads(pickle.dumps(fault)), copy.deepcopy])
def test_copies(faults: Faults, copied: Any) -> None:
    """A fault can be pickled and copied; in the same process a copy of one that has happened has happened."""
    fault = faults.error(0, KeyError("planned"), hook="on_fit_start")
    again = copied(fault)
    assert repr(again) == repr(fault) == "<fault error(rank=0, hook='on_fit_start')>"
    with pytest.raises(KeyError):
        again.reach(hook="on_fit_start")
    copied(again).reach(hook="on_fit_start")


def test_without_lightning(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Lightning is not installed faults are there for loops, and any name is one of a hook."""
    monkeypatch.setattr(packages, "TRAINER_PACKAGES", ("no_such_lightning",))
    fault = faults.error(0, KeyError, hook="on_batch_loaded")
    assert type(fault) is Fault
    with pytest.raises(KeyError):
        pickle.loads(pickle.dumps(fault)).reach(hook="on_batch_loaded")


def test_callback_of_the_package_in_use(faults: Faults) -> None:
    """With Lightning a fault is a callback, with no more hooks of its own than it needs."""
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities.model_helpers import is_overridden

    fault = faults.kill(1, step=3)
    assert isinstance(fault, Callback)
    assert not is_overridden("state_dict", fault)
    assert not is_overridden("on_train_batch_end", fault)
    other = faults.kill(1, hook="state_dict")
    assert is_overridden("state_dict", other)
    assert other.state_dict() == {}
    assert other.state_key != faults.kill(1, hook="state_dict").state_key


def test_method_that_a_module_has_not(faults: Faults) -> None:
    """A hook of the module that this version of Lightning does not have is refused when the training begins."""
    fault = faults.error(0, KeyError, hook="configure_model")
    trainer = SimpleNamespace(global_rank=0, global_step=0, strategy=SimpleNamespace())
    with pytest.raises(FaultMisused, match=r"faults\.error: hook='configure_model' is no method of SimpleNamespace"):
        fault.setup(trainer, SimpleNamespace(), "fit")


def test_rank_is_that_of_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a rank has forked inherits what the rank knew of itself, and is no rank."""
    told = make_context(1, 2, "static")
    monkeypatch.setattr(context, "_current", None)
    monkeypatch.setattr(context, "_pid", 0)
    context.enter_rank(told)
    assert context.own_rank() is told
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert context.own_rank() is None
