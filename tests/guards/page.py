"""Makes docs/explanation/what-goes-wrong.md from the kinds of trouble."""

from __future__ import annotations

from tests.guards.entries import ROOT, Kind
from tests.guards.kinds import KINDS

PAGE = ROOT / "docs/explanation/what-goes-wrong.md"
_INTRODUCTION = """\
# What goes wrong

Kinds of trouble that people have had with tests on several ranks, and what happens here. With each kind there are one
or two public reports of it. A test in bold type passes, and fails when the lines of this package that it is there for
are taken out: `make guards` takes them out one after the other and looks. The other tests prove more of the same kind;
all of them are below `tests/`. What is not done is said in [Limits](limits.md).

`python -m tests.guards --write` writes this page from `tests/guards/kinds.py`.
"""


def render() -> str:
    """Return the page."""
    rows = ["| kind | what hurts | what happens here | tests |", "|---|---|---|---|", *map(_row, KINDS)]
    return f"{_INTRODUCTION}\n" + "\n".join(rows) + "\n"


def _row(kind: Kind) -> str:
    hurts = f"{kind.hurts} ({', '.join(kind.reports)})"
    guarded = dict.fromkeys(test for guard in kind.guards for test in guard.tests)
    tests = [f"**`{_short(test)}`**" if test in guarded else f"`{_short(test)}`" for test in kind.tests]
    return f"| {kind.letter}: {kind.name} | {hurts} | {kind.here} | {'<br>'.join(tests)} |"


def _short(test: str) -> str:
    return test.removeprefix("tests/")
