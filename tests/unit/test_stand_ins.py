"""A rank's exception as other plugins see it in the controller: its class, if that can be had, and its text."""

from __future__ import annotations

import bdb
import builtins
import json
import re
import sys
import unittest
from typing import TYPE_CHECKING, Any

import pytest

from lightning_disttest.engine.messages import ReportMade
from lightning_disttest.engine.stand_ins import describe_chain, find_class, stand_in
from lightning_disttest.engine.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = __name__


class ManyArguments(ValueError):
    """An exception that can not be made of a text."""

    def __init__(self, code: int, *, place: str) -> None:
        super().__init__(code)
        self.code = code
        self.place = place

    def __str__(self) -> str:
        """Speak of what the constructor was given."""
        return f"code {self.code} at {self.place}"


class OwnNew(RuntimeError):
    """An exception whose ``__new__`` asks for more than a text, too."""

    def __new__(cls, first: str, second: str) -> OwnNew:
        """Make one of two arguments."""
        return super().__new__(cls, first, second)

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class FailsToBeMade(ValueError):
    """An exception that was made once and never again."""

    made = 0

    def __init__(self) -> None:
        FailsToBeMade.made += 1
        if FailsToBeMade.made > 1:
            raise KeyError("made again")
        super().__init__("once")


class NotToBeDerived(ValueError):
    """An exception of which there may be no other class."""

    def __init_subclass__(cls, **_: object) -> None:
        """Refuse."""
        raise TypeError("final")


class Unchangeable(ValueError):
    """An exception that refuses attributes."""

    def __setattr__(self, name: str, _: object) -> None:
        """Refuse."""
        raise AttributeError(name)


class Empty(LookupError):
    """An exception that is false, as an empty collection of problems may be."""

    def __len__(self) -> int:
        """Hold nothing."""
        return 0


class Mixin:
    """A base that is no exception, with a constructor."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)


class NotToBeDerivedFromMixin(Mixin, ValueError):
    """An exception of which there may be no other class, with such a base."""

    def __init_subclass__(cls, **_: object) -> None:
        """Refuse."""
        raise TypeError("final")


class Meta(type):
    """A metaclass."""


class WithMeta(ValueError, metaclass=Meta):
    """An exception with a metaclass."""


class Outer:
    """A class with an exception in it."""

    class Inner(LookupError):
        """An exception inside of a class."""


class NoText(ValueError):
    """An exception whose text can not be had."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no text")


class Base(BaseException):
    """What ends a thread or a process: no Exception."""


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Return an exception that has been raised, with a traceback and maybe a cause."""
    try:
        if cause is None:
            raise error
        raise error from cause
    except BaseException as caught:  # noqa: BLE001  any exception may end a test
        return caught


def carried(error: BaseException) -> BaseException:
    """Return what the controller has of a rank's exception, after its way as JSON."""
    report = decode(encode(ReportMade({"chain": describe_chain(error)})))
    assert isinstance(report, ReportMade)
    return stand_in(report.report["chain"]).value


def shown(error: BaseException) -> str:
    """Return the text that pytest-rerunfailures matches patterns with."""
    return f"{type(error).__name__}: {error}"


def chain_of(error: BaseException | None) -> list[str]:
    """Return the texts of an exception, its causes and contexts, as pytest-rerunfailures follows them."""
    texts = []
    while error is not None:
        texts.append(shown(error))
        is_hidden = error.__cause__ is not None or error.__suppress_context__
        error = error.__cause__ if is_hidden else error.__context__
    return texts


# Of one exception.

