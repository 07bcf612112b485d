"""The entries of a checkpoint, as planners of `torch.distributed.checkpoint` look for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)

from weightloom._dtypes import torch_dtype
from weightloom._errors import UserError
from weightloom._state import MODEL, Segment

if TYPE_CHECKING:
    from weightloom._checkpoint import Checkpoint

Path = tuple[Segment, ...]


class EntryNames:
    """The names under which a planner may ask for the entries of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        stored = checkpoint.native.paths()
        self.by_fqn: dict[str, str] = {}
        """Stored names, by those that torch makes of paths."""
        self.paths: dict[str, Path] = {}
        """Paths in the nested state dict."""
        self._of_model: dict[str, str] = {}
        for name in (*checkpoint, *checkpoint.entries):
            path = tuple(stored.get(name, (name,)))
            # torch does not know empty dicts.
            if path[-1] is None:
                continue
            fqn = ".".join(str(segment) for segment in path)
            self.by_fqn[fqn] = name
            self.paths[fqn] = path
            if path[0] == MODEL or path == (name,):
                self._of_model[name] = fqn

    def find(self, fqn: str) -> str | None:
        """The name of an entry in `by_fqn`. The model may be nested in the checkpoint or the state dict only."""
        prefix = f"{MODEL}."
        if fqn in self.by_fqn:
            return fqn
        inner = self._of_model.get(fqn.removeprefix(prefix))
        return inner if inner is not None or prefix + fqn not in self.by_fqn else prefix + fqn

    def stored(self, fqn: str) -> str:
        """The stored name of an entry that is there."""
        found = self.find(fqn)
        if found is None:
            raise UserError(f"cannot read `{fqn}`: the checkpoint lacks it", "see `list(wl.open(path))`")
        return self.by_fqn[found]


class EntryMetadata(dict[str, Any]):
    """Metadata of entries, which other names find too."""

    def __init__(self, names: EntryNames, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._names = names

    def __contains__(self, fqn: object) -> bool:
        return isinstance(fqn, str) and self._names.find(fqn) is not None

    def __missing__(self, fqn: str) -> Any:
        found = self._names.find(fqn)
        if found is None:
            raise KeyError(fqn)
        return self[found]

    def get(self, fqn: str, default: Any = None) -> Any:
        return self[fqn] if fqn in self else default


def storage_metadata(checkpoint: Checkpoint, stored: str) -> TensorStorageMetadata | BytesStorageMetadata:
    """What torch has to know of a stored entry: a tensor is one chunk."""
    if stored not in checkpoint:
        return BytesStorageMetadata()
    tensor = checkpoint[stored]
    size = torch.Size(tensor.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(torch_dtype(tensor.dtype)), size, [chunk])
