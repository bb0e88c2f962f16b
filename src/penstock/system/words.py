"""Words of messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 sample", "2,000 samples". plural: of the noun, where it is not noun + "s"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size_of(size: int) -> str:
    """Return a number of bytes with a unit: "1.5 GiB", "64 MiB", "3.2 MiB"."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.{0 if size >= 10 << 20 else 1}f} MiB"


def there_are(number: int, noun: str) -> str:
    """Return "there is 1 sample", "there are 2 samples"."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, noun)}"
