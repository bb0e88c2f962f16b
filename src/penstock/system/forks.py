"""Whether a process was forked, noted from the first import of the package on."""

from __future__ import annotations

import os

_forked = False


def _note() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note)


def newly_forked() -> bool:
    """Return whether the process was forked since the last call."""
    global _forked
    was, _forked = _forked, False
    return was
