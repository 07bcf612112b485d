"""Signatures of checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass

from weightloom._amounts import counted, size
from weightloom._call import Place, call, option


@dataclass(frozen=True, slots=True, repr=False)
class Signature:
    """A checkpoint that was signed."""

    location: str
    """Where it is: a path or URL."""
    files: int
    """The number of files that the signature covers."""
    nbytes: int
    """Bytes of these files."""
    key: str
    """The public key."""

    def __repr__(self) -> str:
        return f"<Signature {self.location}: {counted(self.files, 'file')}, {size(self.nbytes)}, key {self.key}>"


def sign(path: Place, *, key: str | os.PathLike[str]) -> Signature:
    """Signs all files of a checkpoint's folder. `wl.verify` checks the signature.

    Args:
        path: a folder, a run or a URL, or a checkpoint that is open.
        key: a PEM file with an Ed25519 private key, such as `openssl genpkey -algorithm ed25519` writes.

    Raises:
        UserError: the checkpoint is a single file, or the key cannot be used.
        OperationalError: a file cannot be read or written.

    Example:
        >>> from pathlib import Path
        >>> import torch
        >>> from safetensors.torch import save_file
        >>> Path("model").mkdir()
        >>> save_file({"w": torch.ones(2)}, "model/model.safetensors")
        >>> _ = Path("key.pem").write_text(
        ...     "-----BEGIN PRIVATE KEY-----\\n"
        ...     "MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\\n"
        ...     "-----END PRIVATE KEY-----\\n"
        ... )
        >>> wl.sign("model", key="key.pem")
        <Signature model: 1 file, 72 B, key 03a107...>
    """
    found = call("sign", [path], option("key", key)).result
    return Signature(location=found["path"], files=found["files"], nbytes=found["bytes"], key=found["key"])
