"""Storage of `torch.distributed.checkpoint`."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from weightloom import _weightloom
from weightloom._agreement import together
from weightloom._assets import Assets, assets_of
from weightloom._checkpoint import Checkpoint
from weightloom._checkpoint import open as open_checkpoint
from weightloom._errors import UserError
from weightloom._group import DEFAULT_TIMEOUT, Ranks, ranks_of
from weightloom._load import load_groups, untied
from weightloom._load_target import LoadTarget, groups_of
from weightloom._progress import Progress, new_progress
from weightloom._save import SHARD_SIZE, Prepared, SavedValue, SaveFormat, Saver, SaveReport, SaveRequest, saver_of
from weightloom._sharding import local_tensor
from weightloom._state import Entry, unique
from weightloom.integrations._boxes import Box, JoinedBoxes
from weightloom.integrations._entry_names import EntryMetadata, EntryNames, storage_metadata
from weightloom.integrations._write_items import WriteItems, entry_of, shard_of, size_of, unchanging

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner


class StorageWriter(storage.StorageWriter):
    """Makes `torch.distributed.checkpoint` save here: into a Hugging Face folder with a fingerprint.

    The result is that of `wl.save` with the same state dict. Values that are not tensors have to be JSON: nothing is
    pickled. With `dcp.async_save`, torch copies the state, and this writes the copy. The first save makes a gloo group
    of the ranks: as `dcp.async_save` runs it in a thread, make no other groups meanwhile.

    Args:
        path: a new folder, or a URL such as `s3://bucket/step_100`. `checkpoint_id` of `dcp.save` overrides it.
        format: as in `wl.save`.
        step: the step of the training.
        assets: files of the model, as in `wl.save`.
        shard_size: the most bytes of one file of the model.
        process_group: the `process_group` of `dcp.save`, if it has one.
        timeout: seconds after which a rank stops waiting for the others.

    Example:
        >>> import torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from weightloom.integrations.dcp import StorageWriter
        >>> writer = StorageWriter("step_1")
        >>> _ = dcp.save({"model": {"w": torch.ones(2)}, "epoch": 3}, storage_writer=writer, no_dist=True)
        >>> writer.report
        <SaveReport step_1: 9 B in ... s, fingerprint ...>
        >>> wl.open("step_1").state_dict()
        {'model': {'w': tensor([1., 1.])}, 'epoch': 3}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: SaveFormat = "native",
        step: int | None = None,
        assets: Assets | None = None,
        shard_size: int = SHARD_SIZE,
        process_group: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.path = path
        self.format: SaveFormat = format
        self.step = step
        self.assets = assets
        self.shard_size = shard_size
        self.process_group = process_group
        self.timeout = timeout
        self.report: SaveReport | None = None
        """What the last save wrote."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a save, to another path if there is one."""
        self.report = None
        if checkpoint_id is not None:
            self.path = checkpoint_id

    def storage_meta(self) -> StorageMeta | None:
        """Where the save goes."""
        return StorageMeta(checkpoint_id=self.path)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses saves without collectives, of which no rank knows the others.

        Raises:
            UserError: `dcp.save` was called with `use_collectives=False`.
        """
        if not kwargs.get("use_collectives", True):
            raise UserError("cannot save without collectives", "leave out `use_collectives=False`")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leaves the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells every rank how many there are: one with `no_dist=True`."""
        return [dataclasses.replace(plan, storage_data=len(plans)) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[storage.WriteResult]]:
        """Saves what the plan has for this rank, together with the other ranks.

        Raises:
            UserError: a value is not JSON, there is something at the path, or the process group is another one.
            OperationalError: it cannot be written, or another rank ended or is late.
        """
        ranks, saver = self._meet(plan.storage_data)
        gang = ranks.gang
        # Sections and names depend on all ranks: those of a pipeline have different entries.
        items, found = together(gang, lambda: WriteItems.of(plan, planner), lambda items: items.described())
        prepared, _ = together(gang, lambda: self._prepared(items, found, ranks, saver))
        self.report = saver.save(prepared)
        written: Future[list[storage.WriteResult]] = Future()
        written.set_result([storage.WriteResult(item.index, size_of(item), None) for item in plan.items])
        return written

    def finish(self, metadata: Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Does nothing: the checkpoint is complete once all ranks have written."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path or a URL."""
        return bool(os.fspath(checkpoint_id))

    def _meet(self, count: object) -> tuple[Ranks, Saver]:
        size = _group_size(self.process_group)
        if count == 1 < size:
            ranks = _alone(self.timeout)
        elif count in (size, None):
            ranks = ranks_of(self.process_group, self.timeout)
        else:
            raise UserError(
                f"cannot save from {count} ranks with a process group of {size}",
                "pass the `process_group` of `dcp.save` to `StorageWriter` too",
            )
        return ranks, saver_of(ranks)

    def _prepared(self, items: WriteItems, found: Sequence[Any], ranks: Ranks, saver: Saver) -> Prepared:
        """What this rank saves. No rank waits for another one here."""
        saver.settle()
        is_nested = any(one["nested"] for one in found)
        unique(entry_of(path, None, is_nested) for path in items.paths.values())
        entries = [entry_of(path, boxes[0].tensor, is_nested) for path, (_, boxes) in items.tensors.items()]
        tensors = [
            shard_of(entry, shape, boxes) for entry, (shape, boxes) in zip(entries, items.tensors.values(), strict=True)
        ]
        # The plan has each value on one rank. All ranks say the same here.
        texts = {tuple(path): text for one in found for path, text in one["values"]}
        texts |= items.values
        of_values = [entry_of(path, None, is_nested) for path in texts]
        values = [SavedValue(entry.name, text.encode()) for entry, text in zip(of_values, texts.values(), strict=True)]
        assets = assets_of(self.assets) if ranks.gang.rank == 0 else {}
        entries += of_values
        request = SaveRequest(
            os.fspath(self.path), self.format, self.step, assets, entries, self.shard_size, budget=None
        )
        return Prepared(tensors, values, request)


class StorageReader(storage.StorageReader):
    """Makes `torch.distributed.checkpoint` load any checkpoint that `wl.open` opens, into state dicts on any mesh.

    Elements are converted to the dtype of the state dict, and compared with checksums if the checkpoint has them.

    Args:
        path: a checkpoint, as for `wl.open`. `checkpoint_id` of `dcp.load` overrides it.
        process_group: the `process_group` of `dcp.load`, if it has one.
        timeout: seconds after which a rank stops waiting for the others.

    Example:
        >>> import torch
        >>> import torch.distributed.checkpoint as dcp
        >>> from weightloom.integrations.dcp import StorageReader
        >>> _ = wl.save({"model": {"w": torch.ones(2)}, "epoch": 3}, "step_1")
        >>> state = {"model": {"w": torch.zeros(2)}, "epoch": 0}
        >>> dcp.load(state, storage_reader=StorageReader("step_1"), no_dist=True)
        >>> state
        {'model': {'w': tensor([1., 1.])}, 'epoch': 3}
    """

    def __init__(
        self, path: str | os.PathLike[str], *, process_group: Any = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self.path = path
        self.process_group = process_group
        self.timeout = timeout
        self._opened: tuple[Checkpoint, EntryNames] | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a load, from another path if there is one."""
        self._opened = None
        if checkpoint_id is not None:
            self.path = checkpoint_id

    # torch would call this once more if it took `kwargs`: for the files of a single rank.
    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Opens the checkpoint, and lists its entries.

        Raises:
            WeightloomError: there is no checkpoint, or it is damaged.
        """
        checkpoint, names = self._open()
        found = {fqn: storage_metadata(checkpoint, stored) for fqn, stored in names.by_fqn.items()}
        entries = EntryMetadata(names, found)
        return Metadata(entries, planner_data=names.paths, storage_meta=StorageMeta(checkpoint_id=self.path))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **options: Any) -> None:
        """Does nothing: the checkpoint is open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leaves the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Tells every rank how many there are: one with `no_dist=True`."""
        return [dataclasses.replace(plan, storage_data=len(plans)) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan has for this rank.

        Raises:
            CheckFailed: the checkpoint is damaged.
            OperationalError: it cannot be read, or another rank ended or is late.
        """
        # Together, ranks compare what they have read with checksums. One that is alone compares what it can.
        is_together = plan.storage_data == _group_size(self.process_group)
        gang = (ranks_of(self.process_group, self.timeout) if is_together else _alone(self.timeout)).gang
        wanted, staged = together(gang, lambda: self._wanted(plan, planner, gang.size), lambda wanted: wanted.staged())
        progress = new_progress() if gang.rank == 0 else Progress()
        try:
            load_groups(gang, wanted.checkpoint, groups_of(wanted.targets, staged), [], progress)
        finally:
            progress.close()
        for put in wanted.puts:
            put()
        for item, tensor in wanted.resolved:
            planner.commit_tensor(item, tensor)
        for item, value in wanted.values:
            planner.load_bytes(item, _pickled(value))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path or a URL."""
        return bool(os.fspath(checkpoint_id))

    def _open(self) -> tuple[Checkpoint, EntryNames]:
        checkpoint = open_checkpoint(self.path)
        self._opened = checkpoint, EntryNames(checkpoint)
        return self._opened

    def _wanted(self, plan: LoadPlan, planner: LoadPlanner, world: int) -> _Wanted:
        """What this rank reads. No rank waits for another one here."""
        checkpoint, names = self._opened or self._open()
        wanted = _Wanted(checkpoint, [], [], [], [])
        state: Mapping[str, Any] = getattr(planner, "state_dict", {})
        of_tensors: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            if item.type == LoadItemType.TENSOR:
                of_tensors.setdefault(item.storage_index.fqn, []).append(item)
            else:
                value = checkpoint.value(names.stored(item.storage_index.fqn))
                wanted.values.append((item, _as_before(value, state.get(item.dest_index.fqn))))
        taken: set[str] = set()
        for fqn, items in of_tensors.items():
            stored = names.stored(fqn)
            resolved = [(item, planner.resolve_tensor(item)) for item in items]
            wanted.resolved.extend(resolved)
            if stored in taken:
                # The same tensor for another entry of the state dict.
                wanted.puts.extend(_read_alone(checkpoint, stored, item, tensor) for item, tensor in resolved)
                continue
            taken.add(stored)
            boxes = [Box(tuple(item.storage_offsets), tensor.detach()) for item, tensor in resolved]
            target, put = _target(checkpoint, stored, boxes, state.get(items[0].dest_index.fqn), world)
            wanted.targets.append(target)
            wanted.puts.extend(put)
        wanted.targets[:], _ = untied(wanted.targets)
        return wanted


# What is read


class _Wanted(NamedTuple):
    """What this rank reads."""

    checkpoint: Checkpoint
    targets: list[LoadTarget]
    puts: list[Callable[[], None]]
    """What is to be done once the targets are read."""
    resolved: list[tuple[ReadItem, torch.Tensor]]
    values: list[tuple[ReadItem, Any]]

    def staged(self) -> dict[str, int]:
        """Bytes of tensors that are read into memory of our own first, by name."""
        return {target.shard.name: target.nbytes for target in self.targets if not target.is_direct}


def _target(
    checkpoint: Checkpoint, stored: str, boxes: list[Box], value: Any, world: int
) -> tuple[LoadTarget, list[Callable[[], None]]]:
    """A target for boxes, and what puts the elements into them."""
    if len(boxes) == 1 and _is_memory_of(value, boxes[0].tensor):
        # Its layout says what other ranks read.
        return LoadTarget(_leaf(stored, value), stored, world), []
    joined = JoinedBoxes(boxes)
    local = boxes[0].tensor if len(boxes) == 1 else joined.empty()
    target = LoadTarget(_leaf(stored, local), stored, 1)
    target.shard.shape = list(checkpoint[stored].shape)
    target.shard.parts = [(list(part.local), list(part.start), list(part.size)) for part in joined.parts]
    return target, [] if len(boxes) == 1 else [lambda: joined.put(local)]


def _is_memory_of(value: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor is all that this rank holds of a distributed one."""
    if not hasattr(value, "placements"):
        return False
    local = local_tensor(value)
    same = (local.data_ptr(), local.shape, local.stride(), local.dtype)
    return same == (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _read_alone(checkpoint: Checkpoint, stored: str, item: ReadItem, tensor: torch.Tensor) -> Callable[[], None]:
    def put() -> None:
        runs = zip(item.storage_offsets, item.lengths, strict=True)
        part = checkpoint[stored][tuple(slice(start, start + length) for start, length in runs)]
        tensor.detach().copy_(part.torch(tensor.dtype))

    return put


def _leaf(name: str, value: Any) -> Entry:
    return Entry(name, (name,), "model", value, unchanging)


def _as_before(value: Any, before: Any) -> Any:
    """A stored value, as the type that the state dict has in its place."""
    return tuple(value) if isinstance(before, tuple) and isinstance(value, list) else value


def _pickled(value: Any) -> io.BytesIO:
    """What a planner reads values from."""
    pickled = io.BytesIO()
    torch.save(value, pickled)
    pickled.seek(0)
    return pickled


# Ranks


def _group_size(process_group: Any) -> int:
    return dist.get_world_size(process_group) if dist.is_available() and dist.is_initialized() else 1


def _alone(timeout: float) -> Ranks:
    return Ranks(_weightloom.Gang.solo(timeout), None)
