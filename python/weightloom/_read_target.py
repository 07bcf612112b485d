"""Memory of arrays and tensors that a stored tensor is read into."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weightloom._errors import UserError
from weightloom._tensor_memory import bytes_of

if TYPE_CHECKING:
    import numpy
    import torch

    from weightloom._stored_tensor import StoredTensor


def check_kind(target: object) -> None:
    """Refuses what has no memory for elements.

    Raises:
        UserError: it is neither a tensor nor an array, or one that cannot be written to.
    """
    if _is_tensor(target):
        tensor: Any = target
        if hasattr(tensor, "placements"):
            raise _unfit("tensor", "it is distributed", "use `wl.load`, which fills state dicts on any mesh")
        if tensor.is_meta:
            raise _unfit("tensor", "it is on the device meta", "pass a tensor with memory")
        if str(tensor.layout) != "torch.strided":
            raise _unfit("tensor", "it is sparse", "pass a dense tensor")
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        if any(size > 1 and stride == 0 for size, stride in strides):
            raise _unfit("tensor", "some of its elements share memory", "pass a copy, as `tensor.clone()` makes it")
    elif _is_array(target):
        array: Any = target
        if not array.flags.writeable:
            raise _unfit("array", "it is read-only", "pass a writable array")
    else:
        kind = type(target).__name__
        raise UserError(f"cannot read into a {kind}: it is neither a tensor nor an array", "pass one of torch or NumPy")


def memory_of(target: torch.Tensor | numpy.ndarray[Any, Any]) -> Any:
    """The contiguous memory of a target as bytes; `None` if its elements are elsewhere or in another order."""
    if _is_tensor(target):
        import torch

        tensor: Any = target
        is_direct = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        if not is_direct or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            return None
        # What autograd has saved of the tensor is no longer its value. Tensors of the inference mode have no version.
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
        return bytes_of(tensor)
    array: Any = target
    if not array.flags.c_contiguous:
        return None
    import numpy

    return array.reshape(-1).view(numpy.uint8)


def put(stored: StoredTensor, target: torch.Tensor | numpy.ndarray[Any, Any]) -> None:
    """Reads into memory of our own, and copies from there."""
    if not _is_tensor(target):
        array: Any = target
        array[...] = stored.numpy(array.dtype)
        return
    import torch

    tensor: Any = target
    with torch.no_grad():
        tensor.copy_(stored.torch(tensor.dtype))


def _is_tensor(target: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.Tensor)


def _is_array(target: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(target, numpy.ndarray)


def _unfit(kind: str, reason: str, hint: str) -> UserError:
    return UserError(f"cannot read into this {kind}: {reason}", hint)
