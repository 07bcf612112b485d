"""Commands of the command line, called for their results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from weightloom import _weightloom
from weightloom._progress import Progress, new_progress


class Located(Protocol):
    """A checkpoint that is open."""

    @property
    def location(self) -> str:
        """Where it is: a path or URL."""
        ...


Place = str | os.PathLike[str] | Located
"""A path, folder, run, card, `org/name` or URL, or a checkpoint that is open."""


def text_of(place: Place) -> str:
    """A place as an argument of a command."""
    return os.fspath(place) if isinstance(place, (str, os.PathLike)) else place.location


class Called(NamedTuple):
    """What a command returned."""

    code: int
    """0, or 1 if a check such as `diff` says no."""
    results: list[Any]
    """Its results, which are JSON."""
    notes: tuple[str, ...]
    """What it said on the way."""

    @property
    def result(self) -> dict[str, Any]:
        """The only result."""
        (result,) = self.results
        found: dict[str, Any] = result
        return found


def call(
    command: str, positional: Sequence[Place], *options: Sequence[str], progress: Progress | None = None
) -> Called:
    """Runs a command, such as `convert` or `models list`, and shows its progress.

    Args:
        command: its name.
        positional: its arguments.
        options: groups of options, as `option` makes them.
        progress: shows its progress. By default a bar of bytes does.

    Raises:
        WeightloomError: it failed.
    """
    flags = [text for group in options for text in group]
    places = [text_of(place) for place in positional]
    progress = progress or new_progress()
    try:
        # After `--`, names that begin with a dash are no options.
        code, texts = _weightloom.call([*command.split(), *flags, "--", *places], progress)
    finally:
        progress.close()
    return Called(code, [json.loads(text) for text in texts], tuple(progress.notes))


def option(name: str, value: object | None) -> list[str]:
    """The option of a keyword, unless it is `None` or `False`.

    Example:
        >>> from weightloom._call import option
        >>> option("shard_size", "5GB"), option("offline", True), option("dtype", None)
        (['--shard-size=5GB'], ['--offline'], [])
    """
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    return [f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]


def options(name: str, values: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """A repeatable option of a keyword, of one value or several."""
    several = [values] if isinstance(values, (str, os.PathLike)) else values
    return [text for value in several for text in option(name, value)]


def hub_options(
    asset_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    model_path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    env: str | Iterable[str],
    offline: bool,
) -> list[str]:
    """The options with which models are found by name."""
    found = options("asset_dir", asset_dir) + options("model_path", model_path) + options("env", env)
    return found + option("offline", offline)
