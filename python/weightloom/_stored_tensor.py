"""Tensors of a checkpoint, of which nothing has been read yet."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

from weightloom._amounts import size as size_text
from weightloom._dtypes import native_name, numpy_dtype, torch_dtype
from weightloom._errors import UserError
from weightloom._visible import visible

if TYPE_CHECKING:
    # The methods `numpy` and `torch` hide the modules.
    from numpy import dtype as Dtype
    from numpy import ndarray
    from torch import Tensor
    from torch import device as Device
    from torch import dtype as TorchDtype

    from weightloom._checkpoint import Checkpoint

SIZES = {
    "f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element."""

Index = int | slice | EllipsisType


class TensorInfo(NamedTuple):
    """What headers say about a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    stored_nbytes: int
    tiles: int
    quantization: str | None


class Part(NamedTuple):
    """A part of a tensor: a range of each dim, and the dims that an int did not remove."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    dims: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Part:
        """All of a tensor."""
        return cls((0,) * len(shape), shape, tuple(range(len(shape))))


class StoredTensor:
    """A tensor of a checkpoint, or a part of one. Only `torch`, `numpy`, `to_bytes` and `read_into` read.

    A slice such as `tensor[0:10, ..., 3]` is a part of the tensor, of which nothing has been read either.

    Example:
        >>> import tempfile, numpy, weightloom as wl
        >>> from safetensors.numpy import save_file
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save_file({"w": numpy.arange(12, dtype=numpy.float32).reshape(3, 4)}, path)
        >>> tensor = wl.open(path)["w"]
        >>> tensor
        <StoredTensor w: f32 [3, 4], 48 B>
        >>> tensor[1:, 0].numpy()
        array([4., 8.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_checkpoint", "_info", "_part")

    def __init__(self, checkpoint: Checkpoint, info: TensorInfo, part: Part) -> None:
        self._checkpoint = checkpoint
        self._info = info
        self._part = part

    @property
    def name(self) -> str:
        """The name in the checkpoint."""
        return self._info.name

    @property
    def dtype(self) -> str:
        """The dtype once decoded, such as `bf16`."""
        return self._info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dims."""
        return tuple(self._part.size[dim] for dim in self._part.dims)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self._part.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements once decoded."""
        return math.prod(self._part.size) * SIZES[self.dtype]

    @property
    def stored_nbytes(self) -> int:
        """Bytes that the whole tensor takes in the files."""
        return self._info.stored_nbytes

    @property
    def quantization(self) -> str | None:
        """How the elements are stored, such as `Q4_K`, if not as they are."""
        return self._info.quantization

    def __repr__(self) -> str:
        stored = f", stored as {self.quantization}" if self.quantization else ""
        return f"<StoredTensor {visible(self.name)}: {self.dtype} {list(self.shape)}, {size_text(self.nbytes)}{stored}>"

    def __len__(self) -> int:
        if not self._part.dims:
            raise TypeError(f"`{self.name}` has no dims, and so no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        # Of a handle, and not of elements: `checkpoint.get("w") or default` works.
        return True

    def __iter__(self) -> Iterator[StoredTensor]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor_of, (self._checkpoint, self._info, self._part)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> StoredTensor:
        """A part of the tensor: ints, slices with step 1 and `...`, as in NumPy.

        Raises:
            UserError: the index is of another kind, or outside.
        """
        indices = list(index) if isinstance(index, tuple) else [index]
        given = sum(item is not ... for item in indices)
        if given > self.ndim or len(indices) - given > 1:
            raise self._unfit(index, f"it has {self.ndim} dims")
        place = next((at for at, item in enumerate(indices) if item is ...), len(indices))
        indices[place : place + 1] = [slice(None)] * (self.ndim - given)
        start, size, dims = list(self._part.start), list(self._part.size), []
        for dim, item in zip(self._part.dims, indices, strict=True):
            if isinstance(item, slice):
                first, last = self._range(item, size[dim], index)
                start[dim], size[dim] = start[dim] + first, last - first
                dims.append(dim)
            else:
                start[dim], size[dim] = start[dim] + self._position(item, size[dim], index), 1
        return StoredTensor(self._checkpoint, self._info, Part(tuple(start), tuple(size), tuple(dims)))

    def _range(self, item: slice, size: int, index: object) -> tuple[int, int]:
        try:
            first, last, step = item.indices(size)
        except (TypeError, ValueError):
            raise self._unfit(index, "its slices are not of whole numbers") from None
        if step != 1:
            raise self._unfit(index, f"the step of a slice is {step}")
        return first, max(first, last)

    def _position(self, item: Any, size: int, index: object) -> int:
        # A bool is a mask to NumPy and torch, and an int to Python.
        is_mask = isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool")
        try:
            position = None if is_mask or getattr(item, "shape", ()) != () else operator.index(item)
        except TypeError:
            position = None
        if position is None:
            raise self._unfit(index, f"a {type(item).__name__} chooses elements one by one")
        if not -size <= position < size:
            raise self._unfit(index, f"{position} is outside of a dim of size {size}")
        return position % size

    def _unfit(self, index: object, reason: str) -> UserError:
        return UserError(
            f"cannot take {index!r} of `{self.name}`, of shape {list(self.shape)}: {reason}",
            "use ints, slices with step 1 and `...`, and index what `.torch()` or `.numpy()` returns",
        )

    def torch(self, dtype: object | None = None, device: Device | str | int | None = None) -> Tensor:
        """The tensor in torch. Every call returns another one, with memory of its own.

        What is stored as it is in a local file is mapped: pages are read when they are used, and writes stay in memory.
        The file must not be cut short meanwhile.

        Args:
            dtype: the dtype to convert to, of torch or by name.
            device: the device to copy to; by default the CPU.

        Raises:
            UserError: torch is not installed, or there is no such dtype.
            WeightloomError: the file cannot be read.

        Example:
            >>> import tempfile, torch, weightloom as wl
            >>> from safetensors.torch import save_file
            >>> path = tempfile.mkdtemp() + "/model.safetensors"
            >>> save_file({"w": torch.ones(2, 2, dtype=torch.bfloat16)}, path)
            >>> wl.open(path)["w"].torch()
            tensor([[1., 1.],
                    [1., 1.]], dtype=torch.bfloat16)
        """
        name = self.dtype if dtype is None else native_name(dtype)
        kind = torch_dtype(name)
        tensor = tensor_over(self._read(name), kind, self.shape)
        return tensor if device is None else tensor.to(device)

    def numpy(self, dtype: object | None = None) -> ndarray[Any, Any]:
        """The tensor in NumPy. Every call returns another array, with memory of its own, mapped as for `torch`.

        NumPy has neither bf16 nor float8. Arrays of those are of `ml_dtypes`, if that is installed.

        Args:
            dtype: the dtype to convert to, of NumPy or by name.

        Raises:
            UserError: NumPy is not installed, or has no such dtype.
            WeightloomError: the file cannot be read.

        Example:
            >>> import tempfile, torch, weightloom as wl
            >>> from safetensors.torch import save_file
            >>> path = tempfile.mkdtemp() + "/model.safetensors"
            >>> save_file({"w": torch.ones(2, dtype=torch.bfloat16)}, path)
            >>> wl.open(path)["w"].numpy(dtype="f32")
            array([1., 1.], dtype=float32)
        """
        name = self.dtype if dtype is None else native_name(dtype)
        kind = numpy_dtype(name)
        return array_over(self._read(name), kind, self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"`{self.name}` is in a file, and an array needs memory")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def to_bytes(self) -> bytes:
        """The elements in row-major order, little endian.

        Raises:
            WeightloomError: the file cannot be read.

        Example:
            >>> import tempfile, numpy, weightloom as wl
            >>> from safetensors.numpy import save_file
            >>> path = tempfile.mkdtemp() + "/model.safetensors"
            >>> save_file({"w": numpy.array([1, 2], dtype=numpy.uint8)}, path)
            >>> wl.open(path)["w"].to_bytes()
            b'\\x01\\x02'
        """
        return bytes(memoryview(self._read(self.dtype)))

    def read_into(self, target: Tensor | ndarray[Any, Any]) -> None:
        """Reads into an array or a tensor, whose dtype the elements are converted to.

        Args:
            target: of the same shape, on any device.

        Raises:
            UserError: the shape is another one, or the target cannot be written to.
            WeightloomError: the file cannot be read.

        Example:
            >>> import tempfile, numpy, weightloom as wl
            >>> from safetensors.numpy import save_file
            >>> path = tempfile.mkdtemp() + "/model.safetensors"
            >>> save_file({"w": numpy.array([1.5, 2.5], dtype=numpy.float16)}, path)
            >>> target = numpy.zeros(2)
            >>> wl.open(path)["w"].read_into(target)
            >>> target
            array([1.5, 2.5])
        """
        from weightloom._read_target import check_kind, memory_of, put

        check_kind(target)
        if tuple(target.shape) != self.shape:
            shape = list(target.shape)
            raise UserError(
                f"cannot read `{self.name}` into a target of shape {shape}: its shape is {list(self.shape)}",
                "pass a target of the same shape, or a part of the tensor",
            )
        name = native_name(target.dtype)
        memory = memory_of(target)
        if memory is None:
            put(self, target)
        else:
            self._checkpoint.native.read_into(
                self.name, list(self._part.start), list(self._part.size), name, memory
            )

    def _read(self, dtype: str) -> Any:
        """The elements as an object with the buffer protocol."""
        return self._checkpoint.native.read(self.name, list(self._part.start), list(self._part.size), dtype)


def _tensor_of(checkpoint: Checkpoint, info: TensorInfo, part: Part) -> StoredTensor:
    """A tensor that was pickled."""
    return StoredTensor(checkpoint, info, part)


def tensor_over(buffer: Any, dtype: TorchDtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor over memory, which it keeps."""
    import torch

    # Torch refuses memory of no bytes.
    if len(buffer) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def array_over(buffer: Any, dtype: Dtype[Any], shape: tuple[int, ...]) -> ndarray[Any, Any]:
    """An array over memory, which it keeps."""
    import numpy

    return numpy.ndarray(shape, dtype, buffer)
