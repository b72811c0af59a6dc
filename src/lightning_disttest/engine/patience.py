"""When to tell the user that a test is quiet: after some seconds without news, and then ever more rarely."""

from __future__ import annotations


class Patience:
    """Knows since when there was no news; times are in seconds of the monotonic clock, ``seconds=0`` means never."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._since = now
        self._next = seconds

    def take_news(self, now: float) -> None:
        """Start anew: something was heard."""
        self._since = now
        self._next = self._seconds

    @property
    def ends(self) -> float | None:
        """The moment at which it is over; None for never."""
        return self._since + self._next if self._seconds else None

    def is_over(self, now: float) -> float:
        """Return for how many seconds there was no news, if it is time to say so, else 0; the next time is later."""
        if not self._seconds or now < self._since + self._next:
            return 0.0
        self._next *= 2
        return now - self._since
