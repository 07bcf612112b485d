"""Saves of state dicts, from one process or many."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from weightloom import _weightloom
from weightloom._agreement import together
from weightloom._amounts import size as size_text
from weightloom._assets import Assets, assets_of
from weightloom._errors import UserError, WeightloomError
from weightloom._group import DEFAULT_TIMEOUT, Ranks, known_ranks, ranks_of
from weightloom._progress import Progress, new_progress
from weightloom._state import Entry, TensorShard, encoded, entries_of, is_tensor, shard_to_save, with_state_dicts
from weightloom._tensor_memory import PINNED

SaveFormat = Literal["native", "hf", "dcp", "peft"]

CopyTime = Literal["now", "background"]
"""When a save in the background copies the tensors."""

SHARD_SIZE = 5_000_000_000
"""Bytes of one file of a model."""


class SaveReport(NamedTuple):
    """What a save wrote.

    Example:
        >>> import torch
        >>> report = wl.save({"w": torch.ones(2, 2)}, "step_1")
        >>> report
        <SaveReport step_1: 16 B in ... s, fingerprint ...>
        >>> report.fingerprint == wl.open("step_1").fingerprint()
        True
    """

    location: str
    """Where it is."""
    fingerprint: str
    """The fingerprint of all tensors, which does not depend on format, files or ranks."""
    model_fingerprint: str
    """The fingerprint of the model's tensors."""
    nbytes: int
    """Bytes that this rank wrote."""
    seconds: float
    """The duration."""
    stall: float
    """Seconds until the program went on: all of them, unless it was saved in the background."""

    def __repr__(self) -> str:
        stall = "" if self.stall == self.seconds else f", {self.stall:.2f} s of stall"
        return (
            f"<SaveReport {self.location}: {size_text(self.nbytes)} in {self.seconds:.2f} s{stall},"
            f" fingerprint {self.fingerprint}>"
        )


class SaveHandle:
    """A save that runs in the background.

    Whether it fails shows in `wait`. A failure that nobody waits for is raised by the next save of the same ranks, or
    printed when the program ends.

    Example:
        >>> import torch
        >>> weight = torch.ones(2)
        >>> handle = wl.save_async({"w": weight}, "step_1")
        >>> weight.zero_()
        tensor([0., 0.])
        >>> handle.wait().location, handle.done()
        ('step_1', True)
        >>> wl.open("step_1")["w"].torch()
        tensor([1., 1.])
    """

    def __init__(self, location: str, saver: Saver) -> None:
        self.location = location
        """Where it will be."""
        self._saver = saver
        self._report: SaveReport | None = None
        self._error: BaseException | None = None
        self._is_known = False
        """Whether the program has seen the outcome."""
        self._copying: threading.Thread | None = None
        self._hook: Any = None
        """What makes the optimizers of torch wait for the copy."""
        self._stall = 0.0
        """Seconds that the program has waited for the copy."""

    def wait_copied(self) -> None:
        """Waits until the tensors are copied, so that they may change. Needed after `copy="background"` only.

        Example:
            >>> import torch
            >>> weight = torch.ones(2)
            >>> handle = wl.save_async({"w": weight}, "step_1", copy="background")
            >>> handle.wait_copied()
            >>> _ = weight.zero_()
            >>> _ = handle.wait()
            >>> wl.open("step_1")["w"].torch()
            tensor([1., 1.])
        """
        if self._copying is not None:
            started = time.monotonic()
            self._copying.join()
            self._stall += time.monotonic() - started
            self._copying = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def wait(self) -> SaveReport:
        """Waits until the checkpoint is complete on all ranks.

        Raises:
            WeightloomError: the save failed. Nothing is left of it, and older checkpoints are as they were.
        """
        self._saver.finish(self)
        self._is_known = True
        if self._error is not None:
            raise self._error
        if self._report is None:
            raise UserError(f"cannot wait for the save to {self.location}", "wait in the process that began it")
        return self._report

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._is_over() or self._saver.is_over(self)

    def _is_over(self) -> bool:
        return self._report is not None or self._error is not None

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "complete" if self._is_over() else "running"
        return f"<SaveHandle {self.location}: {state}>"


