"""Structures of Python as JSON, with their tensors beside it: what trainers pickle, without pickle."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

from weightloom._errors import UserError
from weightloom._state import is_tensor

_KIND = "kind"
"""The key that says what a JSON object is for."""

_PLAIN = (str, int, float, bool, type(None))


class Structure(NamedTuple):
    """A structure without its tensors."""

    json: Any
    """What JSON can express."""
    tensors: dict[str, Any]
    """Tensors by the names that `json` refers to: their paths."""

    @classmethod
    def of(cls, value: Any) -> Structure:
        """Takes a structure apart: dicts with any plain keys, lists, tuples, sets, bytes, paths, numbers, tensors.

        Raises:
            UserError: it holds something else, whose path the message names.

        Example:
            >>> from weightloom.integrations._structure import Structure
            >>> taken = Structure.of({0: (1, float("inf")), "name": {"w": b"x"}})
            >>> taken.restored(taken.tensors) == {0: (1, float("inf")), "name": {"w": b"x"}}
            True
        """
        tensors: dict[str, Any] = {}
        try:
            return cls(_taken(value, (), tensors), tensors)
        except RecursionError:
            raise UserError("cannot save a structure that contains itself", "leave that part out") from None

    def restored(self, tensors: Mapping[str, Any]) -> Any:
        """Puts a structure together again.

        Raises:
            UserError: it is none, or was written by a newer version.
        """
        try:
            return _restored(self.json, tensors)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"cannot restore the structure: {type(error).__name__}: {error}", "look for damage") from None


def _taken(value: Any, path: tuple[str, ...], tensors: dict[str, Any]) -> Any:
    if type(value) in _PLAIN:
        return value
    if is_tensor(value):
        name = ".".join(path)
        while name in tensors:
            name += "_"
        tensors[name] = value
        return {_KIND: "array" if not hasattr(value, "data_ptr") else "tensor", "name": name}
    if isinstance(value, Mapping):
        items = [[_taken(key, path, tensors), _taken(child, (*path, str(key)), tensors)] for key, child in value.items()]
        return {_KIND: "dict", "items": items}
    if isinstance(value, (list, tuple, set, frozenset)):
        children = [_taken(child, (*path, str(index)), tensors) for index, child in enumerate(value)]
        kind = next(kind for kind in (tuple, set, frozenset, list) if isinstance(value, kind)).__name__
        return children if type(value) is list else {_KIND: kind, "items": children}
    if isinstance(value, (bytes, bytearray)):
        return {_KIND: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, PurePath):
        return {_KIND: "path", "path": os.fspath(value)}
    if isinstance(value, Enum):
        return _taken(value.value, path, tensors)
    # Subclasses of text and numbers, and numbers of NumPy.
    for plain in _PLAIN[:3]:
        if isinstance(value, plain):
            return plain(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise UserError(
        f"cannot save `{'.'.join(path)}`: a {type(value).__name__} is neither a tensor nor plain data",
        "leave it out, or keep it as numbers, text, lists and dicts",
    )


_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "list": list}


def _restored(json: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(json, list):
        return [_restored(child, tensors) for child in json]
    if not isinstance(json, dict):
        return json
    match json[_KIND]:
        case "tensor":
            return tensors[json["name"]]
        case "array":
            return tensors[json["name"]].numpy()
        case "dict":
            return {_restored(key, tensors): _restored(child, tensors) for key, child in json["items"]}
        case "bytes":
            return base64.b64decode(json["base64"], validate=True)
        case "path":
            from pathlib import Path

            return Path(json["path"])
        case kind if kind in _SEQUENCES:
            return _SEQUENCES[kind]([_restored(child, tensors) for child in json["items"]])
        case kind:
            raise UserError(f"cannot restore a value of the kind `{kind}`", "update weightloom")
