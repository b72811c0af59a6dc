"""The rank's side of ``world.record``: takes a value apart into leaves that can be sent (see ``reporting.leaves``).

Large tensors do not travel through the channel: they are written to a file, which the controller reads if it has to,
and removes after the test. Nothing in here may wait for another rank, so what only all ranks together can give, such
as the whole of a sharded tensor, is refused.
"""

from __future__ import annotations

import base64
import hashlib
import math
import numbers
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_disttest.errors import NotRecordable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

FOLDER = "values"
_INLINE = 4096  # bytes
_ALIGNED = 64
_DEEPEST = 50
_NUMPY_KINDS = "biufc"
_SHARDED = ("DTensor", "ShardedTensor")
_WRAPPED = "DistributedDataParallel"
_FLAT = "FullyShardedDataParallel"
_files: dict[str, int] = {}  # a name has one file in each process: its next value replaces it


def is_tolerance(value: Any) -> bool:
    """Tell whether a value is a finite number of 0 or more."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def leaves_of(name: str, value: Any, folder: str) -> list[list[Any]]:
    """Return the leaves of a value, each with its path; without ``folder`` tensors are only looked at.

    Raises:
        NotRecordable: for a value, or a part of it, that can not be compared.
        OSError: if a large one can not be written.
    """
    path = Path(folder) / str(_files.setdefault(name, len(_files))) if folder else None
    parts = _Parts(name, path)
    try:
        parts.add(name, value, 0)
    finally:
        parts.close()
    return parts.leaves


class _Parts:
    """The leaves of one value; ``path`` is the file for large ones."""

    def __init__(self, name: str, path: Path | None) -> None:
        self.leaves: list[list[Any]] = []
        self._name = name
        self._path = path
        self._file: BinaryIO | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, path: str, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            self._refuse(path, f"it is more than {_DEEPEST} containers deep, or inside itself")
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            value = self._state_of(path, value)
        if _is_scalar(value):
            self._put(path, value)
        elif isinstance(value, complex):
            self._put(path, {"complex": [value.real, value.imag]})
        elif isinstance(value, (list, tuple)):
            self._add_list(path, value, depth)
        elif isinstance(value, dict):
            self._add_dict(path, value, depth)
        elif torch is not None and (isinstance(value, torch.Tensor) or _is_sharded(value)):
            self._add_tensor(path, value)
        elif hasattr(value, "dtype") and hasattr(value, "tolist"):
            self._add_array(path, value, depth)
        else:
            self._refuse(
                path,
                f"it is of type {type(value).__name__}. Numbers, texts, booleans, None, tensors, arrays, modules, "
                "optimizers, and lists, tuples and dicts of them can be recorded",
            )

    def _add_list(self, path: str, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        if all(_is_scalar(entry) for entry in value):
            self._put(path, {"list": list(value)})
            return
        self._put(path, {"container": "list"})
        for index, entry in enumerate(value):
            self.add(f"{path}[{index}]", entry, depth + 1)

    def _add_dict(self, path: str, value: Mapping[Any, Any], depth: int) -> None:
        self._put(path, {"container": "dict"})
        for key, entry in value.items():
            if not isinstance(key, (str, int)):
                self._refuse(path, f"it has the key {key!r}; keys have to be texts or integers")
            self.add(f"{path}[{key!r}]", entry, depth + 1)

    def _add_tensor(self, path: str, tensor: Any) -> None:
        if reason := _why_not_a_plain_tensor(tensor):
            self._refuse(path, reason)
        import torch

        if self._path is None:
            return
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._put_bytes(path, str(tensor.dtype), tensor.shape, plain.reshape(-1).view(torch.uint8).numpy())

    def _add_array(self, path: str, value: Any, depth: int) -> None:
        import numpy

        array = numpy.asarray(value)
        if array.dtype.kind == "U":
            self._put(path, {"container": f"array of texts, shape {list(array.shape)}"})
            self.add(f"{path}.tolist()", array.tolist(), depth + 1)
            return
        if array.dtype.kind not in _NUMPY_KINDS or array.dtype.name in ("longdouble", "float128", "complex256"):
            self._refuse(path, f"it is an array of {array.dtype}. Record it as one of numbers")
        if self._path is None:
            return
        plain = numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))
        self._put_bytes(path, plain.dtype.name, array.shape, plain.reshape(-1).view(numpy.uint8))

    def _state_of(self, path: str, value: Any) -> Any:
        if any(_is_a(part, _FLAT) for part in getattr(value, "modules", list)()):
            self._refuse(
                path,
                "it has parts of FullyShardedDataParallel, whose state only all ranks together can give. Gather it on "
                "all ranks, and record that",
            )
        return (value.module if _is_a(value, _WRAPPED) else value).state_dict()

    def _put(self, path: str, leaf: Any) -> None:
        self.leaves.append([path, leaf])

    def _put_bytes(self, path: str, dtype: str, shape: Any, content: Any) -> None:
        leaf: dict[str, Any] = {"dtype": dtype, "shape": list(shape)}
        if content.nbytes <= _INLINE:
            leaf["data"] = base64.b64encode(content).decode()
        else:
            leaf |= self._write(content)
        self._put(path, leaf)

    def _write(self, content: Any) -> dict[str, Any]:
        assert self._path is not None
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
        offset = self._file.tell()
        self._file.write(content)
        self._file.write(bytes(-content.nbytes % _ALIGNED))
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return {"file": str(self._path), "offset": offset, "digest": digest}

    def _refuse(self, path: str, reason: str) -> None:
        raise NotRecordable(self._name, path, reason)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _is_a(value: Any, name: str) -> bool:
    """Tell whether a value is of a class of torch, or of one derived from it, without importing it."""
    return any(cls.__name__ == name and cls.__module__.startswith("torch.") for cls in type(value).__mro__)


def _is_sharded(value: Any) -> bool:
    return any(_is_a(value, name) for name in _SHARDED)


def _why_not_a_plain_tensor(tensor: Any) -> str:
    """Return why the bytes of a tensor are not its value, with what to do about it; empty if they are."""
    import torch

    if _is_sharded(tensor):
        return (
            f"it is a {type(tensor).__name__}, whose whole value only all ranks together can give. Record what "
            "full_tensor() has returned, called on all ranks; or to_local(), if the parts are to be equal"
        )
    if torch.nn.parameter.is_lazy(tensor):
        return "it is a parameter without a shape yet. Run the module once before"
    if tensor.is_nested:
        return "it is a nested tensor. Record its unbind()"
    if tensor.layout is not torch.strided:
        return f"it is a sparse tensor ({tensor.layout}). Record its to_dense(), or its indices and values"
    if tensor.is_quantized:
        return "it is a quantized tensor. Record its int_repr(), or its dequantize()"
    if tensor.is_meta:
        return "it is a tensor on the meta device, which has no values"
    return ""
