"""Prompts as users give them: texts, or tokens, one or several."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

from weightloom._errors import UserError


class TokenArray(Protocol):
    """A tensor or an array of tokens."""

    def tolist(self) -> Any:
        """Its elements, in lists."""


Prompt = str | Sequence[int]
Prompts = Sequence[str] | Sequence[Sequence[int]] | TokenArray

_MAX_TOKEN = 2**32 - 1


class Rows(NamedTuple):
    """Prompts, each a text or tokens."""

    rows: list[str | list[int]]
    is_one: bool
    """Whether it was one prompt, and no list."""

    @classmethod
    def of(cls, prompt: Prompt | Prompts) -> Rows:
        """Tells one prompt from several: a list of ints is one.

        Raises:
            UserError: it is neither text nor tokens.

        Example:
            >>> from weightloom._prompt import Rows
            >>> Rows.of([1, 2]).rows, Rows.of(["a", [3]]).rows
            ([[1, 2]], ['a', [3]])
        """
        if isinstance(prompt, str):
            return cls([prompt], True)
        items = _items(prompt)
        if items and all(hasattr(item, "__index__") for item in items):
            return cls([_tokens(items)], True)
        return cls([item if isinstance(item, str) else _tokens(_items(item)) for item in items], False)


def _items(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (Mapping, bytes)) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise UserError(f"cannot read a prompt of type {kind}", "pass a text, tokens, or a list of them")
    return list(value)


def _tokens(items: list[Any]) -> list[int]:
    try:
        tokens = [operator.index(item) for item in items]
    except TypeError:
        kind = next(type(item).__name__ for item in items if not hasattr(item, "__index__"))
        raise UserError(f"cannot read tokens: found a {kind}", "pass whole numbers, or text") from None
    wrong = next((token for token in tokens if not 0 <= token <= _MAX_TOKEN), None)
    if wrong is not None:
        raise UserError(f"cannot use the token {wrong}: it is in no vocabulary", "pass tokens of the model's tokenizer")
    return tokens


class GenerateOptions(TypedDict, total=False):
    """Options of generated text, with the names and the defaults of `weightloom generate`."""

    max_new_tokens: int
    """The most tokens to generate; 128 by default."""
    sample: bool
    """Sample with the model's own settings instead of taking the most likely token."""
    temperature: float | None
    """Sample with this temperature."""
    top_k: int | None
    """Sample from this many of the most likely tokens."""
    top_p: float | None
    """Sample from the most likely tokens with this total probability."""
    min_p: float | None
    """Sample from tokens with at least this fraction of the highest probability."""
    repetition_penalty: float | None
    """Penalize repeated tokens; 1 has no effect."""
    seed: int
    """The seed for sampling; 0 by default."""
    stop: str | Sequence[str]
    """Texts before which the generation ends."""
    ignore_eos: bool
    """Continue after end-of-text tokens."""


class NativeOptions(NamedTuple):
    """Options of generated text, as the native module takes them."""

    max_new_tokens: int = 128
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    is_chat: bool = False

    def checked(self) -> NativeOptions:
        """With a list of stops, and counts that are not negative.

        Raises:
            UserError: an option is not possible.
        """
        for name in ("max_new_tokens", "top_k", "seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                hint = f"set `{name}` to a whole number from 0 on"
                raise UserError(f"invalid `{name}`: {value} is not at least 0", hint)
        return self._replace(stop=[self.stop] if isinstance(self.stop, str) else list(self.stop))


class Conversation(NamedTuple):
    """A conversation, as the native module takes it: JSON."""

    messages: str
    tools: str | None
    documents: str | None
    variables: str

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> Conversation:
        """A conversation of dicts.

        Raises:
            UserError: they are no JSON.
        """
        try:
            return cls(
                json.dumps(list(messages)),
                None if tools is None else json.dumps(list(tools)),
                None if documents is None else json.dumps(list(documents)),
                json.dumps(dict(variables or {})),
            )
        except (TypeError, ValueError) as error:
            raise UserError(f"cannot read the conversation: {error}", "pass dicts that JSON can express") from None
