"""What this package does when its process forks or ends: registered when a loader first needs it, never by an import.

Python keeps such a function until the process ends, and a forked child has its parent's.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable
from functools import partial

Hook = Callable[[], object]

_registered: dict[object, object] = {}
_process = os.getpid()


def at_fork(
    *, before: Hook | None = None, after_in_parent: Hook | None = None, after_in_child: Hook | None = None
) -> None:
    """Have functions called around each fork from now on. A second call with the same functions changes nothing."""
    if _is_first((before, after_in_parent, after_in_child)):
        hooks = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        os.register_at_fork(**{when: hook for when, hook in hooks.items() if hook is not None})


def at_exit(hook: Hook) -> None:
    """Have a function called when the process ends. A second call with the same function changes nothing."""
    if _is_first(hook):
        atexit.register(hook)


def end_openmp_at_forks() -> None:
    """Have OpenMP end its threads before each fork, where it can: it starts them anew when they are needed.

    A child does not have these threads, and torch's next operation in it would wait for them.
    """
    if _is_first(end_openmp_at_forks) and (pause := getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)):
        os.register_at_fork(before=partial(pause, 1))  # omp_pause_soft


def is_new_child() -> bool:
    """Return whether this process was forked since the last call, or else since penstock was imported."""
    global _process
    before, _process = _process, os.getpid()
    return before != _process


def _is_first(what: object) -> bool:
    """Return whether this is the first call with these functions. No lock is taken: a fork would leave it taken."""
    return _registered.setdefault(what, mine := object()) is mine
