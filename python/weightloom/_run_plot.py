"""Plots of training runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightloom._errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from weightloom._run import Run

_SMOOTHED_FROM = 100
"""Points above which a smoothed curve is drawn over them."""

_BELOW = {"learning_rate": "learning rate", "tokens_per_second": "tokens/s"}
"""The panels below the losses."""


def plot(run: Run, ax: Axes | None, label: str | None) -> Axes:
    """Plots a run, as `Run.plot` says."""
    try:
        from matplotlib import pyplot
        from matplotlib.ticker import EngFormatter
    except ImportError:
        raise UserError("cannot plot the run: matplotlib is not installed", "run `pip install matplotlib`") from None
    if not run.points("loss")[0]:
        raise UserError(f"cannot plot the run `{run.output_dir}`: it has recorded no losses", "train it first")
    if ax is not None:
        _losses(run, ax, label)
        return ax
    below = [name for name in _BELOW if run.points(name)[0]]
    heights = [2.6, 1.0] if below else [1.0]
    figure = pyplot.figure(figsize=(7.6, 5.0 if below else 3.6), layout="constrained")
    grid = figure.add_gridspec(len(heights), max(len(below), 1), height_ratios=heights)
    top = figure.add_subplot(grid[0, :])
    _losses(run, top, label)
    top.set_title(str(run.output_dir), loc="left", fontsize="medium")
    for column, name in enumerate(below):
        panel = figure.add_subplot(grid[1, column], sharex=top)
        steps, values = run.points(name)
        panel.plot(steps, values, linewidth=1.2, marker="." if len(steps) == 1 else "", color="C2")
        # A curve that is at its highest for long is not the frame.
        panel.set_ylim(0, 1.12 * max(values) or 1)
        if name == "learning_rate":
            panel.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3), useMathText=True)
        else:
            panel.yaxis.set_major_formatter(EngFormatter(sep=""))
        _finish(panel, run, _BELOW[name])
    return top


def _losses(run: Run, ax: Axes, label: str | None) -> None:
    steps, losses = run.points("loss")
    of = f"{label}: " if label is not None else ""
    if len(steps) >= _SMOOTHED_FROM:
        (raw,) = ax.plot(steps, losses, linewidth=0.6, alpha=0.35)
        color = raw.get_color()
        ax.plot(steps, _smoothed(losses), linewidth=1.6, color=color, label=f"{of}loss, smoothed")
    else:
        marker = "." if len(steps) == 1 else ""
        (line,) = ax.plot(steps, losses, linewidth=1.4, marker=marker, label=f"{of}loss")
        color = line.get_color()
    steps, losses = run.points("eval/loss")
    if steps:
        eval_color = "C1" if label is None else color
        ax.plot(steps, losses, "o--", markersize=4, linewidth=1.2, color=eval_color, label=f"{of}eval loss")
    _finish(ax, run, "loss")
    if label is not None or len(ax.get_legend_handles_labels()[1]) > 1:
        ax.legend(frameon=False, fontsize="small")


def _finish(ax: Axes, run: Run, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, step in enumerate(run.resumed_after):
        # One entry in the legend, of the losses.
        label = "resumed" if number == 0 and name == "loss" else None
        ax.axvline(step, color="grey", linestyle=":", linewidth=1.0, label=label)
    ax.set_xlabel("step")
    ax.set_ylabel(name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.grid(True, alpha=0.3, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _smoothed(values: Sequence[float]) -> list[float]:
    """Averages over about a fifteenth of the values around each.

    At the beginning, where losses fall fast, as many before as after: no slope shifts them. At the end as many as
    there are, so that the last value alone does not bend the curve.
    """
    from itertools import accumulate

    sums = [0.0, *accumulate(values)]
    half, last = len(values) // 30, len(values)
    ranges = ((at - min(half, at), min(at + min(half, at) + 1, last)) for at in range(last))
    return [(sums[end] - sums[begin]) / (end - begin) for begin, end in ranges]
