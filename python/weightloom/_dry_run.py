"""What a training run would need."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from weightloom import _weightloom
from weightloom._amounts import counted, size
from weightloom._call import hub_options, option
from weightloom._train import Config, Overrides, assignments, config_file
from weightloom._training_progress import duration


@dataclass(frozen=True, slots=True)
class MeshReport:
    """Sizes of the mesh."""

    world: int
    """Ranks."""
    pp: int
    """Pipeline parallelism."""
    rdp: int
    """Replicated data parallelism."""
    sdp: int
    """Sharded data parallelism."""
    tp: int
    """Tensor parallelism."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Batch sizes."""

    rows: int
    """Rows per step over all ranks."""
    rows_of_rank: int
    """Rows per step on one rank."""
    rows_at_once: int
    """Rows per micro-batch."""
    micro_batches: int
    """Micro-batches per step."""
    tokens_of_row: int
    """Tokens per row."""
    tokens: int
    """Tokens per step over all ranks."""


@dataclass(frozen=True, slots=True)
class FlopReport:
    """Flops of a step, including recomputation and the optimizer."""

    per_step: float
    """Over all ranks."""
    most_of_a_rank: int
    """Of the rank with the most flops."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """One pipeline stage on one rank."""

    number: int
    """Number of the stage."""
    first_layer: int
    """Its first layer."""
    layers: int
    """Number of layers."""
    parameters: int
    """Parameter elements on the rank."""
    trained: int
    """Trained elements, including an adapter's."""
    forward_flops: int
    """Flops of the forward pass of a micro-batch."""
    backward_flops: int
    """Flops of the backward pass, including recomputation."""
    activations: int
    """Bytes of activations that a micro-batch stores for its backward pass."""
    kept_weights: int
    """Bytes that a micro-batch stores independent of its rows."""
    gathered: int
    """Bytes of gathered or cast weights."""
    message: int
    """Bytes sent to the next stage for a micro-batch."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of one rank, in bytes."""

    parameters: int
    """Parameters, including an adapter's."""
    least_parameters: int
    """Parameters on the rank of the stage that holds least."""
    gradients: int
    """Gradients at the end of a step, at most."""
    optimizer: int
    """Optimizer states."""
    activations: int
    """Activations at the peak."""
    kept_weights: int
    """Weights stored for the backward pass, at the peak."""
    gradients_then: int
    """Gradients at the peak."""
    working: int
    """Temporary memory at the peak."""
    peak: int
    """Peak memory."""
    in_flight: int
    """The most micro-batches in flight, summed over stages."""


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """What a rank receives per step along one axis."""

    axis: str
    """A mesh axis, `pp` or `world`."""
    count: int
    """Messages or collectives."""
    bytes: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class TrafficItem:
    """What a rank receives per step for one cause."""

    axis: str
    """A mesh axis, `pp` or `world`."""
    collective: str
    """The collective, or `receive`."""
    cause: str
    """The operation that causes it."""
    pass_: str
    """`forward` or `backward`."""
    count: int
    """Messages or collectives."""
    bytes: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """The costs of one rank."""

    pp_rank: int
    """Its place in the pipeline."""
    rank: int
    """The rank."""
    stages: list[StageReport]
    """Its pipeline stages."""
    memory: MemoryReport
    """Its memory."""
    by_axis: list[AxisTraffic]
    """Bytes received per step, by axis."""
    traffic: list[TrafficItem]
    """Bytes received per step, by cause."""
    flops: int
    """Flops per step."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The pipeline timeline of a step, with time proportional to flops."""

    stages: int
    """Pipeline stages."""
    micro_batches: int
    """Micro-batches of a step."""
    makespan: float
    """Duration of the passes, in flops of one rank."""
    bubble: list[float]
    """The fraction of time that each pipeline rank is idle."""
    overall_bubble: float
    """The idle fraction over all ranks."""
    drawing: str
    """The timeline as text, one line per pipeline rank."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint with optimizer states."""

    bytes: int
    """Its size."""
    model_bytes: int
    """The size of the model in it."""
    tensors: int
    """Tensors."""
    files: int
    """Tensor files."""
    items: int
    """Parts that are written."""
    most_of_a_rank: int
    """Bytes written by the rank that writes most."""
    mean_of_ranks: float
    """Mean bytes written per rank."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory that a rank may use."""

    device: str
    """The device, such as `cuda:0 (NVIDIA H200)`."""
    free: int
    """Free bytes."""
    ranks: int
    """The ranks that share the device; each may use its part."""
    one_per_rank: bool
    """Whether further ranks would each have another device."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes of a config that make a run fit."""

    overrides: list[str]
    """Overrides of the config, as `wl.train` takes them."""
    ranks: int
    """The number of ranks."""
    needed: int
    """Bytes that a rank then needs."""
    effect: str
    """What it changes in the result: `nothing`, `adapter_only` or `shorter_rows`."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Whether a run fits on a device."""

    memory: DeviceMemory
    """The memory that it should fit into."""
    needed: int
    """Bytes that the rank needs that needs most."""
    fits: bool
    """Whether it fits."""
    remedies: list[Remedy]
    """If it does not fit, changes that would make it fit, those that compute the same first."""
    least: int | None = None
    """If nothing that was tried would make it fit, the least that a rank would need."""


