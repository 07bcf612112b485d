"""A callback of `transformers.Trainer`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from weightloom._agreement import together
from weightloom._amounts import counted
from weightloom._checkpoint import open as open_checkpoint
from weightloom._errors import CheckFailed, UserError
from weightloom._group import ranks_of
from weightloom._load import load
from weightloom._save import SaveHandle, SaveReport, save_async
from weightloom._sharding import local_tensor
from weightloom._state import is_tensor
from weightloom.integrations._replacement import current, save_replacing

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

_LOG = logging.getLogger(__name__)

FOLDER = "weightloom"
"""The folder in each `checkpoint-N` of the trainer."""

ADAPTER_FOLDER = f"{FOLDER}/adapter"
"""The folder of an adapter. The trainer takes every folder in `checkpoint-N` that holds an adapter for one of its own."""


class WeightloomCallback(TrainerCallback):
    """Saves the weights with a fingerprint whenever the trainer saves, and checks them when it resumes.

    Each `checkpoint-N` gets a folder `weightloom`: a Hugging Face folder with checksums, which `from_pretrained`,
    `wl.load` and `weightloom diff` read. Of a PEFT model, its folder `adapter` holds the adapter. The trainer's own
    files stay as they are.
    When a training resumes from `checkpoint-N`, its weights are compared with the folder, bit for bit.

    Under `torch.distributed`, every process saves what it holds of distributed tensors.

    Args:
        background: write in the background while the training goes on.
        check: compare the weights when a training resumes.

    Example:
        >>> from weightloom.integrations.transformers import WeightloomCallback
        >>> callback = WeightloomCallback(background=True)
        >>> # Trainer(model, args, train_dataset=..., callbacks=[callback]).train()
        >>> callback.reports
        {}
    """

    def __init__(self, *, background: bool = False, check: bool = True) -> None:
        self.background = background
        self.check = check
        self.reports: dict[int, SaveReport] = {}
        """What was saved, with fingerprints, by step."""
        self._saving: tuple[int, SaveHandle] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compares the weights with those that were saved, if the training resumes.

        Raises:
            CheckFailed: they differ.
            UserError: the weights are not in the model's tensors, as with DeepSpeed's ZeRO 3.
        """
        deepspeed = getattr(args, "hf_deepspeed_config", None)
        if deepspeed is not None and deepspeed.is_zero3():
            raise UserError(
                "cannot save the weights with ZeRO 3: they are not in the model's tensors", "use FSDP, or ZeRO 2"
            )
        folder = current(_folder(args, state, kwargs["model"]))
        if self.check and state.global_step and folder.is_dir():
            _check(kwargs["model"], folder)
            _LOG.info("resuming from the weights of %s", folder)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Waits for the save in the background before the trainer saves again, and removes old checkpoints.

        Raises:
            WeightloomError: it failed.
        """
        if control.should_save:
            self._finish()

    on_epoch_end = on_step_end

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saves the weights.

        Raises:
            WeightloomError: they cannot be saved, or the save before failed.
        """
        self._finish()
        model = kwargs["model"]
        folder = _folder(args, state, model)
        state_dict = {"model": _weights(model)}
        options: dict[str, Any] = {"step": state.global_step, "format": "peft" if _is_adapter(model) else "native"}
        options["assets"] = _assets(model, kwargs.get("processing_class"))
        if self.background and not folder.exists():
            self._saving = state.global_step, save_async(state_dict, folder, **options)
        else:
            self._note(state.global_step, save_replacing(state_dict, folder, **options))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Waits for the save in the background.

        Raises:
            WeightloomError: it failed.
        """
        self._finish()

    def _finish(self) -> None:
        if self._saving is not None:
            (step, handle), self._saving = self._saving, None
            self._note(step, handle.wait())

    def _note(self, step: int, report: SaveReport) -> None:
        self.reports[step] = report
        _LOG.info("saved %s, fingerprint %s", report.location, report.fingerprint)


def _folder(args: TrainingArguments, state: TrainerState, model: Any) -> Path:
    checkpoint = Path(os.fspath(args.output_dir or ".")) / f"checkpoint-{state.global_step}"
    return checkpoint / (ADAPTER_FOLDER if _is_adapter(model) else FOLDER)


def _is_adapter(model: Any) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "active_adapter")


def _weights(model: Any) -> dict[str, Any]:
    """The tensors to save: of a PEFT model, those of the adapter."""
    if _is_adapter(model):
        from peft import get_peft_model_state_dict

        adapter: dict[str, Any] = get_peft_model_state_dict(model)
        return adapter
    weights: dict[str, Any] = model.state_dict()
    return weights


def _assets(model: Any, processing: Any) -> list[Any]:
    """Config and tokenizer."""
    if _is_adapter(model):
        return [model.peft_config[model.active_adapter]]
    found = [getattr(model, "config", None), getattr(model, "generation_config", None), processing]
    return [asset for asset in found if hasattr(asset, "save_pretrained")]


def _check(model: Any, folder: Path) -> None:
    """Compares the weights of a model with those that were saved."""
    import torch

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return local_tensor(tensor).detach().contiguous().reshape(-1).view(torch.uint8)

    stored = open_checkpoint(folder)
    different = []
    for name, tensor in _weights(model).items():
        if name not in stored or not is_tensor(tensor):
            continue
        saved = torch.empty_like(tensor, requires_grad=False)
        load({name: saved}, stored)
        # Bits, as NaN is not equal to itself.
        if not torch.equal(bits(tensor), bits(saved)):
            different.append(name)
    # A rank whose part is as it was stops with the others.
    _, of_ranks = together(ranks_of().gang, lambda: None, lambda _: different)
    different = sorted({name for names in of_ranks for name in names})  # type: ignore[attr-defined]
    if different:
        names = "".join(f"\n  {name}" for name in different[:8])
        raise CheckFailed(
            f"cannot resume from the checkpoint of {folder}: {counted(len(different), 'tensor')} of the model differ from those"
            f" that were saved with it:{names}",
            "look for a damaged checkpoint, or for code that changes the model; `check=False` resumes anyway",
        )
