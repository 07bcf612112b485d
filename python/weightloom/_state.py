"""State dicts as named entries: shards of tensors, and values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weightloom import _weightloom
from weightloom._errors import UserError
from weightloom._sharding import Sharding, local_tensor, sharding_of, whole
from weightloom._tensor_memory import DeviceMemory, bytes_of, dtype_name, is_on_host

if TYPE_CHECKING:
    import torch

MODEL = "model"
"""The key of the part of a nested state dict that becomes the Hugging Face model."""

Segment = str | int | None
"""A key, an index of a list, or the end of the path to an empty dict or list."""


class Entry(NamedTuple):
    """A leaf of a state dict."""

    name: str
    path: tuple[Segment, ...]
    section: str
    """`model`, or `training` for everything that only a resume needs."""
    value: Any
    replace: Callable[[Any], None]
    """Puts another value in its place."""


def entries_of(state_dict: Mapping[str, Any]) -> list[Entry]:
    """Lists the leaves of a state dict.

    Names join keys and indices with dots. If there is a dict under the key `model`, its entries are the model, under
    their own names; otherwise the tensors of the first level are. Everything else belongs to the training state.
    Lists without tensors and dicts are values.

    Raises:
        UserError: two entries have the same name, or a key is neither text nor a number.
    """
    model = state_dict.get(MODEL)
    is_nested = isinstance(model, Mapping)
    entries: list[Entry] = []
    for key, value in state_dict.items():
        if is_nested and key == MODEL:
            for entry in _leaves(value, (), _replacer(state_dict, key)):
                section = "model" if is_tensor(entry.value) else "training"
                # An empty model has no names of its own.
                entries.append(entry._replace(name=entry.name or MODEL, path=(MODEL, *entry.path), section=section))
            continue
        replace = _replacer(state_dict, key)
        for entry in _leaves(value, (_segment(key),), replace):
            is_first = len(entry.path) == 1 and is_tensor(entry.value) and not is_nested
            entries.append(entry._replace(section="model" if is_first else "training"))
    return unique(entries)


def unique(entries: Iterable[Entry]) -> list[Entry]:
    """Entries whose names differ.

    Raises:
        UserError: two have the same name.
    """
    seen: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in seen:
            raise UserError(
                f"cannot name the entries of the state dict: {list(seen[entry.name].path)} and {list(entry.path)} both"
                f" become `{entry.name}`",
                "rename one of them",
            )
        seen[entry.name] = entry
    return list(seen.values())


def with_state_dicts(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replaces objects of the first level that have a `state_dict()` and a `load_state_dict()`, such as modules and
    optimizers, by their state dicts. Returns the state dict, and the objects by their keys.

    Raises:
        UserError: it is not a dict.
    """
    if _is_stateful(state):
        state = state.state_dict()
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise UserError(f"cannot save or load a {kind}: it is not a dict", "pass a state dict, or an object that has one")
    stateful = {key: value for key, value in state.items() if _is_stateful(value)}
    if not stateful:
        return state, {}  # type: ignore[return-value]
    return {key: value.state_dict() if key in stateful else value for key, value in state.items()}, stateful


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def is_tensor(value: object) -> bool:
    """Whether a value is saved as a tensor: one of torch, or a NumPy array."""
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        return True
    return hasattr(value, "data_ptr") or hasattr(value, "local_shards")


def _segment(key: object) -> str:
    # Optimizers number their parameters, and dicts of a checkpoint have names only.
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise UserError(f"cannot save a state dict with the key {key!r}", "use text or whole numbers as keys")


def _replacer(container: Any, key: Any) -> Callable[[Any], None]:
    def replace(value: Any) -> None:
        if not isinstance(container, (MutableMapping, MutableSequence)):
            raise UserError(f"cannot load into a {type(container).__name__}", "use a dict or a list")
        container[key] = value

    return replace


def _leaves(value: Any, path: tuple[Segment, ...], replace: Callable[[Any], None]) -> Iterator[Entry]:
    if isinstance(value, Mapping) and value:
        for key, child in value.items():
            yield from _leaves(child, (*path, _segment(key)), _replacer(value, key))
    elif _is_nested_list(value) and value:
        for index, child in enumerate(value):
            yield from _leaves(child, (*path, index), _replacer(value, index))
    else:
        is_empty = isinstance(value, Mapping) or (isinstance(value, list) and not value)
        name = ".".join(str(segment) for segment in path)
        yield Entry(name, (*path, None) if is_empty else path, "training", value, replace)


def _is_nested_list(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(child, Mapping) or is_tensor(child) or _is_nested_list(child) for child in value)


