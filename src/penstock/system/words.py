"""Words of messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 sample", "2,000 samples". plural: of the noun, where it is not noun + "s"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def and_join(names: tuple[str, ...]) -> str:
    """Return names as in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def near(word: str, names: Iterable[str]) -> str:
    """Return "; do you mean 'pack'?" for the name that is nearest to a word, or nothing where none is near."""
    found = get_close_matches(word, list(names), 1)
    return f"; do you mean {found[0]!r}?" if found else ""


def near_path(path: str) -> str:
    """Return `near` for a path that does not exist, of the names in its folder."""
    folder, name = os.path.split(path)
    try:
        return near(path, (os.path.join(folder, one) for one in os.listdir(folder or "."))) if name else ""
    except OSError:
        return ""


def size_of(size: int) -> str:
    """Return a number of bytes with a unit: "1.5 GiB", "64 MiB", "3.2 MiB", "12 KiB"."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    if size < 1 << 20:
        return f"{size / (1 << 10):.{0 if size >= 10 << 10 else 1}f} KiB"
    return f"{size / (1 << 20):.{0 if size >= 10 << 20 else 1}f} MiB"


def bytes_in(text: str | int) -> int:
    """Return the number of bytes that a text such as "256MiB", "1.5 GB" or "4096" names.

    KB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB, and K, M, G and T, powers of 1024. Raises ValueError.
    """
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)(B?)", text.strip(), re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"a size in bytes is a number with a unit, such as 256MiB or 1.5GB, not {text!r}")
    base = 1000 if found[4] and not found[3] else 1024
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * base**power) if "." in found[1] else int(found[1]) * base**power


def there_are(number: int, noun: str) -> str:
    """Return "there is 1 sample", "there are 2 samples"."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, noun)}"


def compact(number: float) -> str:
    """Return a number in three digits, from 100 on without decimals: "0.052", "7.25", "12,345"."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def duration(seconds: float) -> str:
    """Return a time with a unit: "2.1 h", "2 min 5 s", "12.3 s", "71.2 ms", "40 us"."""
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 100:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * max(0.0, seconds):.3g} us"
