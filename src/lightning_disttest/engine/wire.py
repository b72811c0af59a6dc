"""How messages travel: one JSON object ``{"type": name, ...fields}`` each, so nothing is ever pickled."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lightning_disttest.engine.messages import MESSAGES
from lightning_disttest.errors import ChannelBroken

if TYPE_CHECKING:
    from lightning_disttest.engine.messages import Message

_DEEPEST = 20
_FIELDS = {name: tuple(field.name for field in fields(cls)) for name, cls in MESSAGES.items()}


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Values inside a report that are not plain data (``user_properties`` may hold anything) travel as their ``repr``.
    """
    name = type(message).__name__
    body = {field: getattr(message, field) for field in _FIELDS[name]}
    body["type"] = name
    try:
        return json.dumps(body, default=_safe_repr).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_to_plain(body, ())).encode()


def _to_plain(value: Any, path: tuple[int, ...]) -> Any:
    """Replace what JSON can not hold by its repr: odd keys, containers that hold themselves or go too deep.

    ``path`` are the ids of the containers around the value.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (dict, list, tuple)) and id(value) not in path and len(path) < _DEEPEST:
        inside = (*path, id(value))
        if isinstance(value, dict):
            return {k if isinstance(k, str) else _safe_repr(k): _to_plain(v, inside) for k, v in value.items()}
        return [_to_plain(entry, inside) for entry in value]
    return _safe_repr(value)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001  whatever a user's __repr__ raises, the report has to travel
        return f"<{type(value).__name__} object, whose repr raised {type(error).__name__}>"


def decode(data: bytes) -> Message:
    """Return the message that ``data`` holds.

    Raises:
        ChannelBroken: if it is no message, or one with other fields than ours.
    """
    try:
        body = json.loads(data)
        message: Message = MESSAGES[body.pop("type")](**body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChannelBroken(f"not a message: {data[:80]!r} ({error})") from error
    return message
