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
from typing import TYPE_CHECKING, Any

from lightning_disttest.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    Tell = Callable[[str, list[dict[str, Any]]], None]

_MOST_PENDING = 4
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

    An empty answer at once says that others will come.
    """
    tell("", [])
    _thread.start_new_thread(_serve, (ask, tell))


def answer_once_grouped(ask: int, tell: Tell) -> None:
    """Start to answer as soon as this process makes its default process group."""
    started = False

    def watch(module: ModuleType) -> None:
        genuine = module.init_process_group

        @functools.wraps(genuine)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            nonlocal started
            if not started:
                started = True
                answer_questions(ask, tell)
            return genuine(*args, **kwargs)

        # The package has taken the name from its module, and users take it from either.
        for owner in (module, sys.modules["torch.distributed"]):
            setattr(owner, "init_process_group", init_process_group)  # noqa: B010

    when_imported("torch.distributed.distributed_c10d", watch)


def _serve(ask: int, tell: Tell) -> None:
    # Whatever fails here must not become a warning of the user's test.
    with contextlib.suppress(Exception):
        while os.read(ask, 1):
            tell(main_stack(), recorded_collectives())


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

    Empty where torch has no flight recorder for it: in a build without distributed, or before its JSON form.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    return select_entries(json.loads(dump()).get("entries", [])) if dump is not None else []


def select_entries(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, of all that a flight recorder holds, what tells where a rank is; see ``recorded_collectives``."""
    pending: list[dict[str, Any]] = []
    last: dict[object, dict[str, Any]] = {}
    for entry in entries:
        if not entry.get("retired", True):
            pending.append(entry)
        last[entry.get("pg_id"), entry.get("is_p2p")] = entry
    chosen = [*pending[:_MOST_PENDING], *(entry for entry in last.values() if entry.get("retired", True))]
    return [_fields(entry) for entry in chosen]


def _fields(entry: dict[str, Any]) -> dict[str, Any]:
    name, description = entry["process_group"]
    point_to_point = bool(entry.get("is_p2p"))
    dtypes = entry.get("input_dtypes", [])
    sizes = entry.get("input_sizes", [])
    return {
        "name": entry["profiling_name"].rpartition(":")[2],
        "group": name if description == "undefined" else description,
        "number": entry["p2p_seq_id" if point_to_point else "collective_seq_id"],
        "tensors": [f"{_DTYPES.get(dtype, dtype.lower())} {size}" for dtype, size in zip(dtypes, sizes, strict=False)],
        "pending": not entry.get("retired", True),
        "point_to_point": point_to_point,
    }
