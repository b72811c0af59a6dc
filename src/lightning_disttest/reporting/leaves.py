"""The parts of recorded values, as ranks send them: what counts as equal, how far apart two are, how they look.

A leaf is a number, a text, a truth value or None; ``{"complex": [real, imaginary]}``; ``{"list": [...]}`` of such ones;
``{"container": name}`` where others are inside; or a tensor or array, whose bytes are in the leaf (``data``, base64) or
in a file (``file``, ``offset``, ``digest``). Torch is imported only for tensors whose bytes differ.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

MISSING = object()
_CHUNK = 1 << 20  # elements that are compared at once, for the sake of memory
_MOST_SHOWN = 100  # elements
_DIGITS = range(6, 10)  # 9 are enough for every float32
_PLACE = ("file", "offset")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one process recorded under one name: leaves by their paths, and how they are to be compared."""

    leaves: dict[str, Any] = field(default_factory=dict)
    rtol: float = 0.0
    atol: float = 0.0
    one_process: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """How two leaves differ: ``count`` of ``total`` elements, ``first`` (in a row of all) the first of them.

    ``total`` is 0 for leaves of different kinds, types or shapes. ``absolute`` and ``relative`` are the greatest
    differences of numbers; None if there are none.
    """

    first: int = 0
    count: int = 0
    total: int = 0
    absolute: float | None = None
    relative: float | None = None


def identity(leaf: Any) -> str:
    """Return a text that is equal for leaves that are the same, bit by bit."""
    if leaf is MISSING:
        return ""
    if is_tensor(leaf):
        leaf = {name: value for name, value in leaf.items() if name not in _PLACE}
    return json.dumps(leaf, sort_keys=True)


def is_tensor(leaf: Any) -> bool:
    """Tell whether a leaf is a tensor or an array."""
    return isinstance(leaf, dict) and "dtype" in leaf


def describe_kind(leaf: Any) -> str:
    """Return type and shape of a tensor; empty for other leaves."""
    return f"{leaf['dtype']}, shape {leaf['shape']}" if is_tensor(leaf) else ""


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> Difference | None:
    """Return how two leaves differ; None if they are equal: ``|actual - expected| <= atol + rtol * |expected|``.

    NaN equals NaN. Types and shapes have to be the same; only floats, complex numbers and tensors have a tolerance.
    """
    if identity(actual) == identity(expected):
        return None
    if actual is MISSING or expected is MISSING or describe_kind(actual) != describe_kind(expected):
        return Difference()
    if is_tensor(actual):
        return _compare_tensors(actual, expected, rtol, atol)
    ours, theirs = _scalars(actual), _scalars(expected)
    if ours is None or theirs is None or len(ours) != len(theirs) or _is_list(actual) != _is_list(expected):
        return Difference()
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not _are_close(a, b, rtol, atol)]
    if not differing:
        return None
    pairs = [(ours[i], theirs[i]) for i in differing]
    distances = [_distances(a, b) for a, b in pairs if _is_number(a) and _is_number(b)]
    absolute, relative = ([pair[i] for pair in distances] for i in (0, 1))
    return Difference(differing[0], len(differing), len(ours), _greatest(absolute), _greatest(relative))


def show(leaf: Any) -> str:
    """Return a leaf as a whole; empty if it is too long for that."""
    if leaf is MISSING:
        return "(not recorded)"
    if is_tensor(leaf):
        if math.prod(leaf["shape"]) > _MOST_SHOWN:
            return ""
        return _show_nested(_load(leaf).reshape(leaf["shape"]).tolist(), leaf["dtype"])
    if isinstance(leaf, dict) and "container" in leaf:
        return f"a {leaf['container']}"
    if _is_list(leaf):
        return repr(leaf["list"]) if len(leaf["list"]) <= _MOST_SHOWN else ""
    scalars = _scalars(leaf)
    assert scalars is not None
    return repr(scalars[0])


def show_element(leaf: Any, number: int) -> str:
    """Return one element with its index, ``[2, 0] = 0.5``; what it is instead for a leaf without this element."""
    if is_tensor(leaf):
        value = _load(leaf)[number].item()
        return f"{_index(number, leaf['shape'])} = {_show_nested(value, leaf['dtype'])}"
    values = _scalars(leaf) if _is_list(leaf) else None
    return f"[{number}] = {values[number]!r}" if values is not None else show(leaf)


def show_size(leaf: Any) -> str:
    """Return of a leaf that is too long to be shown what it is."""
    if is_tensor(leaf):
        return f"{math.prod(leaf['shape'])} elements"
    return f"a list of {len(leaf['list'])}" if _is_list(leaf) else show(leaf)


def _is_list(leaf: Any) -> bool:
    return isinstance(leaf, dict) and "list" in leaf


