"""Dtypes by the names of torch, NumPy and checkpoints."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weightloom._errors import UserError
from weightloom._tensor_memory import DTYPES

if TYPE_CHECKING:
    import numpy
    import torch

FOREIGN = {name: foreign for foreign, name in DTYPES.items()}
"""Names of dtypes in torch and NumPy, by those here."""

_NOT_IN_NUMPY = ("bf16", "f8e4m3", "f8e5m2")


def native_name(dtype: object) -> str:
    """The name of a dtype here, of one of torch or NumPy, or of its name.

    Raises:
        UserError: no checkpoint can hold it.

    Example:
        >>> from weightloom._dtypes import native_name
        >>> native_name("bfloat16"), native_name("f32")
        ('bf16', 'f32')
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    name = str(name or dtype).removeprefix("torch.")
    known = name if name in FOREIGN else DTYPES.get(name)
    if known is None or getattr(dtype, "byteorder", "=") == ">":
        raise UserError(f"cannot use the dtype `{dtype}`: checkpoints have no such dtype", f"use one of {', '.join(FOREIGN)}")
    return known


def torch_dtype(name: str) -> torch.dtype:
    """A dtype of torch, by its name here.

    Raises:
        UserError: torch is not installed, or too old for the dtype.
    """
    try:
        import torch
    except ImportError:
        raise UserError("cannot make a tensor: torch is not installed", "install torch, or use `.numpy()`") from None
    found: torch.dtype | None = getattr(torch, FOREIGN[name], None)
    if found is None:
        raise UserError(f"cannot make a tensor of {name}: torch {torch.__version__} has no such dtype", "update torch")
    return found


def numpy_dtype(name: str) -> numpy.dtype[Any]:
    """A dtype of NumPy, by its name here. Those that NumPy lacks are of `ml_dtypes`, if that is installed.

    Raises:
        UserError: NumPy is not installed, or has no such dtype.
    """
    try:
        import numpy
    except ImportError:
        raise UserError("cannot make an array: numpy is not installed", "install numpy, or use `.to_bytes()`") from None
    if name not in _NOT_IN_NUMPY:
        return numpy.dtype(FOREIGN[name])
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise UserError(
            f"cannot make an array of {name}: NumPy has no such dtype",
            'use `.numpy(dtype="f32")` or `.torch()`, or install ml_dtypes',
        ) from None
    found: numpy.dtype[Any] = numpy.dtype(getattr(ml_dtypes, FOREIGN[name]))
    return found
