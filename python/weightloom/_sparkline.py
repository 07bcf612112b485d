"""Small curves for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from weightloom._html import escape

_WIDTH, _HEIGHT, _MARGIN = 320, 48, 3

_POINTS = 320
"""Points of a curve above which some are left out."""


def sparkline(xs: Sequence[float], ys: Sequence[float], title: str) -> str:
    """A curve as an SVG image, with its first and last value beside it.

    Example:
        >>> from weightloom._sparkline import sparkline
        >>> image = sparkline([1, 2, 3], [4.0, 3.0, 2.5], "loss")
        >>> image.count("<polyline"), "<title>loss</title>" in image
        (1, True)
    """
    every = -(-len(xs) // _POINTS)
    kept = sorted({*range(0, len(xs), every), len(xs) - 1})
    left, right = xs[0], xs[-1]
    low, high = min(ys), max(ys)
    across = (_WIDTH - 2 * _MARGIN) / ((right - left) or 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1)
    points = " ".join(
        f"{_MARGIN + (xs[at] - left) * across:.1f},{_HEIGHT - _MARGIN - (ys[at] - low) * up:.1f}" for at in kept
    )
    return (
        '<div style="display:flex;align-items:center;gap:0.6em;font-size:0.9em">'
        f"<span>{ys[0]:.4g}</span>"
        f'<svg role="img" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f"<title>{escape(title)}</title>"
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"'
        ' stroke-linejoin="round"/></svg>'
        f"<span>{ys[-1]:.4g}</span></div>"
    )
