"""What a look at one property of a machine, or of a dataset, found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class State(Enum):
    """How a checked property stands."""

    OK = "ok"
    LOOK = "worth a look"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One checked property."""

    name: str
    state: State
    found: str
    """What was found, with numbers and units."""
    change: str = ""
    """What to do; empty where nothing is to be done."""


def checked(name: str, check: Callable[..., Check], *readings: Callable[[], Any]) -> Check:
    """Return the check of what the readings return; one that raises an exception is unknown, with the reason."""
    try:
        return check(*(read() for read in readings))
    except Exception as error:
        words = str(error) or "no further words"
        return Check(name, State.UNKNOWN, f"the check failed: {type(error).__name__}: {words}")
