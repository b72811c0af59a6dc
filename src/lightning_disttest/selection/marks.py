"""What the marks of a test ask for: parsed and checked once, after collection."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lightning_disttest.errors import ConditionUnclear, InvalidMarks
from lightning_disttest.selection.devices import count_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["static", "dynamic", "standalone"]

_DEVICES = ("cpu", "cuda")
_DEFAULT_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_DISTRIBUTED_KEYWORDS = frozenset(("world_size", "static", "device", "backend", "timeout"))
_PARAMETER = "world_size"
_LARGEST_WORLD = 1024  # a typing error must not fill the memory of the machine with processes
_ALIASES = {"multigpu_static": True, "multigpu_dynamic": False}  # name: whether its world is static
_ON_RANKS = ("distributed", *_ALIASES)
_PLACES = frozenset((*_ON_RANKS, "standalone", "tpu"))  # marks that say where a test runs
_MARKS = _PLACES | {"skipif"}

MARKERS = (
    'distributed(world_size, *, static=True, device="cpu", backend=None, timeout=None): run the test on world_size '
    "ranks with one process group. static: reuse the world for all tests that ask for the same one; otherwise make "
    "one for this test alone. world_size=[1, 2, 4] runs the test once per size. timeout in seconds.",
    "standalone(timeout=None): run the test in a fresh process of its own, in which a Trainer or Fabric may launch "
    "further ranks. timeout in seconds.",
    "multigpu_static(world_size=None): the same as distributed(world_size, device='cuda', static=True); without "
    "world_size, all visible GPUs.",
    "multigpu_dynamic(world_size=None): the same as distributed(world_size, device='cuda', static=False); without "
    "world_size, all visible GPUs.",
    "tpu(): run the test on a TPU only; without one it is skipped, and with --tpu it fails.",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a test runs: kind, number of ranks, device type, backend ('' without a group) and limit in seconds."""

    kind: Kind
    world_size: int
    device: str
    backend: str
    timeout: float | None

    @property
    def world_key(self) -> tuple[int, str, str]:
        """What static tests must have in common to share a world."""
        return self.world_size, self.device, self.backend


PLAN = pytest.StashKey[Plan]()
_MARKED = pytest.StashKey[bool]()
_TRANSLATED = pytest.StashKey[pytest.Mark]()


class _MarkError(Exception):
    """A mark that can not be served; the text says why and what to write instead."""


def translate_aliases(items: Iterable[pytest.Item]) -> None:
    """Give tests that are marked ``multigpu_*`` the mark ``distributed`` that they stand for; ``-m`` sees both."""
    for item in items:
        marks = [mark for mark in item.iter_markers() if mark.name in _ALIASES]
        if marks:
            with contextlib.suppress(ConditionUnclear):  # the plan tells it, of tests that are left then
                _translate(item, marks[0])


def _translate(item: pytest.Item, alias: pytest.Mark) -> None:
    distributed = _distributed_mark(alias)
    item.stash[_TRANSLATED] = distributed.mark
    item.add_marker(distributed)


def _distributed_mark(alias: pytest.Mark) -> pytest.MarkDecorator:
    keywords: dict[str, Any] = dict(alias.kwargs)
    sizes = alias.args or (keywords.pop(_PARAMETER, None),)
    if sizes == (None,):
        sizes = (max(1, count_gpus()),)
    keywords |= {"device": "cuda", "static": _ALIASES[alias.name]}
    mark: pytest.MarkDecorator = pytest.mark.distributed(*sizes, **keywords)
    return mark


def plan_items(items: Iterable[pytest.Item]) -> int:
    """Parse the marks of all items and stash a plan with those that do not run in the controller; count these.

    Raises:
        InvalidMarks: naming every test whose marks can not be served.
    """
    problems = []
    planned = 0
    for item in items:
        if _MARKS.isdisjoint(mark.name for mark in item.iter_markers()):
            continue
        item.stash[_MARKED] = True
        try:
            plan = _plan(item)
        except _MarkError as problem:
            problems.append((item.nodeid, str(problem)))
        else:
            if plan is not None:
                item.stash[PLAN] = plan
                planned += 1
    if problems:
        raise InvalidMarks(problems)
    return planned


