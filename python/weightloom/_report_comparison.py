"""Comparisons of reports."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from weightloom import _weightloom
from weightloom._errors import UserError
from weightloom._forest import GRAY, GREEN, REACH, RED, YELLOW, ForestRow, draw
from weightloom._html import escape, page, table
from weightloom._report import Report, number
from weightloom._visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Outcome = Literal["regression", "worse", "better", "changed", "unchanged", "not_compared"]
"""What tests say of a change."""

_COLORS: dict[Outcome, str] = {
    "regression": RED, "worse": YELLOW, "better": GREEN, "changed": YELLOW, "unchanged": GRAY, "not_compared": GRAY,
}  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """What changed in a probe from one report to the next."""

    name: str
    outcome: Outcome
    unit: str
    before: float | None
    after: float | None
    change: float | None
    """The mean difference of the items that both have. Negative is worse, unless neither is better."""
    interval: tuple[float, float] | None
    """The 95 % confidence interval of the change."""
    margin: float
    """The largest loss that passes."""
    p_change: float | None
    p_loss: float | None


class ReportComparison:
    """What changed from each report to the next, with tests. `wl.compare` returns one."""

    def __init__(self, reports: Sequence[tuple[str, Report]], margin: float | None) -> None:
        self._native = _weightloom.compare_reports([(label, report.to_json()) for label, report in reports], margin)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The whole comparison, as `weightloom sway compare --format json` prints it."""
        parsed: dict[str, Any] = json.loads(self._native.json)
        return parsed

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the reports."""
        return tuple(self.data["labels"])

    @property
    def is_worse(self) -> bool:
        """Whether the last report has a proven loss larger than the margin against the one before, or a new error."""
        return self._native.is_worse

    @property
    def sentences(self) -> tuple[str, ...]:
        """What changed, in words."""
        return tuple(self._native.sentences)

    @cached_property
    def steps(self) -> tuple[tuple[Effect, ...], ...]:
        """For each report but the first, what changed from the one before, probe by probe."""
        return tuple(tuple(map(_effect, step["effects"])) for step in self.data["steps"])

    def to_json(self) -> str:
        """The comparison as JSON.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> import json
            >>> json.loads(wl.compare(report, report).to_json())["labels"]
            ['1', '2']
        """
        return self._native.json

    def to_markdown(self) -> str:
        """The comparison as Markdown.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> "| change |" in wl.compare(report, report).to_markdown()
            True
        """
        return self._native.markdown

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws what changed from the last but one report to the last: each probe with its interval, in its unit.

        No change is in the middle, and what is better is right of it. A tick is the largest loss that passes.

        Args:
            ax: axes of matplotlib to draw on. By default those of a new figure.

        Raises:
            UserError: matplotlib is not installed, or nothing could be compared.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> wl.compare(report, report).plot().figure.savefig("changes.png")
        """
        rows = [row for effect in self.steps[-1] if (row := _row(effect)) is not None]
        if not rows:
            raise UserError("cannot plot the comparison: the reports have no probe in common", "run one suite on both")
        title = f"{self.labels[-2]} → {self.labels[-1]}: {'worse' if self.is_worse else 'not proven worse'}"
        return draw("the comparison", title, rows, ("← worse", "unchanged", "better →"), ax)

    def __repr__(self) -> str:
        judged = "worse" if self.is_worse else "not proven worse"
        return f"<ReportComparison {visible(', '.join(self.labels))}: {judged}>"

    def __str__(self) -> str:
        return "\n".join(map(visible, self.sentences)) or repr(self)

    def _repr_html_(self) -> str:
        rows, columns = self._native.rows, self._native.columns
        said = "".join(f"<li>{escape(sentence)}</li>" for sentence in (*self.sentences, *self.data["notes"]))
        return page(table(columns, rows, len(rows)), f"<ul>{said}</ul>" if said else "")


def compare(
    *reports: Report | str | os.PathLike[str], labels: Sequence[str] | None = None, margin: float | None = None
) -> ReportComparison:
    """Compares the reports of several runs of a suite, oldest first.

    All runs answer the same items, so changes are paired: each has an interval, a test and its unit.

    Args:
        reports: at least two: reports, or JSON files of reports.
        labels: their names. By default those of the files, or `1`, `2`, ….
        margin: the largest loss that passes, in the unit of each probe. By default one for each unit.

    Raises:
        UserError: there are fewer than two, or one cannot be read.

    Example:
        >>> before = wl.Report.open("weightloom-quickstart/report.json")
        >>> compared = wl.compare(before, "weightloom-quickstart/report.json", labels=["before", "after"])
        >>> compared
        <ReportComparison before, after: not proven worse>
        >>> compared.steps[0][0].outcome
        'unchanged'
    """
    if len(reports) < 2:
        found = "1 report" if reports else "no reports"
        raise UserError(f"cannot compare {found}", "pass at least two")
    if labels is None:
        labels = [
            str(number) if isinstance(report, Report) else os.path.splitext(os.path.basename(report))[0]
            for number, report in enumerate(reports, 1)
        ]
        # Files of one name are in folders of several.
        if len(set(labels)) < len(labels):
            labels = [
                label if isinstance(report, Report) else os.fspath(report)
                for label, report in zip(labels, reports, strict=True)
            ]
    if len(labels) != len(reports):
        raise UserError(f"cannot compare {len(reports)} reports: labels are given for {len(labels)}", "pass one for each")
    opened = [report if isinstance(report, Report) else Report.open(report) for report in reports]
    return ReportComparison(list(zip(labels, opened, strict=True)), margin)


def _effect(found: dict[str, Any]) -> Effect:
    interval = found["ci_95"]
    return Effect(
        name=found["name"],
        outcome=found["outcome"],
        unit=found["unit"],
        before=found["before"],
        after=found["after"],
        change=found["change"],
        interval=None if interval is None else (interval[0], interval[1]),
        margin=found["margin"],
        p_change=found["p_change"],
        p_loss=found["p_loss"],
    )


def _row(effect: Effect) -> ForestRow | None:
    if effect.change is None:
        return None
    furthest = max(abs(one) for one in (effect.change, effect.margin, *(effect.interval or ()))) or 1.0
    factor = REACH / furthest
    words = f"{number(effect.before)} → {number(effect.after)}  ({number(effect.change)})"
    place, color = factor * effect.change, _COLORS[effect.outcome]
    interval = effect.interval and (factor * effect.interval[0], factor * effect.interval[1])
    return ForestRow(effect.name, words, effect.unit, color, place, interval, tick=-factor * effect.margin)
