"""Two parts of recorded values, as they are after their way: when they are equal, and how far apart they are."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lightning_disttest.engine.recording import leaves_of
from lightning_disttest.reporting import leaves
from lightning_disttest.reporting.leaves import Difference

if TYPE_CHECKING:
    from pathlib import Path

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
LARGE = 3000


def leaf_of(value: Any, tmp_path: Path) -> Any:
    """Return the one leaf of a value, after its way to the controller."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    [(_, leaf)] = json.loads(json.dumps(leaves_of("x", value, str(folder))))
    return leaf


def differ(actual: Any, expected: Any, tmp_path: Path, rtol: float = 0.0, atol: float = 0.0) -> Difference | None:
    """Compare two values."""
    return leaves.compare(leaf_of(actual, tmp_path), leaf_of(expected, tmp_path), rtol, atol)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("size", [1, LARGE])
def test_every_type_is_compared(dtype: torch.dtype, size: int, tmp_path: Path) -> None:
    """One element that differs is found in a tensor of each type, and nothing in an equal one."""
    first = torch.zeros(size).to(dtype)
    other = torch.zeros(size)
    other[-1] = 1
    found = differ(first, other.to(dtype), tmp_path)

    assert differ(first, first.clone(), tmp_path) is None
    assert found == Difference(size - 1, 1, size, 1.0, 1.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tolerances_are_those_of_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    """Torch's own comparison and this one agree on which of many pairs are close."""
    values = torch.tensor([0.0, -0.0, 1.0, 1.01, -1.0, 100.0, 101.0, math.inf, -math.inf, math.nan]).to(dtype)
    verdicts = set()
    for first in values:
        for second in values:
            for rtol, atol in ((0.0, 0.0), (0.011, 0.0), (0.0, 0.5), (0.001, 0.02)):
                close = bool(torch.isclose(first, second, rtol=rtol, atol=atol, equal_nan=True))
                verdicts.add(close)
                assert (differ(first, second, tmp_path, rtol, atol) is None) == close, (first, second, rtol, atol)
    assert verdicts == {True, False}


@pytest.mark.parametrize("make", [float, complex, lambda value: [value]], ids=["float", "complex", "list"])
def test_tolerances_of_plain_numbers_are_the_same(make: Any, tmp_path: Path) -> None:
    """Floats outside of tensors are compared as those inside."""
    values = [0.0, -0.0, 1.0, 1.01, -1.0, 100.0, 101.0, math.inf, -math.inf, math.nan, 1e308, -1e308]
    for first in values:
        for second in values:
            for rtol, atol in ((0.0, 0.0), (0.011, 0.0), (0.0, 0.5)):
                pair = torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)
                close = bool(torch.isclose(*pair, rtol=rtol, atol=atol, equal_nan=True))
                assert (differ(make(first), make(second), tmp_path, rtol, atol) is None) == close, (first, second)


def test_the_expected_value_has_the_tolerance(tmp_path: Path) -> None:
    """The relative tolerance is one of the second value."""
    assert differ(100.0, 110.0, tmp_path, rtol=0.095) is None
    assert differ(110.0, 100.0, tmp_path, rtol=0.095) is not None
    assert differ(torch.tensor(100.0), torch.tensor(110.0), tmp_path, rtol=0.095) is None
    assert differ(torch.tensor(110.0), torch.tensor(100.0), tmp_path, rtol=0.095) is not None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (True, False),
        ("a", "b"),
        (torch.tensor(True), torch.tensor(False)),
        (torch.ones(2), torch.ones(2, 1)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (1.0, 1),
        (None, 0.0),
        ([1.0, 2.0], [1.0]),
        (1.0, [1.0]),
        (10**400, 1.0),
    ],
)
def test_what_has_no_tolerance(first: object, second: object, tmp_path: Path) -> None:
    """Plain integers, texts and truth values, and what is of another type or shape, are compared exactly."""
    assert differ(first, second, tmp_path, rtol=1e3, atol=1e3) is not None


def test_tensors_of_integers_have_a_tolerance(tmp_path: Path) -> None:
    """As in torch."""
    assert differ(torch.tensor([10]), torch.tensor([11]), tmp_path, atol=1.0) is None
    assert differ(torch.tensor([10]), torch.tensor([12]), tmp_path, atol=1.0) == Difference(0, 1, 1, 2.0, 2 / 12)


