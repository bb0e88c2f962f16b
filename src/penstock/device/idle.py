"""How long a device has nothing to do while a loop waits for its batches, measured on the device itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

#: Waits whose end the device has not reached yet; of more, the oldest is not counted.
MOST_PENDING = 64


class TimedEvent(Protocol):
    """A moment in a device's stream: that in which the device has done all that was begun before it."""

    def query(self) -> bool:
        """Return whether the device has come to it."""

    def elapsed_time(self, end_event: TimedEvent) -> float:
        """Return the milliseconds from this event to another, which the device has come to."""


class IdleMeter:
    """Measures between two events around each wait, on the stream that the loop computes on.

    The device comes to the first one when it has done what the loop had begun before the wait, and to the second one
    when the batch is there: in between it is idle. Both are read when the device has come to them; nothing is waited
    for. One thread at a time calls the methods.

    Args:
        record: returns an event behind all that was begun so far; None: the device has no times.
        count: is called with the seconds of each wait.
    """

    def __init__(self, record: Callable[[], TimedEvent | None], count: Callable[[float], None]) -> None:
        self._record, self._count = record, count
        self._pending: deque[tuple[TimedEvent, TimedEvent]] = deque(maxlen=MOST_PENDING)

    def begin(self) -> TimedEvent | None:
        """Return the event at which a wait begins."""
        return self._record()

    def end(self, begun: TimedEvent | None) -> None:
        """Take note of the end of a wait, and count those that the device has gone through."""
        if begun is None or (ended := self._record()) is None:
            return
        self._pending.append((begun, ended))
        while self._pending and self._pending[0][1].query():
            first, last = self._pending.popleft()
            self._count(max(0.0, first.elapsed_time(last) / 1e3))
