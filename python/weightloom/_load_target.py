"""Tensors to load into, directly or through memory of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weightloom._errors import UserError
from weightloom._state import Entry, TensorShard, described
from weightloom._tensor_memory import bytes_of, is_on_host

if TYPE_CHECKING:
    import torch

STAGED_BYTES = 256 << 20
"""The most bytes of tensors for devices that are on the host at once, unless a single tensor has more."""


class LoadTarget:
    """This rank's part of a tensor to load into."""

    def __init__(self, entry: Entry, stored: str, world: int) -> None:
        local, sharding, dtype = described(entry, world)
        self.shard = TensorShard(stored, entry.section, sharding, dtype)
        self._local = local.detach()
        self._entry = entry
        self.nbytes = local.numel() * local.element_size()
        # Memory that several elements share, or that is in another order, is filled by torch.
        self.is_direct = is_on_host(local) and local.is_contiguous() and not local.is_neg()
        self.place = _place(local)
        if not sharding.parts:
            # A rank without elements.
            self.is_direct, self.nbytes = True, 0
        array = entry.value
        if hasattr(array, "flags") and not array.flags.writeable:
            raise UserError(f"cannot load into `{entry.name}`: it is read-only", "pass a writable array")

    @staticmethod
    def place_of(entry: Entry) -> tuple[int, int]:
        """Where a tensor is in memory, and how many bytes it has."""
        return _place(described(entry, 1)[0])

    def acquire(self) -> None:
        """Provides the memory to read into."""
        import torch

        if not self.nbytes:
            self.shard.memory = bytearray()
        elif self.is_direct:
            self.shard.keep = self._local
            self.shard.memory = bytes_of(self._local)
        else:
            pinned = not is_on_host(self._local) and torch.cuda.is_available()
            self.shard.keep = torch.empty(self._local.shape, dtype=self._local.dtype, pin_memory=pinned)
            self.shard.memory = bytes_of(self.shard.keep)

    def release(self) -> None:
        """Puts what was read into the tensor."""
        import torch

        if self.nbytes and not self.is_direct:
            self._local.copy_(self.shard.keep)
        # What autograd has saved of the tensor is no longer its value. Tensors made in inference mode have no version.
        elif self.nbytes and not self._local.is_inference():
            torch.autograd.graph.increment_version(self._local)
        array = self._entry.value
        if hasattr(array, "flags") and not array.flags.c_contiguous:
            array[...] = self._local.numpy()
        self.shard.keep = self.shard.memory = None


def _place(local: torch.Tensor) -> tuple[int, int]:
    return local.data_ptr(), local.numel() * local.element_size()


def groups_of(targets: list[LoadTarget], staged: Sequence[Any]) -> list[list[LoadTarget]]:
    """Divides tensors into groups that are loaded one after the other, so that few bytes are staged at once.

    Args:
        targets: the tensors of this rank.
        staged: of each rank, the bytes of tensors that it stages, by name.
    """
    # Ranks load a tensor in the same group, as it is compared with checksums over all ranks.
    largest: dict[str, int] = {}
    for sizes in staged:
        for name, size in sizes.items():
            largest[name] = max(size, largest.get(name, 0))
    number, filled, group_of = 0, 0, dict[str, int]()
    for name in sorted(largest):
        if filled and filled + largest[name] > STAGED_BYTES:
            number, filled = number + 1, 0
        filled += largest[name]
        group_of[name] = number
    groups: list[list[LoadTarget]] = [[] for _ in range(number + 1)]
    for target in targets:
        groups[group_of.get(target.shard.name, 0)].append(target)
    return groups
