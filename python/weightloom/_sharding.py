"""Which part of a tensor this rank holds, from the placements of torch's distributed tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from weightloom._errors import UserError

if TYPE_CHECKING:
    import torch

Run = tuple[int, int]
"""A start and a length along one dim."""


class Part(NamedTuple):
    """A box of the local tensor, and where it lies in the whole one."""

    local: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]


class Sharding(NamedTuple):
    """How a tensor is divided among ranks, and what this rank holds."""

    shape: tuple[int, ...]
    """The whole tensor's shape."""
    local_shape: tuple[int, ...]
    parts: tuple[Part, ...]
    layout: str | None
    """A layout from which every rank knows the parts of every other, if there is one."""


def sharding_of(name: str, tensor: torch.Tensor, world: int) -> Sharding:
    """Returns the sharding of a tensor: of a distributed one by its placements, of any other the whole.

    Raises:
        UserError: the values are partial sums, or torch divides the tensor in a way that is not known here.
    """
    shape = tuple(int(size) for size in tensor.shape)
    local = local_tensor(tensor)
    if local is tensor:
        return Sharding(shape, shape, whole(shape), None)
    local_shape = tuple(int(size) for size in local.shape)
    spec: Any = tensor
    if not hasattr(spec, "placements"):
        return _of_shards(name, spec, shape, local_shape)
    mesh, placements = spec.device_mesh, tuple(spec.placements)
    for placement in placements:
        if placement.is_partial():
            raise UserError(
                f"cannot save or load `{name}`: its values are partial sums ({placement})",
                "redistribute it to `Replicate()` or `Shard(dim)` first",
            )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return Sharding(shape, local_shape, (), None)
    sizes = tuple(int(size) for size in mesh.shape)
    runs = runs_of(shape, sizes, tuple(coordinate), placements)
    expected = tuple(sum(length for _, length in of_dim) for of_dim in runs)
    # A rank without elements may hold any shape without elements.
    is_empty = 0 in expected and 0 in local_shape
    if expected != local_shape and not is_empty:
        raise UserError(
            f"cannot save or load `{name}`: torch gave this rank {list(local_shape)} of {list(shape)} for {placements}"
            f" on a mesh of {list(sizes)}, which should be {list(expected)}",
            "redistribute it to `Shard(dim)` first, and report this with the version of torch",
        )
    if is_empty:
        return Sharding(shape, local_shape, (), _layout(shape, mesh, placements, world))
    return Sharding(shape, local_shape, tuple(_boxes(runs)), _layout(shape, mesh, placements, world))


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that this rank holds; any other tensor as it is."""
    held: Any = tensor
    if hasattr(held, "placements") and hasattr(held, "to_local"):
        local: Any = held._local_tensor if hasattr(held, "_local_tensor") else held.to_local()
        # A collective that is still running is waited for.
        return local.wait() if hasattr(local, "wait") else local  # type: ignore[no-any-return]
    if hasattr(held, "local_shards"):
        shards = held.local_shards()
        return shards[0].tensor if shards else _nothing(held)
    return tensor


def _nothing(sharded: Any) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=sharded.dtype)


def whole(shape: tuple[int, ...]) -> tuple[Part, ...]:
    """The one part of a rank that holds everything."""
    return (Part((0,) * len(shape), (0,) * len(shape), shape),)


def runs_of(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> list[list[Run]]:
    """The runs of each dim that a coordinate of a mesh holds, in the order of the local tensor."""
    runs: list[list[Run]] = [[(0, size)] for size in shape]
    for size, at, placement in zip(mesh, coordinate, placements, strict=True):
        if placement.is_replicate():
            continue
        dim = placement.dim
        factor = getattr(placement, "split_factor", 1)
        # A strided shard is the same piece of each of the chunks that another axis will make.
        pieces = [_chunk(piece, size, at) for piece in _split(runs[dim], factor)]
        runs[dim] = _joined(run for piece in pieces for run in piece)
    return runs


def _split(runs: list[Run], ways: int) -> Iterator[list[Run]]:
    for index in range(ways):
        yield _chunk(runs, ways, index)


def _chunk(runs: list[Run], ways: int, index: int) -> list[Run]:
    """One of the chunks of `torch.chunk`: all of the same size, but for the last ones."""
    total = sum(length for _, length in runs)
    width = -(-total // ways)
    first, last = min(index * width, total), min((index + 1) * width, total)
    chunk, before = [], 0
    for start, length in runs:
        low, high = max(first - before, 0), min(last - before, length)
        if low < high:
            chunk.append((start + low, high - low))
        before += length
    return chunk


def _joined(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for start, length in runs:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((start, length))
    return joined


def _boxes(runs: list[list[Run]]) -> Iterator[Part]:
    """The product of the runs of all dims."""
    placed = []
    for of_dim in runs:
        at, with_offsets = 0, []
        for start, length in of_dim:
            with_offsets.append((at, start, length))
            at += length
        placed.append(with_offsets)
    for box in product(*placed):
        yield Part(tuple(b[0] for b in box), tuple(b[1] for b in box), tuple(b[2] for b in box))


def _layout(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...], world: int) -> str | None:
    """The layout, where it follows from what all ranks know alike: a mesh of all ranks, split without remainders
    wherever the order of the axes is not that of the mesh."""
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(world)) or not ranks:
        return None
    sizes = [int(size) for size in mesh.shape]
    names = [f"axis{number}" for number in range(len(sizes))]
    turns: dict[int, list[int]] = {}
    for axis, placement in enumerate(placements):
        if not placement.is_replicate():
            turns.setdefault(placement.dim, []).append(axis)
    order: dict[int, int] = {}
    for dim, axes in turns.items():
        factors = [getattr(placements[axis], "split_factor", 1) for axis in axes]
        if all(factor == 1 for factor in factors):
            order.update({axis: turn for turn, axis in enumerate(axes)})
            continue
        split = 1
        for axis in axes:
            split *= sizes[axis]
        # Only what FSDP after tensor parallelism gives: the later axes have split the dim before.
        is_reversed = len(axes) == 2 and factors == [sizes[axes[1]], 1]
        if not is_reversed or shape[dim] % split:
            return None
        order.update({axes[1]: 0, axes[0]: 1})
    texts = [
        "R" if placement.is_replicate() else f"S({placement.dim})@{order[axis]}"
        for axis, placement in enumerate(placements)
    ]
    described = ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    return f"mesh({described}) [{', '.join(texts)}]"


def _of_shards(name: str, sharded: Any, shape: tuple[int, ...], local_shape: tuple[int, ...]) -> Sharding:
    """The sharding of a `ShardedTensor`, whose shards say where they lie."""
    shards = sharded.local_shards()
    if len(shards) > 1:
        raise UserError(
            f"cannot save or load `{name}`: this rank holds {len(shards)} shards of it",
            "use one shard for each rank, or `torch.distributed.tensor.DTensor`",
        )
    parts = tuple(
        Part((0,) * len(shape), tuple(shard.metadata.shard_offsets), tuple(shard.metadata.shard_sizes))
        for shard in shards
    )
    return Sharding(shape, local_shape, parts, None)
