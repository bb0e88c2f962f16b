"""How a check fails."""

from __future__ import annotations

from typing import NoReturn


def fail(message: str) -> NoReturn:
    """Raise AssertionError; pytest does not show this frame."""
    __tracebackhide__ = True
    raise AssertionError(message)
