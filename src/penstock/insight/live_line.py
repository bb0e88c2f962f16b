"""A line on the terminal that shows how fast batches come, while they do."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TextIO

from penstock.insight.loops import Loop

#: Seconds between two times that the line is written, and those that its rates are of.
EVERY, WINDOW = 0.2, 2.0
_CLEAR = "\r\x1b[K"


class LiveLine:
    """One line on a terminal, written anew a few times a second by the thread that has called next().

    It ends where the terminal can no longer be written to. Any thread may call any method.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._next = 0.0
        self._shown = False
        self._loop: Loop | None = None
        # Moments of the loop: time, batches, samples, seconds waited.
        self._moments: deque[tuple[float, int, int, float]] = deque(maxlen=round(WINDOW / EVERY))

    def __call__(self, loop: Loop) -> None:
        """Show a loop of which a batch has come, where the line is due. It never waits for another thread."""
        now = time.monotonic()
        if now < self._next or os.getpid() != self._process or not self._lock.acquire(blocking=False):
            return  # in a forked child the terminal is the parent's
        try:
            self._next = now + EVERY
            if loop is not self._loop:
                self._loop = loop
                self._moments.clear()
            times = loop.meter.times()
            moment = (now, times.batches, loop.samples, times.waited)
            if self._moments:
                self._write(_words(loop.loader.dataset, self._moments[0], moment))
                self._shown = True
            self._moments.append(moment)
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Take the line off the terminal; the next batch brings it back."""
        with self._lock:
            if self._shown and os.getpid() == self._process:
                self._write("")
                self._shown = False

    def end(self) -> None:
        """Take the line off the terminal for good."""
        self.clear()
        self._stream = None

    def _write(self, text: str) -> None:
        if (stream := self._stream) is None:
            return
        try:
            columns = os.get_terminal_size(stream.fileno()).columns or 80
            # The cursor goes back to where the line begins: what the program prints does not begin behind it.
            stream.write(f"{_CLEAR}{text[: columns - 1]}\r" if text else _CLEAR)
            stream.flush()
        except (OSError, ValueError):  # it is gone, or closed
            self._stream = None


def _words(dataset: str, before: tuple[float, int, int, float], now: tuple[float, int, int, float]) -> str:
    """Return the text of the line: what happened between two moments."""
    seconds = max(now[0] - before[0], 1e-9)
    _, batches, samples, waited = (later - earlier for later, earlier in zip(now, before, strict=True))
    parts = [f"{dataset}: {now[1]:,} batches", f"{batches / seconds:,.1f}/s"]
    if now[2]:
        parts.append(f"{samples / seconds:,.0f} samples/s")
    return ", ".join([*parts, f"waited {100 * min(1.0, max(0.0, waited) / seconds):.0f} % of the time"])
