"""What the lint says of a place in a dataset's code or state."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.insight.check import State


@dataclass(frozen=True)
class Remark:
    """One thing in a dataset that costs time or memory, or makes it fail, and what to change."""

    rule: str
    """The name of the rule: "python-objects", "open-handle", "cuda", "global-random", "opencv-threads", "open-image" or
    "reads-all"."""
    state: State
    """BAD: it fails, or gives wrong samples, in worker processes. LOOK: it costs."""
    where: str
    """The class or function, with file and line as far as they are known: "Photos.__getitem__ (train.py:12)"."""
    what: str
    why: str
    """What it costs."""
    change: str


def place(name: str, file: str | None, line: int | None) -> str:
    """Return where something is: "NAME (FILE:LINE)". The file is shown as the working folder sees it."""
    if not file:
        return name
    try:
        seen = os.path.relpath(file)
    except (OSError, ValueError):  # the working folder is gone
        seen = file
    shown = file if seen.startswith(os.pardir) else seen
    return f"{name} ({shown}{'' if line is None else f':{line}'})"