def plan_of(item: pytest.Item) -> Plan | None:
    """Return the plan of an item, None if it is a plain test."""
    return item.stash.get(PLAN, None)


def is_marked(item: pytest.Item) -> bool:
    """Tell whether an item has a mark that this plugin looks at; cheap, as it is asked of every test."""
    return item.stash.get(_MARKED, False)


def late_mark(item: pytest.Item) -> str | None:
    """Return the name of a mark that says where to run and came when the item was running already."""
    if is_marked(item):
        return None
    return next((mark.name for mark in item.own_markers if mark.name in _PLACES), None)


def parametrize_world_size(metafunc: pytest.Metafunc) -> None:
    """Run a test whose mark has a list of world sizes once per size, with ids like ``[world_size=2]``."""
    keywords = metafunc.definition.keywords  # asked of every test of every suite, so it has to be quick
    names = [name for name in _ON_RANKS if name in keywords]
    mark = metafunc.definition.get_closest_marker(names[0]) if names else None
    if mark is None:
        return
    sizes = mark.args[0] if mark.args else mark.kwargs.get(_PARAMETER)
    if not _is_list(sizes) or not sizes:
        return
    if _PARAMETER not in metafunc.fixturenames:
        metafunc.fixturenames.append(_PARAMETER)
    metafunc.parametrize(_PARAMETER, list(sizes), ids=[f"{_PARAMETER}={size}" for size in sizes])


def asks_for_standalone(item: pytest.Item) -> bool:
    """Tell whether a test is marked standalone, by our mark or by RunIf."""
    return item.get_closest_marker("standalone") is not None or _has_condition(item, "standalone")


def asks_for_cuda(item: pytest.Item) -> bool:
    """Tell whether a test runs on CUDA GPUs only, by the device of its world or by RunIf."""
    plan = plan_of(item)
    return (plan is not None and plan.device == "cuda") or _has_condition(item, "min_cuda_gpus")


def asks_for_tpu(item: pytest.Item) -> bool:
    """Tell whether a test runs on a TPU only, by our mark or by RunIf."""
    return item.get_closest_marker("tpu") is not None or _has_condition(item, "tpu")


def _has_condition(item: pytest.Item, key: str) -> bool:
    """Tell whether a test has a RunIf, ours or Lightning's, with this condition: a skipif with a key of that name."""
    return any(mark.kwargs.get(key) for mark in item.iter_markers("skipif"))


def _plan(item: pytest.Item) -> Plan | None:
    _check_places(item)
    for name in (*_ALIASES, "distributed", "standalone", "tpu"):
        mark = item.get_closest_marker(name)
        if mark is not None or (name == "standalone" and asks_for_standalone(item)):
            try:
                return _plan_of_mark(item, name, mark)
            except (_MarkError, ConditionUnclear) as problem:
                raise _MarkError(f"mark {name}: {problem}") from None
    return None


def _plan_of_mark(item: pytest.Item, name: str, mark: pytest.Mark | None) -> Plan | None:
    if name == "standalone":
        return _standalone_plan(mark)
    assert mark is not None
    if name == "tpu":
        if mark.args or mark.kwargs:
            raise _MarkError("it takes no arguments; tests on the ranks of a slice are not there yet")
        return None
    if name in _ALIASES:
        if set(mark.kwargs) - {_PARAMETER} or len(mark.args) > 1:
            raise _MarkError(f"it takes world_size and nothing else: {name}(world_size=None)")
        if _TRANSLATED not in item.stash:  # another plugin has added the mark since, or no GPU could be counted
            _translate(item, mark)
        mark = item.stash[_TRANSLATED]
    return _distributed_plan(item, mark)


