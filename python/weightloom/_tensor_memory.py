"""Memory of torch tensors, as bytes that the native module reads and writes."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from weightloom._errors import UserError

if TYPE_CHECKING:
    import torch

DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
    "bool": "bool",
}
"""Names of dtypes here, by those of torch."""


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """The name of a tensor's dtype.

    Raises:
        UserError: no checkpoint can hold it.
    """
    known = DTYPES.get(str(dtype).removeprefix("torch."))
    if known is None:
        raise UserError(f"cannot save or load `{name}`: its dtype is {dtype}", f"convert it to one of {', '.join(DTYPES)}")
    return known


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor on the CPU, without copying it. The tensor has to outlive it."""
    length = tensor.numel() * tensor.element_size()
    # An array of no bytes cannot be at an address.
    if length == 0:
        return bytearray()
    # As a view, since arrays of ctypes do not say their strides.
    return memoryview((ctypes.c_ubyte * length).from_address(tensor.data_ptr())).cast("B")


class PinnedMemory:
    """Slots of pinned memory that copies from devices share, so that few are allocated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[torch.Tensor] = []
        self.allocated = 0
        """Bytes of all slots, in use or free."""

    def take(self, length: int) -> torch.Tensor:
        """A slot of at least so many bytes."""
        import torch

        with self._lock:
            for index, slot in enumerate(self._free):
                if slot.numel() >= length:
                    return self._free.pop(index)
            # Smaller ones would never be used again.
            self.allocated += length - sum(slot.numel() for slot in self._free)
            self._free.clear()
        return torch.empty(length, dtype=torch.uint8, pin_memory=torch.cuda.is_available())

    def give_back(self, slot: torch.Tensor) -> None:
        """Makes a slot free for the next copy."""
        with self._lock:
            self._free.append(slot)

    def clear(self) -> None:
        """Frees the slots that are not in use."""
        with self._lock:
            self.allocated -= sum(slot.numel() for slot in self._free)
            self._free.clear()


PINNED = PinnedMemory()


class DeviceMemory:
    """A tensor on a device, of which ranges are copied through pinned memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch

        self._bytes = tensor.contiguous().reshape(-1).view(torch.uint8)
        self._slots: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self._bytes.numel()

    def read(self, offset: int, length: int) -> Any:
        """Copies bytes from an offset on. They are valid until they are given back."""
        slot = PINNED.take(length)
        part = slot[:length]
        part.copy_(self._bytes[offset : offset + length])
        memory = bytes_of(part)
        self._slots[id(memory)] = slot
        return memory

    def give_back(self, memory: Any) -> None:
        """Ends the use of what was read."""
        PINNED.give_back(self._slots.pop(id(memory)))


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the processor can read and write the memory of a tensor."""
    return tensor.device.type == "cpu"
