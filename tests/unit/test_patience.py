"""When a quiet test is told of: after the given time, then after twice as long, and anew after each news."""

from __future__ import annotations

from lightning_disttest.engine.patience import Patience


def moments(patience: Patience, until: int) -> list[tuple[int, float]]:
    """Return the moments, by whole seconds, at which there is something to say, with the length of the silence."""
    return [(now, quiet) for now in range(until) if (quiet := patience.is_over(float(now)))]


def test_notices_become_rarer() -> None:
    """The notices come after 10 seconds without news, 20 and 40, and each tells how long it was quiet."""
    assert moments(Patience(10.0, now=0.0), 60) == [(10, 10.0), (20, 20.0), (40, 40.0)]


def test_news_start_anew() -> None:
    """After news the first notice is as far away as at the beginning."""
    patience = Patience(10.0, now=0.0)
    assert moments(patience, 21) == [(10, 10.0), (20, 20.0)]

    patience.take_news(25.0)

    assert patience.ends == 35.0
    assert moments(patience, 50) == [(35, 10.0), (45, 20.0)]


def test_zero_means_never() -> None:
    """With 0 nothing is ever said, and nobody has to wake up for it."""
    patience = Patience(0.0, now=0.0)

    assert patience.ends is None
    assert moments(patience, 1000) == []
