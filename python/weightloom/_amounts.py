"""Amounts as the command line prints them."""

from __future__ import annotations


def size(count: int) -> str:
    """A number of bytes in binary units.

    Example:
        >>> from weightloom._amounts import size
        >>> size(999), size(1536)
        ('999 B', '1.5 KiB')
    """
    value, unit = float(count), 0
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    while value >= 1024 and unit + 1 < len(units):
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {units[unit]}"


def counted(count: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> from weightloom._amounts import counted
        >>> counted(1, "tensor"), counted(2048, "tensor")
        ('1 tensor', '2,048 tensors')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
