"""What can be asked of any exception, however odd. Launched processes import this: it needs nothing else."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return the text of an exception; if its own code fails, what is to be said in its place."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001  a user's __str__ may raise anything
        return f"<text unavailable: {type(problem).__name__}>"


def first_of_chain(error: BaseException) -> BaseException:
    """Return the exception with which a chain of causes and contexts began; a chain may be a ring."""
    seen: set[int] = set()
    while (earlier := error.__cause__ or error.__context__) is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        error = earlier
    return error
