"""What a rank makes of a recorded value: its parts, which of them go into a file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_disttest.engine.recording import is_tolerance, leaves_of
from lightning_disttest.errors import NotRecordable


def leaves(value: object, folder: Path | str = "") -> dict[str, Any]:
    """Return the leaves of a value by their paths, after their way to the controller."""
    return dict(json.loads(json.dumps(leaves_of("x", value, str(folder)))))


class TwoLayers(nn.Module):
    """A module with parameters, a buffer, and a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (1, {"x": 1}),
        (None, {"x": None}),
        ("text", {"x": "text"}),
        ((1, 2.5), {"x": {"list": [1, 2.5]}}),
        ([], {"x": {"list": []}}),
        (1 - 2j, {"x": {"complex": [1.0, -2.0]}}),
        ({}, {"x": {"container": "dict"}}),
        ({"a": (True,)}, {"x": {"container": "dict"}, "x['a']": {"list": [True]}}),
        ([1, [2]], {"x": {"container": "list"}, "x[0]": 1, "x[1]": {"list": [2]}}),
        ({0: {"it's": 1}}, {"x": {"container": "dict"}, "x[0]": {"container": "dict"}, 'x[0]["it\'s"]': 1}),
        (
            np.array(["a", "b"]),
            {"x": {"container": "array of texts, shape [2]"}, "x.tolist()": {"list": ["a", "b"]}},
        ),
    ],
)
def test_parts_of_plain_data(value: object, parts: dict[str, object]) -> None:
    """Each part has a path; a list of plain values is one part."""
    assert leaves(value) == parts


def test_modules_and_optimizers_are_their_state(tmp_path: Path) -> None:
    """Parameters and buffers by their names; the state of Adam has integers as keys."""
    module = TwoLayers()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.5)
    module.layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = leaves({"model": module, "optimizer": optimizer}, tmp_path)

    assert found == leaves({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    assert found["x['model']['layer.weight']"]["shape"] == [3, 2]
    assert found["x['model']['norm.num_batches_tracked']"]["dtype"] == "torch.int64"
    assert found["x['optimizer']['state'][0]['exp_avg']"]["shape"] == [3, 2]
    assert found["x['optimizer']['param_groups'][0]['lr']"] == 0.5


def test_small_tensors_are_in_the_message_and_large_ones_in_one_file(tmp_path: Path) -> None:
    """The channel does not carry a model; the file has the bytes, and the message says where."""
    folder = tmp_path / "not" / "there yet"
    large = torch.arange(1000, dtype=torch.float64)
    value = {"a": large, "small": torch.zeros(2, 2), "b": large + 1}
    messages = [leaves(value, folder) for _ in range(2)]
    found = messages[0]

    assert found == messages[1]
    assert len(list(folder.iterdir())) == 1, "the second value has taken the place of the first"
    assert found["x['small']"]["data"] == "A" * 22 + "=="
    for name, wanted in (("a", large), ("b", large + 1)):
        leaf = found[f"x[{name!r}]"]
        assert "data" not in leaf
        content = Path(leaf["file"]).read_bytes()[leaf["offset"] :][:8000]
        assert torch.equal(torch.frombuffer(bytearray(content), dtype=torch.float64), wanted)


def test_two_names_have_two_files(tmp_path: Path) -> None:
    """A value does not replace that of another name."""
    [[_, first]] = leaves_of("one", torch.zeros(2000), str(tmp_path))
    [[_, second]] = leaves_of("other", torch.zeros(2000), str(tmp_path))

    assert first["file"] != second["file"]
    assert first["digest"] == second["digest"]


def test_a_tensor_is_recorded_as_it_is_now(tmp_path: Path) -> None:
    """What the test does with it later does not count, be it small or large."""
    small, large = torch.zeros(3, requires_grad=True), torch.zeros(3000)
    before = leaves([small, large], tmp_path / "a")
    content = Path(before["x[1]"]["file"]).read_bytes()
    with torch.no_grad():
        small += 1
        large += 1

    assert before["x[0]"] == leaves([torch.zeros(3)], tmp_path / "b")["x[0]"]
    assert not any(content)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain test only finds out whether the value could be recorded."""
    monkeypatch.chdir(tmp_path)

    assert leaves({"a": torch.zeros(3000), "b": 1}) == {"x": {"container": "dict"}, "x['b']": 1}
    assert list(tmp_path.iterdir()) == []


class DTensor(torch.Tensor):
    """Looks like the sharded tensor of torch, which needs a process group."""


DTensor.__module__ = "torch.distributed.tensor"


class FullyShardedDataParallel(nn.Module):
    """Looks like the wrapper of torch, which needs a process group."""


FullyShardedDataParallel.__module__ = "torch.distributed.fsdp"


def looped() -> list[object]:
    """Return a list that holds itself."""
    inside: list[object] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize("folder", ["", "some"], ids=["plain", "rank"])
@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (object(), "x", "it is of type object. Numbers, texts, booleans, None, tensors, arrays, modules, "),
        ({"a": {2}}, "x['a']", "it is of type set. "),
        ([1, [len]], "x[1][0]", "it is of type builtin_function_or_method. "),
        ({(1, 2): 0}, "x", "it has the key (1, 2); keys have to be texts or integers"),
        (looped(), "[0]" * 51, "it is more than 50 containers deep, or inside itself"),
        (np.array([object()]), "x", "it is an array of object. Record it as one of numbers"),
        (np.array([1], "longdouble"), "x", "it is an array of float128. Record it as one of numbers"),
        (np.array(["2030-01-01"], "datetime64[D]"), "x", "it is an array of datetime64[D]. Record it as one"),
        (torch.eye(2).to_sparse(), "x", "it is a sparse tensor (torch.sparse_coo). Record its to_dense()"),
        (torch.empty(2, device="meta"), "x", "it is a tensor on the meta device, which has no values"),
        (nn.LazyLinear(2), "x['weight']", "it is a parameter without a shape yet. Run the module once before"),
        ({"a": torch.ones(2).as_subclass(DTensor)}, "x['a']", "it is a DTensor, whose whole value only all ranks"),
        (nn.Sequential(FullyShardedDataParallel()), "x", "it has parts of FullyShardedDataParallel, whose state"),
    ],
)
def test_what_can_not_be_compared_is_refused(
    value: object, path: str, reason: str, folder: str, tmp_path: Path
) -> None:
    """By its path, with the reason and what to do, on ranks and in plain tests alike."""
    with pytest.raises(NotRecordable) as raised:
        leaves(value, tmp_path / folder if folder else "")

    assert f"{path}: {reason}" in str(raised.value)
    assert str(raised.value).startswith("world.record('x', ...) can not record x")


def test_a_quantized_tensor_is_refused(recwarn: pytest.WarningsRecorder) -> None:
    """Its bytes are its value only together with its scale; torch warns of the whole kind."""
    with pytest.raises(NotRecordable, match=r"it is a quantized tensor. Record its int_repr\(\)"):
        leaves(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))


def test_a_nested_tensor_is_refused() -> None:
    """It has no shape."""
    with pytest.raises(NotRecordable, match=r"it is a nested tensor. Record its unbind\(\)"):
        leaves(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged))


@pytest.mark.parametrize("value", [0, 0.0, 1, 1e-5, np.float32(0.5)])
def test_tolerances(value: object) -> None:
    """Numbers of 0 or more."""
    assert is_tolerance(value)


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), "0", None, True, 1j])
def test_what_is_no_tolerance(value: object) -> None:
    """Negative ones, NaN, infinity and other types."""
    assert not is_tolerance(value)
