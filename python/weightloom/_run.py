"""Training runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom import _weightloom
from weightloom._callback import Record, flat
from weightloom._errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = "metrics.jsonl"

_LAST = 5
"""Records that a notebook shows."""


class Run:
    """A training run: how far it is, and its metrics.

    `wl.train` returns one, and `wl.Run.open` reads that of any run folder.

    Example:
        >>> model = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        ...              num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
        >>> config = {
        ...     "model": {"name": "llama", "config_overrides": model},
        ...     "data": {"type": "dummy", "max_seq_len": 16},
        ...     "train": {"max_steps": 3, "global_batch_size": 2, "checkpoint": {"output_dir": "out"}},
        ... }
        >>> run = wl.train(config)
        >>> run.step, run.finished, run.checkpoint.name
        (3, True, 'step_3')
        >>> run.history["step"], run.loss == run.history["loss"][-1]
        ([1, 2, 3], True)
        >>> wl.Run.open("out").records == run.records
        True
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        *,
        records: Sequence[Record],
        starts: Sequence[dict[str, Any]] = (),
        warnings: Sequence[str] = (),
        checkpoint: Path | None,
        step: int,
        finished: bool,
    ) -> None:
        self.output_dir = Path(output_dir)
        """The folder of the run."""
        self.records = list(records)
        """The metrics of each recorded step: `step`, `loss`, `learning_rate`, `eval/loss` and others."""
        self.warnings = tuple(warnings)
        """What the run survived."""
        self.checkpoint = checkpoint
        """The newest checkpoint, if there is one."""
        self.step = step
        """Steps done."""
        self.finished = finished
        """Whether all steps are done. Otherwise `wl.train` with the same config resumes the run."""
        self._starts = list(starts)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Reads the run in a folder, which may still be training.

        Raises:
            UserError: the folder is not that of a run, or it records no metrics.

        Example:
            >>> wl.Run.open("nowhere")
            Traceback (most recent call last):
            weightloom._errors.UserError: cannot read the run `nowhere`: it has no metrics.jsonl
            hint: pass the `output_dir` of a run with `jsonl` in `train.logging.report_to`
        """
        place = Path(folder)
        lines = _lines(place)
        if lines is None:
            hint = "pass the `output_dir` of a run with `jsonl` in `train.logging.report_to`"
            raise UserError(f"cannot read the run `{place}`: it has no {METRICS}", hint)
        events = [line for line in lines if "event" in line]
        ends = [line for line in lines[-1:] if line.get("event") == "end"]
        starts = [event for event in events if event["event"] == "start"]
        step = max((line["step"] for line in lines), default=0)
        steps = max((start["steps"] for start in starts), default=0)
        return cls(
            place,
            records=_merged(lines),
            starts=starts,
            warnings=[event["message"] for event in events if event["event"] == "warning"],
            checkpoint=_weightloom.newest_checkpoint(place),
            step=step,
            finished=bool(ends) and (step >= steps or ends[0].get("early", False)),
        )

    @property
    def loss(self) -> float | None:
        """The last training loss."""
        return self._last("loss")

    @property
    def eval_loss(self) -> float | None:
        """The last loss on the evaluation data, if there is any."""
        return self._last("eval/loss")

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self._starts[-1]["steps"] if self._starts else self.step

    @property
    def resumed_after(self) -> list[int]:
        """The steps after which the run was resumed."""
        return [start["first_step"] for start in self._starts if start["first_step"] > 0]

    @property
    def history(self) -> dict[str, list[Any]]:
        """The records as columns of one length, with `None` where a record has no such value.

        Example:
            >>> from pathlib import Path
            >>> Path("out").mkdir()
            >>> lines = ['{"step": 1, "loss": 2.5}', '{"step": 2, "loss": 2.25, "scalars": {"eval/loss": 2.0}}']
            >>> _ = Path("out/metrics.jsonl").write_text("\\n".join(lines))
            >>> wl.Run.open("out").history
            {'step': [1, 2], 'loss': [2.5, 2.25], 'eval/loss': [None, 2.0]}
        """
        names = dict.fromkeys(name for record in self.records for name in record)
        return {name: [record.get(name) for record in self.records] for name in names}

    def points(self, name: str) -> tuple[list[int], list[float]]:
        """The steps that have a value of this name, and the values.

        Example:
            >>> run = wl.Run("out", records=[{"step": 1}, {"step": 2, "loss": 2.25}], checkpoint=None, step=2,
            ...              finished=True)
            >>> run.points("loss")
            ([2], [2.25])
        """
        found = [(record["step"], record[name]) for record in self.records if _is_finite(record.get(name))]
        return [step for step, _ in found], [value for _, value in found]

    def plot(self, ax: Axes | None = None, *, label: str | None = None) -> Axes:
        """Plots the losses, and below them the learning rate and the throughput. Needs matplotlib.

        Args:
            ax: where to plot the losses alone, for instance those of several runs.
            label: the name of the run in the legend.

        Returns:
            The axes of the losses; `.figure` is all of the plot.

        Raises:
            UserError: matplotlib is not installed, or the run has recorded no losses.

        Example:
            >>> records = [{"step": step, "loss": 4 / step, "learning_rate": 1e-3} for step in range(1, 9)]
            >>> run = wl.Run("out", records=records, checkpoint=None, step=8, finished=True)
            >>> run.plot().figure.savefig("loss.png")
        """
        from weightloom._run_plot import plot

        return plot(self, ax, label)

    def __repr__(self) -> str:
        return f"<Run {str(self.output_dir)!r}: {', '.join(self._facts())}>"

    def _facts(self) -> list[str]:
        state = "finished" if self.finished else "not finished"
        facts = [f"{state} at step {self.step:,} of {self.total_steps:,}"]
        facts += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        facts += [f"eval loss {self.eval_loss:.4f}"] if self.eval_loss is not None else []
        return facts

    def _repr_html_(self) -> str:
        from weightloom._html import headline, page, table
        from weightloom._sparkline import sparkline

        place = str(self.checkpoint) if self.checkpoint is not None else "no checkpoint yet"
        parts = [headline(str(self.output_dir), *self._facts()), headline(place)]
        steps, losses = self.points("loss")
        if len(losses) > 1:
            parts.append(sparkline(steps, losses, f"loss of {len(losses):,} records"))
        last = self.records[-_LAST:]
        names = [name for name in _SHOWN if any(name in record for record in last)]
        rows = ([_SHOWN[name][1](record.get(name)) for name in names] for record in last)
        parts.append(table([_SHOWN[name][0] for name in names], rows, len(last)))
        return page(*parts, *(headline(f"warning: {warning}") for warning in self.warnings))

    def _last(self, name: str) -> float | None:
        values: Iterable[Any] = (record.get(name) for record in reversed(self.records))
        return next((value for value in values if value is not None), None)


def _number(form: str) -> Any:
    return lambda value: "" if value is None else format(value, form)


_SHOWN = {
    "step": ("#step", _number(",")),
    "loss": ("#loss", _number(".4f")),
    "eval/loss": ("#eval loss", _number(".4f")),
    "learning_rate": ("#learning rate", _number(".2e")),
    "gradient_norm": ("#gradient norm", _number(".3f")),
    "tokens_per_second": ("#tok/s", _number(",.0f")),
}
"""Columns of the table of last records, and how their values look."""


def trained(output_dir: str, summary: dict[str, Any], results: Sequence[dict[str, Any]]) -> Run:
    """The run of a command that has ended.

    Args:
        output_dir: its folder.
        summary: the last result of the command.
        results: the results before it: records, evaluations and the start.
    """
    place = Path(output_dir)
    # The file also has what earlier processes recorded, and evaluators.
    lines = _lines(place) if f"{output_dir}/{METRICS}" in summary["metrics"] else None
    lines = lines if lines is not None else [_evaluation(result) for result in results]
    starts: list[dict[str, Any]] = [line for line in lines if line.get("event") == "start"]
    checkpoint = summary["checkpoint"]
    return Run(
        place,
        records=_merged(lines),
        starts=starts,
        warnings=summary.get("warnings", ()),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        step=summary["step"],
        finished=summary["end"] in ("finished", "stopped early"),
    )


def _evaluation(result: dict[str, Any]) -> dict[str, Any]:
    """The result of an evaluation as the line of `metrics.jsonl` that it would be."""
    if "samples" not in result:
        return result
    loss = result["eval_loss"]
    metrics: dict[str, float] = result.get("metrics", {})
    sets: dict[str, dict[str, Any]] = result.get("sets", {})
    scalars: dict[str, float] = {} if loss is None else {"eval/loss": loss}
    # Only a cross-entropy has a perplexity; other losses have metrics.
    if loss is not None and not metrics and not any(one.get("metrics") for one in sets.values()):
        scalars["eval/perplexity"] = math.exp(loss)
    scalars |= {f"eval/{name}": value for name, value in metrics.items()}
    for name, one in sets.items():
        scalars |= {f"eval/{name}/{metric}": value for metric, value in one.get("metrics", {}).items()}
        scalars[f"eval/{name}/loss"] = one["loss"]
    texts = {f"sample/{number}": "".join(sample) for number, sample in enumerate(result["samples"])}
    return {"step": result["step"], "scalars": scalars, "texts": texts}


def _lines(folder: Path) -> list[dict[str, Any]] | None:
    """The lines of the metrics of a run, if it has any."""
    try:
        text = (folder / METRICS).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    # A run that is writing may not have ended its last line.
    complete = text[: text.rfind("\n") + 1] if not _is_json(text.rpartition("\n")[2]) else text
    try:
        return [json.loads(line) for line in complete.split("\n") if line]
    except json.JSONDecodeError as error:
        reason = f"a line of {METRICS} is not JSON: {error.msg}"
        raise UserError(f"cannot read the run `{folder}`: {reason}", "restore the file from a copy") from error


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _merged(lines: Iterable[dict[str, Any]]) -> list[Record]:
    """One record for each step: evaluations have a line of their own."""
    by_step: dict[int, Record] = {}
    for line in lines:
        if "event" not in line:
            by_step.setdefault(line["step"], {}).update(flat(line))
    return [by_step[step] for step in sorted(by_step)]


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
