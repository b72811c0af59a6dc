"""What must come out of a cell, by the rules of docs/reference/outcomes.md and the words of the reports."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.cells import FAULTS, LIMITS_S, SETUPS, Cell, Effect

_LEAVE_S = 10.0


@dataclass(frozen=True)
class Expected:
    """Outcomes of the tests of a cell by the ends of their names, and what the text of one of them says.

    Attributes:
        outcomes: for ``""`` (the test with the fault), ``"_next"`` and others, the outcome in the JUnit file.
        speaker: the end of the name of the test that tells of the fault; None when there is nothing to tell.
        titles: what may be said of each rank that was hit, in the line with its number and pid.
        phase: where pytest counts an error: ``setup`` or ``teardown``; empty for a failure of the body.
        shows: texts that are in what is told.
        of_each_rank: the same, for each rank that was hit.
        returncode: exit status of the run, when the fault stops it.
        seconds: how long each of them may take.
    """

    outcomes: dict[str, str]
    speaker: str | None = None
    titles: tuple[str, ...] = ()
    phase: str = ""
    shows: tuple[str, ...] = ()
    of_each_rank: tuple[str, ...] = ()
    returncode: int | None = None
    seconds: float = 10.0


def expect(cell: Cell) -> Expected:
    """Return what must come out of a cell."""
    if cell.effect is Effect.STOPS_RUN:
        return Expected({}, returncode=9, shows=FAULTS[cell.fault].shows)
    if cell.effect is Effect.FAILS_SUBTEST:
        return _expect_subtest(cell)
    if cell.place == "between":
        return _expect_between(cell)
    if cell.place == "exit":
        return _expect_exit(cell)
    if cell.effect is Effect.HARMLESS:
        return Expected({"": "passed", "_next": "passed"})
    return _expect_failure(cell)


def _expect_failure(cell: Cell) -> Expected:
    """In a phase of the test: the failure of this phase."""
    phase = "setup" if cell.place in SETUPS else cell.place
    outcomes = {"": "failed" if phase == "call" else "error", "_next": "passed"}
    counted = "" if phase == "call" else phase
    shows = FAULTS[cell.fault].shows
    if cell.effect is Effect.DIES:
        return Expected(outcomes, "", (f"died in {phase}: {shows[0]}",), counted, of_each_rank=_last_words(cell))
    if cell.effect is Effect.HANGS:
        limit = LIMITS_S[cell.kind]
        title = f"was still in {phase} at the time limit of {limit:g} s"
        if cell.fault == "hang_in_collective" and cell.ranks != "all":
            title = f"was still in {phase} and waited for a rank that had come to the end of the test"
        return Expected(outcomes, "", (title,), counted, _stack(cell), _last_words(cell), seconds=_patience(limit))
    titles = [f"failed in {phase}"] if cell.world_size > 1 else []
    if titles and cell.fault == "out_of_memory":
        titles.append(f"died in {phase}: ")  # pytest itself may have needed some
    return Expected(outcomes, "", tuple(titles), counted, shows)


def _expect_subtest(cell: Cell) -> Expected:
    """The test of a failed subtest fails too; in a fixture's end it is too late for that."""
    return Expected({"": "failed", "_next": "passed"}, "", shows=FAULTS[cell.fault].shows)


def _expect_between(cell: Cell) -> Expected:
    """After the test was reported: an error at that test, as the last one that used the world."""
    if cell.effect is Effect.HARMLESS:
        return Expected({"": "passed", "_next": "passed"})
    outcomes = {"": "passed+error", "_next": "passed"}
    if cell.effect is Effect.HANGS:
        # Nobody can know it before the next test, whose limit is the one that is reached.
        limit = LIMITS_S[cell.kind]
        title = f"did not take the next test within {limit:g} s, and was killed: it hung between two tests"
        return Expected(outcomes, "", (title,), "teardown", _stack(cell), _last_words(cell))
    shows = ("KeyboardInterrupt",) if cell.fault == "keyboard_interrupt" else FAULTS[cell.fault].shows
    raises = FAULTS[cell.fault].effect is not Effect.DIES or cell.fault == "keyboard_interrupt"
    how = "raised an exception" if raises else shows[0]
    told = shows if raises else ()
    return Expected(outcomes, "", (f"{how} between two tests",), "teardown", told, _last_words(cell))


def _expect_exit(cell: Cell) -> Expected:
    """While a process leaves: an error at the last test of the world."""
    static = cell.kind == "static"
    if cell.effect is Effect.HARMLESS:
        ends = {"_ends_world": "failed"} if static else {}
        return Expected({"": "passed", **ends, "_next": "passed"})
    speaker = "_ends_world" if static else ""
    outcomes = {"": "passed", "_ends_world": "failed+error"} if static else {"": "error"}
    outcomes["_next"] = "passed"
    if cell.effect is Effect.HANGS:
        limit = LIMITS_S[cell.kind] if static else _LEAVE_S
        what = f"did not leave within {limit:g} s"
        title = what if static else f"died after teardown: {what}"
        return Expected(
            outcomes, speaker, (title,), "teardown", _stack(cell), _last_words(cell), None, _patience(limit)
        )
    how = FAULTS[cell.fault].shows[0]
    title = f"{how} while it was leaving" if static else f"died after teardown: {how}"
    return Expected(outcomes, speaker, (title,), "teardown", of_each_rank=_last_words(cell))


def _last_words(cell: Cell) -> tuple[str, ...]:
    """Return the last output of each rank; that of a flood is the flood."""
    return () if "flood" in cell.fault else ("last words of rank {rank}",)


def _stack(cell: Cell) -> tuple[str, ...]:
    """Return the line of the stack that names what hangs; a stopped process cannot tell."""
    if cell.fault == "stopped":
        return ()
    receives = cell.fault == "hang_in_collective" and (cell.ranks == "all" or cell.place == "between")
    return (f"in {'hang_in_receive' if receives else cell.fault}",)


def _patience(limit: float) -> float:
    return limit + 5.0