@dataclass(frozen=True, slots=True)
class GpuFit:
    """Whether a run fits on a GPU with this much memory."""

    gigabytes: int
    """Memory of the GPU, in units of 10⁹ bytes."""
    needed: int
    """Bytes that the rank needs that needs most."""
    fits: bool
    """Whether it fits."""
    remedy: Remedy | None
    """If it does not fit, the first change that was found to make it fit."""


@dataclass(frozen=True, slots=True)
class TimeReport:
    """The time of a run at the peak of its hardware, from its flops."""

    seconds_per_step: float
    """Seconds per step."""
    steps: int | None
    """Steps of the run, if known."""
    seconds: float | None
    """Seconds of all steps, if their number is known."""


@dataclass(frozen=True, slots=True, repr=False)
class DryRun:
    """What a training run would need, without data or weights."""

    mesh: MeshReport
    """Sizes of the mesh."""
    parameters: int
    """Parameters of the model."""
    trainable_parameters: int
    """Trained parameters: weights, or those of an adapter."""
    batch: BatchReport
    """Batch sizes."""
    flops: FlopReport
    """Flops of a step."""
    ranks: list[RankReport]
    """For each place in the pipeline, the rank that holds most."""
    pipeline: PipelineReport
    """The pipeline timeline."""
    checkpoint: CheckpointReport
    """A checkpoint."""
    data: Any
    """The data, as `weightloom train --dry-run --json` has it."""
    fit: FitReport | None
    """Whether it fits on a device, if the memory of one is known."""
    gpus: list[GpuFit]
    """Whether it fits on GPUs with 24, 80 and 141 GB, one for each rank."""
    warnings: list[Any]
    """Values of the config that are surely not what is wanted, as `weightloom train --dry-run --json` has them."""
    time: TimeReport | None
    """The shortest possible time, if `train.logging.peak_tflops` is set."""

    @property
    def peak(self) -> int:
        """Bytes in tensors of the rank that needs most, at its peak."""
        return max((rank.memory.peak for rank in self.ranks), default=0)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; `None` if the memory of the device is not known."""
        return None if self.fit is None else self.fit.fits

    def __repr__(self) -> str:
        return f"<DryRun: {'; '.join(self._facts())}>"

    def _facts(self) -> list[str]:
        mesh = self.mesh
        axes = " × ".join(f"{axis} {getattr(mesh, axis)}" for axis in ("pp", "rdp", "sdp", "tp"))
        facts = [
            f"{self.parameters:,} parameters, {self.trainable_parameters:,} of them trained",
            f"{counted(mesh.world, 'rank')}: {axes}",
            f"{self.batch.tokens:,} tokens per step",
            f"peak {size(self.peak)} per rank",
            f"checkpoint {size(self.checkpoint.bytes)}",
        ]
        facts += [f"at least {duration(self.time.seconds)}"] if self.time and self.time.seconds is not None else []
        return facts + ([self._fit()] if self.fit else [])

    def _fit(self) -> str:
        fit = self.fit
        if fit is None:
            return ""
        free = fit.memory.free // max(fit.memory.ranks, 1)
        verb = "fits" if fit.fits else "does not fit"
        return f"{verb}: a rank needs {size(fit.needed)} of {size(free)} on {fit.memory.device}"

    def _repr_html_(self) -> str:
        from weightloom._html import headline, page, table

        columns = ["#pp", "#parameters", "#gradients", "#optimizer", "#activations", "#temporary", "#peak"]
        rows = (
            [
                rank.pp_rank,
                *(size(count) for count in (
                    rank.memory.parameters, rank.memory.gradients, rank.memory.optimizer,
                    rank.memory.activations + rank.memory.kept_weights, rank.memory.working, rank.memory.peak,
                )),
            ]
            for rank in self.ranks
        )  # fmt: skip
        parts = [headline(fact) for fact in self._facts()]
        parts.append(table(columns, rows, len(self.ranks)))
        remedies = self.fit.remedies if self.fit else []
        if remedies:
            parts.append(headline("Changes that make it fit:"))
            shown = ([" ".join(fix.overrides), fix.ranks, size(fix.needed), _EFFECTS[fix.effect]] for fix in remedies)
            parts.append(table(["change", "#ranks", "#memory of a rank", "result"], shown, len(remedies)))
        return page(*parts)


_EFFECTS = {
    "nothing": "computes the same",
    "adapter_only": "trains only an adapter",
    "shorter_rows": "truncates rows",
}


def dry_run(
    config: Config,
    overrides: Overrides = (),
    *,
    ranks: int | None = None,
    memory: str | int | None = None,
    device: str | None = None,
    asset_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    model_path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    env: str | Iterable[str] = (),
    offline: bool = False,
) -> DryRun:
    """Computes memory, communication, pipeline and checkpoint size of a training run, without data or weights.

    Args:
        config: the YAML file of the run, or its contents as a dict.
        overrides: values instead of those of the config.
        ranks: ranks that would train, on any number of machines; 1 by default.
        memory: the memory of each rank's GPU, such as `"80GB"`, to check whether the run fits; that of this machine
            by default.
        device: the device instead of that of the config.
        asset_dir: folders of cards.
        model_path: folders of models described in YAML.
        env: the environments whose cards apply.
        offline: download nothing.

    Raises:
        UserError: the config is wrong, or the ranks cannot be split as it says.

    Example:
        >>> config = {
        ...     "model": {"name": "llama", "arch": "llama3_1_405b"},
        ...     "data": {"type": "dummy", "max_seq_len": 8192},
        ...     "train": {
        ...         "max_steps": 1000, "global_batch_size": 2048, "micro_batch_size": 1, "precision": "bf16",
        ...         "accelerator": {"pp": 16, "tp": 8}, "gradient_checkpointing": "full",
        ...     },
        ... }
        >>> plan = wl.dry_run(config, ranks=16384, memory="80GB")
        >>> plan.mesh.sdp, plan.fits, plan.pipeline.stages
        (128, True, 16)
    """
    options = ["--dry-run", *option("ranks", ranks), *option("memory", memory), *option("device", device)]
    options += hub_options(asset_dir, model_path, env, offline)
    with config_file(config) as file:
        arguments = ["train", *options, "--", file, *assignments(overrides)]
        (text,) = _weightloom.call(arguments)[1]
    report: DryRun = _read(DryRun, json.loads(text))
    return report


def _read(kind: Any, value: Any) -> Any:
    """A value of JSON as a type of this file."""
    if value is None or kind is Any:
        return value
    if typing.get_origin(kind) is types.UnionType:
        (kind,) = (option for option in typing.get_args(kind) if option is not type(None))
    if typing.get_origin(kind) is list:
        return [_read(typing.get_args(kind)[0], item) for item in value]
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return value
    hints = typing.get_type_hints(kind)
    # `pass` is a keyword of Python.
    keys = ((field.name, field.name.removesuffix("_")) for field in fields(kind))
    return kind(**{name: _read(hints[name], value[key]) for name, key in keys if key in value})
