"""An exception of a launched rank as plain data. Launched processes import this: it needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception that left the function of a launched rank.

    Attributes:
        name: the name of its class.
        text: what it says.
        traceback: all of it, as Python prints it.
        message: its last lines, without the stack.
        path: the file whose code raised it.
        lineno: the line there.
        moment: when, on the monotonic clock, which all processes of a machine share.
        leaves: whether it is one that ends a process without being an error (``SystemExit``, ``KeyboardInterrupt``).
        exits: whether it is no ``Exception``, so that torch knows the exit status of the process alone.
    """

    name: str
    text: str
    traceback: str
    message: str
    path: str
    lineno: int
    moment: float
    leaves: bool
    exits: bool
