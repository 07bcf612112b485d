"""A small stand-in for torchtitan, which would need pandas, pyarrow, wandb and an older transformers.

It calls the methods that `weightloom.integrations.torchtitan` overrides as `CheckpointManager` of torchtitan 0.3.0 does,
with the same arguments, and has the same attributes. It saves nothing itself.
"""

from __future__ import annotations

import enum
import queue
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch


class AsyncMode(str, enum.Enum):
    DISABLED = "disabled"
    ASYNC = "async"
    ASYNC_WITH_PINNED_MEM = "async_with_pinned_mem"


class ModelWrapper:
    def __init__(self, parts: list[torch.nn.Module]) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {name: value for part in self.parts for name, value in part.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part in self.parts:
            part.load_state_dict(state, strict=False)


class CheckpointManager:
    """The parts of torchtitan's manager that touch saves and loads."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        enable: bool = True
        folder: str = "checkpoint"
        async_mode: str = "disabled"
        keep_latest_k: int = 10

        def build(self, **kwargs: Any) -> Any:
            """Builds the class that declares the config, as torchtitan does."""
            return self._owner(self, **kwargs)  # type: ignore[attr-defined]

    def __init_subclass__(cls) -> None:
        if "Config" in cls.__dict__:
            cls.Config._owner = cls  # type: ignore[attr-defined]

    def __init__(
        self, config: Any, *, dataloader: Any, model_parts: Any, optimizers: Any, lr_schedulers: Any, states: Any,
        sd_adapter: Any, base_folder: str = "",
    ) -> None:  # fmt: skip
        self.folder = f"{base_folder}/{config.folder}"
        self.states = states | {
            "model": ModelWrapper(model_parts),
            "optimizer": optimizers,
            "dataloader": dataloader,
            "lr_scheduler": lr_schedulers,
        }
        self.sd_adapter = sd_adapter
        self.async_mode = AsyncMode(config.async_mode)
        self.keep_latest_k = config.keep_latest_k
        self.purge_queue: queue.Queue[str] = queue.Queue()
        self.save_future: Future[Any] | None = None
        self.staging_future: Future[Any] | None = None
        self.loaded: list[tuple[str, bool, bool]] = []
        """Loads that were left to torchtitan."""

    def save(self, step: int) -> None:
        if self.save_future is not None:
            self.save_future.result()
        states = {name: value for name, value in self.states.items() if name != "model"}
        states |= self.states["model"].state_dict()
        folder = f"{self.folder}/step-{step}"
        if self.async_mode == AsyncMode.DISABLED:
            self.dcp_save(
                states, checkpoint_id=folder, async_mode=AsyncMode.DISABLED, enable_garbage_collection=True
            )
        else:
            result = self.dcp_save(states, checkpoint_id=folder, async_mode=self.async_mode)
            is_staged = self.async_mode == AsyncMode.ASYNC_WITH_PINNED_MEM
            self.save_future = result.upload_completion if is_staged else result
            self.staging_future = result.staging_completion if is_staged else None
            assert isinstance(self.save_future, Future)
        self._purge_stale_checkpoints()

    def save_last(self, step: int) -> None:
        """The model alone, for transformers."""
        self.dcp_save(
            self.states["model"].state_dict(),
            checkpoint_id=f"{self.folder}/step-{step}",
            async_mode=AsyncMode.DISABLED,
            enable_garbage_collection=True,
            to_hf=True,
        )

    def load(self, *, from_hf: bool = False, from_quantized: bool = False) -> int:
        step = self._find_load_step()
        states = {name: value for name, value in self.states.items() if name != "model" and not from_hf}
        states |= self.states["model"].state_dict()
        self.dcp_load(
            states, checkpoint_id=f"{self.folder}/step-{step}", from_hf=from_hf, from_quantized=from_quantized
        )
        return step

    def dcp_save(
        self, state_dict: dict[str, Any], checkpoint_id: str, async_mode: AsyncMode,
        enable_garbage_collection: bool = False, to_hf: bool = False,
    ) -> Any:  # fmt: skip
        raise AssertionError("torchtitan saved")

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        self.loaded.append((checkpoint_id, from_hf, from_quantized))

    def _find_load_step(self, folder: str = "") -> int:
        raise AssertionError("torchtitan searched")

    def _purge_stale_checkpoints(self) -> None:
        raise AssertionError("torchtitan purged")

    def _should_purge(self) -> bool:
        import torch.distributed as dist

        return self.keep_latest_k > 0 and dist.get_rank() == 0


def install() -> None:
    """Makes `torchtitan.components.checkpoint` this module."""
    for name in ("torchtitan", "torchtitan.components"):
        sys.modules[name] = ModuleType(name)
    sys.modules["torchtitan.components.checkpoint"] = sys.modules[__name__]