def _check_places(item: pytest.Item) -> None:
    """Refuse two marks that name two places to run a test, except tpu and standalone."""
    translated = item.stash.get(_TRANSLATED, None)
    places = {name: f"{name} (by RunIf)" for name in ("standalone", "tpu") if _has_condition(item, name)}
    places |= {mark.name: mark.name for mark in item.iter_markers() if mark.name in _PLACES and mark != translated}
    if len(places) > 1 and places.keys() != {"tpu", "standalone"}:
        first, second, *_ = (places[name] for name in sorted(places))
        raise _MarkError(
            f"it is marked both {first} and {second}; keep one: distributed and multigpu_* run the body on ranks, "
            "standalone runs it once, in a fresh process, tpu runs it on a TPU"
        )


def _distributed_plan(item: pytest.Item, mark: pytest.Mark) -> Plan:
    unknown = sorted(set(mark.kwargs) - _DISTRIBUTED_KEYWORDS)
    if mark.args and _PARAMETER in mark.kwargs:
        raise _MarkError("world_size is given twice, by position and by name")
    if unknown or len(mark.args) > 1:
        given = f"unknown keyword {unknown[0]!r}" if unknown else "more than one positional argument"
        raise _MarkError(f"{given}; it takes {MARKERS[0].partition(':')[0]}")
    keywords = mark.kwargs
    size = _world_size(item, mark.args[0] if mark.args else keywords.get(_PARAMETER))
    static = keywords.get("static", True)
    if not isinstance(static, bool):
        raise _MarkError(f"static must be True or False, not {static!r}")
    device = keywords.get("device", "cpu")
    if device not in _DEVICES:
        raise _MarkError(f"device must be one of {', '.join(_DEVICES)}, not {device!r}")
    backend = _backend(keywords.get("backend"), device)
    return Plan("static" if static else "dynamic", size, device, backend, _timeout(keywords.get("timeout")))


def _standalone_plan(mark: pytest.Mark | None) -> Plan:
    if mark is None:
        return Plan("standalone", 1, "cpu", "", None)
    unknown = sorted(set(mark.kwargs) - {"timeout"})
    if unknown or len(mark.args) > 1:
        given = f"unknown keyword {unknown[0]!r}" if unknown else "more than one positional argument"
        raise _MarkError(f"{given}; it takes standalone(timeout=None)")
    limit = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    return Plan("standalone", 1, "cpu", "", _timeout(limit))


def _world_size(item: pytest.Item, given: Any) -> int:
    callspec = getattr(item, "callspec", None)
    if _is_list(given):
        if not given:
            raise _MarkError("the list of world sizes is empty")
        if callspec is None or _PARAMETER not in callspec.params:
            raise _MarkError(
                "a list of world sizes needs a test function, which pytest can parametrise; "
                "give one number to this test"
            )
        given = callspec.params[_PARAMETER]
    if given is None:
        raise _MarkError("world_size is missing; write distributed(world_size=2)")
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise _MarkError(f"world_size must be a whole number of 1 or more, not {given!r}")
    if given > _LARGEST_WORLD:
        raise _MarkError(f"world_size {given} is more than the {_LARGEST_WORLD} ranks that one machine is asked for")
    return given


def _backend(given: Any, device: str) -> str:
    if given is None:
        return _DEFAULT_BACKENDS[device]
    import torch.distributed as dist

    if not isinstance(given, str):
        raise _MarkError(f"backend must be a name, not {given!r}")
    known = [name for name in dist.Backend.backend_list if name != dist.Backend.UNDEFINED]
    built_in = [name for name in known if dist.is_backend_available(name)]
    wanted = {part.rpartition(":")[2].lower() for part in given.split(",")}  # "cpu:gloo,cuda:nccl" is legal
    if not wanted <= set(built_in):
        raise _MarkError(f"backend {given!r} is not built into this torch, which has {', '.join(built_in)}")
    return given.lower()


def _timeout(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < float("inf"):
        raise _MarkError(f"timeout must be a number of seconds, 0 or more (0: no limit), not {given!r}")
    return float(given)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
