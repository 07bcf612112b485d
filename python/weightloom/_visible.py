"""Texts of others, as they may be shown on a terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    """A text with visible forms of the characters that a terminal would act on, and of line ends.

    Names of tensors and files come from files that others wrote: control characters in them would erase lines or move
    the cursor, and others change the direction of text.

    Example:
        >>> from weightloom._visible import visible
        >>> print(visible("layers.0\\x1b[2K"))
        layers.0\\x1b[2K
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
