"""Exceptions, with the text and the hint that the command line prints."""

from __future__ import annotations


class WeightloomError(Exception):
    """Base class of all exceptions of this package.

    `str(error)` is what happened, and on a line of its own the hint; both are attributes too.
    """

    message: str
    """What happened."""
    hint: str | None
    """What would fix it, if that is known."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class CheckFailed(WeightloomError):
    """Something is not what it should be: a damaged checkpoint, a loss that is not a number."""


class UserError(WeightloomError, ValueError):
    """A request that cannot be fulfilled: a wrong name, a state dict that does not fit."""


class MissingTensor(WeightloomError, KeyError):
    """A checkpoint has no tensor of this name."""

    __str__ = WeightloomError.__str__


class OperationalError(WeightloomError, RuntimeError):
    """The machine, the network, the disk or another rank failed."""
