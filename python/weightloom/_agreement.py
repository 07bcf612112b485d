"""Work that fails on all ranks if it fails on one, so that none waits for another in vain."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from weightloom import _errors
from weightloom._errors import OperationalError, WeightloomError

if TYPE_CHECKING:
    from weightloom._weightloom import Gang

T = TypeVar("T")


def together(gang: Gang, work: Callable[[], T], report: Callable[[T], object] = lambda _: None) -> tuple[T, list[object]]:
    """Does work on every rank of a gang. Returns its result, and what all ranks report of theirs.

    Args:
        gang: the ranks, each of which calls this.
        work: what one rank does. It must not wait for others.
        report: makes JSON of the result.

    Raises:
        WeightloomError: the work failed on another rank. On this one, its own exception is raised.
    """
    if gang.size == 1:
        result = work()
        return result, [report(result)]
    try:
        result = work()
        text = json.dumps({"report": report(result)})
    except Exception as error:
        gang.gather(json.dumps({"problem": _described(error)}))
        raise
    answers = [json.loads(answer) for answer in gang.gather(text)]
    for rank, answer in enumerate(answers):
        if "problem" in answer:
            _raise(rank, **answer["problem"])
    return result, [answer["report"] for answer in answers]


def _described(error: Exception) -> dict[str, str | None]:
    if isinstance(error, WeightloomError):
        return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    return {"kind": "OperationalError", "message": f"{type(error).__name__}: {error}", "hint": None}


def _raise(rank: int, kind: str, message: str, hint: str | None) -> NoReturn:
    found = getattr(_errors, kind, OperationalError)
    raise found(f"rank {rank} failed: {message}", hint)
