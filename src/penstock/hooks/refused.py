"""What a native answer gives where it has none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is the original function's, which gives its own result or error."""

    reason: str
    """Why, for a report: "it holds PIL.Image.Image"."""
