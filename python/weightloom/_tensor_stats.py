"""Statistics of the elements of tensors."""

from __future__ import annotations

from dataclasses import dataclass

from weightloom._call import Place, call


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Statistics of the elements of a tensor."""

    minimum: float | None
    """The least element that is not NaN; `None` if there is none, or if it is infinite."""
    maximum: float | None
    """The greatest element that is not NaN; `None` if there is none, or if it is infinite."""
    mean: float | None
    """The mean of the finite elements; `None` if there is none."""
    nan: int
    """The number of NaN elements."""
    infinite: int
    """The number of infinite elements."""
    zero: int
    """The number of zeros."""


def stats_of(place: Place) -> dict[str, TensorStats]:
    """Computes statistics of each tensor of a checkpoint.

    Raises:
        WeightloomError: a file cannot be read.

    Example:
        >>> import torch
        >>> from safetensors.torch import save_file
        >>> from weightloom._tensor_stats import stats_of
        >>> save_file({"w": torch.tensor([0.0, torch.inf])}, "model.safetensors")
        >>> stats_of("model.safetensors")["w"]
        TensorStats(minimum=0.0, maximum=None, mean=0.0, nan=0, infinite=1, zero=1)
    """
    tensors = call("inspect", [place], ["--stats"]).result["tensors"]
    return {name: _stats(tensor["stats"]) for name, tensor in tensors.items()}


def _stats(found: dict[str, float | None]) -> TensorStats:
    counts = (int(found[name] or 0) for name in ("nan", "infinite", "zero"))
    return TensorStats(found["min"], found["max"], found["mean"], *counts)
