"""Reports of judgements."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weightloom import _weightloom
from weightloom._errors import UserError
from weightloom._html import escape, headline, page, table
from weightloom._visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Verdict = Literal["pass", "fail", "warn", "skip", "error", "inconclusive"]
"""The verdict of a probe."""

Decision = Literal["yes", "no", "undecided", "not_tested"]
"""How a question was decided."""

Grade = Literal["healthy", "unclear", "ineffective", "memorized", "damaged"]
"""How good a verdict is, the best first."""

FORMATS = {".json": "json", ".md": "markdown", ".html": "html", ".htm": "html", ".xml": "junit"}
"""Formats of reports by the ends of file names."""


@dataclass(frozen=True)
class Question:
    """A question of the verdict with its answer."""

    question: str
    decision: Decision
    hoped: Decision
    """The answer that one hopes for."""
    evidence: tuple[str, ...]
    """Facts that support the answer, the strongest first."""


@dataclass(frozen=True)
class Probe:
    """The result of one entry of a suite."""

    name: str
    kind: str
    verdict: Verdict
    message: str
    """The finding in words."""
    title: str
    """What the kind of probe is about."""
    axis: str
    """What `value` measures, with its unit."""
    category: str
    score: float | None
    """From 0 to 1."""
    value: float | None
    """The measured number."""
    interval: tuple[float, float] | None
    """The 95 % confidence interval of `value`."""
    base_value: float | None
    """The number of the base."""
    tuned_value: float | None
    """The number of the tuned model."""
    z_score: float | None
    p_value: float | None
    p_adjusted: float | None
    """The p-value, corrected for the number of claims in the suite."""
    noise: tuple[float, ...]
    """The numbers of noise in place of the adapter."""
    limit: float | None
    """What the value is compared with, if that is not noise."""
    passes: Literal["above", "below"] | None
    """The side of the limit that passes."""
    evidence: dict[str, Any]
    """All numbers that support the finding."""
    seconds: float


class Report:
    """The report of a judgement: its verdict, and a result for each probe.

    `wl.judge` returns one, and `Report.open` reads one from a file. Iterating yields the probes; `report["name"]` is the
    probe of that name.

    Example:
        >>> report = wl.Report.open("weightloom-quickstart/report.json")
        >>> report.grade in ("healthy", "unclear")
        True
        >>> print(report.headline)
        Learned without damage...
        >>> [question.decision for question in report.questions]
        ['yes', 'yes', 'no']
        >>> report["choices"].verdict
        'pass'
        >>> report.save("report.md").read_text().splitlines()[0]
        '# Sway report'
    """

    def __init__(self, text: str, name: str = "report") -> None:
        self._name = name
        self._text = _weightloom.report_text(text, name, "json")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Report:
        """Reads a report from a JSON file of this program or of dlm-sway.

        Raises:
            UserError: it is not a report.

        Example:
            >>> wl.Report.open("weightloom-quickstart/report.json")
            <Report: Learned without damage...>
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read `{os.fspath(path)}`: {error}", "name a file that `Report.save` wrote") from None
        return cls(text, os.fspath(path))

    @cached_property
    def data(self) -> dict[str, Any]:
        """The whole report, as its JSON file holds it."""
        parsed: dict[str, Any] = json.loads(self._text)
        return parsed

    @cached_property
    def _facts(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(_weightloom.report_facts(self._text, self._name))
        return parsed

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        return str(self._facts["headline"])

    @property
    def grade(self) -> Grade:
        """How good the verdict is."""
        grade: Grade = self._facts["grade"]
        return grade

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """The questions that the verdict answers."""
        return tuple(
            Question(one["question"], one["decision"], one["hoped"], tuple(one["evidence"]))
            for one in self._facts["questions"]
        )

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        """A result for each entry of the suite."""
        return tuple(map(_probe, self.data["probes"], self._facts["probes"]))

    @property
    def score(self) -> float | None:
        """The score of the suite, from 0 to 1: a secondary number. `None` if nothing counted."""
        return float(self.data["score"]["overall"]) if self._facts["has_score"] else None

    @property
    def base(self) -> str:
        """The base model."""
        return str(self.data["base_model_id"])

    @property
    def tuned(self) -> str:
        """The adapter or the tuned model."""
        return str(self.data["adapter_id"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        return tuple(self._facts["notes"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is unusual about the run."""
        return tuple(self.data["warnings"])

    def __iter__(self) -> Iterator[Probe]:
        return iter(self.probes)

    def __len__(self) -> int:
        return len(self.probes)

    def __getitem__(self, name: str) -> Probe:
        for probe in self.probes:
            if probe.name == name:
                return probe
        known = ", ".join(probe.name for probe in self.probes)
        raise UserError(f"the report has no probe `{name}`", f"it has {known}" if known else "no probe ran")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self._text == other._text

    __hash__ = None  # type: ignore[assignment]

    def refusals(self, threshold: float | None = None) -> tuple[str, ...]:
        """Why `weightloom sway gate` would refuse the model; empty if it passes.

        Args:
            threshold: the lowest score that passes. 0.6 by default.

        Raises:
            UserError: it is no score.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> report.refusals(threshold=1.0)[-1]
            'the score is ..., below 1...'
        """
        return tuple(_weightloom.report_refusals(self._text, self._name, threshold))

    def to_json(self) -> str:
        """The report as JSON, which `Report.open` and `weightloom sway report` read.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> wl.Report(report.to_json()) == report
            True
        """
        return self._text

    def to_markdown(self) -> str:
        """The report as Markdown.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> report.to_markdown().splitlines()[0]
            '# Sway report'
        """
        return _weightloom.report_text(self._text, self._name, "markdown")

    def to_html(self) -> str:
        """The report as a page of HTML that needs nothing else.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> "</html>" in report.to_html()
            True
        """
        return _weightloom.report_text(self._text, self._name, "html")

    def to_junit(self) -> str:
        """The report as JUnit XML, for CI services.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> "<testsuite" in report.to_junit()
            True
        """
        return _weightloom.report_text(self._text, self._name, "junit")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the report, in the format that the end of the name says: `.json`, `.md`, `.html` or `.xml` (JUnit).

        Raises:
            UserError: the end says nothing.
            OSError: it cannot be written.

        Example:
            >>> wl.Report.open("weightloom-quickstart/report.json").save("report.html").stat().st_size > 1000
            True
        """
        target = Path(path)
        kind = FORMATS.get(target.suffix.lower())
        if kind is None:
            raise UserError(
                f"cannot save `{target}`: no format of reports ends in `{target.suffix}`", f"use {', '.join(FORMATS)}"
            )
        text = self._text if kind == "json" else _weightloom.report_text(self._text, self._name, kind)
        # Complete or not at all.
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_text(text, encoding="utf-8", newline="\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws each probe's value with its interval, against noise or against its limit.

        Units differ from probe to probe, so each row has a scale of its own: its limit is in the middle, and what passes
        is right of it.

        Args:
            ax: axes of matplotlib to draw on. By default those of a new figure.

        Raises:
            UserError: matplotlib is not installed, or no probe has a number.

        Example:
            >>> report = wl.Report.open("weightloom-quickstart/report.json")
            >>> report.plot().figure.savefig("report.png")
        """
        from weightloom._report_plot import plot

        return plot(self, ax)

    def __repr__(self) -> str:
        return f"<Report: {visible(self.headline)}>"

    def __str__(self) -> str:
        lines = [visible(self.headline)]
        names = [visible(probe.name) for probe in self.probes]
        width = max(map(len, names), default=0)
        lines += [
            f"  {probe.verdict:<12} {name:<{width}}  {visible(probe.message)}"
            for name, probe in zip(names, self.probes, strict=True)
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        answers = [
            (f"{mark(question)} {question.question}", question.decision.replace("_", " "), "; ".join(question.evidence))
            for question in self.questions
        ]
        rows = [
            (f"{_MARKS[probe.verdict]} {probe.name}", probe.verdict, number(probe.value), span(probe), probe.message)
            for probe in self.probes
        ]
        score = f"score {self.score:.2f}" if self.score is not None else ""
        notes = "".join(f"<li>{escape(note)}</li>" for note in (*self.notes, *self.warnings))
        return page(
            f"<div><strong>{escape(self.headline)}</strong></div>",
            headline(self.base, self.tuned, score),
            table(["question", "answer", "evidence"], answers, len(answers)) if rows else "",
            table(["probe", "verdict", "#value", "#95 %", "finding"], rows, len(rows)),
            f"<ul>{notes}</ul>" if notes else "",
        )


_MARKS: dict[Verdict, str] = {"pass": "✓", "fail": "✗", "warn": "!", "skip": "–", "error": "✗", "inconclusive": "?"}


def mark(question: Question) -> str:
    """A mark for an answer: whether it is what one hopes for."""
    if question.decision not in ("yes", "no"):
        return "?" if question.decision == "undecided" else "–"
    return "✓" if question.decision == question.hoped else "✗"


def number(value: float | None) -> str:
    """A number as tables show it."""
    return "" if value is None else f"{value:.3g}"


def span(probe: Probe) -> str:
    """The interval of a probe as tables show it."""
    return "" if probe.interval is None else f"{probe.interval[0]:.3g} to {probe.interval[1]:.3g}"


def _probe(record: dict[str, Any], facts: dict[str, Any]) -> Probe:
    interval = record["ci_95"]
    return Probe(
        name=record["name"],
        kind=record["kind"],
        verdict=record["verdict"],
        message=record["message"],
        title=facts["title"],
        axis=facts["axis"],
        category=facts["category"],
        score=record["score"],
        value=record["raw"],
        interval=None if interval is None else (interval[0], interval[1]),
        base_value=record["base_value"],
        tuned_value=record["ft_value"],
        z_score=record["z_score"],
        p_value=record.get("p_value"),
        p_adjusted=record.get("p_adjusted"),
        noise=tuple(facts["noise"]),
        limit=facts["limit"],
        passes=facts["passes"],
        evidence=record["evidence"],
        seconds=record["duration_s"],
    )