KEPT: dict[str, Callable[[], Exception]] = {
    "plain": lambda: ValueError("boom"),
    "without a text": lambda: ValueError(),
    "assertion": lambda: AssertionError("assert 1 == 2\n +  where 1 = f()"),
    "key": lambda: KeyError("name"),
    "operating system": lambda: FileNotFoundError(2, "No such file", "/nowhere"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "syntax": lambda: SyntaxError("bad", ("a.py", 3, 1, "x ===", 3, 4)),
    "import": lambda: ModuleNotFoundError("no module", name="x"),
    "iteration": lambda: StopIteration(3),
    "json": lambda: json.JSONDecodeError("Expecting value", "x", 0),
    "regular expression": lambda: re.error("unbalanced", "(", 0),
    "many arguments": lambda: ManyArguments(3, place="here"),
    "fails to be made": FailsToBeMade,
    "own __new__": lambda: OwnNew("one", "two"),
    "unchangeable": lambda: Unchangeable("stay"),
    "false": lambda: Empty("nothing"),
    "metaclass": lambda: WithMeta("meta"),
    "nested class": lambda: Outer.Inner("deep"),
    "surrogates": lambda: ValueError("\ud800 and Zoë"),
}


@pytest.mark.parametrize("make_error", KEPT.values(), ids=KEPT)
def test_exception_is_known_by_class_and_text(make_error: Callable[[], Exception]) -> None:
    """Plugins that ask for the class or its bases, or that match the text, have what they would have in a plain test.

    The object of the rank is not made again: what its constructor asks for, or does, has no part in it.
    """
    FailsToBeMade.made = 0
    error = raised(make_error())

    found = carried(error)

    assert shown(found) == shown(error)
    assert isinstance(found, type(error))
    assert isinstance(found, type(error).__mro__[1])
    assert found is not error


@pytest.mark.parametrize("error", [NotToBeDerived("final"), NotToBeDerivedFromMixin("final")])
def test_exception_that_can_not_be_derived_from_is_known_by_its_bases(error: Exception) -> None:
    """A class that takes no part still has its name and its text, and is what its bases are."""
    found = carried(raised(error))

    assert shown(found) == shown(error)
    assert isinstance(found, ValueError)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups of exceptions")
def test_group_of_exceptions_is_known_by_name_and_text() -> None:
    """A group has its own text; its parts stay on the rank."""
    group: Any = getattr(builtins, "ExceptionGroup", None)

    assert shown(carried(raised(group("several", [ValueError("a")])))) == "ExceptionGroup: several (1 sub-exception)"


def make_local_error() -> Exception:
    """Return an exception of a class that nobody else can find."""

    class Local(ValueError):
        """A class of this call."""

    return Local("here only")


def make_error_of_another_module() -> Exception:
    """Return an exception of a class whose module was imported on the rank alone."""
    kind: type[Exception] = type("Elsewhere", (ValueError,), {"__module__": "imported_on_the_rank"})
    return kind("far away")


def make_error_under_a_wrong_name() -> Exception:
    """Return an exception of a class whose name stands for something else in its module."""
    kind: type[Exception] = type("chain_of", (ValueError,), {"__module__": HERE})
    return kind("a function")


@pytest.mark.parametrize(
    ("make_error", "text"),
    [
        (make_local_error, "Local: here only"),
        (make_error_of_another_module, "Elsewhere: far away"),
        (make_error_under_a_wrong_name, "chain_of: a function"),
    ],
)
def test_exception_that_is_not_known_here_has_its_name_and_text(make_error: Callable[[], Exception], text: str) -> None:
    """A class that is not to be found is stood in for by one of the same name; patterns match as ever."""
    found = carried(raised(make_error()))

    assert shown(found) == text
    assert type(found).__bases__ == (Exception,)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (KeyboardInterrupt("stop"), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit"),
        (GeneratorExit("end"), "GeneratorExit"),
        (Base("base"), "Base"),
        (pytest.fail.Exception("failed"), "Failed"),
        (pytest.skip.Exception("skipped"), "Skipped"),
        (pytest.exit.Exception("enough"), "Exit"),
        (unittest.SkipTest("skipped"), "SkipTest"),
        (bdb.BdbQuit("quit"), "BdbQuit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_end_this_process_does_not_come_back_as_itself(error: BaseException, name: str) -> None:
    """What pytest or Python take as an order is only called like it, and is an Exception."""
    found = carried(raised(error))

    assert shown(found) == f"{name}: {error}"
    assert isinstance(found, Exception)
    assert not isinstance(found, type(error))
    assert not isinstance(found, (KeyboardInterrupt, SystemExit, pytest.skip.Exception, pytest.fail.Exception))


def test_text_that_can_not_be_had_is_said_to_be() -> None:
    """A ``__str__`` that raises on the rank is not called again here."""
    assert describe_chain(raised(NoText())) == [(f"{HERE}:NoText", "<text unavailable: RuntimeError>")]

    found = carried(raised(NoText()))

    assert isinstance(found, NoText)
    assert str(found) == "<text unavailable: RuntimeError>"


def test_stand_in_can_be_used_like_a_caught_exception() -> None:
    """Plugins look at type, value, traceback and pytest's own words for it."""
    info = stand_in([("builtins:ValueError", "boom")])

    assert info.type is type(info.value)
    assert info.typename == "ValueError"
    assert info.errisinstance(ValueError)
    assert info.exconly().endswith("ValueError: boom")
    assert info.tb is not None
    assert len(info.traceback) == 1
    assert info.match("^boom$")
    assert str(info.getrepr())


# Of several.


def raise_beside() -> None:
    """Raise an exception while another one, which has a cause, is handled."""
    try:
        raise KeyError("middle") from raised(ManyArguments(1, place="inside"))
    except KeyError:
        raise RuntimeError("outer")  # noqa: B904  the context is meant


def raise_instead() -> None:
    """Raise an exception in place of another one."""
    try:
        raise KeyError("hidden")
    except KeyError:
        raise ValueError("shown") from None


def raise_with_both() -> None:
    """Raise an exception that has a cause and a context."""
    try:
        raise KeyError("context")
    except KeyError:
        raise ValueError("outer") from LookupError("cause")


def test_causes_and_contexts_are_followed() -> None:
    """A pattern may be meant for an exception that another one was raised from, or beside."""
    with pytest.raises(RuntimeError) as caught:
        raise_beside()

    found = carried(caught.value)

    assert chain_of(found) == chain_of(caught.value)
    assert chain_of(found) == ["RuntimeError: outer", "KeyError: 'middle'", "ManyArguments: code 1 at inside"]
    assert isinstance(found.__cause__, KeyError)
    assert isinstance(found.__cause__.__cause__, ManyArguments)


def test_suppressed_context_is_not_followed() -> None:
    """``from None`` hides what was there before, as it does in a traceback."""
    with pytest.raises(ValueError, match="shown") as caught:
        raise_instead()

    assert caught.value.__context__ is not None
    assert describe_chain(caught.value) == [("builtins:ValueError", "shown")]


def test_cause_goes_before_the_context() -> None:
    """Where an exception has both, the cause is the one that is told."""
    with pytest.raises(ValueError, match="outer") as caught:
        raise_with_both()

    assert [text for _, text in describe_chain(caught.value)] == ["outer", "cause"]


@pytest.mark.parametrize("odd", [Empty("odd"), Unchangeable("odd")], ids=lambda error: type(error).__name__)
def test_odd_exceptions_do_not_end_a_chain(odd: Exception) -> None:
    """An exception that is false, or that takes no attributes, has its place in a chain as any other."""
    error = raised(ValueError("outer"), raised(odd, raised(KeyError("inner"))))

    found = carried(error)

    assert chain_of(found) == ["ValueError: outer", f"{type(odd).__name__}: odd", "KeyError: 'inner'"]
    assert isinstance(found.__cause__, type(odd))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_chain_in_a_circle_ends(length: int) -> None:
    """Exceptions that are causes of one another are described once or a few times, not for ever."""
    errors = [ValueError(str(number)) for number in range(length)]
    for number, error in enumerate(errors):
        error.__cause__ = errors[(number + 1) % length]

    chain = describe_chain(errors[0])

    assert len(chain) <= 20
    assert {text for _, text in chain} == {str(number) for number in range(length)}
    assert len(chain_of(stand_in(chain).value)) == len(chain)


def test_long_chain_is_cut_at_its_far_end() -> None:
    """The exception itself is always there, whatever it came from."""
    error: BaseException = ValueError("0")
    for number in range(1, 100):
        error = raised(ValueError(str(number)), error)

    texts = [text for _, text in describe_chain(error)]

    assert texts[:3] == ["99", "98", "97"]
    assert len(texts) == 20


# Classes.


@pytest.mark.parametrize(
    ("name", "base", "found"),
    [
        ("builtins:ValueError", BaseException, ValueError),
        ("builtins:UserWarning", Warning, UserWarning),
        ("builtins:ValueError", Warning, None),
        ("builtins:int", BaseException, None),
        ("builtins:print", BaseException, None),
        ("builtins:Nope", BaseException, None),
        ("builtins:ValueError.Nope", BaseException, None),
        ("no_such_module_here:ValueError", BaseException, None),
        (f"{HERE}:Outer.Inner", LookupError, Outer.Inner),
        (f"{HERE}:make_local_error.<locals>.Local", ValueError, None),
        ("builtins", BaseException, None),
        ("", BaseException, None),
    ],
)
def test_class_is_found_by_name(name: str, base: type[Any], found: type[Any] | None) -> None:
    """Only a class of the wanted kind in a module that is imported already is found; nothing is imported for it."""
    before = set(sys.modules)

    assert find_class(name, base) is found
    assert set(sys.modules) == before
