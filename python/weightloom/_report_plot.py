"""Plots of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightloom._errors import UserError
from weightloom._report import number
from weightloom._visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from matplotlib.axes import Axes

    from weightloom._report import Probe, Report, Verdict

_COLORS: dict[Verdict, str] = {
    "pass": "#2a7f4f", "fail": "#c0392b", "error": "#c0392b", "warn": "#b7791f", "inconclusive": "#7a7a7a", "skip": "#7a7a7a",
}  # fmt: skip
"""Colours of verdicts, which are readable on white and on black."""

_REACH = 0.92
"""How far from the middle the furthest mark is, where the frame is 1."""


def pyplot_of(what: str) -> ModuleType:
    """The module `pyplot` of matplotlib.

    Raises:
        UserError: it is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise UserError(f"cannot plot {what}: matplotlib is not installed", "run `pip install matplotlib`") from None
    return pyplot


def plot(report: Report, ax: Axes | None) -> Axes:
    """Plots a report, as `Report.plot` says."""
    pyplot = pyplot_of("the report")
    probes = [probe for probe in report if probe.value is not None]
    if not probes:
        raise UserError("cannot plot the report: no probe has a number", "run it first")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(9.2, 1.5 + 0.52 * len(probes)), layout="constrained")
        ax.set_title(_wrapped(visible(report.headline)), loc="left", fontsize="medium")
    for row, probe in enumerate(probes):
        _draw(ax, row, probe)
    ax.axvline(0, color="0.5", linewidth=1, zorder=0)
    ax.set_xlim(-1, 1)
    ax.set_ylim(len(probes) - 0.4, -0.6)
    ax.set_yticks(range(len(probes)), [_literal(visible(probe.name)) for probe in probes])
    for label, probe in zip(ax.get_yticklabels(), probes, strict=True):
        label.set_color(_COLORS[probe.verdict])
    ax.tick_params(axis="y", length=0)
    ax.set_xticks([-0.5, 0, 0.5], ["← fails", "limit, or noise", "passes →"], color="0.45")
    ax.tick_params(axis="x", length=0)
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
    # Values with their units, beside the rows.
    beside = ax.secondary_yaxis("right")
    beside.set_yticks(range(len(probes)), [_literal(_value(probe)) for probe in probes], fontsize="small", color="0.45")
    beside.tick_params(axis="y", length=0)
    beside.spines["right"].set_visible(False)
    return ax


def _draw(ax: Axes, row: int, probe: Probe) -> None:
    color = _COLORS[probe.verdict]
    place = _scale(probe)
    if probe.value is None or place is None:
        # A number that is compared with nothing.
        ax.plot([0], [row], marker="|", color=color, markersize=9)
        return
    if probe.noise:
        low, high = sorted((place(min(probe.noise)), place(max(probe.noise))))
        ax.plot([low, high], [row, row], color="0.5", alpha=0.3, linewidth=9, solid_capstyle="butt", zorder=1)
    if probe.interval is not None:
        ax.plot([place(end) for end in probe.interval], [row, row], color=color, linewidth=2, solid_capstyle="butt")
    ax.plot([place(probe.value)], [row], marker="o", color=color, markersize=7)


def _scale(probe: Probe) -> Callable[[float], float] | None:
    """Places of a probe's numbers: what it is compared with in the middle, and what passes right of it."""
    value = probe.value
    if value is None:
        return None
    if probe.noise:
        # A change may be smaller than any that noise makes.
        is_below = probe.verdict == "pass" and value < min(probe.noise)
        middle, sign = (min(probe.noise), -1.0) if is_below else (max(probe.noise), 1.0)
    elif probe.limit is not None:
        middle, sign = probe.limit, 1.0 if probe.passes == "above" else -1.0
    else:
        return None
    numbers = [value, *(probe.interval or ()), *probe.noise]
    furthest = max((abs(one - middle) for one in numbers), default=0.0) or 1.0
    return lambda one: _REACH * sign * (one - middle) / furthest


def _value(probe: Probe) -> str:
    if probe.noise:
        against = f"noise {number(min(probe.noise))} to {number(max(probe.noise))}"
    elif probe.limit is not None:
        against = f"{probe.passes} {number(probe.limit)}"
    else:
        against = "no limit"
    return f"{number(probe.value)}  ({against})  {visible(probe.axis)}"


def _literal(text: str) -> str:
    """A text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def _wrapped(text: str) -> str:
    import textwrap

    return _literal("\n".join(textwrap.wrap(text, 96)))
