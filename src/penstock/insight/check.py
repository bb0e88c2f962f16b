"""What a look at a machine, or at a dataset, found: a check of a property, or a remark on a place in the code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


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


def judged(name: str, found: str, change: str = "", *, bad: bool = False) -> Check:
    """Return a check that is in order where nothing is to be done, and else is worth a look, or bad."""
    return Check(name, State.BAD if bad else State.LOOK if change else State.OK, found, change)


def checked(name: str, check: Callable[[], Check]) -> Check:
    """Return what a check returns; one that raises an exception is unknown, with the reason."""
    try:
        return check()
    except Exception as error:
        words = str(error) or "no further words"
        return Check(name, State.UNKNOWN, f"the check failed: {type(error).__name__}: {words}")


@dataclass(frozen=True)
class Remark:
    """One thing in a dataset that costs time or memory, or makes it fail, and what to change."""

    rule: str
    """The name of the rule: "python-objects", "open-handle" or "opencv-threads"."""
    state: State
    """BAD: it fails, or gives wrong samples, in worker processes. LOOK: it costs."""
    where: str
    """The class, with file and line as far as they are known: "Photos (train.py:12)"."""
    what: str
    why: str
    """What it costs."""
    change: str