def _scalars(leaf: Any) -> list[Any] | None:
    """Return the numbers or texts of a leaf; None if it is a container of others."""
    if not isinstance(leaf, dict):
        return [leaf]
    if "complex" in leaf:
        return [complex(*leaf["complex"])]
    return leaf.get("list")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _are_close(actual: Any, expected: Any, rtol: float, atol: float) -> bool:
    if type(actual) is not type(expected):
        return False
    if actual == expected:
        return True
    if not isinstance(actual, (float, complex)):
        return False
    if actual != actual and expected != expected:
        return True
    distance, _ = _distances(actual, expected)
    return math.isfinite(distance) and distance <= atol + rtol * abs(expected)


def _distances(actual: Any, expected: Any) -> tuple[float, float]:
    """Return the absolute and the relative difference of two numbers, infinite if no float can hold it."""
    try:
        distance, size = float(abs(actual - expected)), float(abs(expected))
    except OverflowError:
        return math.inf, math.inf
    return distance, distance / size if size else math.inf


def _greatest(values: Sequence[float]) -> float | None:
    """Return the greatest value; NaN only if there is nothing else."""
    if not values:
        return None
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _load(leaf: dict[str, Any]) -> torch.Tensor:
    """Return the elements of a tensor in a row; those in a file are read as far as they are looked at."""
    import torch

    if not math.prod(leaf["shape"]):
        return torch.empty(0)
    buffer, offset = _bytes_of(leaf)
    name = str(leaf["dtype"])
    if name.startswith("torch."):
        dtype = getattr(torch, name.removeprefix("torch."))
        return torch.frombuffer(buffer, dtype=dtype, offset=offset, count=math.prod(leaf["shape"]))
    import numpy

    array = numpy.frombuffer(buffer, dtype=name, offset=offset, count=math.prod(leaf["shape"]))
    if not hasattr(torch, name):  # older versions do not have all unsigned integers
        array = array.astype(numpy.int64)
    return torch.from_numpy(array)


def _bytes_of(leaf: dict[str, Any]) -> tuple[Any, int]:
    """Return a buffer that can be written to, as torch wants it, and where in it the bytes of a tensor begin."""
    if "data" in leaf:
        return bytearray(base64.b64decode(leaf["data"])), 0
    import mmap

    with Path(leaf["file"]).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), leaf["offset"]


def _compare_tensors(actual: dict[str, Any], expected: dict[str, Any], rtol: float, atol: float) -> Difference | None:
    ours, theirs = _load(actual), _load(expected)
    total = ours.numel()
    parts = []
    for begin in range(0, total, _CHUNK):
        part = _compare_chunks(ours[begin : begin + _CHUNK], theirs[begin : begin + _CHUNK], rtol, atol)
        if part is not None:
            parts.append((begin + part.first, part))
    if not parts:
        return None
    absolute = [part.absolute for _, part in parts if part.absolute is not None]
    relative = [part.relative for _, part in parts if part.relative is not None]
    count = sum(part.count for _, part in parts)
    return Difference(parts[0][0], count, total, _greatest(absolute), _greatest(relative))


def _compare_chunks(ours: torch.Tensor, theirs: torch.Tensor, rtol: float, atol: float) -> Difference | None:
    import torch

    dtype = torch.complex128 if ours.is_complex() else torch.float64
    a, b = ours.to(dtype), theirs.to(dtype)
    # Great integers are not all different as floats; smaller floats can not all be compared as they are.
    equal = (a == b) if ours.is_floating_point() or ours.is_complex() else _are_equal_integers(ours, theirs)
    equal |= torch.isnan(a) & torch.isnan(b)
    if (rtol or atol) and ours.dtype is not torch.bool:
        equal |= torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    places = (~equal).nonzero().flatten()
    if not len(places):
        return None
    a, b = a[places], b[places]
    distances, sizes = (a - b).abs(), b.abs()
    absolute = _greatest_in(distances)
    relative = _greatest_in(torch.where(sizes == 0, math.inf, distances / sizes))
    return Difference(int(places[0]), len(places), ours.numel(), absolute, relative)


def _are_equal_integers(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Compare integers by their bytes: torch does not compare all unsigned ones."""
    import torch

    size = ours.element_size()
    return (ours.view(torch.uint8).view(-1, size) == theirs.view(torch.uint8).view(-1, size)).all(dim=1)


def _greatest_in(values: torch.Tensor) -> float:
    known = values[~values.isnan()]
    return float(known.max()) if len(known) else math.nan


def _index(number: int, shape: Sequence[int]) -> str:
    index: list[int] = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.insert(0, place)
    return str(index)


def _show_nested(value: Any, dtype: str) -> str:
    """Return numbers with as many digits as their type has."""
    if isinstance(value, list):
        return f"[{', '.join(_show_nested(entry, dtype) for entry in value)}]"
    if isinstance(value, float) and math.isfinite(value) and not dtype.endswith("float64"):
        text = next(text for digits in _DIGITS if _as_float32(float(text := f"{value:.{digits}g}")) == value)
        return text if set(text) - set("-0123456789") else f"{text}.0"
    return repr(value)


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf
