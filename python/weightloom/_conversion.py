"""Conversions of checkpoints to other formats."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from weightloom._amounts import counted, size
from weightloom._call import Place, call, option, options
from weightloom._dtypes import native_name

Format = Literal["hf", "native", "dcp", "peft"]


@dataclass(frozen=True, slots=True, repr=False)
class Conversion:
    """A checkpoint that was converted."""

    target: str
    """The new folder or URL."""
    tensors: int
    """The number of tensors."""
    nbytes: int
    """Bytes of the tensors."""
    fingerprint: str
    """The fingerprint of the new checkpoint."""
    assets: tuple[str, ...]
    """Files beside the weights, such as `config.json`."""
    skipped: tuple[str, ...]
    """Entries that were not converted."""
    notes: tuple[str, ...]
    """What was chosen, or is missing."""

    def __repr__(self) -> str:
        skipped = f", {len(self.skipped):,} skipped" if self.skipped else ""
        return f"<Conversion {self.target}: {counted(self.tensors, 'tensor')}, {size(self.nbytes)}{skipped}>"


def convert(
    source: Place,
    target: str | os.PathLike[str],
    *,
    to: Format,
    dtype: object | None = None,
    shard_size: str | int | None = None,
    prefix: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
) -> Conversion:
    """Converts a checkpoint to another format, in bounded memory.

    Args:
        source: a path, run, card, `org/name` or URL, or a checkpoint that is open.
        target: the folder to write, which must be new, or a URL such as `s3://bucket/name`.
        to: `"hf"`, a Hugging Face folder; `"native"`, one with checksums and training state; `"dcp"`, a folder of
            `torch.distributed.checkpoint`; `"peft"`, an adapter.
        dtype: the dtype of floating-point tensors, of torch or by name; by default unchanged.
        shard_size: the maximum size of a model file, such as `"5GB"`, or a number of bytes; by default 5 GB.
        prefix: convert only the tensors below this prefix, and remove it from their names; `""` converts everything.
            By default, for `"hf"` and `"peft"`, that of the model in a nested training state.
        include: patterns of the names of tensors to convert, such as `model.layers.*`; by default all.
        exclude: patterns of the names of tensors to skip.

    Raises:
        UserError: the source does not exist, the target does, or no tensor matches.
        CheckFailed: the source is damaged.
        OperationalError: a file cannot be read or written.

    Example:
        >>> import torch
        >>> torch.save({"model": {"w": torch.ones(2, 2)}, "epoch": 3}, "state.pt")
        >>> wl.convert("state.pt", "model", to="hf", dtype="bf16")
        <Conversion model: 1 tensor, 8 B, 1 skipped>
        >>> wl.open("model")["w"]
        <StoredTensor w: bf16 [2, 2], 8 B>
    """
    called = call(
        "convert",
        [source, os.fspath(target)],
        option("to", to),
        option("dtype", None if dtype is None else native_name(dtype)),
        option("shard_size", shard_size),
        option("prefix", prefix),
        options("include", include),
        options("exclude", exclude),
    )
    found = called.result
    return Conversion(
        target=found["target"],
        tensors=found["tensors"],
        nbytes=found["bytes"],
        fingerprint=found["fingerprint"],
        assets=tuple(found["assets"]),
        skipped=tuple(found["left_out"]),
        notes=called.notes,
    )
