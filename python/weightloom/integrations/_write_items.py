"""What `torch.distributed.checkpoint` has planned for this rank to write, as `wl.save` would name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import WriteItemType

from weightloom._errors import UserError
from weightloom._sharding import Sharding, whole
from weightloom._state import MODEL, Entry, Segment, TensorShard, check_dense, encoded
from weightloom._tensor_memory import dtype_name
from weightloom.integrations._boxes import Box, JoinedBoxes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

Path = tuple[Segment, ...]


class WriteItems(NamedTuple):
    """The items of a plan, by their paths in the nested state dict."""

    tensors: dict[Path, tuple[tuple[int, ...], list[Box]]]
    """Shapes of whole tensors, and what this rank writes of them."""
    values: dict[Path, str]
    """JSON."""
    paths: dict[str, Path]
    """The paths of the whole state dict, by the names that torch makes of them."""

    @classmethod
    def of(cls, plan: SavePlan, planner: SavePlanner) -> WriteItems:
        """Asks a planner for the items of a plan.

        Raises:
            UserError: one of them cannot be saved.
        """
        # A planner that does not flatten has none.
        items = cls({}, {}, {fqn: tuple(path) for fqn, path in getattr(planner, "mappings", {}).items()})
        for item in plan.items:
            path = items.paths.setdefault(item.index.fqn, (item.index.fqn,))
            if item.type == WriteItemType.BYTE_IO:
                items.values[path] = _json(item, planner)
            else:
                items._add(path, item, planner.resolve_data(item))
        return items

    def _add(self, path: Path, item: WriteItem, tensor: Any) -> None:
        data, name = item.tensor_data, item.index.fqn
        if data is None or not isinstance(tensor, torch.Tensor):
            raise UserError(f"cannot save `{name}`: its plan has no tensor", "use a planner of torch")
        check_dense(name, tensor)
        start, size = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
        if tuple(tensor.shape) != size:
            raise UserError(
                f"cannot save `{name}`: its plan has a chunk of shape {list(size)}, and the tensor is one of"
                f" {list(tensor.shape)}",
                "save it with `wl.save`, and report this with the tensor's placements",
            )
        _, boxes = self.tensors.setdefault(path, (tuple(data.size), []))
        if all(box.start != start for box in boxes):
            boxes.append(Box(start, tensor.detach()))

    def described(self) -> dict[str, Any]:
        """What other ranks need to know."""
        # A list under the key `model` is no model.
        paths = self.paths.values()
        is_nested = any(path[0] == MODEL and len(path) > 1 and isinstance(path[1], str) for path in paths)
        return {"nested": is_nested, "values": list(self.values.items())}


def _json(item: WriteItem, planner: SavePlanner) -> str:
    lookup: Callable[[Any], Any] | None = getattr(planner, "lookup_object", None)
    name = item.index.fqn
    if lookup is None:
        raise UserError(
            f"cannot save `{name}`: {type(planner).__name__} pickles it, and has no `lookup_object`",
            "use a planner that inherits from `DefaultSavePlanner`",
        )
    return encoded(Entry(name, (name,), "training", lookup(item.index), unchanging)).decode()


def entry_of(path: Path, tensor: torch.Tensor | None, is_nested: bool) -> Entry:
    """The entry that `wl.save` would make of a leaf."""
    is_model = is_nested and path[0] == MODEL
    name = ".".join(str(segment) for segment in (path[1:] if is_model else path))
    is_first = len(path) == 1 and not is_nested
    section = "model" if tensor is not None and (is_model or is_first) else "training"
    return Entry(name, path, section, tensor, unchanging)


def shard_of(entry: Entry, shape: tuple[int, ...], boxes: list[Box]) -> TensorShard:
    """What this rank writes of a tensor of this shape."""
    filled = [box for box in boxes if box.tensor.numel()]
    if not filled and 0 not in shape:
        # Other ranks hold all elements.
        return _filled(entry, boxes[0].tensor, Sharding(shape, (0,) * len(shape), (), None))
    if not filled:
        return _filled(entry, boxes[0].tensor.new_empty(shape), Sharding(shape, shape, whole(shape), None))
    joined = JoinedBoxes(filled)
    tensor = filled[0].tensor if len(filled) == 1 else joined.copied()
    return _filled(entry, tensor, Sharding(shape, joined.shape, tuple(joined.parts), None))


def _filled(entry: Entry, tensor: torch.Tensor, sharding: Sharding) -> TensorShard:
    return TensorShard(entry.name, entry.section, sharding, dtype_name(entry.name, tensor.dtype)).over(tensor)


def size_of(item: WriteItem) -> int:
    """Bytes of the elements of an item."""
    data = item.tensor_data
    return 0 if data is None else data.chunk.sizes.numel() * data.properties.dtype.itemsize


def unchanging(_: Any) -> None:
    """Replaces nothing."""
