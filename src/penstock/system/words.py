"""Words of messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 sample", "2,000 samples". plural: of the noun, where it is not noun + "s"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
