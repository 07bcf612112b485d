"""Loads into state dicts, on one process or many."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from weightloom import _weightloom
from weightloom._agreement import together
from weightloom._amounts import counted
from weightloom._amounts import size as size_text
from weightloom._checkpoint import Checkpoint
from weightloom._checkpoint import open as open_checkpoint
from weightloom._errors import MissingTensor, UserError
from weightloom._group import DEFAULT_TIMEOUT, ranks_of
from weightloom._load_target import LoadTarget, groups_of
from weightloom._progress import Progress, new_progress
from weightloom._state import MODEL, Entry, decoded, entries_of, is_tensor, with_state_dicts

if TYPE_CHECKING:
    from weightloom._weightloom import Gang

_NAMED = 8
"""Names of which a message gives near ones."""


class LoadReport(NamedTuple):
    """What a load read, and what it did not find.

    Example:
        >>> import torch
        >>> _ = wl.save({"w": torch.ones(2), "b": torch.ones(2)}, "step_1")
        >>> report = wl.load({"w": torch.zeros(2)}, "step_1")
        >>> report.unread
        ('b',)
    """

    location: str
    """Where it was read."""
    missing: tuple[str, ...]
    """Entries of the state dict that the checkpoint lacks. They are as they were."""
    unread: tuple[str, ...]
    """Tensors of the stored model that no rank has asked for."""
    nbytes: int
    """Bytes of this rank's tensors that were read."""
    verified: int
    """Bytes that were compared with checksums, on all ranks."""
    seconds: float
    """The duration."""

    def __repr__(self) -> str:
        lacks = f", {len(self.missing)} missing" if self.missing else ""
        rest = f", {len(self.unread)} unread" if self.unread else ""
        return f"<LoadReport {self.location}: {size_text(self.nbytes)} in {self.seconds:.2f} s{lacks}{rest}>"


class _Wanted(NamedTuple):
    """What this rank loads."""

    checkpoint: Checkpoint
    state: dict[str, Any]
    stateful: dict[str, Any]
    tensors: list[LoadTarget]
    values: dict[str, Entry]
    """Entries by the names that they are stored under."""
    missing: list[str]
    names: list[str]
    """The stored names of all tensors, also of those that share their memory."""


def load(
    state_dict: Mapping[str, Any] | Any,
    path: str | os.PathLike[str] | Checkpoint,
    *,
    strict: bool = True,
    process_group: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> LoadReport:
    """Loads a checkpoint into a state dict, in place. Under `torch.distributed`, every rank calls this.

    The checkpoint may be in any format and saved on any mesh. Each rank reads what it holds of each tensor, and
    converts it to the dtype of the tensor. Values that are not tensors are put into the dict. Objects of the first
    level with a `state_dict()`, such as modules and optimizers, are given theirs with `load_state_dict()`. Where a
    checkpoint has checksums, they are compared.

    Nothing is read before every rank has found that all names and shapes fit.

    Args:
        state_dict: what to load into, or an object that has a state dict.
        path: a checkpoint, as for `wl.open`.
        strict: whether it is an error if the checkpoint lacks an entry of the state dict.
        process_group: the ranks that load; by default all.
        timeout: seconds after which a rank stops waiting for the others.

    Returns:
        What was read, what is missing, and what was not asked for.

    Raises:
        MissingTensor: the checkpoint lacks entries of the state dict; all are listed.
        UserError: a shape is another one, or the state dict cannot be loaded into.
        CheckFailed: the checkpoint is damaged.
        OperationalError: it cannot be read, or another rank ended or is late.

    Example:
        >>> import torch
        >>> _ = wl.save({"model": {"w": torch.ones(2)}, "epoch": 3}, "step_1")
        >>> state = {"model": {"w": torch.zeros(2, dtype=torch.bfloat16)}, "epoch": 0}
        >>> wl.load(state, "step_1")
        <LoadReport .../step_1: 4 B in ... s>
        >>> state
        {'model': {'w': tensor([1., 1.], dtype=torch.bfloat16)}, 'epoch': 3}
    """
    started = time.monotonic()
    ranks = ranks_of(process_group, timeout)
    gang = ranks.gang
    wanted, staged = together(gang, lambda: _want(state_dict, path, gang, strict), _staged_sizes)
    progress = new_progress() if gang.rank == 0 else Progress()
    try:
        nbytes, verified, stored, unread = _load(gang, wanted, groups_of(wanted.tensors, staged), progress)
    finally:
        progress.close()
    for name, bytes_ in stored.items():
        entry = wanted.values[name]
        value = decoded(entry, bytes_)
        # A tuple cannot be changed, and need not be if nothing is new.
        if value != entry.value:
            entry.replace(value)
    if isinstance(state_dict, MutableMapping) and wanted.stateful:
        # What was loaded into is a copy, in which state dicts are in the place of objects.
        state_dict.update({key: value for key, value in wanted.state.items() if key not in wanted.stateful})
    for key, stateful in wanted.stateful.items():
        stateful.load_state_dict(wanted.state[key])
    seconds = time.monotonic() - started
    return LoadReport(wanted.checkpoint.location, tuple(wanted.missing), unread, nbytes, verified, seconds)


def _want(state_dict: Any, path: Any, gang: Gang, strict: bool) -> _Wanted:
    """What this rank loads, once it is known that it fits. No rank waits for another one here."""
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path)
    whole = None if isinstance(state_dict, Mapping) else state_dict
    state, stateful = with_state_dicts(state_dict)
    if whole is not None:
        state, stateful = {MODEL: state}, {MODEL: whole}
    tensors: list[LoadTarget] = []
    values: dict[str, Entry] = {}
    missing: list[Entry] = []
    others = set(checkpoint.entries)
    for entry in entries_of(state):
        # An empty dict, such as the state of a new optimizer, asks for nothing.
        if entry.path[-1] is None:
            continue
        names: Iterable[str] = _stored_names(entry)
        found = next((name for name in names if name in (checkpoint if is_tensor(entry.value) else others)), None)
        if found is None:
            missing.append(entry)
        elif is_tensor(entry.value):
            tensors.append(LoadTarget(entry, found, gang.size))
        else:
            values[found] = entry
    _check_shapes(checkpoint, tensors)
    names = [target.shard.name for target in tensors]
    tensors, tied = untied(tensors)
    missing = [entry for entry in missing if not (is_tensor(entry.value) and LoadTarget.place_of(entry) in tied)]
    if missing and strict:
        raise _missing(checkpoint, missing)
    return _Wanted(checkpoint, state, stateful, tensors, values, [entry.name for entry in missing], names)


