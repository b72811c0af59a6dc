"""Which of several failures is the cause, and which only echo it: rules for ranks of a test and for launched ranks."""

from __future__ import annotations

import enum
import re

# What a rank says when a peer is gone: torch's exception types and the texts of gloo, NCCL and the stores.
_TORCH_FILE = re.compile(r"[/\\]torch[/\\]")
_COMMUNICATION_TYPE = re.compile(
    r"(torch\.distributed\.)?(Dist(Backend|Network|Store)Error|RuntimeError|Connection\w*Error|BrokenPipeError)\b"
)
_COMMUNICATION = re.compile(
    r"\b(DistBackendError|DistNetworkError|DistStoreError)\b"
    r"|Connection (closed by peer|reset by peer|refused)"
    r"|Broken pipe|third_party/gloo|ncclRemoteError|ncclSystemError|NCCL communicator was aborted"
    r"|failed to pass monitoredBarrier"
    r"|Timed out (after )?(waiting|\d+ms waiting)|[Ss]ocket [Tt]imeout|wait timeout after \d+ms"
)
# No peer is gone when a rank cannot open a socket of its own.
_OF_THIS_MACHINE = re.compile(r"EADDRINUSE|EMFILE|[Aa]ddress already in use|failed to listen|Too many open files")
_NUMBERS_OF_ITS_OWN = re.compile(r"0x[0-9a-f]+|(?<=^Thread )\d+", re.MULTILINE)


class Kind(enum.IntEnum):
    """Why a rank is part of a failure; a lower number is more likely the cause."""

    DEATH = 0
    TIME_LIMIT = 1  # or before it, when no rank can go on any more
    OWN_ERROR = 2
    COMMUNICATION = 3
    WAITING = 4
    PLANNED = 5  # ended as the test wanted: shown beside a failure of others, but none itself


def place_in_order(kind: Kind, *, waits: bool, arrival: float) -> tuple[int, bool, float]:
    """Return a key that sorts failures, the cause first.

    A death or an own error beats an echo; among equals the first to arrive. At the time limit a rank that only waits
    for another comes after the one that it waits for.
    """
    severity = Kind.DEATH if kind in (Kind.DEATH, Kind.OWN_ERROR) else kind
    return severity, waits and kind is Kind.TIME_LIMIT, arrival


def says_peer_is_gone(path: str, message: str) -> bool:
    """Tell whether an error is only the echo of a peer's end, by the file that raised it and its type and text."""
    if _TORCH_FILE.search(path) is None or _COMMUNICATION_TYPE.match(message) is None:
        return False  # an error of the test's own code is none, whatever it says
    return _COMMUNICATION.search(message) is not None and _OF_THIS_MACHINE.search(message) is None


def without_own_numbers(text: str) -> str:
    """Return a text without the numbers that differ from process to process, to find those that say the same."""
    return _NUMBERS_OF_ITS_OWN.sub("", text)
