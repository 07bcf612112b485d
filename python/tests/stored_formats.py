"""The same tensors in every format that can be read, written by the tools whose formats they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "i64": torch.int64, "i32": torch.int32,
    "i16": torch.int16, "i8": torch.int8, "u64": torch.uint64, "u32": torch.uint32, "u16": torch.uint16,
    "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, bit by bit, in row-major order."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes() if copy.numel() else b""


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of random bits: NaN, infinities and subnormal numbers among them."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty((), dtype=dtype).element_size()
    count = int(numpy.prod(shape, dtype=numpy.int64)) * size
    limit = 2 if dtype == torch.bool else 256
    values = torch.randint(0, limit, (count,), dtype=torch.uint8, generator=generator)
    return values.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def random_tensors(dtypes: dict[str, torch.dtype] = DTYPES) -> Tensors:
    """A tensor of each dtype, and some of special shapes. One is long enough to be mapped."""
    tensors = {f"of.{name}": random_tensor(dtype, (5, 7), seed) for seed, (name, dtype) in enumerate(dtypes.items())}
    f32 = torch.float32
    tensors |= {
        "scalar": random_tensor(f32, (), 90),
        "empty": random_tensor(f32, (0, 3), 91),
        "cube": random_tensor(f32, (3, 4, 5), 92),
        "long": random_tensor(f32, (70, 300), 93),
    }
    return tensors


def safetensors_file(folder: Path, tensors: Tensors) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def sharded_folder(folder: Path, tensors: Tensors) -> Path:
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    of_file = {name: files[number % 2] for number, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensor for name, tensor in tensors.items() if of_file[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": of_file}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def torch_file(folder: Path, tensors: Tensors) -> Path:
    path = folder / "model.pt"
    # A view whose elements are in another order.
    transposed = {"transposed": tensors["cube"].transpose(0, 2)}
    torch.save(tensors | transposed, path)
    return path


def bin_folder(folder: Path, tensors: Tensors) -> Path:
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def dcp_folder(folder: Path, tensors: Tensors) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save(dict(tensors), checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


def npz_file(folder: Path, tensors: Tensors) -> Path:
    path = folder / "model.npz"
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    numpy.savez(path, **arrays)
    return path


def gguf_file(folder: Path, tensors: Tensors) -> Path:
    import gguf

    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def native_folder(folder: Path, tensors: Tensors) -> Path:
    import weightloom as wl

    wl.convert(safetensors_file(folder, tensors), folder / "native", to="native")
    return folder / "native"


def consolidated_folder(folder: Path, tensors: Tensors) -> Path:
    """A folder as Llama has it, with a file for each of two model-parallel ranks: each tensor is split along its last
    dim."""
    for rank in range(2):
        parts = {name: tensor.chunk(2, -1)[rank].clone() for name, tensor in tensors.items()}
        torch.save(parts | {"norm.weight": torch.ones(8)}, folder / f"consolidated.0{rank}.pth")
    return folder


NUMPY_DTYPES = {name: dtype for name, dtype in DTYPES.items() if name not in ("bf16", "f8e4m3", "f8e5m2")}
GGUF_DTYPES = {name: DTYPES[name] for name in ("f64", "f32", "f16", "i64", "i32", "i16", "i8")}

FORMATS: dict[str, tuple[Callable[[Path, Tensors], Path], dict[str, torch.dtype]]] = {
    "safetensors": (safetensors_file, DTYPES),
    "sharded": (sharded_folder, DTYPES),
    "torch": (torch_file, DTYPES),
    "bin": (bin_folder, DTYPES),
    "dcp": (dcp_folder, DTYPES),
    "npz": (npz_file, NUMPY_DTYPES),
    "gguf": (gguf_file, GGUF_DTYPES),
    "native": (native_folder, DTYPES),
}
"""How a format is written, and the dtypes that it knows."""


def written(name: str, folder: Path) -> tuple[Path, Tensors]:
    """Writes random tensors in a format, and returns what to open and what it should hold."""
    write, dtypes = FORMATS[name]
    tensors = random_tensors(dtypes)
    if name == "gguf":
        # It has neither scalars nor empty tensors.
        tensors = {key: tensor for key, tensor in tensors.items() if key not in ("scalar", "empty")}
    return write(folder, tensors), tensors