class Saver:
    """Saves of one group of ranks: one at a time, of which one may run in the background."""

    def __init__(self, ranks: Ranks) -> None:
        self.native = _weightloom.Saver(ranks.gang)
        self._rank = ranks.gang.rank
        self._lock = threading.Lock()
        self._running: SaveHandle | None = None

    def save(self, prepared: Prepared) -> SaveReport:
        """Saves, and waits. Every rank calls this."""
        progress = new_progress() if self._rank == 0 else Progress()
        try:
            report = self.native.save(*prepared, progress)
        finally:
            progress.close()
            PINNED.clear()
        return _report(prepared.request.target, report)

    def begin(self, prepared: Prepared, copy: CopyTime = "now") -> SaveHandle:
        """Begins a save in the background. Every rank calls this."""
        handle = SaveHandle(prepared.request.target, self)
        started = time.monotonic()
        if copy == "now":
            self.native.save_async(*prepared, None)
        else:
            handle._copying = threading.Thread(target=self._copy, args=(handle, prepared), name="weightloom-copy")
            handle._hook = _before_optimizers(handle)
            handle._copying.start()
        handle._stall = time.monotonic() - started
        self._running = handle
        return handle

    def _copy(self, handle: SaveHandle, prepared: Prepared) -> None:
        try:
            self.native.save_async(*prepared, None)
        except BaseException as error:
            handle._error = error

    def wait_copied(self) -> None:
        """Waits until nothing is being copied: the ranks are then free for other work."""
        if self._running is not None:
            self._running.wait_copied()

    def finish(self, handle: SaveHandle) -> None:
        """Waits for a save, if it still runs."""
        with self._lock:
            if handle is not self._running:
                return
            handle.wait_copied()
            try:
                report = self.native.wait() if handle._error is None else None
                if report is not None:
                    handle._report = _report(handle.location, report)._replace(stall=handle._stall)
            except WeightloomError as error:
                handle._error = error
            self._running = None
            PINNED.clear()

    def is_over(self, handle: SaveHandle) -> bool:
        """Whether a save has ended."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if handle is not self._running:
                return True
            is_copied = handle._copying is None or not handle._copying.is_alive()
            return is_copied and not self.native.is_saving()
        finally:
            self._lock.release()

    def settle(self) -> None:
        """Waits for the save in the background. Raises its error unless the program has seen it."""
        handle = self._running
        if handle is not None:
            self.finish(handle)
            if handle._error is not None and not handle._is_known:
                handle._is_known = True
                raise handle._error

    def end(self) -> None:
        """Waits for the save in the background, and prints its error unless the program has seen it."""
        handle = self._running
        try:
            self.settle()
        except Exception as error:
            location = handle.location if handle is not None else ""
            print(f"weightloom: the save to {location} failed: {error}", file=sys.stderr, flush=True)


class SaveRequest:
    """What is saved beside the entries, and how, as the native module takes it."""

    def __init__(
        self,
        target: str,
        format: SaveFormat,
        step: int | None,
        assets: dict[str, bytes],
        entries: list[Entry],
        shard_size: int,
        budget: int | None,
    ) -> None:
        self.target = target
        self.format = format
        self.step = step
        self.assets = assets
        self.paths = {entry.name: list(entry.path) for entry in entries if entry.path != (entry.name,)}
        self.shard_size = shard_size
        self.budget = budget


class SavedValue(NamedTuple):
    """An entry that is not a tensor."""

    name: str
    bytes: bytes


class Prepared(NamedTuple):
    """What a rank saves."""

    tensors: list[TensorShard]
    values: list[SavedValue]
    request: SaveRequest


def save(
    state_dict: Mapping[str, Any] | Any,
    path: str | os.PathLike[str],
    *,
    format: SaveFormat = "native",
    step: int | None = None,
    assets: Assets | None = None,
    shard_size: int = SHARD_SIZE,
    process_group: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> SaveReport:
    """Saves a state dict. Under `torch.distributed`, every rank calls this, and saves what it holds.

    Tensors may be distributed (`DTensor`, from FSDP2, tensor parallelism or both), plain tensors, or NumPy arrays.
    Dicts and lists may be nested. Entries under the key `model` become the model, under their own names; without that
    key, the tensors of the first level do. Everything else, such as the state of an optimizer, belongs to the training
    state, and is stored beside the model. Objects of the first level with a `state_dict()`, such as modules and
    optimizers, are asked for it. Other values are stored as JSON.

    The result is a Hugging Face folder that transformers can load. It appears under its name once all ranks have
    written everything, and every element was written exactly once. A save that fails or is killed leaves nothing under
    that name. Tensors must not be changed until the call returns.

    Args:
        state_dict: what to save; equal on all ranks, except for the parts of distributed tensors.
        path: a new folder, or a URL such as `s3://bucket/step_100`.
        format: `"native"`; `"hf"`, a plain Hugging Face folder of the model; `"dcp"`, which `torch.distributed` loads;
            `"peft"`, an adapter.
        step: the step of the training.
        assets: files of the model: its folder, a dict of names to contents, or its config and tokenizer.
        shard_size: the most bytes of one file of the model.
        process_group: the ranks that save; by default all.
        timeout: seconds after which a rank stops waiting for the others.

    Returns:
        Fingerprints, sizes and durations.

    Raises:
        UserError: the state dict cannot be saved, or there is something at `path`.
        OperationalError: the disk is full, the storage failed, or another rank ended or is late.

    Example:
        >>> import torch
        >>> model, optimizer = torch.nn.Linear(2, 2), None
        >>> report = wl.save({"model": model, "epoch": 3}, "step_1", step=1)
        >>> wl.open("step_1")
        <Checkpoint ...step_1: native, step 1, 2 tensors, 24 B>
    """
    ranks, saver = _meet(process_group, timeout)
    options = _Options(path, format, step, assets, shard_size, None)
    prepared, _ = together(ranks.gang, lambda: _prepare(state_dict, options, ranks, saver))
    return saver.save(prepared)


def save_async(
    state_dict: Mapping[str, Any] | Any,
    path: str | os.PathLike[str],
    *,
    format: SaveFormat = "native",
    step: int | None = None,
    assets: Assets | None = None,
    shard_size: int = SHARD_SIZE,
    budget: int | None = None,
    copy: CopyTime = "now",
    process_group: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> SaveHandle:
    """Copies a state dict and saves the copy in the background. Every rank calls this.

    Once it returns, tensors may be changed. The ranks need not wait at the same time. Of each group of ranks, one save
    runs at a time: the next one waits for it. The end of the program waits too. The memory of the copy is kept for the
    next save.

    With `copy="background"` it returns at once, and the copy is made while the program computes: call it after the step
    of an optimizer. The next step of any optimizer of torch waits for the copy. Whatever else changes the tensors, such
    as a layer that counts its inputs, has to wait with `handle.wait_copied()`.

    Args:
        state_dict: what to save, as in `save`.
        path: a new folder, or a URL.
        format: as in `save`.
        step: the step of the training.
        assets: files of the model, as in `save`.
        shard_size: the most bytes of one file of the model.
        budget: the most bytes of copies on this rank; by default half of the free memory. What does not fit is written
            before the call returns.
        copy: `"now"`, before the call returns, or `"background"`.
        process_group: the ranks that save; by default all.
        timeout: seconds after which a rank stops waiting for the others.

    Returns:
        A handle to wait with.

    Raises:
        UserError: the state dict cannot be saved, or there is something at `path`.
        OperationalError: the storage failed, or another rank ended or is late.
        WeightloomError: the save before this one failed, and nobody has waited for it.

    Example:
        >>> import torch
        >>> handle = wl.save_async({"w": torch.ones(2)}, "step_1")
        >>> handle.wait()
        <SaveReport step_1: 8 B in ... s, ... s of stall, fingerprint ...>
    """
    ranks, saver = _meet(process_group, timeout)
    options = _Options(path, format, step, assets, shard_size, budget)
    prepared, _ = together(ranks.gang, lambda: _prepare(state_dict, options, ranks, saver))
    return saver.begin(prepared, copy)


class _Options(NamedTuple):
    path: str | os.PathLike[str]
    format: SaveFormat
    step: int | None
    assets: Assets | None
    shard_size: int
    budget: int | None


def _meet(process_group: Any, timeout: float) -> tuple[Ranks, Saver]:
    ranks = ranks_of(process_group, timeout)
    return ranks, saver_of(ranks)


def saver_of(ranks: Ranks) -> Saver:
    """What saves for a group of ranks. Every rank calls this."""
    if ranks.saver is None:
        ranks.saver = Saver(ranks)
    saver: Saver = ranks.saver
    return saver


def _prepare(state_dict: Any, options: _Options, ranks: Ranks, saver: Saver) -> Prepared:
    """What this rank saves. No rank waits for another one here, but each for its own save in the background."""
    saver.settle()
    state, _ = with_state_dicts(state_dict)
    entries = entries_of(state)
    world = ranks.gang.size
    tensors = [shard_to_save(entry, world) for entry in entries if is_tensor(entry.value)]
    values = [SavedValue(entry.name, encoded(entry)) for entry in entries if not is_tensor(entry.value)]
    # Rank 0 writes them.
    assets = assets_of(options.assets) if ranks.gang.rank == 0 else {}
    target = os.fspath(options.path)
    request = SaveRequest(target, options.format, options.step, assets, entries, options.shard_size, options.budget)
    return Prepared(tensors, values, request)


def _before_optimizers(handle: SaveHandle) -> Any:
    """Makes the next step of any optimizer of torch wait for a copy."""
    if "torch" not in sys.modules:
        return None
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    return register_optimizer_step_pre_hook(lambda *_: handle.wait_copied())


def _report(location: str, report: tuple[str, str, int, float, float]) -> SaveReport:
    fingerprint, model, nbytes, stall, seconds = report
    return SaveReport(location, fingerprint, model, nbytes, seconds, stall)


@atexit.register
def _end() -> None:
    """Waits for saves in the background."""
    for ranks in known_ranks():
        if ranks.saver is not None:
            ranks.saver.end()
