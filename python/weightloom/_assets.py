"""Files of a model that are not tensors: its config, its tokenizer, its chat template."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weightloom._errors import UserError

Assets = str | os.PathLike[str] | Mapping[str, Any] | object
"""A folder of a model, a dict of names to contents, or objects with `save_pretrained`."""

_MAX_BYTES = 256 << 20
"""The size above which a file of a folder is no asset. Tokenizers of large vocabularies have tens of megabytes."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".npy", ".h5", ".msgpack", ".onnx",
            ".distcp", ".index.json")  # fmt: skip
_OURS = ("weightloom.json", "weightloom.sig")


def assets_of(assets: Assets | None) -> dict[str, bytes]:
    """The contents of assets, by name.

    Args:
        assets: a model's folder, of which all files but weights are taken; a dict of names to bytes, text or paths; an
            object with `save_pretrained`, such as a config or tokenizer of transformers; or a list of these.

    Raises:
        UserError: there is no such folder or file, or it is none of these.

    Example:
        >>> from weightloom._assets import assets_of
        >>> assets_of({"config.json": "{}"})
        {'config.json': b'{}'}
    """
    if assets is None:
        return {}
    if isinstance(assets, (str, os.PathLike)):
        return _of_folder(Path(os.fspath(assets)))
    if isinstance(assets, Mapping):
        return {str(name): _content(str(name), value) for name, value in assets.items()}
    if hasattr(assets, "save_pretrained"):
        return _of_pretrained(assets)
    if isinstance(assets, Iterable):
        found: dict[str, bytes] = {}
        for one in assets:
            found |= assets_of(one)
        return found
    raise UserError(
        f"cannot save the assets: a {type(assets).__name__} is none",
        "pass a folder, a dict of names to contents, or a config or tokenizer",
    )


def _of_folder(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise UserError(f"cannot save the assets: there is no folder `{folder}`", "pass the folder of a model")
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and _is_asset(path))
    return {path.name: _read(path) for path in files}


def _is_asset(path: Path) -> bool:
    is_weights = path.name.endswith(_WEIGHTS) or path.name in _OURS
    return not is_weights and not path.name.startswith(".") and path.stat().st_size <= _MAX_BYTES


def _of_pretrained(object_: Any) -> dict[str, bytes]:
    if hasattr(object_, "state_dict"):
        raise UserError("cannot save a model as assets", "pass `model.config`, and the model's state dict to save")
    with tempfile.TemporaryDirectory() as folder:
        object_.save_pretrained(folder)
        return _of_folder(Path(folder))


def _content(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, os.PathLike):
        return _read(Path(os.fspath(value)))
    raise UserError(f"cannot save the asset `{name}`: a {type(value).__name__} has no bytes", "pass bytes, text or a path")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the asset `{path}`: {error.strerror}", "check the path") from None
