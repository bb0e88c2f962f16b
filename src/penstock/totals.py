"""Counts of workers that come and go, added up for all of a loader's passes: of stages, of calls, of reader threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from penstock.system.locks import ProcessLock

Row = TypeVar("Row")
#: Returns what its workers have counted since they began, from any thread.
Reader = Callable[[], Iterable[Row]]

#: Rows of finished work that wait to be merged.
_MOST = 100


class Totals(Generic[Row]):
    """Adds up the rows of workers at work and of finished work. Any thread may call any method; none waits.

    A garbage collection in any line may end workers, and may log the verdict of a loader, which reads its totals.

    Args:
        merge: returns the fewest rows that say the same as all of these.
    """

    def __init__(self, merge: Callable[[Iterable[Row]], list[Row]]) -> None:
        self._merge = merge
        self._working: list[Reader[Row]] = []
        self._finished: list[Row] = []
        self._merging = ProcessLock()

    def open(self, read: Reader[Row]) -> None:
        """Add workers that count for themselves."""
        self._working.append(read)

    def close(self, read: Reader[Row]) -> None:
        """Read the counts of workers for the last time; the second call does nothing."""
        with suppress(ValueError):
            self._working.remove(read)
            self.add(*read())

    def add(self, *rows: Row) -> None:
        """Add finished work."""
        self._finished += rows
        if len(self._finished) > _MOST:
            self._merge_finished()

    def rows(self) -> list[Row]:
        """Return the merged rows of all work so far."""
        self._merge_finished()
        found = self._finished.copy()
        for read in self._working.copy():
            found += read()
        return self._merge(found)

    def _merge_finished(self) -> None:
        if self._merging.acquire(wait=False):  # else another thread does, or this one further out
            try:
                found = self._finished.copy()
                self._finished[: len(found)] = self._merge(found)  # in one step of the interpreter
            finally:
                self._merging.release()
