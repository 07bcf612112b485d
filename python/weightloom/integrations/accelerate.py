"""`Accelerator.save_state` and `load_state` of accelerate."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom._errors import UserError
from weightloom._load import load
from weightloom.integrations._replacement import current, save_replacing

if TYPE_CHECKING:
    from accelerate import Accelerator  # type: ignore[import-untyped]

_LOG = logging.getLogger(__name__)


class Hooks:
    """The hooks of an accelerator, until they are removed.

    Example:
        >>> from accelerate import Accelerator
        >>> from weightloom.integrations.accelerate import register
        >>> hooks = register(Accelerator(cpu=True))
        >>> hooks.remove()
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator: Any = accelerator
        self._handles = [
            self._accelerator.register_save_state_pre_hook(self._save),
            self._accelerator.register_load_state_pre_hook(self._load),
        ]

    def remove(self) -> None:
        """Leaves models to accelerate again.

        Example:
            >>> from accelerate import Accelerator
            >>> from weightloom.integrations.accelerate import register
            >>> register(Accelerator(cpu=True)).remove()
        """
        for handle in self._handles:
            handle.remove()

    def _save(self, models: list[Any], weights: list[Any], output_dir: str) -> None:
        for number, model in enumerate(models):
            # Without the names that wrappers add.
            state = self._unwrapped(model).state_dict()
            report = save_replacing({"model": state}, folder_of(output_dir, number))
            _LOG.info("saved %s, fingerprint %s", report.location, report.fingerprint)
        # What is left here, accelerate saves.
        weights.clear()

    def _load(self, models: list[Any], input_dir: str) -> None:
        # A state that was saved without the hooks has no such folder.
        folders = [current(folder_of(input_dir, number)) for number in range(len(models))]
        if folders and all(folder.is_dir() for folder in folders):
            for folder, model in zip(folders, models, strict=True):
                load(self._unwrapped(model), folder)
            models.clear()

    def _unwrapped(self, model: Any) -> Any:
        return self._accelerator.unwrap_model(model, keep_torch_compile=False)


def register(accelerator: Accelerator) -> Hooks:
    """Makes `accelerator.save_state()` keep the models here: Hugging Face folders with fingerprints.

    The models of a state are in its folders `model`, `model_1` and so on. Optimizers, schedulers and random states stay
    with accelerate. `load_state()` reads the folders; states that were saved without this are loaded as before.

    Args:
        accelerator: of one process, or of several with DDP. With FSDP and DeepSpeed, accelerate saves models before its
            hooks run: there, call `wl.save` and `wl.load` with the state dict of the model.

    Returns:
        The hooks, to remove them.

    Raises:
        UserError: the accelerator shards models.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from weightloom.integrations.accelerate import register
        >>> accelerator = Accelerator(cpu=True)
        >>> hooks = register(accelerator)
        >>> model = accelerator.prepare(torch.nn.Linear(2, 2))
        >>> _ = accelerator.save_state("state")
        >>> wl.open("state/model")["weight"].shape
        (2, 2)
        >>> accelerator.load_state("state")
    """
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise UserError(
            f"cannot keep the models of an accelerator with {kind}: accelerate saves them before its hooks run",
            "call `wl.save(model.state_dict(), path)` and `wl.load(model.state_dict(), path)`",
        )
    return Hooks(accelerator)


def folder_of(state: str | os.PathLike[str], number: int) -> Path:
    """The folder of a model in a state.

    Example:
        >>> from weightloom.integrations.accelerate import folder_of
        >>> folder_of("state", 0).name, folder_of("state", 1).name
        ('model', 'model_1')
    """
    return Path(state) / ("model" if number == 0 else f"model_{number}")
