"""Takes out each guard against a kind of trouble and looks whether its tests notice: ``python -m tests.guards``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from tests.guards.entries import Kind, find_faults
from tests.guards.kinds import KINDS
from tests.guards.page import PAGE, render
from tests.guards.taken_out import NOTICED, find_missing, try_without

_COLUMNS = "{:<27} {:<75} {:<70} {}"


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 0 if every guard is missed by its tests when it is taken out, else 1."""
    options = _parse(arguments)
    if options.write:
        PAGE.write_text(render())
        return 0
    kinds = [kind for kind in KINDS if kind.letter in (options.kinds or kind.letter)]
    faults = [*find_faults(kinds), *(f"there is no test {line}" for line in _missing(kinds))]
    if faults:
        _say("\n".join(faults))
        return 1
    _say(_COLUMNS.format("kind", "test", "taken out", "result"))
    results = [_try(kind) for kind in kinds]
    return 0 if all(results) else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="letters of kinds; all of them if none is given")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and run nothing")
    return parser.parse_args(arguments)


def _missing(kinds: Iterable[Kind]) -> list[str]:
    return find_missing(test for kind in kinds for test in kind.tests)


def _try(kind: Kind) -> bool:
    results = []
    for guard in kind.guards:
        result = try_without(guard)
        results.append(result)
        where = f"{guard.file.partition('/')[2]}: {guard.text}"
        for test in guard.tests:
            shown = _cut(test.removeprefix("tests/"), 75)
            _say(_COLUMNS.format(f"{kind.letter}: {kind.name}", shown, _cut(where, 70), result))
    return all(result == NOTICED for result in results)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
