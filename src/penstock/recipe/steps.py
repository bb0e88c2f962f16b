"""What explain() says of each step: who does it, and why not the native core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of a plan, for its explanation."""

    what: str
    """The step, a verb first."""
    who: str
    """Who does it: 'native', 'Python' or 'device'."""


@dataclass(frozen=True)
class Refusal:
    """Why something is left to Python."""

    what: str
    """The dataset, option or transform."""
    why: str
    """Why the native core does not take it."""
    remedy: str
    """What would make it native; reads after 'with'."""
