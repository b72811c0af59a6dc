"""The shape of the table: a kind of trouble, and guards against it that tests notice the lack of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@dataclass(frozen=True)
class Guard:
    """A place in a file below ``src`` that keeps a trouble away, and what stands there to let it in.

    Each of ``tests`` passes with the guard and fails, by an assertion of its own, without.
    """

    tests: tuple[str, ...]
    file: str
    text: str
    without: str


@dataclass(frozen=True)
class Kind:
    """A kind of trouble: letter, short name, what hurts, what happens here, public reports, guards, further tests."""

    letter: str
    name: str
    hurts: str
    here: str
    reports: tuple[str, ...]
    guards: tuple[Guard, ...]
    also: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """The node ids of all tests of this kind, each once."""
        return tuple(dict.fromkeys([*(test for guard in self.guards for test in guard.tests), *self.also]))


def find_faults(kinds: Iterable[Kind], source: Path = SOURCE) -> Iterator[str]:
    """Yield what is wrong with guards: without a test, or with a text that is not in its file exactly once."""
    for kind in kinds:
        if not kind.guards:
            yield f"{kind.letter}: no guard"
        for guard in kind.guards:
            count = _read(source / guard.file).count(guard.text)
            if count != 1:
                yield f"{kind.letter}: {guard.file} has this text {count} times, not once: {guard.text}"
            if not guard.tests:
                yield f"{kind.letter}: no test of {guard.text}"


def switch_off(guard: Guard, source: Path) -> None:
    """Take a guard out of a copy of the source."""
    path = source / guard.file
    path.write_text(path.read_text().replace(guard.text, guard.without))


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
