"""What native answers have in common: how they refuse a call, and what they read of its arguments."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is the original function's, which gives its own result or error."""

    reason: str
    """Why, for a report: "it holds PIL.Image.Image"."""


def content_of(file: Any) -> tuple[bytes | int, int] | None:
    """Return where a file object's content is (the bytes, or a descriptor) and the position that it is at.

    None for what is not an open io.BytesIO or a file opened by open(..., "rb").
    """
    try:
        if type(file) is io.BytesIO:
            return file.getvalue(), file.tell()
        if type(file) is io.BufferedReader and type(file.raw) is io.FileIO:
            return file.fileno(), file.tell()
    except (OSError, ValueError):  # closed, detached, or not seekable
        pass
    return None


def example_of(argument: Any) -> str:
    """Return the path that a function was called with, or that an open file has; empty where there is none."""
    if type(argument) is str:
        return argument
    if isinstance(argument, PurePath):
        return str(argument)
    name = argument.name if type(argument) is io.BufferedReader else None
    return name if type(name) is str else ""
