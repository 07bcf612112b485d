"""Boxes of a tensor on one rank, in one piece of memory that the native module reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from weightloom._sharding import Part

if TYPE_CHECKING:
    import torch


class Box(NamedTuple):
    """A box of a tensor, and the memory of its elements."""

    start: tuple[int, ...]
    """Where it begins in the whole tensor."""
    tensor: torch.Tensor


class JoinedBoxes:
    """Boxes of a tensor, side by side in a tensor of their own.

    A single box stays where it is. Several are cut into columns of one width, which are stacked.

    Example:
        >>> import torch
        >>> from weightloom.integrations._boxes import Box, JoinedBoxes
        >>> whole = torch.arange(12).reshape(3, 4)
        >>> joined = JoinedBoxes([Box((0, 0), whole[:2]), Box((2, 2), whole[2:, 2:])])
        >>> joined.copied().tolist()
        [[0, 1], [4, 5], [2, 3], [6, 7], [10, 11]]
        >>> joined.parts[1]
        Part(local=(2, 0), start=(0, 2), size=(2, 2))
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        first = boxes[0].tensor
        self.shape = tuple(first.shape)
        """The shape of the joined tensor."""
        if len(boxes) > 1:
            widths = (gcd(*sizes) for sizes in zip(*(box.tensor.shape[1:] for box in boxes), strict=True))
            self.shape = (0, *widths)
        self.parts: list[Part] = []
        """Where each column is in the joined tensor, and in the whole one."""
        self._columns: list[torch.Tensor] = []
        rows = 0
        for box in boxes:
            for offset, column in self._cut(box.tensor):
                at = (rows, *(0 for _ in self.shape[1:])) if self.shape else ()
                start = tuple(begin + shift for begin, shift in zip(box.start, offset, strict=True))
                self.parts.append(Part(at, start, tuple(column.shape)))
                self._columns.append(column)
                rows += column.shape[0] if self.shape else 0
        self.shape = (rows, *self.shape[1:]) if self.shape else ()

    def copied(self) -> torch.Tensor:
        """The joined tensor with the elements of the boxes."""
        joined = self.empty()
        for part, column in zip(self.parts, self._columns, strict=True):
            self._at(joined, part).copy_(column)
        return joined

    def empty(self) -> torch.Tensor:
        """A joined tensor to fill."""
        import torch

        first = self.boxes[0].tensor
        return torch.empty(self.shape, dtype=first.dtype, device=first.device)

    def put(self, joined: torch.Tensor) -> None:
        """Copies a joined tensor into the boxes."""
        for part, column in zip(self.parts, self._columns, strict=True):
            column.copy_(self._at(joined, part))

    def _cut(self, tensor: torch.Tensor) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
        """The columns of a box, and where each begins in it."""
        starts = (range(0, size, width) for size, width in zip(tensor.shape[1:], self.shape[1:], strict=True))
        for of_column in product(*starts):
            column = tensor
            for dim, (begin, width) in enumerate(zip(of_column, self.shape[1:], strict=True), 1):
                column = column.narrow(dim, begin, width)
            yield ((0, *of_column) if self.shape else ()), column

    @staticmethod
    def _at(joined: torch.Tensor, part: Part) -> torch.Tensor:
        return joined.narrow(0, part.local[0], part.size[0]) if part.local else joined
