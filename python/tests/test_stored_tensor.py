"""Stored tensors: slices, dtypes, maps, and reads into other memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from stored_formats import DTYPES, NUMPY_DTYPES, bits, consolidated_folder, random_tensor, random_tensors

import weightloom as wl

LONG = (70, 300)
"""A shape that is long enough to be mapped."""


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return random_tensors()


@pytest.fixture(scope="module")
def checkpoint(tensors: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> wl.Checkpoint:
    path = tmp_path_factory.mktemp("stored") / "model.safetensors"
    save_file(tensors, path)
    return wl.open(path)


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[wl.StoredTensor, torch.Tensor]:
    """A tensor of several tiles, in two files."""
    names = ["tok_embeddings.weight", "layers.0.attention.wo.weight"]
    whole = {name: random_tensor(torch.bfloat16, (10, 8), seed) for seed, name in enumerate(names)}
    checkpoint = wl.open(consolidated_folder(tmp_path_factory.mktemp("tiled"), whole))
    assert checkpoint.format == "consolidated"
    return checkpoint[names[1]], whole[names[1]]


def random_slice(chance: random.Random, size: int) -> slice:
    ends = [None, *range(-size - 2, size + 3)]
    return slice(chance.choice(ends), chance.choice(ends), chance.choice([None, 1]))


def random_index(chance: random.Random, shape: tuple[int, ...]) -> Any:
    """An index as NumPy knows it: ints, slices, and an ellipsis somewhere."""
    count = chance.randint(0, len(shape))
    front = chance.randint(0, count)
    dims = [*range(front), *range(len(shape) - (count - front), len(shape))]
    items: list[Any] = [
        chance.randrange(-shape[dim], shape[dim]) if shape[dim] and chance.random() < 0.4 else
        random_slice(chance, shape[dim])
        for dim in dims
    ]  # fmt: skip
    if front < count or chance.random() < 0.3:
        items.insert(front, ...)
    return items[0] if len(items) == 1 and chance.random() < 0.5 else tuple(items)


def test_slices_are_those_of_numpy(checkpoint: wl.Checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    chance = random.Random(0)
    for _ in range(1500):
        name = chance.choice(["cube", "of.bf16", "of.i64", "scalar", "empty", "long"])
        stored: Any = checkpoint[name]
        # Bytes that stand for elements: NumPy has no bf16.
        kind = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}[tensors[name].element_size()]
        expected = numpy.frombuffer(bits(tensors[name]), dtype=kind).reshape(tuple(tensors[name].shape))
        # Parts of parts.
        for _ in range(chance.randint(1, 3)):
            index = random_index(chance, expected.shape)
            stored, expected = stored[index], expected[index]
            assert stored.shape == expected.shape, index
        assert stored.nbytes == expected.nbytes
        assert stored.to_bytes() == expected.tobytes()
        assert bits(stored.torch()) == expected.tobytes()
        assert stored.torch().shape == expected.shape


def test_slices_of_tiles_are_those_of_torch(tiled: tuple[wl.StoredTensor, torch.Tensor]) -> None:
    stored, whole = tiled
    chance = random.Random(1)
    for _ in range(200):
        index = random_index(chance, tuple(whole.shape))
        assert stored[index].to_bytes() == bits(whole[index])


@pytest.mark.parametrize("index", [
    3, -4, (0, 0, 0, 0), (..., ...), slice(None, None, 2), slice(None, None, -1), True, None, 1.5, "w", [0, 1],
    slice("a", None), (0, None), numpy.array([0, 1]), numpy.array(True), torch.tensor([True, False, True]),
    numpy.bool_(True), torch.tensor(True), numpy.array(1.0), torch.tensor([1]), 10**30, slice(0, 2, 0),
])  # fmt: skip
def test_other_indices_are_refused(checkpoint: wl.Checkpoint, index: Any) -> None:
    with pytest.raises(wl.UserError) as raised:
        checkpoint["cube"][index]
    assert raised.value.message.startswith("cannot take ")
    assert "of `cube`, of shape [3, 4, 5]" in raised.value.message
    assert raised.value.hint is not None


def test_numbers_of_numpy_and_torch_are_indices(checkpoint: wl.Checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    cube: Any = checkpoint["cube"]
    for index in [numpy.int64(1), numpy.array(1), torch.tensor(1), (slice(numpy.int32(1), torch.tensor(2)), 0)]:
        expected = tensors["cube"][1] if not isinstance(index, tuple) else tensors["cube"][1:2, 0]
        assert cube[index].to_bytes() == bits(expected)


def test_a_tensor_iterates_over_its_first_dim(checkpoint: wl.Checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    rows = list(checkpoint["cube"])
    assert len(rows) == len(checkpoint["cube"]) == 3
    assert [row.to_bytes() for row in rows] == [bits(row) for row in tensors["cube"]]
    assert bool(checkpoint["empty"]) and len(checkpoint["empty"]) == 0
    for wrong in [len, list]:
        with pytest.raises(TypeError):
            wrong(checkpoint["scalar"])


def test_a_tensor_says_what_it_is(checkpoint: wl.Checkpoint) -> None:
    long = checkpoint["long"]
    assert (long.name, long.dtype, long.shape, long.ndim) == ("long", "f32", LONG, 2)
    assert (long.nbytes, long.stored_nbytes, long.quantization) == (84_000, 84_000, None)
    assert repr(long) == "<StoredTensor long: f32 [70, 300], 82.0 KiB>"
    assert repr(long[0]) == "<StoredTensor long: f32 [300], 1.2 KiB>"


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_contiguous_parts_are_mapped_and_writes_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensor = random_tensor(torch.bfloat16, (200, 400), 3)
    save_file({"small": torch.ones(8), "w": tensor}, path)
    content = path.read_bytes()
    checkpoint = wl.open(path)
    # Columns are not contiguous, and short parts are not worth a map.
    parts = [checkpoint["w"][:, 1:].torch(), checkpoint["w"][0].torch(), checkpoint["small"].torch()]
    assert not is_mapped(path)
    mapped = checkpoint["w"].torch()
    rows = checkpoint["w"][50:190].torch()
    assert is_mapped(path)
    assert bits(rows) == bits(tensor[50:190])
    for part in [*parts, mapped, rows]:
        part.zero_()
    assert path.read_bytes() == content
    assert bits(checkpoint["w"].torch()) == bits(tensor)
    loaded = checkpoint.load()
    loaded["w"].zero_()
    assert bits(checkpoint.load()["w"]) == bits(tensor)
    assert path.read_bytes() == content
    del mapped, rows, loaded, part
    assert not is_mapped(path)


def test_memory_outlives_the_checkpoint(tmp_path: Path) -> None:
    tensor = random_tensor(torch.float32, LONG, 3)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    checkpoint = wl.open(tmp_path / "model.safetensors")
    view = checkpoint["w"].torch()[3:5]
    array = checkpoint["w"].numpy()[3:5]
    del checkpoint
    (tmp_path / "model.safetensors").unlink()
    assert bits(view) == bits(tensor[3:5]) == array.tobytes()


def test_tensors_that_share_bytes_do_not_share_writes(tmp_path: Path) -> None:
    shared = torch.ones(200, 200)
    torch.save({"a": shared, "b": shared, "half": shared[:150]}, tmp_path / "model.pt")
    loaded = wl.open(tmp_path / "model.pt").load()
    loaded["a"].zero_()
    assert loaded["b"].min() == 1 and loaded["half"].min() == 1


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_converted_as_torch_does(name: str, tmp_path: Path) -> None:
    values = torch.tensor([0.0, 1.0, 3.0, 5.0, 17.0, 100.0])
    tensor = (values != 0) if name == "bool" else values.to(DTYPES[name])
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    stored = wl.open(tmp_path / "model.safetensors")["w"]
    assert bits(stored.torch(torch.float64)) == bits(tensor.to(torch.float64))
    assert bits(stored.torch("bfloat16")) == bits(tensor.to(torch.float64).to(torch.bfloat16))
    assert stored.numpy("f32").tolist() == tensor.to(torch.float32).tolist()
    assert stored[2:4].numpy(numpy.float32).tolist() == tensor[2:4].to(torch.float32).tolist()


def test_arrays_of_numpy_have_the_same_bits(checkpoint: wl.Checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    for name in NUMPY_DTYPES:
        array = checkpoint[f"of.{name}"].numpy()
        assert array.dtype == tensors[f"of.{name}"].numpy().dtype
        assert array.tobytes() == bits(tensors[f"of.{name}"])
        assert array.flags.writeable
    assert checkpoint["scalar"].numpy().shape == ()
    assert checkpoint["empty"].numpy().shape == (0, 3)
    assert numpy.asarray(checkpoint["cube"]).tobytes() == bits(tensors["cube"])
    assert numpy.asarray(checkpoint["of.i8"], dtype=numpy.float64).dtype == numpy.float64
    with pytest.raises(ValueError):
        numpy.array(checkpoint["cube"], copy=False)


def test_dtypes_that_numpy_lacks_need_ml_dtypes(checkpoint: wl.Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(wl.UserError) as raised:
        checkpoint["of.bf16"].numpy()
    assert raised.value.message == "cannot make an array of bf16: NumPy has no such dtype"
    assert checkpoint["of.bf16"].numpy("f32").dtype == numpy.float32
    # A package with a type that stands for bf16.
    monkeypatch.setitem(sys.modules, "ml_dtypes", type("ml_dtypes", (), {"bfloat16": numpy.dtype("V2")}))  # type: ignore[arg-type]
    assert checkpoint["of.bf16"].numpy().dtype == numpy.dtype("V2")


@pytest.mark.parametrize("dtype", ["float4", torch.complex64, numpy.dtype("c8"), numpy.dtype(">f4"), int, object()])
def test_other_dtypes_are_refused(checkpoint: wl.Checkpoint, dtype: object) -> None:
    for read in [checkpoint["cube"].torch, checkpoint["cube"].numpy, checkpoint.load]:
        with pytest.raises(wl.UserError) as raised:
            read(dtype)  # type: ignore[operator]
        assert "checkpoints have no such dtype" in raised.value.message


def targets(shape: tuple[int, ...], dtype: torch.dtype) -> list[Any]:
    """Tensors and arrays of many kinds to read into."""
    rows, columns = shape
    tensors = [
        torch.empty(shape, dtype=dtype),
        torch.nn.Parameter(torch.empty(shape, dtype=dtype)),
        torch.empty((columns, rows), dtype=dtype).t(),
        torch.empty((rows * 2, columns * 2), dtype=dtype)[::2, 1::2],
        torch.empty((rows + 1, columns), dtype=dtype)[1:],
        torch.empty((1, columns), dtype=dtype).expand(rows, columns).clone(),
    ]
    arrays = [
        numpy.empty(shape, dtype=numpy.float32),
        numpy.empty(shape, dtype=numpy.float64),
        numpy.asfortranarray(numpy.empty(shape, dtype=numpy.float32)),
        numpy.empty((rows, columns * 2), dtype=numpy.float32)[:, ::2],
        numpy.empty(shape, dtype=numpy.float32)[::-1],
    ]
    return tensors + arrays


def test_tensors_are_read_into_memory_of_any_kind(tmp_path: Path) -> None:
    tensor = torch.arange(35, dtype=torch.float32).reshape(5, 7)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    stored = wl.open(tmp_path / "model.safetensors")["w"]
    for dtype in [torch.float32, torch.bfloat16, torch.float64]:
        for target in targets((5, 7), dtype):
            stored.read_into(target)
            assert target.tolist() == tensor.tolist()
            stored[1:3, 2:5].read_into(target[1:3, 2:5])
            stored[4].read_into(target[0])
            assert target[0].tolist() == tensor[4].tolist()
    scalar = torch.empty(())
    stored[2, 3].read_into(scalar)
    assert scalar.item() == tensor[2, 3]
    stored[:, 7:].read_into(torch.empty(5, 0))
    stored[:, 7:].read_into(numpy.empty((5, 0)))


def test_targets_that_do_not_fit_are_refused(checkpoint: wl.Checkpoint) -> None:
    read_only = numpy.empty((3, 4, 5), dtype=numpy.float32)
    read_only.flags.writeable = False
    wrong: list[tuple[Any, str]] = [
        (torch.empty(3, 4, 6), "its shape is [3, 4, 5]"),
        (torch.empty(60), "its shape is [3, 4, 5]"),
        (read_only, "read-only"),
        (torch.empty(3, 4, 5, device="meta"), "on the device meta"),
        (torch.empty(3, 4, 5, dtype=torch.complex64), "no such dtype"),
        (numpy.empty((3, 4, 5), dtype=">f4"), "no such dtype"),
        (torch.empty(3, 4, 5).to_sparse(), "sparse"),
        ([0.0] * 60, "neither a tensor nor an array"),
        (torch.empty(1, 1, 5).expand(3, 4, 5), "share memory"),
        (numpy.broadcast_to(numpy.empty(5, dtype=numpy.float32), (3, 4, 5)), "read-only"),
    ]
    for target, reason in wrong:
        with pytest.raises(wl.UserError) as raised:
            checkpoint["cube"].read_into(target)
        assert reason in raised.value.message, target
        assert raised.value.hint is not None


def test_autograd_notices_that_a_tensor_was_read_into(checkpoint: wl.Checkpoint) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4, 5))
    loss = (weight * weight).sum()
    checkpoint["cube"].read_into(weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_torch_functions_see_subclasses(checkpoint: wl.Checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    class Tagged(torch.Tensor):
        pass

    target = torch.empty(3, 4, 5).as_subclass(Tagged)
    checkpoint["cube"].read_into(target)
    assert bits(target.as_subclass(torch.Tensor)) == bits(tensors["cube"])
    with torch.inference_mode():
        made = torch.empty(3, 4, 5)
        checkpoint["cube"].read_into(made)
    assert bits(made) == bits(tensors["cube"])
