"""Equality of checkpoints, and how the reference implementations read each format."""

import json
import pathlib

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

MESHES = {1: "mesh(a=1)", 3: "mesh(a=3)", 4: "mesh(a=2, b=2)"}


def same(found, expected):
    """Compares names, dtypes, shapes and bits; returns the number of tensors."""
    assert found.keys() == expected.keys(), f"names differ: {sorted(found.keys() ^ expected.keys())[:6]}"
    for name, tensor in expected.items():
        other = found[name]
        assert other.dtype == tensor.dtype, f"{name} is {other.dtype}, not {tensor.dtype}"
        assert other.shape == tensor.shape, f"{name} is {tuple(other.shape)}, not {tuple(tensor.shape)}"
        assert torch.equal(bits(other), bits(tensor)), f"{name} differs"
    return len(expected)


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def plain(tensors):
    """Tensors as safetensors requires them: contiguous, without shared memory."""
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def write(path, tensors):
    save_file(plain(tensors), path)
    return path


def read_hf(folder):
    """Reads a Hugging Face folder with safetensors."""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    weights = json.loads(index.read_text())["weight_map"]
    files = {file: load_file(folder / file) for file in sorted(set(weights.values()))}
    assert sum(map(len, files.values())) == len(weights), "the index does not list all tensors"
    return {name: files[file][name] for name, file in weights.items()}


def read_dcp(folder, expected, values=()):
    """Reads a DCP checkpoint with torch in one process; returns tensors and values."""
    described = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    names = expected.keys() | set(values)
    assert described.keys() == names, f"names differ: {sorted(described.keys() ^ names)[:6]}"
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()} | dict.fromkeys(values)
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return {name: state[name] for name in expected}, {name: state[name] for name in values}


def check_all_formats(report, ours, what, source, expected, values=None):
    """Loads a peer's checkpoint on our ranks, and converts it to every format, which the peers read back."""
    values = values or {}
    reference = write(f"{source}.reference.safetensors", expected)
    for ranks, mesh in MESHES.items():
        with report.check(f"{what} → {ranks} ranks") as check:
            check.count = ours.ranks("load", source, reference, mesh, values=values)
    with report.check(f"{what} → hf → safetensors") as check:
        # All of it, also where the model is only a part of the state.
        hf = ours.convert(source, "hf", "--prefix", "")
        check.count = same(read_hf(hf), expected)
    with report.check(f"{what} → dcp → torch") as check:
        folder = ours.convert(source, "dcp")
        tensors, found = read_dcp(folder, expected, values)
        check.count = same(tensors, expected)
        assert found == values, f"{found} is not {values}"
    with report.check(f"{what}: the same fingerprint and no difference in all formats") as check:
        native = ours.convert(source, "native", "--shard-size", "20KB")
        check.count = ours.call("verify", native)["tensors"]
        fingerprint = ours.fingerprint(reference)
        for path in (source, hf, folder, native):
            assert ours.fingerprint(path) == fingerprint, f"{path} has another fingerprint"
            ours.call("diff", path, reference)
