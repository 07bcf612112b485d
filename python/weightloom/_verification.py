"""Verification of checkpoints against their checksums and signatures."""

from __future__ import annotations

import os
from dataclasses import dataclass

from weightloom._amounts import counted, size
from weightloom._call import Place, call, option


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """A checkpoint of which every byte was read and none was found damaged."""

    location: str
    """Where it is: a path or URL."""
    format: str
    """Its format."""
    tensors: int
    """The number of tensors."""
    nbytes: int
    """Bytes of the tensors."""
    has_checksums: bool
    """Whether the format has checksums, which were compared. Without them, the tensors are readable and complete."""
    signed_with: str | None
    """The public key of the signature that was checked."""

    def __repr__(self) -> str:
        how = "checksums match" if self.has_checksums else "readable, no checksums"
        signed = f", signed with {self.signed_with}" if self.signed_with else ""
        amount = f"{counted(self.tensors, 'tensor')}, {size(self.nbytes)}"
        return f"<Verification {self.location}: {self.format}, {amount}, {how}{signed}>"


def verify(path: Place, *, key: str | os.PathLike[str] | None = None) -> Verification:
    """Reads a whole checkpoint and compares it with its checksums, and with its signature if a key is given.

    Args:
        path: a path, run, card, `org/name` or URL, or a checkpoint that is open.
        key: a PEM file with the Ed25519 public key that must have signed it.

    Raises:
        CheckFailed: it is damaged, or its signature does not fit.
        UserError: it does not exist, or has another signature than that of the key.
        OperationalError: a file cannot be read.

    Example:
        >>> import torch
        >>> from safetensors.torch import save_file
        >>> save_file({"w": torch.ones(2)}, "model.safetensors")
        >>> wl.verify("model.safetensors")
        <Verification model.safetensors: safetensors, 1 tensor, 8 B, readable, no checksums>
    """
    found = call("verify", [path], option("key", key)).result
    return Verification(
        location=found["path"],
        format=found["format"],
        tensors=found["tensors"],
        nbytes=found["bytes"],
        has_checksums=found["checksums"],
        signed_with=found.get("signed_with"),
    )
