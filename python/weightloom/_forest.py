"""Forest plots: a row for each number, with its interval."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightloom._errors import UserError
from weightloom._visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREEN, RED, YELLOW, GRAY = "#2a7f4f", "#c0392b", "#b7791f", "#7a7a7a"
"""Colours that are readable on white and on black."""

REACH = 0.92
"""How far from the middle the furthest mark is, where the frame is 1."""

_MOST_SIGNS = 48
"""The length above which a text beside a row is cut."""


@dataclass(frozen=True)
class ForestRow:
    """A row: places are from -1 to 1, with 0 in the middle."""

    name: str
    words: str
    """The number, and what it is compared with."""
    unit: str
    color: str
    value: float | None
    """`None` if it is compared with nothing, and so has no place."""
    interval: tuple[float, float] | None = None
    band: tuple[float, float] | None = None
    """A range to compare with."""
    tick: float | None = None
    """A place of note."""


def draw(what: str, title: str, rows: Sequence[ForestRow], labels: tuple[str, str, str], ax: Axes | None) -> Axes:
    """Draws rows.

    Args:
        what: the object, for errors.
        title: the title, if the axes are new.
        rows: at least one.
        labels: what is written below the left, the middle and the right.
        ax: the axes; `None` makes new ones.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise UserError(f"cannot plot {what}: matplotlib is not installed", "run `pip install matplotlib`") from None
    names = [_literal(_short(row.name)) for row in rows]
    beside_rows = [f"{_literal(_short(row.words))}\n{_literal(_short(row.unit))}" for row in rows]
    if ax is None:
        # Texts beside the rows leave the frame its width.
        right = max(len(line) for text in beside_rows for line in text.splitlines())
        width = 4.4 + 0.09 * max(map(len, names)) + 0.075 * right
        lines = textwrap.wrap(visible(title), int(width * 11))
        figure, ax = pyplot.subplots(figsize=(width, 0.9 + 0.2 * len(lines) + 0.46 * len(rows)), layout="constrained")
        figure.suptitle("\n".join(map(_literal, lines)), x=0.01, ha="left", fontsize="medium")
    for place, row in enumerate(rows):
        _draw(ax, place, row)
    ax.axvline(0, color="0.5", linewidth=1, zorder=0)
    ax.set_xlim(-1, 1)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    places = range(len(rows))
    ax.set_yticks(places, names)
    for label, row in zip(ax.get_yticklabels(), rows, strict=True):
        label.set_color(row.color)
    ax.set_xticks([-0.5, 0, 0.5], labels, color="0.45", fontsize="small")
    beside = ax.secondary_yaxis("right")
    beside.set_yticks(places, beside_rows, fontsize="small", color="0.45")
    for axes in (ax, beside):
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return ax


def _draw(ax: Axes, place: int, row: ForestRow) -> None:
    ax.axhline(place, color="0.5", alpha=0.18, linewidth=0.8, zorder=0)
    if row.band is not None:
        ax.plot(row.band, [place, place], color="0.5", alpha=0.35, linewidth=9, solid_capstyle="butt", zorder=1)
    if row.tick is not None:
        ax.plot([row.tick], [place], marker="|", color="0.5", markersize=10)
    if row.interval is not None:
        ax.plot(row.interval, [place, place], color=row.color, linewidth=2, solid_capstyle="butt")
    fill = "none" if row.value is None else row.color
    ax.plot([row.value or 0.0], [place], marker="o", color=row.color, markerfacecolor=fill, markersize=6.5)


def _short(text: str) -> str:
    """A text that fits beside a row."""
    return text if len(text) <= _MOST_SIGNS else f"{text[: _MOST_SIGNS - 1]}…"


def _literal(text: str) -> str:
    """A text of others, in which matplotlib sees no formula."""
    return visible(text).replace("$", r"\$")
