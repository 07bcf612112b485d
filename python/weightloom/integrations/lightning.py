"""Checkpoints of Lightning's Trainer and Fabric."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weightloom._checkpoint import open as open_checkpoint
from weightloom._errors import UserError
from weightloom.integrations._replacement import current, is_remote, remove, save_replacing
from weightloom.integrations._structure import Structure

_PLUGINS = {"lightning": "lightning.fabric.plugins.io", "lightning_fabric": "lightning_fabric.plugins.io"}
"""Lightning comes in two packages with the same classes."""

_MODELS = ("state_dict", "model")
"""The keys that a checkpoint may have for the model: that of the Trainer, and the usual one with Fabric."""

_STRUCTURE = "lightning"
"""The entry with everything that is no tensor."""

_LOG = logging.getLogger(__name__)


class WeightloomCheckpointIO:
    """A plugin that makes the Trainer and Fabric keep their checkpoints here: Hugging Face folders with fingerprints.

    A checkpoint is a folder with the name that Lightning gives it, such as `epoch=0-step=10.ckpt`. The model is in it
    as transformers reads it, the state of optimizers beside it, and everything else as JSON: nothing is pickled.
    Checkpoints that Lightning wrote before can still be loaded.

    Strategies whose rank 0 saves use it, such as one device and DDP. Those that shard the model, such as FSDP, take no
    plugin: call `wl.save` and `wl.load` with the state dict of the model.

    Example:
        >>> import torch
        >>> from lightning_fabric import Fabric
        >>> from weightloom.integrations.lightning import WeightloomCheckpointIO
        >>> fabric = Fabric(accelerator="cpu", devices=1, plugins=[WeightloomCheckpointIO()])
        >>> model = torch.nn.Linear(2, 2)
        >>> fabric.save("step_1.ckpt", {"model": model, "step": 1})
        >>> fabric.load("step_1.ckpt", {"model": model})
        {'step': 1}
        >>> wl.open("step_1.ckpt")["weight"].shape
        (2, 2)
    """

    def __init__(self) -> None:
        # Lightning checks for its abstract class. To inherit from it would import one of two packages.
        for package in _packages():
            importlib.import_module(f"{_PLUGINS[package]}.checkpoint_io").CheckpointIO.register(type(self))

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Saves a checkpoint. What is at the path is replaced once the new one is complete.

        Args:
            checkpoint: the state of the model and the trainer.
            path: where to.
            storage_options: none are known.

        Raises:
            TypeError: there are storage options.
            UserError: the checkpoint holds something that is neither a tensor nor plain data.
            OperationalError: it cannot be written.

        Example:
            >>> import torch
            >>> from weightloom.integrations.lightning import WeightloomCheckpointIO
            >>> io = WeightloomCheckpointIO()
            >>> io.save_checkpoint({"state_dict": {"w": torch.ones(2)}, "epoch": 3, "best": float("inf")}, "last.ckpt")
            >>> io.load_checkpoint("last.ckpt")
            {'state_dict': {'w': tensor([1., 1.])}, 'epoch': 3, 'best': inf}
        """
        if storage_options is not None:
            raise TypeError("`WeightloomCheckpointIO` has no storage options: it takes credentials from the environment")
        taken = Structure.of(dict(checkpoint))
        prefix = next((f"{key}." for key in _MODELS if isinstance(checkpoint.get(key), Mapping)), None)
        # The model is stored under its own names.
        names = {name: name.removeprefix(prefix) if prefix else name for name in taken.tensors}
        model = {names[name]: tensor for name, tensor in taken.tensors.items() if names[name] != name}
        training = {name: tensor for name, tensor in taken.tensors.items() if names[name] == name}
        state = {"model": model, **training, _STRUCTURE: json.dumps({"names": names, "json": taken.json})}
        step = checkpoint.get("global_step")
        # Rank 0 alone calls this.
        report = save_replacing(state, path, step=step if isinstance(step, int) else None, process_group=_alone())
        _LOG.info("saved %s, fingerprint %s", report.location, report.fingerprint)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads a checkpoint, also one that Lightning wrote without this plugin.

        Args:
            path: where it is.
            map_location: the device for its tensors; by default the CPU.
            weights_only: has no effect, as nothing in our checkpoints is executed; for others, as for Lightning.

        Raises:
            WeightloomError: there is no checkpoint, or it is damaged.

        Example:
            >>> from weightloom.integrations.lightning import WeightloomCheckpointIO
            >>> WeightloomCheckpointIO().load_checkpoint("none.ckpt")
            Traceback (most recent call last):
            weightloom._errors.UserError: ...none.ckpt...
            hint: ...
        """
        if not is_remote(path) and Path(path).is_file():
            loaded: dict[str, Any] = _torch_io().load_checkpoint(path, map_location, weights_only)
            return loaded
        stored = open_checkpoint(path if is_remote(path) else current(path))
        if _STRUCTURE not in stored.entries:
            hint = "load its tensors with `wl.load`"
            raise UserError(f"cannot load {stored.location}: it is no checkpoint of Lightning", hint)
        text = json.loads(stored.value(_STRUCTURE))
        tensors = {name: stored[own].torch(device=_device(map_location)) for name, own in text["names"].items()}
        restored: dict[str, Any] = Structure(text["json"], {}).restored(tensors)
        return restored

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint, if there is one.

        Args:
            path: where it is.

        Raises:
            UserError: it is in an object store.

        Example:
            >>> from weightloom.integrations.lightning import WeightloomCheckpointIO
            >>> io = WeightloomCheckpointIO()
            >>> io.save_checkpoint({"epoch": 3}, "last.ckpt")
            >>> io.remove_checkpoint("last.ckpt")
            >>> import os; os.path.exists("last.ckpt")
            False
        """
        if is_remote(path):
            raise UserError(f"cannot remove `{os.fspath(path)}`", "keep all checkpoints (`save_top_k=-1`), or use a folder")
        remove(Path(path))

    def teardown(self) -> None:
        """Ends the use of the plugin. Nothing is held."""


def _packages() -> list[str]:
    """The packages that the program uses; before it has imported one, those that are installed."""
    return [name for name in _PLUGINS if name in sys.modules] or [name for name in _PLUGINS if find_spec(name)]


def _torch_io() -> Any:
    """What loads the checkpoints of Lightning itself."""
    return importlib.import_module(f"{_PLUGINS[_packages()[0]]}.torch_io").TorchCheckpointIO()


_ALONE: dict[str, tuple[Any, Any]] = {}
"""The group of all processes, and that of this one alone."""


def _alone() -> Any:
    """A group of this process alone; `None` if there are no others."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    world, known = dist.group.WORLD, _ALONE.get("group")
    if known is None or known[0] is not world:
        own = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
        known = _ALONE["group"] = (world, own)
    return known[1]


def _device(map_location: Any) -> Any:
    """The device of tensors that are on the CPU."""
    if isinstance(map_location, Mapping):
        return map_location.get("cpu")
    # Functions of Lightning leave tensors on the CPU.
    return None if callable(map_location) else map_location
