"""Differences between two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from weightloom._amounts import counted
from weightloom._call import Place, call, text_of
from weightloom._visible import visible

Kind = Literal["shape", "dtype", "values"]

_SAYINGS: dict[Kind, str] = {
    "values": "with other values",
    "dtype": "with another dtype, or another sign of zero, and the same values",
    "shape": "with another shape",
}


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """How a tensor differs between two checkpoints that both have it."""

    name: str
    """The name of the tensor."""
    kind: Kind
    """What differs: `"shape"`, so that elements cannot be compared; `"values"`; or `"dtype"`, if all elements are equal
    as numbers and only dtypes or signs of zeros differ."""
    first: str
    """Its shape, or its dtype, in the first checkpoint."""
    second: str
    """The same in the second."""
    different: int = 0
    """The number of elements that differ as numbers."""
    max_abs: float = 0.0
    """The greatest difference; infinite if one has a number where the other has none."""
    max_rel: float = 0.0
    """The greatest difference as a share of the larger of both elements."""


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """What differs between two checkpoints. It is neither true nor false: `equal` says whether nothing does."""

    first: str
    """Where the first checkpoint is."""
    second: str
    """Where the second is."""
    equal: bool
    """Whether both have the same tensors with the same bits, whatever their formats."""
    changed: Mapping[str, TensorDiff]
    """Tensors of both that differ, by name."""
    identical: tuple[str, ...]
    """The names of tensors that are the same in both."""
    only_first: tuple[str, ...]
    """The names of tensors that only the first has."""
    only_second: tuple[str, ...]
    """The names of tensors that only the second has."""
    other: tuple[str, ...]
    """The names of entries that are not tensors and differ."""

    def __bool__(self) -> NoReturn:
        raise TypeError("a diff is neither true nor false: use `diff.equal`")

    def _summary(self) -> list[str]:
        same = len(self.identical)
        if self.equal:
            return [f"identical: {counted(same, 'tensor')}"]
        everything = same + len(self.changed) + len(self.only_first) + len(self.only_second)
        kinds = [diff.kind for diff in self.changed.values()]
        counts = [(kinds.count(kind), saying) for kind, saying in _SAYINGS.items()]
        counts += [(len(self.only_first), "only in the first"), (len(self.only_second), "only in the second")]
        counts.append((len(self.other), "other entries differ"))
        lines = [f"{same:,} of {counted(everything, 'tensor')} are identical"]
        lines += [f"{count:,} {saying}" for count, saying in counts if count]
        with_values = [diff for diff in self.changed.values() if diff.kind == "values"]
        if with_values:
            largest = max(with_values, key=lambda diff: diff.max_abs)
            lines.append(f"largest difference: {largest.max_abs:.3e} in `{visible(largest.name)}`")
        return lines

    def __repr__(self) -> str:
        return f"<Diff {', '.join(self._summary())}>"

    def _repr_html_(self) -> str:
        from weightloom._html import headline, page, table

        rows: list[tuple[object, ...]] = []
        rows += [(name, "only in the first", "", "", "") for name in self.only_first]
        rows += [(name, "only in the second", "", "", "") for name in self.only_second]
        rows += [(name, "bytes", "", "", "") for name in self.other]
        rows += [_row(diff) for diff in self.changed.values()]
        facts = headline(f"{self.first} and {self.second}", *self._summary())
        columns = ("tensor", "difference", "#elements", "#max abs", "#max rel")
        return page(facts, table(columns, rows, len(rows)) if rows else "")


def _row(diff: TensorDiff) -> tuple[object, ...]:
    if diff.kind == "shape":
        return diff.name, f"shape {diff.first} and {diff.second}", "", "", ""
    what = "values" if diff.first == diff.second else f"{diff.first} and {diff.second}"
    what += ", same values" if diff.kind == "dtype" and diff.first != diff.second else ""
    return diff.name, what, f"{diff.different:,}", f"{diff.max_abs:.3e}", f"{diff.max_rel:.3e}"


def diff(first: Place, second: Place) -> Diff:
    """Compares two checkpoints, of any formats, tensor by tensor. Reads every byte of both.

    Args:
        first: a path, run, card, `org/name` or URL, or a checkpoint that is open.
        second: another one.

    Raises:
        UserError: one of them does not exist.
        CheckFailed: one of them is damaged.
        OperationalError: a file cannot be read.

    Example:
        >>> import torch
        >>> from safetensors.torch import save_file
        >>> save_file({"w": torch.ones(4), "b": torch.zeros(2)}, "one.safetensors")
        >>> torch.save({"w": torch.tensor([1.0, 1.0, 1.5, 1.0]), "b": torch.zeros(2)}, "two.pt")
        >>> found = wl.diff("one.safetensors", "two.pt")
        >>> found
        <Diff 1 of 2 tensors are identical, 1 with other values, largest difference: 5.000e-01 in `w`>
        >>> found.equal, found.changed["w"].different
        (False, 1)
    """
    found = call("diff", [first, second]).result
    both = found["both"]
    changed = {name: _tensor_diff(name, how) for name, how in both.items() if how["difference"] != "identical"}
    return Diff(
        first=text_of(first),
        second=text_of(second),
        equal=found["identical"],
        changed=changed,
        identical=tuple(name for name in both if name not in changed),
        only_first=tuple(found["only_first"]),
        only_second=tuple(found["only_second"]),
        other=tuple(found["other"]),
    )


def _tensor_diff(name: str, how: Mapping[str, Any]) -> TensorDiff:
    first, second = str(how["first"]), str(how["second"])
    if how["difference"] == "shape":
        return TensorDiff(name, "shape", first, second)
    different = how["different"]
    # JSON has no infinity.
    max_abs, max_rel = (math.inf if how[key] is None else float(how[key]) for key in ("max_abs", "max_rel"))
    return TensorDiff(name, "values" if different else "dtype", first, second, different, max_abs, max_rel)
