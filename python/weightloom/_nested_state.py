"""Nested state dicts, put together from named entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weightloom._errors import CheckFailed

Path = Sequence[str | int | None]
"""Keys, indices of lists, and `None` at the end of the path to an empty dict or list."""


class _Node(dict[str | int, Any]):
    """A dict or list that is being put together."""


def nested(entries: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """Puts entries where their paths say; those without a path are at the first level, under their names.

    Keys are text, but for dicts of dicts whose keys are all whole numbers.

    Raises:
        CheckFailed: an entry is also a dict or a list of others.

    Example:
        >>> from weightloom._nested_state import nested
        >>> nested({"a.0": 1, "a.1": 2, "b": 3}, {"a.0": ["a", 0], "a.1": ["a", 1]})
        {'a': [1, 2], 'b': 3}
    """
    root = _Node()
    for name, value in entries.items():
        path = [segment for segment in paths.get(name, (name,)) if segment is not None]
        node: Any = root
        for segment in path[:-1]:
            node = node.setdefault(segment, _Node())
            if not isinstance(node, _Node):
                raise _conflict(name)
        if not path or path[-1] in node:
            raise _conflict(name)
        node[path[-1]] = value
    return {str(key): _finished(value) for key, value in root.items()}


def _finished(value: Any) -> Any:
    """Nodes as dicts, and as lists where all keys are the indices of one."""
    if not isinstance(value, _Node):
        return value
    if all(index in value for index in range(len(value))):
        return [_finished(value[index]) for index in range(len(value))]
    children = {key: _finished(child) for key, child in value.items()}
    # The state of torch's optimizers: a dict for each parameter, by its number.
    is_numbered = all(_is_number(key) and isinstance(child, dict) for key, child in children.items())
    return {int(key): child for key, child in children.items()} if is_numbered else children


def _is_number(key: str | int) -> bool:
    text = str(key)
    return text.isascii() and text.isdigit() and text == str(int(text))


def _conflict(name: str) -> CheckFailed:
    return CheckFailed(
        f"cannot nest the entries of the checkpoint: two of them are in the place of `{name}`",
        "read the tensors by name with `load()`",
    )
