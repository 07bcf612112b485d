"""Scores of texts: the log-probability of each token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weightloom._amounts import counted
from weightloom._html import headline, page, table


@dataclass(frozen=True, slots=True, repr=False)
class Score:
    """The log-probabilities of a text's tokens, each given the tokens before it.

    Example:
        >>> score = wl.Model("weightloom-quickstart/pretrain").score("A rank is")
        >>> len(score.tokens) == len(score.pieces) == len(score.log_probabilities)
        True
        >>> score.log_probabilities[0] is None
        True
        >>> score.perplexity > 1
        True
    """

    tokens: list[int]
    """The tokens."""
    pieces: list[str]
    """The tokens as written in the vocabulary."""
    log_probabilities: list[float | None]
    """The natural logarithm of each token's probability; `None` for the first token."""
    likeliest: list[list[tuple[int, float]]]
    """The most likely tokens at each position with their log-probabilities, as many as `top` asked for."""

    @property
    def total(self) -> float:
        """The log-probability of the text after its first token: the sum."""
        return math.fsum(value for value in self.log_probabilities if value is not None)

    @property
    def perplexity(self) -> float | None:
        """The perplexity per token; `None` for a single token, which nothing predicts."""
        scored = len(self.tokens) - 1
        return math.exp(-self.total / scored) if scored > 0 else None

    def __repr__(self) -> str:
        perplexity = "" if self.perplexity is None else f", perplexity {self.perplexity:.3f}"
        return f"<Score: {counted(len(self.tokens), 'token')}, log probability {self.total:.4f}{perplexity}>"

    def _repr_html_(self) -> str:
        columns = ["#token", "piece", "#log probability"]
        if any(self.likeliest):
            columns.append("most likely")
        rows = []
        for token, piece, value, likeliest in zip(
            self.tokens, self.pieces, self.log_probabilities, self.likeliest, strict=True
        ):
            row: list[object] = [token, repr(piece), "" if value is None else f"{value:.4f}"]
            if len(columns) > len(row):
                row.append(", ".join(f"{other} {probability:.3f}" for other, probability in likeliest))
            rows.append(row)
        return page(headline(repr(self).strip("<>")), table(columns, rows, len(rows)))
