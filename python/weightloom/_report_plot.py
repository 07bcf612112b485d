"""Plots of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightloom._errors import UserError
from weightloom._forest import GRAY, GREEN, REACH, RED, YELLOW, ForestRow, draw
from weightloom._report import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from weightloom._report import Probe, Report, Verdict

_COLORS: dict[Verdict, str] = {
    "pass": GREEN, "fail": RED, "error": RED, "warn": YELLOW, "inconclusive": GRAY, "skip": GRAY,
}  # fmt: skip


def plot(report: Report, ax: Axes | None) -> Axes:
    """Plots a report, as `Report.plot` says."""
    rows = [row for probe in report if (row := _row(probe)) is not None]
    if not rows:
        raise UserError("cannot plot the report: no probe has a number", "run it first")
    return draw("the report", report.headline, rows, ("← fails", "limit, or noise", "passes →"), ax)


def _row(probe: Probe) -> ForestRow | None:
    value = probe.value
    if value is None:
        return None
    color = _COLORS[probe.verdict]
    reference = _reference(probe, value)
    words = f"{number(value)}  ({reference.words if reference else 'no limit'})"
    if reference is None:
        return ForestRow(probe.name, words, probe.axis, color, None)
    numbers = [value, *(probe.interval or ()), *probe.noise]
    furthest = max(abs(one - reference.at) for one in numbers) or 1.0
    factor = REACH * reference.sign / furthest

    def places(ends: tuple[float, ...]) -> tuple[float, float] | None:
        found = [factor * (one - reference.at) for one in ends]
        return (min(found), max(found)) if found else None

    place = factor * (value - reference.at)
    return ForestRow(probe.name, words, probe.axis, color, place, places(probe.interval or ()), places(probe.noise))


class _Reference(NamedTuple):
    """What a number is compared with: what passes is above it if the sign is positive."""

    at: float
    sign: float
    words: str


def _reference(probe: Probe, value: float) -> _Reference | None:
    limit = None
    if probe.limit is not None:
        limit = _Reference(probe.limit, 1.0 if probe.passes == "above" else -1.0, f"{probe.passes} {number(probe.limit)}")
    if not probe.noise:
        return limit
    least, most = min(probe.noise), max(probe.noise)
    # It may be further from nothing than noise, and fail by its limit.
    if limit is not None and value > most and limit.sign * (value - limit.at) < 0:
        return limit
    # A change may be smaller than any that noise makes.
    is_below = probe.verdict == "pass" and value < least
    words = f"noise {number(least)} to {number(most)}"
    return _Reference(least, -1.0, words) if is_below else _Reference(most, 1.0, words)