@pytest.mark.parametrize("value", [2**53, 2**62, -(2**62)])
def test_great_integers_are_compared_exactly(value: int, tmp_path: Path) -> None:
    """Two integers that are the same as floats are not equal."""
    assert differ(torch.tensor([value]), torch.tensor([value + 1]), tmp_path) is not None
    assert differ(np.array([value], "int64"), np.array([value + 1], "int64"), tmp_path) is not None


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "uint32", "uint64", "int16", "float16", "complex64", "bool", ">f4"]
)
def test_arrays_of_every_type_are_compared(dtype: str, tmp_path: Path) -> None:
    """Those of numpy, also where torch has no such type; the order of bytes is no difference."""
    first, second = np.zeros(3, dtype), np.zeros(3, dtype)
    second[2] = 1

    assert differ(first, first.copy(), tmp_path) is None
    assert differ(first, second, tmp_path) == Difference(2, 1, 3, 1.0, 1.0)
    assert leaves.show(leaf_of(second, tmp_path)) == {"b": "[False, False, True]"}.get(
        second.dtype.kind, str(second.tolist())
    )


def test_zero_has_no_sign(tmp_path: Path) -> None:
    """Minus zero is zero, as everywhere in Python."""
    assert differ(-0.0, 0.0, tmp_path) is None
    assert differ(torch.tensor([-0.0]), torch.tensor([0.0]), tmp_path) is None


def test_conjugated_and_other_views_are_compared_as_they_look(tmp_path: Path) -> None:
    """What counts is the value, not the memory behind it."""
    value = torch.tensor([[1 + 2j, 3 - 1j], [0j, 1j]])
    assert differ(value.conj(), value.conj().resolve_conj(), tmp_path) is None
    assert differ(value.t(), value.t().contiguous(), tmp_path) is None
    assert differ(value.conj().imag, value.conj().resolve_conj().imag.clone(), tmp_path) is None
    assert differ(value, value.conj(), tmp_path) is not None


def test_greatest_differences_are_of_all_chunks(tmp_path: Path) -> None:
    """A tensor that is compared piece by piece has one difference: its first, its count, and its greatest."""
    first = torch.ones((1 << 20) * 2 + 5)
    second = first.clone()
    second[7], second[1 << 20], second[-1] = 1.5, 4.0, 0.5

    assert differ(first, second, tmp_path) == Difference(7, 3, len(first), 3.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "absolute", "relative"),
    [
        ([1.0, math.nan], [2.0, 1.0], 1.0, 0.5),
        ([math.nan], [1.0], math.nan, math.nan),
        ([math.inf], [1.0], math.inf, math.inf),
        ([1.0], [math.inf], math.inf, math.nan),
        ([1.0], [0.0], 1.0, math.inf),
    ],
)
def test_differences_of_what_is_not_finite(
    first: list[float], second: list[float], absolute: float, relative: float, tmp_path: Path
) -> None:
    """NaN hides no difference that can be told."""
    wanted = pytest.approx((absolute, relative), nan_ok=True)
    for make in (list, torch.tensor):
        found = differ(make(first), make(second), tmp_path)
        assert found is not None
        assert (found.absolute, found.relative) == wanted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor(0.1), "0.1"),
        (torch.tensor(0.1, dtype=torch.float64), "0.1"),
        (torch.tensor(1 / 3), "0.33333334"),
        (torch.tensor(0.1, dtype=torch.bfloat16), "0.100097656"),
        (torch.finfo(torch.float32).max * torch.ones(1), "[3.4028235e+38]"),
        (torch.tensor([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (torch.tensor([1e-20, math.nan, -math.inf, 3e10]), "[1e-20, nan, -inf, 3e+10]"),
        (torch.tensor([True]), "[True]"),
        (torch.tensor([1 + 2j]), "[(1+2j)]"),
        (torch.zeros(0, 2), "[]"),
        (torch.zeros(1000), ""),
        (np.float32(0.5), "0.5"),
        ("text", "'text'"),
        ([1, None], "[1, None]"),
        ([0] * 1000, ""),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_how_a_value_is_shown(value: object, text: str, tmp_path: Path) -> None:
    """With as many digits as the type has; too long ones not as a whole."""
    assert leaves.show(leaf_of(value, tmp_path)) == text
