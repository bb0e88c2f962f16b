"""Numbers as arguments of commands."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """Return a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if (number := count(text)) == 0:
        raise argparse.ArgumentTypeError("0 is too few: at least 1")
    return number


def seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found
