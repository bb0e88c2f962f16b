"""What hooks report of each call: answered natively, or refused, with the reason and an example.

The calls count for the loader that the calling thread works for, and nowhere where it works for none.
"""

from __future__ import annotations

import io
from pathlib import PurePath
from typing import Any

from penstock.call_counts import answered, refused

__all__ = ["answered", "example_of", "refused"]


def example_of(argument: Any) -> str:
    """Return the path that a function was called with, or that an open file has; empty where there is none."""
    if type(argument) is str:
        return argument
    if isinstance(argument, PurePath):
        return str(argument)
    name = argument.name if type(argument) is io.BufferedReader else None
    return name if type(name) is str else ""
