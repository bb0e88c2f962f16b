"""Faults that are known and not mended yet: their cases are left out. Whoever mends one takes its row out."""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.case import Case

#: What each fault is, and whether a case shows it. A row goes with the change that mends its fault.
KNOWN: tuple[tuple[str, Callable[[Case], bool]], ...] = ()


def known(case: Case) -> bool:
    """Return whether a case shows a known fault."""
    return any(shows(case) for _, shows in KNOWN)
