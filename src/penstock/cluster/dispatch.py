"""Which filler makes which batch, and how many batches are in flight: decisions without a clock, a thread or a network.

A filler has a few requests at a time, so that it never waits for the next one; the filler with the fewest gets the
oldest request. What a lost filler had is asked for again, before all else, and each request of it alone: a filler that
is lost then was lost by that request. Each method takes a time that does not grow with the number of fillers.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

#: Requests that a filler has at a time: one that it works on, one that it sends, and one to go on with.
REQUESTS = 3


@dataclass(slots=True)
class _Load:
    """What one filler has been asked for, oldest first."""

    numbers: dict[int, None] = field(default_factory=dict)
    alone: bool = False
    """It gets nothing else until it has answered."""


class Dispatcher:
    """Requests by number, and the fillers that they are given to. One thread at a time.

    Args:
        requests: that a filler has at a time, at the most.
    """

    def __init__(self, requests: int = REQUESTS) -> None:
        self._most = requests
        self._waiting: list[int] = []  # a heap: the oldest first
        self._owner: dict[int, Hashable | None] = {}  # of each request; None: it waits
        self._suspects: set[int] = set()  # requests whose filler was lost
        self._loads: dict[Hashable, _Load] = {}
        self._by_load: list[dict[Hashable, None]] = [{} for _ in range(requests + 1)]

    def join(self, filler: Hashable) -> None:
        """Add a filler."""
        self._loads[filler] = _Load()
        self._by_load[0][filler] = None

    def leave(self, filler: Hashable) -> list[int]:
        """Remove a filler; return the wanted requests that it had, oldest first: they wait again."""
        load = self._loads.pop(filler, None)
        if load is None:
            return []
        self._by_load[self._level(load)].pop(filler)
        wanted = [number for number in load.numbers if number in self._owner]
        for number in wanted:
            self._owner[number] = None
            heapq.heappush(self._waiting, number)
        self._suspects.update(wanted)
        return wanted

    def ask(self, number: int) -> None:
        """Add a request; a number is used once."""
        self._owner[number] = None
        heapq.heappush(self._waiting, number)

    def done(self, filler: Hashable, number: int) -> bool:
        """Take note of an answer; return whether it is one that is wanted: of this filler, and not forgotten."""
        load = self._loads.get(filler)
        if load is None or number not in load.numbers:
            return False
        self._by_load[self._level(load)].pop(filler)
        del load.numbers[number]
        load.alone = False
        self._by_load[self._level(load)][filler] = None
        self._suspects.discard(number)
        return self._owner.pop(number, self) == filler

    def forget(self, number: int) -> None:
        """Drop a request: nobody waits for its answer. Its filler counts as at work until it has answered."""
        self._owner.pop(number, None)
        self._suspects.discard(number)

    def assign(self) -> Iterator[tuple[Hashable, int]]:
        """Yield fillers and the requests that they are to be sent, until all have enough or nothing waits."""
        while self._waiting:
            number = self._waiting[0]
            if self._owner.get(number, self) is not None:  # it was forgotten
                heapq.heappop(self._waiting)
                continue
            alone = number in self._suspects
            level = next((level for level in self._by_load[: 1 if alone else self._most] if level), None)
            if level is None:
                return
            filler = next(iter(level))
            heapq.heappop(self._waiting)
            load = self._loads[filler]
            self._by_load[self._level(load)].pop(filler)
            load.numbers[number], load.alone = None, alone
            self._by_load[self._level(load)][filler] = None
            self._owner[number] = filler
            yield filler, number

    def _level(self, load: _Load) -> int:
        """Return under which number of requests a filler counts: as one that has all it may where it works alone."""
        return self._most if load.alone else len(load.numbers)

    @property
    def fillers(self) -> int:
        """Return the number of fillers."""
        return len(self._loads)

    def __repr__(self) -> str:
        return f"<Dispatcher: {len(self._loads)} fillers, {len(self._owner)} requests, {len(self._waiting)} waiting>"


class Window:
    """How many batches are in flight, by their bytes. One thread at a time.

    A batch counts with the most bytes that any batch has had until it has come, and with its own until it is handed
    out. Before the first has come there is one for each filler.

    Args:
        limit: bytes in flight; one batch is in flight at least.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._largest = 0
        self._awaited = 0
        self._held: dict[int, int] = {}
        self._held_bytes = 0

    def asked(self) -> None:
        """Take note of a request."""
        self._awaited += 1

    def came(self, number: int, size: int) -> None:
        """Take note of a batch that has come, with its bytes."""
        self._awaited -= 1
        self._largest = max(self._largest, size)
        self._held[number] = size
        self._held_bytes += size

    def gone(self, number: int) -> None:
        """Take note of a batch that was handed out."""
        self._held_bytes -= self._held.pop(number, 0)

    def room(self, fillers: int) -> bool:
        """Return whether another batch may be asked for, by so many fillers."""
        if not self._awaited and not self._held:
            return True
        if not self._largest:
            return self._awaited < fillers
        if self._awaited + len(self._held) >= 2 * REQUESTS * max(1, fillers):
            return False
        return self._held_bytes + (self._awaited + 1) * self._largest <= self.limit

    @property
    def bytes(self) -> int:
        """Return the bytes in flight, as they are known."""
        return self._held_bytes + self._awaited * self._largest