def _stored_names(entry: Entry) -> Sequence[str]:
    """The names that an entry may have in a checkpoint: its own, or that of `torch.distributed.checkpoint`."""
    joined = ".".join(str(segment) for segment in entry.path)
    return (entry.name, joined, f"{MODEL}.{entry.name}") if entry.section == "model" else (entry.name, joined)


def untied(tensors: list[LoadTarget]) -> tuple[list[LoadTarget], set[tuple[int, int]]]:
    """Tensors without those that share their memory with one before, such as the embedding that is also the last
    layer; and all places in memory."""
    by_place: dict[tuple[int, int], LoadTarget] = {}
    found: list[LoadTarget] = []
    for target in tensors:
        if target.place not in by_place or not target.nbytes:
            found.append(target)
            by_place[target.place] = target
    end = 0
    for place, target in sorted(by_place.items()):
        # Two reads at once into the same bytes would be a race.
        target.is_direct = target.is_direct and place[0] >= end
        end = max(end, sum(place))
    return found, set(by_place)


def _check_shapes(checkpoint: Checkpoint, tensors: list[LoadTarget]) -> None:
    wrong = [
        f"\n  {target.shard.name}: {target.shard.shape} in the state dict, {list(checkpoint[target.shard.name].shape)}"
        " in the checkpoint"
        for target in tensors
        if tuple(target.shard.shape) != checkpoint[target.shard.name].shape
    ]
    if wrong:
        raise UserError(
            f"cannot load {checkpoint.location}: {counted(len(wrong), 'tensor')} of another shape:{''.join(wrong)}",
            "make the model with the config that it was saved with",
        )


def _missing(checkpoint: Checkpoint, missing: list[Entry]) -> MissingTensor:
    stored = [*checkpoint, *checkpoint.entries]
    lines = []
    for number, entry in enumerate(missing):
        near = get_close_matches(entry.name, stored, 1) if number < _NAMED else []
        lines.append(f"\n  {entry.name}" + (f" (did you mean `{near[0]}`?)" if near else ""))
    count = f"{len(missing):,} {'entry' if len(missing) == 1 else 'entries'}"
    return MissingTensor(
        f"cannot load {checkpoint.location}: it lacks {count} of the state dict:{''.join(lines)}",
        "leave them out, or pass `strict=False` to leave them as they are",
    )


def _staged_sizes(wanted: _Wanted) -> dict[str, int]:
    """Bytes of tensors that are read into memory of our own first, by name."""
    return {target.shard.name: target.nbytes for target in wanted.tensors if not target.is_direct}


def _load(
    gang: Gang, wanted: _Wanted, groups: list[list[LoadTarget]], progress: Progress
) -> tuple[int, int, dict[str, bytes], tuple[str, ...]]:
    """Loads group after group."""
    nbytes, verified, stored = load_groups(gang, wanted.checkpoint, groups, list(wanted.values), progress)
    return nbytes, verified, stored, tuple(_weightloom.unread_tensors(gang, wanted.checkpoint.native, wanted.names))


def load_groups(
    gang: Gang, checkpoint: Checkpoint, groups: list[list[LoadTarget]], values: list[str], progress: Progress
) -> tuple[int, int, dict[str, bytes]]:
    """Loads groups of tensors one after the other, with values. Every rank calls this.

    Returns bytes that were read, bytes that were compared with checksums, and stored values by name.
    """
    nbytes, verified = 0, 0
    stored: dict[str, bytes] = {}
    for group in groups:
        for target in group:
            target.acquire()
        shards = [target.shard for target in group]
        read, _, compared, found = _weightloom.load_state(gang, checkpoint.native, shards, values, progress)
        for target in group:
            target.release()
        nbytes, verified, stored = nbytes + read, verified + compared, stored | found
        values = []
    return nbytes, verified, stored
