"""Calls of a user's code that were answered natively, or left to the original function: counted for each loader.

A thread that works for a loader counts into an object of its own, without a lock; a `CallMeter` adds the objects of one
loader up when somebody asks. A thread that works for no loader counts nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

#: Distinct reasons that are kept for a function; calls refused for further ones count under OTHER_REASONS.
MOST_REASONS = 8
OTHER_REASONS = "other reasons"
_EXAMPLE_CHARACTERS = 40


class RefusedCalls(NamedTuple):
    """Calls of one function that the original function did, for one reason."""

    calls: int
    example: str
    """A path of one of them; empty where the argument was no path. Long paths lack their beginning."""


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


#: Returns the counts of a process since it began, from any thread.
CallReader = Callable[[], Iterable[CallRow]]


class _ThreadState(threading.local):
    sink: ThreadCalls | None = None
    """Counts the calls of this thread; None: the thread works for no loader."""


this_thread = _ThreadState()


def answered(function: str) -> None:
    """Count a call of a function, by its public name, that the native core has answered in the calling thread."""
    sink = this_thread.sink
    if sink is not None:
        sink.answer(function)


def refused(function: str, reason: str, example: str = "") -> None:
    """Count a call that the original function does.

    Args:
        function: its public name: "torch.load".
        reason: why, in words that are the same for all calls of the kind.
        example: the path that the function was called with, where it was one; kept for the first call of a reason.
    """
    sink = this_thread.sink
    if sink is not None:
        sink.refuse(function, reason, example)


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
        self._answers: dict[str, int] = {}
        self._refusals: dict[tuple[str, str], tuple[int, str]] = {}

    def answer(self, function: str) -> None:
        """Count a call that was answered natively."""
        self._answers[function] = self._answers.get(function, 0) + 1

    def refuse(self, function: str, reason: str, example: str) -> None:
        """Count a call that the original function does."""
        key = kept_reason(self._refusals, function, reason)
        before = self._refusals.get(key)
        self._refusals[key] = (1, shortened(example)) if before is None else (before[0] + 1, before[1])

    def rows(self) -> list[CallRow]:
        """Return the counts so far."""
        answers, refusals = self._answers.copy(), self._refusals.copy()
        return [
            *(CallRow(function, "", calls) for function, calls in answers.items()),
            *(CallRow(*key, calls, example) for key, (calls, example) in refusals.items()),
        ]


def kept_reason(known: Iterable[tuple[str, str]], function: str, reason: str) -> tuple[str, str]:
    """Return (function, reason) under which a refused call counts, where these are known already."""
    key = (function, reason)
    if key in known or sum(other == function and bool(why) for other, why in known) < MOST_REASONS:
        return key
    return function, OTHER_REASONS


def shortened(example: str) -> str:
    """Return the end of a path."""
    return example if len(example) <= _EXAMPLE_CHARACTERS else f"...{example[3 - _EXAMPLE_CHARACTERS :]}"


class CallMeter:
    """Adds up the calls of all threads and worker processes that a loader ever had. Any thread may call any method.

    A garbage collection in any line may end workers: `close` takes no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, ThreadCalls] = {}  # by number of the thread; a later thread of that number goes on
        self._working: list[CallReader] = []
        self._finished: deque[CallRow] = deque()  # counts that the totals do not have yet
        self._totals: dict[tuple[str, str], tuple[int, str]] = {}

    def of_this_thread(self) -> ThreadCalls:
        """Return what counts the calls of the calling thread for this loader."""
        number = threading.get_ident()
        return self._threads.get(number) or self._threads.setdefault(number, ThreadCalls())

    def open(self, read: CallReader) -> None:
        """Add worker processes, which count for themselves."""
        self._working.append(read)
        self._count_finished()

    def close(self, read: CallReader) -> None:
        """Read the counts of worker processes for the last time; the second call does nothing."""
        with contextlib.suppress(ValueError):
            self._working.remove(read)
            self._finished.extend(read())

    def counts(self) -> dict[str, CallCounts]:
        """Return the counts so far, by function."""
        totals = self._count_finished()
        for thread in list(self._threads.values()):
            _count(totals, thread.rows())
        for read in list(self._working):
            _count(totals, read())
        found: dict[str, CallCounts] = {}
        for (function, reason), (calls, example) in totals.items():
            before = found.get(function, CallCounts())
            if reason:
                before.refused[reason] = RefusedCalls(calls, example)
                found[function] = before
            else:
                found[function] = CallCounts(calls, before.refused)
        return found

    def _count_finished(self) -> dict[tuple[str, str], tuple[int, str]]:
        """Add what is finished to the totals, and return a copy of them."""
        with self._lock:
            _count(self._totals, (self._finished.popleft() for _ in range(len(self._finished))))
            return dict(self._totals)


def _count(totals: dict[tuple[str, str], tuple[int, str]], rows: Iterable[CallRow]) -> None:
    for function, reason, calls, example in rows:
        key = kept_reason(totals, function, reason) if reason else (function, reason)
        before = totals.get(key, (0, ""))
        totals[key] = (before[0] + calls, before[1] or example)
