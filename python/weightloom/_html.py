"""Tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from weightloom._visible import visible

MAX_ROWS = 1000
"""Rows of a table above which the rest is counted."""

# Colours are those of the page, light or dark.
_CELL = "padding:0.2em 0.8em;border:none;border-bottom:1px solid rgba(128,128,128,0.3);background:transparent"
# Some notebooks centre tables.
_STYLE = "border-collapse:collapse;margin:0.3em 0;color:inherit;background:transparent;font-size:0.9em"


def escape(value: object) -> str:
    """A value as text of an HTML element or attribute, with control characters in a visible form."""
    return html.escape("\n".join(map(visible, str(value).split("\n"))))


def headline(*facts: str) -> str:
    """The most important facts, above a table."""
    return f'<div style="margin:0.3em 0">{" · ".join(escape(fact) for fact in facts if fact)}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """A table of at most 1,000 rows, which says how many more there are.

    Columns whose name begins with `#` hold numbers, which are aligned to the right and not broken.
    """
    sides = ["right;white-space:nowrap" if column.startswith("#") else "left" for column in columns]
    styles = [f"{_CELL};text-align:{side}" for side in sides]
    head = "".join(
        f'<th style="{style};font-weight:600">{escape(column.removeprefix("#"))}</th>'
        for column, style in zip(columns, styles, strict=True)
    )
    body: list[str] = []
    for row in rows:
        if len(body) == MAX_ROWS:
            break
        cells = (f'<td style="{style}">{escape(cell)}</td>' for cell, style in zip(row, styles, strict=True))
        body.append(f"<tr>{''.join(cells)}</tr>")
    hidden = count - len(body)
    note = f"<div>… and {hidden:,} more</div>" if hidden > 0 else ""
    return f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>{note}'


def page(*parts: str) -> str:
    """Parts as one output."""
    return f"<div>{''.join(parts)}</div>"
