"""The checkpoint manager of torchtitan."""

from __future__ import annotations

import base64
import importlib
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom._load import load
from weightloom._save import SaveHandle, save_async
from weightloom.integrations._replacement import is_remote, save_replacing

if TYPE_CHECKING:
    WeightloomCheckpointManager: Any
    """torchtitan's `CheckpointManager` with `WeightloomCheckpoints`. torchtitan is imported when it is asked for."""

_MODEL = "model"
_MANIFEST = "weightloom.json"
_METADATA = (_MANIFEST, ".metadata", "model.safetensors.index.json")
"""Files that a checkpoint has once it is complete: one of ours, of torch, or of Hugging Face."""
_BYTES = "base64:"
"""Begins a text that stands for bytes: torchtitan pickles the state of its data loaders."""


class WeightloomCheckpoints:
    """Saves and loads of torchtitan's `CheckpointManager` that go through `wl.save` and `wl.load`.

    `WeightloomCheckpointManager` is the manager with these. Use its `Config` in place of that of torchtitan, with the
    same fields: `Trainer.Config(checkpoint=WeightloomCheckpointManager.Config(enable=True, ...))`. Each `step-N` is a
    Hugging Face folder of the model, under torchtitan's names, with the training state beside it; the last one has the
    names of Hugging Face if `last_save_in_hf` says so. Both kinds of `async_mode` copy first, and write in the background.
    Checkpoints that torchtitan wrote before are loaded as before. These are the methods of torchtitan 0.3.

    Example:
        >>> from weightloom.integrations.torchtitan import WeightloomCheckpoints
        >>> class Manager(WeightloomCheckpoints):  # and torchtitan's CheckpointManager
        ...     states, sd_adapter = {}, None
        >>> import torch
        >>> _ = Manager().dcp_save({"w": torch.ones(2)}, "step-1", "disabled")
        >>> weight = torch.zeros(2)
        >>> Manager().dcp_load({"w": weight}, "step-1", False, False)
        >>> weight
        tensor([1., 1.])
    """

    states: dict[str, Any]
    sd_adapter: Any
    folder: str
    keep_latest_k: int
    purge_queue: Any
    _should_purge: Any

    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: Any,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Any:
        """Saves a state dict. Every rank calls this.

        Args:
            state_dict: the model's tensors, and objects with a `state_dict()`.
            checkpoint_id: where to.
            async_mode: `disabled`, `async` or `async_with_pinned_mem`.
            enable_garbage_collection: collect garbage after the save.
            to_hf: save the model under the names of Hugging Face.

        Returns:
            `None`, or what torchtitan waits for.

        Raises:
            WeightloomError: it cannot be saved.
        """
        options: dict[str, Any] = {"step": _step(checkpoint_id)}
        if to_hf:
            state = {_MODEL: self.sd_adapter.to_hf(state_dict)}
            assets = getattr(self.sd_adapter, "hf_assets_path", None)
            options |= {"format": "hf", "assets": assets if assets and os.path.isdir(assets) else None}
        else:
            state = self._nested(state_dict)
        mode = str(getattr(async_mode, "value", async_mode))
        if mode == "disabled":
            save_replacing(state, checkpoint_id, **options)
            if enable_garbage_collection:
                import gc

                gc.collect()
            return None
        _make_room(checkpoint_id)
        future = _SaveFuture(save_async(state, checkpoint_id, **options))
        return future if mode == "async" else _response(future)

    def dcp_load(
        self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool
    ) -> None:
        """Loads a checkpoint into a state dict. Every rank calls this.

        Args:
            state_dict: what to load into.
            checkpoint_id: where it is.
            from_hf: it has the names of Hugging Face.
            from_quantized: it is quantized; torchtitan loads it itself.

        Raises:
            WeightloomError: it cannot be loaded.
        """
        is_ours = is_remote(checkpoint_id) or (Path(checkpoint_id) / _MANIFEST).is_file()
        if from_quantized or not (from_hf or is_ours):
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)  # type: ignore[misc]
            return
        if from_hf:
            renamed = self.sd_adapter.to_hf(state_dict)
            load({_MODEL: renamed}, checkpoint_id)
            self.states[_MODEL].load_state_dict(self.sd_adapter.from_hf(renamed))
            return
        state = self._nested(state_dict)
        load(state, checkpoint_id)
        for key, value in state_dict.items():
            if key not in state[_MODEL] and key in state:
                if hasattr(value, "load_state_dict"):
                    value.load_state_dict(_with_bytes(state[key]))
                else:
                    state_dict[key] = _with_bytes(state[key])
        if _MODEL in self.states:
            self.states[_MODEL].load_state_dict(state[_MODEL])

    def _nested(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state with the model in a dict of its own."""
        others = {key for key in state_dict if key in self.states}
        state: dict[str, Any] = {_MODEL: {key: value for key, value in state_dict.items() if key not in others}}
        for key in sorted(others):
            value = state_dict[key]
            # A training may have no data loader.
            if value is not None:
                state[key] = _without_bytes(value.state_dict() if hasattr(value, "state_dict") else value)
        return state

    # torchtitan looks for `step-N` anywhere in a name, and would take a save that was killed for a checkpoint.
    def _find_load_step(self, folder: str = "") -> int:
        """The newest complete step of a folder, of torchtitan's checkpoints and ours; -1 if there is none."""
        place = folder or self.folder
        files = _files(place)
        complete = [
            step
            for step, name in _steps(place)
            if any(files.isfile(_joined(place, name, metadata)) for metadata in _METADATA)
        ]
        return max(complete, default=-1)

    def _purge_stale_checkpoints(self) -> None:
        """Removes all but the newest checkpoints. The one that is being written is no checkpoint yet."""
        if self._should_purge():
            for _, name in _steps(self.folder)[: -self.keep_latest_k]:
                self.purge_queue.put(_joined(self.folder, name))


class _SaveFuture(Future[Any]):
    """A save in the background, as a future. Every rank waits for it."""

    def __init__(self, handle: SaveHandle) -> None:
        super().__init__()
        self._handle = handle

    def result(self, timeout: float | None = None) -> Any:
        return self._handle.wait()

    def done(self) -> bool:
        return self._handle.done()


def _response(upload: Future[Any]) -> Any:
    """What torchtitan expects of saves that stage: they have been staged."""
    from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

    staging: Future[None] = Future()
    staging.set_result(None)
    return AsyncSaveResponse(staging_completion=staging, upload_completion=upload)


def _step(name: str) -> int | None:
    """The step of `step-N`; `None` for what is being written or replaced."""
    match = re.fullmatch(r"step-(\d+)", os.path.basename(name.rstrip("/")))
    return int(match[1]) if match else None


def _steps(folder: str) -> list[tuple[int, str]]:
    """The checkpoints of a folder, oldest first."""
    files = _files(folder)
    names = files.listdir(folder) if files.isdir(folder) else []
    return sorted((step, name) for name in names if (step := _step(name)) is not None)


def _files(place: str) -> Any:
    """Functions for paths, or for URLs as torchtitan reads them."""
    return importlib.import_module("torchtitan.tools.filesystem") if is_remote(place) else _LocalFiles


class _LocalFiles:
    listdir = staticmethod(os.listdir)
    isdir = staticmethod(os.path.isdir)
    isfile = staticmethod(os.path.isfile)


def _joined(folder: str, *names: str) -> str:
    return "/".join([folder.rstrip("/"), *names])


def _make_room(checkpoint_id: str) -> None:
    """Removes a checkpoint of the same step: the training has gone back before it."""
    from weightloom._agreement import together
    from weightloom._group import ranks_of

    gang = ranks_of().gang
    if not is_remote(checkpoint_id):
        together(gang, lambda: shutil.rmtree(checkpoint_id, ignore_errors=True) if gang.rank == 0 else None)


def _without_bytes(value: Any) -> Any:
    """A state in which texts stand for bytes."""
    if isinstance(value, bytes):
        return _BYTES + base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: _without_bytes(child) for key, child in value.items()}
    return [_without_bytes(child) for child in value] if isinstance(value, list) else value


def _with_bytes(value: Any) -> Any:
    """The state with its bytes again."""
    if isinstance(value, str) and value.startswith(_BYTES):
        return base64.b64decode(value.removeprefix(_BYTES))
    if isinstance(value, Mapping):
        return {key: _with_bytes(child) for key, child in value.items()}
    return [_with_bytes(child) for child in value] if isinstance(value, list) else value


@cache
def _manager() -> Any:
    from dataclasses import dataclass

    CheckpointManager: Any = importlib.import_module("torchtitan.components.checkpoint").CheckpointManager

    class WeightloomCheckpointManager(WeightloomCheckpoints, CheckpointManager):  # type: ignore[misc]
        """torchtitan's checkpoint manager, which saves and loads here."""

        # torchtitan builds the class that declares it.
        @dataclass(kw_only=True, slots=True)
        class Config(CheckpointManager.Config):  # type: ignore[misc]
            """The fields of torchtitan's."""

    return WeightloomCheckpointManager


def __getattr__(name: str) -> Any:
    if name == "WeightloomCheckpointManager":
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