class TensorShard:
    """A rank's part of a tensor, as the native module takes it."""

    __slots__ = ("compared", "device", "dtype", "keep", "layout", "local_shape", "memory", "name", "parts", "section",
                 "shape")  # fmt: skip

    def __init__(self, name: str, section: str, sharding: Sharding, dtype: str) -> None:
        self.name = name
        self.section = section
        self.shape = list(sharding.shape)
        self.local_shape = list(sharding.local_shape)
        self.parts = [(list(part.local), list(part.start), list(part.size)) for part in sharding.parts]
        self.layout = sharding.layout
        self.dtype = dtype
        self.memory: Any = None
        self.device: DeviceMemory | None = None
        self.compared = False
        """Whether ranks compare what they hold: nobody said that it is the same on all of them."""
        self.keep: Any = None
        """What owns the memory."""

    def over(self, local: torch.Tensor) -> TensorShard:
        """The shard with the memory of a local tensor, to read from."""
        local = local.detach().resolve_neg()
        if is_on_host(local):
            self.keep = local.contiguous()
            self.memory = bytes_of(self.keep)
        else:
            self.device = DeviceMemory(local)
        return self


COMPARED_BYTES = 1 << 20
"""Tensors that are not distributed are compared between ranks up to this size: states of random numbers, counters."""


def shard_to_save(entry: Entry, world: int) -> TensorShard:
    """The memory of a tensor, to read from."""
    local, sharding, dtype = described(entry, world)
    shard = TensorShard(entry.name, entry.section, sharding, dtype).over(local)
    is_plain = sharding.parts == whole(sharding.shape) and local_tensor(entry.value) is entry.value
    shard.compared = world > 1 and is_plain and local.numel() * local.element_size() <= COMPARED_BYTES
    return shard


def described(entry: Entry, world: int) -> tuple[torch.Tensor, Sharding, str]:
    """The local tensor of an entry, its sharding and its dtype."""
    if not hasattr(entry.value, "data_ptr") and not hasattr(entry.value, "local_shards"):
        return _of_array(entry)
    check_dense(entry.name, entry.value)
    local = local_tensor(entry.value)
    return local, sharding_of(entry.name, entry.value, world), dtype_name(entry.name, local.dtype)


def check_dense(name: str, tensor: torch.Tensor) -> None:
    """Refuses tensors without plain memory.

    Raises:
        UserError: it is sparse, quantized or on the device meta.
    """
    if tensor.is_sparse or tensor.is_quantized or tensor.device.type == "meta":
        kind = "sparse" if tensor.is_sparse else "quantized" if tensor.is_quantized else "without memory (meta)"
        raise UserError(f"cannot save or load `{name}`: it is {kind}", "pass a dense tensor with memory")


def _of_array(entry: Entry) -> tuple[torch.Tensor, Sharding, str]:
    """A NumPy array as a tensor over the same memory."""
    import torch

    array = entry.value
    try:
        tensor = torch.from_numpy(array if array.flags.c_contiguous and array.flags.writeable else array.copy())
    except TypeError as error:
        raise UserError(f"cannot save or load `{entry.name}`: {error}", "convert the array to another dtype") from None
    shape = tuple(tensor.shape)
    return tensor, Sharding(shape, shape, whole(shape), None), dtype_name(entry.name, tensor.dtype)


def encoded(entry: Entry) -> bytes:
    """A value as JSON.

    Raises:
        UserError: it is neither a tensor nor what JSON can express.
    """
    try:
        text = json.dumps(entry.value, default=_scalar)
        compact = _weightloom.compact_json(text)
        # It has no integers of more than 64 bits.
        is_equal = compact is not None and repr(json.loads(compact)) == repr(json.loads(text))
        return (compact if compact is not None and is_equal else text).encode()
    except (TypeError, ValueError, RecursionError):
        kind = type(entry.value).__name__
        raise UserError(
            f"cannot save `{entry.name}`: a {kind} is neither a tensor nor JSON",
            "leave it out, or convert it to a tensor, number, text, list or dict",
        ) from None


def _scalar(value: Any) -> Any:
    """Numbers of NumPy."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError


def decoded(entry: Entry, stored: bytes) -> Any:
    """A stored value, as the type that the state dict has in its place."""
    try:
        value = json.loads(stored)
    except ValueError:
        raise UserError(f"cannot load `{entry.name}`: it is not stored as JSON", "load it with `open(…).value(…)`") from None
    if isinstance(entry.value, tuple) and isinstance(value, Sequence):
        return tuple(value)
    return value
