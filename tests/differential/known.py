"""Faults that are known and not mended yet: their cases are left out. Whoever mends one takes its row out."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.differential.case import Case


def _in_workers(case: Case) -> bool:
    return bool(re.search("num_workers=[123]", str(case.options)))


KNOWN: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    (
        "a list or dict that comes twice in a worker's batch comes as two",
        lambda case: _in_workers(case) and "collate_fn=twice" in case.options,
    ),
    ("pinned batches of worker processes are overwritten", lambda case: _in_workers(case) and case.pins),
    (
        "blocks of a loader that is used before a fork are used by both processes",
        lambda case: _in_workers(case) and case.loop == "fork",
    ),
)


def known(case: Case) -> bool:
    """Return whether a case shows a known fault."""
    return any(shows(case) for _, shows in KNOWN)
