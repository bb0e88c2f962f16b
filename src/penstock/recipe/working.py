"""Which threads and processes work for a loader: there the costly calls of the user's code are answered natively."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import call_counts
from penstock.call_counts import CallMeter


class _ThreadState(threading.local):
    native = False
    """Whether this thread works for a loader."""


this_thread = _ThreadState()


def works_here() -> bool:
    """Return whether the calling thread works for a loader."""
    return this_thread.native


@contextmanager
def working(calls: CallMeter | None = None) -> Iterator[None]:
    """Let this thread work for a loader: calls are answered natively while a lease on the functions is open.

    Args:
        calls: counts them for the loader that the thread works for.
    """
    counting = call_counts.this_thread
    before, sink = this_thread.native, counting.sink
    try:
        this_thread.native = True
        counting.sink = None if calls is None else calls.of_this_thread()
        yield
    finally:
        this_thread.native, counting.sink = before, sink


def work_in_this_process() -> None:
    """Do so in all threads, for the life of a process that is a loader's own."""
    _ThreadState.native = this_thread.native = True
