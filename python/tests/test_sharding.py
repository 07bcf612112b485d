"""Shards of distributed tensors: what we say a rank holds is what torch has given it."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPES = [(), (0, 3), (1,), (5,), (8,), (3, 2), (4, 8), (7, 3), (9, 10), (2, 3, 5)]
MESHES = {1: [(1,)], 2: [(2,), (1, 2)], 3: [(3,)], 4: [(4,), (2, 2), (1, 4), (4, 1)]}


def placements_of(ndim: int, mesh: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """All placements on a mesh, those of FSDP after tensor parallelism included."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    choices = [Replicate(), *(Shard(dim) for dim in range(ndim))]
    yield from product(choices, repeat=len(mesh))
    if len(mesh) == 2:
        for dim in range(ndim):
            yield (_StridedShard(dim, split_factor=mesh[1]), Shard(dim))
            yield (_StridedShard(dim, split_factor=2), Replicate())


def cases() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]]:
    import torch.distributed as dist

    for mesh in MESHES[dist.get_world_size()]:
        for shape in SHAPES:
            for placements in placements_of(len(shape), mesh):
                yield mesh, shape, placements


def name_of(mesh: tuple[int, ...], shape: tuple[int, ...], placements: tuple[Any, ...]) -> str:
    return f"{mesh} {shape} {placements}".replace(".", "_")


def compare(rank: int, folder: Path) -> dict[str, Any]:
    """Compares parts with torch's local tensors; saves all tensors, and loads them again."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    import weightloom as wl
    from weightloom._sharding import sharding_of

    meshes = {mesh: init_device_mesh("cpu", mesh) for mesh in MESHES[dist.get_world_size()]}
    tensors, several, laid = {}, 0, 0
    for mesh, shape, placements in cases():
        name = name_of(mesh, shape, placements)
        volume = torch.Size(shape).numel()
        full = torch.arange(1, volume + 1, dtype=torch.int32).reshape(shape)
        # Without a source, every rank takes its part of its own copy.
        tensor = distribute_tensor(full, meshes[mesh], placements, src_data_rank=None)
        sharding = sharding_of(name, tensor, dist.get_world_size())
        local = tensor.to_local()
        found = torch.zeros(local.shape, dtype=full.dtype)
        for part in sharding.parts:
            into = tuple(slice(at, at + size) for at, size in zip(part.local, part.size, strict=True))
            of = tuple(slice(at, at + size) for at, size in zip(part.start, part.size, strict=True))
            found[into] = full[of]
        assert torch.equal(found, local), (name, sharding, local)
        several += len(sharding.parts) > 1
        laid += sharding.layout is not None
        tensors[name] = tensor
    wl.save(tensors, folder / "saved")
    if rank == 0:
        saved = wl.open(folder / "saved")
        assert len(saved) == len(tensors)
        for name, stored in saved.items():
            volume = torch.Size(stored.shape).numel()
            expected = torch.arange(1, volume + 1, dtype=torch.int32).reshape(stored.shape)
            assert torch.equal(stored.torch(), expected), name
    expected = {name: tensor.to_local().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.to_local().zero_()
    report = wl.load(tensors, folder / "saved")
    for name, tensor in tensors.items():
        assert torch.equal(tensor.to_local(), expected[name]), name
    return {"cases": len(tensors), "several": several, "laid": laid, "missing": list(report.missing)}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_parts_are_those_of_torch(world: int) -> None:
    found = ranks.run(world, "test_sharding.compare")
    assert all(of_rank["missing"] == [] for of_rank in found)
    assert found[0]["cases"] >= 26
    # Layouts let ranks plan without asking one another.
    assert all(of_rank["laid"] > of_rank["cases"] / 2 for of_rank in found)
    if world == 4:
        assert any(of_rank["several"] > 0 for of_rank in found), "no case has several regions on a rank"


def refuse(rank: int, folder: Path) -> list[str]:
    """Partial sums cannot be saved."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    import weightloom as wl

    mesh = init_device_mesh("cpu", (2,))
    sums = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    texts = []
    for state in ({"sums": sums}, {"w": torch.ones(2), "later": sums if rank == 1 else torch.ones(2)}):
        try:
            wl.save(state, folder / "saved")
        except wl.UserError as error:
            texts.append(str(error))
    return texts


def test_partial_sums_are_refused_on_every_rank() -> None:
    first, second = ranks.run(2, "test_sharding.refuse")
    assert "cannot save or load `sums`: its values are partial sums" in first[0]
    assert "redistribute it" in first[0]
    assert "rank 1 failed: cannot save or load `later`" in first[1]
    assert "cannot save or load `later`" in second[1]
