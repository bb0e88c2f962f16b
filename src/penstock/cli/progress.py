"""How far a long command is: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from penstock.cli.terminal import say
from penstock.system.words import size_of

try:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
except ImportError:
    Console = Progress = None  # type: ignore[assignment,misc]

_EVERY = 10.0  # seconds between two plain lines


class Bar:
    """Shows how far a command is, on stderr. Any thread may call update(), one at a time.

    Args:
        what: the act in one word: "packing".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = self._shown = time.monotonic()
        self._first: tuple[int, int] | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        if Progress is not None and sys.stderr is not None and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=None, rate="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, of: int, bytes_: int = 0) -> None:
        """Show that so many samples of all, and so many bytes, are done."""
        now = time.monotonic()
        if self._first is None:  # what an earlier run had done counts for no rate
            self._first, self._begun = (done - 1, bytes_), now
        if now - self._shown < (0.1 if self._bar is not None else _EVERY) and done < of:
            return
        self._shown = now
        seconds = max(now - self._begun, 1e-3)
        rate = (done - self._first[0]) / seconds
        words = f"{done:,} of {of:,}, {rate:,.0f} samples/s"
        if bytes_:
            words += f", {size_of(int((bytes_ - self._first[1]) / seconds))}/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=of, rate=words)
        elif done < of:
            say(f"{self._what}: {words}, about {(of - done) / max(rate, 1e-9):,.0f} s left")
