"""Calls of a user's code that were answered natively, or left to the original function: counted for each loader.

A thread that works for a loader counts into its own object, without a lock; a `CallMeter` adds the objects of one
loader up when somebody asks. A thread that works for no loader counts nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.totals import Totals

#: Distinct reasons that are kept for a function; calls refused for further ones count under OTHER_REASONS.
MOST_REASONS = 8
OTHER_REASONS = "other reasons"
_EXAMPLE_CHARACTERS = 40


class RefusedCalls(NamedTuple):
    """Calls of one function that the original function did, for one reason."""

    calls: int
    example: str
    """A path of one of them; empty where the argument was not a path. Long paths lack their beginning."""


@dataclass(frozen=True)
class CallCounts:
    """How many calls of one function were answered natively, and why others were not."""

    answered: int = 0
    """Calls that the native core answered."""
    refused: dict[str, RefusedCalls] = field(default_factory=dict)
    """Calls that the original function did, by reason."""


class CallRow(NamedTuple):
    """One count on its way to the totals of a loader."""

    function: str
    reason: str
    """Why the calls were refused; empty for calls that were answered."""
    calls: int
    example: str = ""


class _ThreadState(threading.local):
    sink: ThreadCalls | None = None
    """Counts the calls of this thread; None: the thread works for no loader."""


this_thread = _ThreadState()


def answered(function: str) -> None:
    """Count a call of a function, by its public name, that the native core has answered in the calling thread."""
    sink = this_thread.sink
    if sink is not None:
        sink.count(function)


def refused(function: str, reason: str, example: str = "") -> None:
    """Count a call that the original function does.

    Args:
        function: its public name: "torch.load".
        reason: why, in words that are the same for all calls of the kind.
        example: the path that the function was called with, where it was one; kept for the first call of a reason.
    """
    sink = this_thread.sink
    if sink is not None:
        sink.count(function, reason, 1, example)


def count_in_this_process(sink: ThreadCalls | None) -> None:
    """Have all threads of a process that is a loader's own count into one object, for the life of the process.

    Two threads that the user's code starts in a worker process may meet in an increment; a count may be lost then.
    """
    _ThreadState.sink = this_thread.sink = sink


def counted_here() -> list[CallRow]:
    """Return what the calling thread, or a process that is a loader's own, has counted so far."""
    sink = this_thread.sink
    return [] if sink is None else sink.rows()


class ThreadCalls:
    """What one thread, or one worker process, has counted; another thread may read it at any time."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}  # by function and reason: calls, the first example

    def count(self, function: str, reason: str = "", calls: int = 1, example: str = "") -> None:
        """Count calls: answered natively, or refused for a reason."""
        known, key = self._counts, (function, reason)
        if reason and key not in known:
            others = sum(other == function and bool(why) for other, why in known)
            key = key if others < MOST_REASONS else (function, OTHER_REASONS)
        before, first = known.get(key, (0, ""))
        if example and not first:
            first = example if len(example) <= _EXAMPLE_CHARACTERS else f"...{example[3 - _EXAMPLE_CHARACTERS :]}"
        known[key] = before + calls, first

    def rows(self) -> list[CallRow]:
        return [CallRow(*key, *counted) for key, counted in self._counts.copy().items()]


class CallMeter:
    """Adds up the calls of all threads and worker processes that a loader ever had. Any thread may call any method."""

    def __init__(self) -> None:
        self.workers: Totals[CallRow] = Totals(_merged)
        self._threads: dict[int, ThreadCalls] = {}  # by number of the thread; a later thread of that number goes on

    def of_this_thread(self) -> ThreadCalls:
        """Return what counts the calls of the calling thread for this loader."""
        number = threading.get_ident()
        if (known := self._threads.get(number)) is None:
            known = self._threads[number] = ThreadCalls()
            self.workers.open(known.rows)
        return known

    def counts(self) -> dict[str, CallCounts]:
        found: dict[str, CallCounts] = {}
        for function, reason, calls, example in self.workers.rows():
            before = found.get(function, CallCounts())
            if reason:
                before.refused[reason] = RefusedCalls(calls, example)
                found[function] = before
            else:
                found[function] = CallCounts(calls, before.refused)
        return found


def _merged(rows: Iterable[CallRow]) -> list[CallRow]:
    total = ThreadCalls()
    for row in rows:
        total.count(*row)
    return total.rows()
