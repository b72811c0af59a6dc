"""A rank's exception as the controller can have it: of the same class if it is known there, with the same text.

The object itself stays on the rank; it may not be picklable, and its frames are those of another process. Plugins that
look at ``call.excinfo`` (pytest-rerunfailures: ``--only-rerun``, ``only_rerun=ValueError``) find the stand-in.
"""

from __future__ import annotations

import bdb
import contextlib
import sys
import unittest
from typing import Any

import pytest

from lightning_disttest.engine.exceptions import text_of

_LONGEST_CHAIN = 20
_MEANINGFUL = (pytest.exit.Exception, unittest.SkipTest, bdb.BdbQuit)

Description = tuple[str, str]


def describe_chain(error: BaseException) -> list[Description]:
    """Return class (``module:qualname``) and text of an exception, its cause or context, and so on."""
    chain: list[Description] = []
    current: BaseException | None = error
    while current is not None and len(chain) < _LONGEST_CHAIN:
        chain.append((name_of(type(current)), text_of(current)))
        hidden = current.__cause__ is not None or current.__suppress_context__
        current = current.__cause__ if hidden else current.__context__
    return chain


def stand_in(chain: list[Description]) -> pytest.ExceptionInfo[BaseException]:
    """Return an exception info like that of the described exception; ``chain`` has one entry at least."""
    error: BaseException | None = None
    for name, text in reversed(chain):
        cause, error = error, _make(name, text)
        error.__cause__ = cause
    assert error is not None
    return pytest.ExceptionInfo.from_exception(error.with_traceback(_any_traceback()))


def name_of(kind: type[Any]) -> str:
    """Return the name by which ``find_class`` finds a class in another process: ``module:qualname``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str, base: type[Any]) -> type[Any] | None:
    """Return the class ``module:qualname`` if its module is imported here and it is a ``base``, else None."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, base) else None


def _make(name: str, text: str) -> BaseException:
    genuine = find_class(name, BaseException)
    # What ends a process, a run or a test without a failure would mean something here.
    usable = genuine is not None and issubclass(genuine, Exception) and not issubclass(genuine, _MEANINGFUL)
    bases = genuine.__mro__ if genuine is not None and usable else (Exception,)
    short = name.rpartition(":")[2].rpartition(".")[2]
    for base in (base for base in bases if issubclass(base, Exception)):
        with contextlib.suppress(Exception):  # a class may refuse to be derived from, or ask for anything to make one
            return _derive(base, short, text)
    raise AssertionError("Exception itself can be derived from")


def _derive(base: type[Exception], name: str, text: str) -> Exception:
    """Make an instance of ``base`` without running any code of its class."""
    native = next(cls for cls in base.__mro__ if cls.__module__ == "builtins")
    own = {"__str__": lambda _: text, "__setattr__": object.__setattr__, "__bool__": lambda _: True}
    derived: Any = type(name, (base,), own)
    error: Exception = native.__new__(derived, text)  # type: ignore[assignment]
    return error


def _any_traceback() -> Any:
    try:
        raise LookupError
    except LookupError as error:
        return error.__traceback__
