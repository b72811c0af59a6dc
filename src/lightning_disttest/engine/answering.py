"""The rank's side of the question where it is: a thread that answers with its stack and c10d's flight recorder.

The main thread cannot answer: it is inside the test, perhaps in a collective. The thread does nothing until it is
asked, which happens when a test has failed, is at its time limit or has been quiet for long. It is not known to
``threading``, so suites that count threads do not see it.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import json
import os
import sys
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lightning_disttest.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    Tell = Callable[[str, list[dict[str, Any]] | None], None]

_MOST_PENDING = 4  # the first ones, on which others may wait, and the last ones, in which the rank may wait
_C10D = "torch.distributed.distributed_c10d"
_MAKER_OF_GROUPS = "_new_process_group_helper"
# The recorder has the names of C++; these are the ones that Python differs in.
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


def answer_questions(ask: int, tell: Tell) -> None:
    """Start to answer: each byte that can be read from ``ask`` is a question; the end of it ends the thread.

    ``tell`` gets the stack of the main thread and what ``recorded_collectives`` returns, None if that failed. An
    answer without a stack, given at once, says that others will come.
    """
    tell("", [])
    _thread.start_new_thread(_serve, (ask, tell))


def answer_once_grouped(ask: int, tell: Tell) -> None:
    """Start to answer as soon as this process makes a process group; a child that it forks does not answer."""
    pid = os.getpid()
    started = False

    def watch(module: ModuleType) -> None:
        # Every way to a group goes through this one, also for those who have imported ``init_process_group`` before.
        genuine = getattr(module, _MAKER_OF_GROUPS, None)
        if genuine is None:
            return

        @functools.wraps(genuine)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            nonlocal started
            if not started and os.getpid() == pid:
                started = True
                answer_questions(ask, tell)
            return genuine(*args, **kwargs)

        setattr(module, _MAKER_OF_GROUPS, make_group)

    when_imported(_C10D, watch)


def _serve(ask: int, tell: Tell) -> None:
    # Whatever fails here must not become a warning of the user's test: OSError when the controller is gone.
    with contextlib.suppress(OSError):
        while os.read(ask, 1):
            collectives = None
            with contextlib.suppress(Exception):
                collectives = recorded_collectives()
            tell(main_stack(), collectives)


def main_stack() -> str:
    """Return the Python stack of the main thread, in the form of faulthandler."""
    main = threading.main_thread().ident
    frame = None if main is None else sys._current_frames().get(main)
    lines = ["Current thread (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"


def recorded_collectives() -> list[dict[str, Any]]:
    """Return the last operation of each process group and those that are not done, as fields of ``Collective``.

    Raises:
        LookupError: if torch has no flight recorder for it: in a build without distributed, or before its JSON form.
    """
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None:
        raise LookupError("this torch has no flight recorder")
    return select_entries(json.loads(dump()).get("entries", []), _members())


def _members() -> dict[str, list[int]]:
    """Return the ranks of each process group by its name; empty if this torch keeps them otherwise."""
    try:
        world = sys.modules[_C10D]._world
        return {str(name): sorted(world.pg_group_ranks[group]) for group, name in list(world.pg_names.items())}
    except (AttributeError, LookupError, TypeError):
        return {}


def select_entries(
    entries: Sequence[dict[str, Any]], members: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return, of all that a flight recorder holds, what tells where a rank is; see ``recorded_collectives``.

    A group that was made again under the name of an older one hides it. ``members`` are the ranks of groups by name.
    """
    newest = {entry["process_group"][0]: entry["pg_id"] for entry in entries}
    pending: list[dict[str, Any]] = []
    last: dict[object, dict[str, Any]] = {}
    for entry in entries:
        if entry["pg_id"] == newest[entry["process_group"][0]]:
            if not entry.get("retired", True):
                pending.append(entry)
            last[entry["pg_id"], entry.get("is_p2p")] = entry
    if len(pending) > _MOST_PENDING:
        pending = [*pending[: _MOST_PENDING // 2], *pending[-_MOST_PENDING // 2 :]]
    done = [entry for entry in last.values() if entry.get("retired", True)]
    return [_fields(entry, members) for entry in (*done, *pending)]


def _fields(entry: dict[str, Any], members: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    name, description = entry["process_group"]
    point_to_point = bool(entry.get("is_p2p"))
    dtypes = entry.get("input_dtypes", [])
    sizes = entry.get("input_sizes", [])
    return {
        "name": entry["profiling_name"].rpartition(":")[2],
        "group": name,
        "description": description,
        "number": entry["p2p_seq_id" if point_to_point else "collective_seq_id"],
        "tensors": [f"{_DTYPES.get(dtype, dtype.lower())} {size}" for dtype, size in zip(dtypes, sizes, strict=False)],
        "pending": not entry.get("retired", True),
        "point_to_point": point_to_point,
        "members": list(members.get(name, ())),
    }
