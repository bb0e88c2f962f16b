"""Numbers in messages, with the nouns that they count."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 sample", "0 samples", "1,024 samples"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def there_are(number: int, noun: str) -> str:
    """Return "there is 1 sample", "there are 2 samples"."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, noun)}"
