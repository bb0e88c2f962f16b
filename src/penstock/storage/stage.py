"""The shards that one pass needs, brought into the local cache ahead of need, by one thread.

The pass takes a ticket for each batch, which holds the batch's shards until it is released: they cannot be deleted
then. What later batches need is known from the order of the pass, and fetched before anybody waits for it: several
shards at a time, as far ahead as the cache has space. Shards that no coming batch needs are let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.storage.cache_folder import HeldFile
from penstock.storage.remote_shards import REQUESTS, Range, RemoteShards

#: Shards that are fetched at once, at the most.
AT_ONCE = 4
#: Batches whose shards are looked up ahead, at the most: with few shards all of them may be here.
_BATCHES_AHEAD = 4096
#: Pauses before space for a shard is looked for after there was none, in seconds; short where a batch waits for it.
_NO_ROOM_PAUSE, _SHORT_PAUSE = 0.1, 0.005
#: How long the end of a pass waits for its thread, in seconds.
_JOIN_SECONDS = 5.0


@dataclass(eq=False)
class _Need:
    """A shard that a pass needs."""

    tickets: int = 0
    """Of batches that are in flight."""
    pins: int = 0
    """Tickets among them whose shards were all here: they are being read."""
    coming: int = 0
    """Batches that are yet to come."""
    held: HeldFile | None = None
    error: BaseException | None = None
    not_before: float = 0.0
    """When space for it is looked for, by time.monotonic()."""


class Ticket:
    """The shards of one batch."""

    def __init__(self, stage: ShardStage, numbers: tuple[int, ...], ranges: tuple[Range, ...]) -> None:
        self._stage = stage
        self.numbers = numbers
        self.ranges = ranges
        self.ranges_here = not ranges
        """The ranges are in memory, or could not be read: whoever reads the samples says why."""
        self.pinned = False
        """All shards were here, and stay."""
        self.released = False

    def ready(self) -> bool:
        """Return whether all shards are here. Raises what went wrong with one of them."""
        return self._stage.ready(self)

    def wait(self, seconds: float | None) -> bool:
        """Wait until all shards are here; False: they were not within so many seconds. Raises as `ready`."""
        return self._stage.wait(self, seconds)

    def release(self) -> None:
        """Let the shards go. A second call does nothing."""
        if not self.released:
            self.released = True
            self._stage.release(self)


class ShardStage:
    """The shards that one pass needs. Any number of threads may call it.

    Args:
        shards: of the dataset.
        coming: the shards of each batch of the pass from its first batch on, computed independently of the pass; None:
            they are not known before a ticket is taken.
    """

    def __init__(self, shards: RemoteShards, coming: Iterator[Iterable[int]] | None = None) -> None:
        self._shards = shards
        self._coming = coming
        self._ahead: deque[tuple[int, ...]] = deque()  # of batches that have no ticket yet
        self._early = 0  # tickets that were taken before the thread came to their batches
        self._waiting: deque[Ticket] = deque()  # whose shards were not all here
        self._ranged: deque[Ticket] = deque()  # whose ranges nobody reads yet
        self._needs: dict[int, _Need] = {}  # in the order in which they came up
        self._fetching: set[int] = set()
        self._condition = threading.Condition()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Event | None = None
        self._closing = False
        self.waited = 0.0
        """Seconds that batches have waited for shards."""

    # --- the pass's side --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to fetch what comes first, before a ticket is taken."""
        with self._condition:
            self._start()

    def ticket(self, numbers: Iterable[int], ranges: Iterable[Range] = ()) -> Ticket:
        """Return a ticket for the next batch, whose shards these are; ranges: parts of others, which come alone."""
        wanted = tuple(numbers)
        ticket = Ticket(self, wanted, tuple(ranges))
        with self._condition:
            for number in wanted:
                need = self._need(number)
                need.tickets += 1
                need.not_before, need.error = 0.0, None  # another attempt, for who takes another ticket
            if self._ahead:
                for number in self._ahead.popleft():
                    need = self._need(number)
                    need.coming -= 1
                    self._let_go(number, need)
            elif self._coming is not None:
                self._early += 1
            self._waiting.append(ticket)
            if not ticket.ranges_here:
                self._ranged.append(ticket)
            self._start()
        self._wake()
        return ticket

    def ready(self, ticket: Ticket) -> bool:
        """Return whether what a ticket is for is here. Raises what went wrong with a shard."""
        with self._condition:
            if ticket.pinned:
                return True
            needs = [self._needs.get(number) or _Need() for number in ticket.numbers]
            for need in needs:
                if need.error is not None:
                    raise need.error
            ticket.pinned = ticket.ranges_here and all(need.held for need in needs) and not ticket.released
            if ticket.pinned:
                self._waiting.remove(ticket)
                for need in needs:
                    need.pins += 1
            return ticket.pinned

    def wait(self, ticket: Ticket, seconds: float | None) -> bool:
        """Wait for what a ticket is for, in slices in which Ctrl-C is seen; False: it was not here in time."""
        begun = time.monotonic()
        with self._condition:
            try:
                while not self.ready(ticket):
                    if self._closing or (seconds is not None and time.monotonic() - begun > seconds):
                        return False
                    self._condition.wait(0.05)
                return True
            finally:
                self.waited += time.monotonic() - begun

    def release(self, ticket: Ticket) -> None:
        """Take a ticket back."""
        if os.getpid() != self._process:
            return
        self._shards.forget(ticket.ranges)
        with self._condition:
            if not ticket.pinned and ticket in self._waiting:
                self._waiting.remove(ticket)
            for number in ticket.numbers:
                need = self._needs.get(number)
                if need is not None:
                    need.tickets -= 1
                    need.pins -= ticket.pinned
                    self._let_go(number, need)
        self._wake()

    def missing(self) -> str:
        """Return, for messages, the shards that batches wait for; empty where there are none."""
        with self._condition:
            urls = [
                self._shards.cached[number].url
                for number, need in self._needs.items()
                if need.tickets and not need.held
            ]
        return f"{', '.join(urls[:3])}{' and others' * (len(urls) > 3)}"

    def close(self) -> None:
        """End the downloads and the thread. In a forked child they do not exist, and nothing is done."""
        if os.getpid() != self._process:
            return
        with self._condition:
            self._closing = True
            thread = self._thread
            self._condition.notify_all()
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)
        with self._condition:
            for need in self._needs.values():
                if need.held is not None:
                    need.held.close()
            self._needs.clear()
            self._ahead.clear()
            self._waiting.clear()

    # --- both sides, with the lock held -----------------------------------------------------------------------------

    def _need(self, number: int) -> _Need:
        return self._needs.setdefault(number, _Need())

    def _let_go(self, number: int, need: _Need) -> None:
        """Let a shard go where nobody needs it any more."""
        if need.tickets <= 0 and need.coming <= 0:
            self._needs.pop(number, None)
            if need.held is not None:
                need.held.close()

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="penstock-download", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        loop, work = self._loop, self._work
        if loop is not None and work is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(work.set)

    # --- the thread's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            with self._condition:
                for need in self._needs.values():
                    need.error = need.error or error
                self._condition.notify_all()

    async def _main(self) -> None:
        self._loop, self._work = asyncio.get_running_loop(), asyncio.Event()
        requests = asyncio.Semaphore(REQUESTS)
        running: dict[int, asyncio.Task[None]] = {}
        reading: set[asyncio.Task[None]] = set()
        try:
            while not self._closing:
                self._work.clear()
                while self._ranged:
                    reading.add(task := asyncio.create_task(self._bring_ranges(self._ranged.popleft(), requests)))
                    task.add_done_callback(reading.discard)
                running = {number: task for number, task in running.items() if not task.done()}
                self._look_ahead()
                pause = None
                for number, need in self._wanted():
                    if number in running or (len(running) >= AT_ONCE and not self._is_urgent(number)):
                        continue
                    if (left := need.not_before - time.monotonic()) > 0:
                        pause = left if pause is None else min(pause, left)
                        continue
                    running[number] = asyncio.create_task(self._bring(number, need, requests))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._work.wait(), pause)
        finally:
            unfinished = [*running.values(), *reading]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    def _wanted(self) -> list[tuple[int, _Need]]:
        """Return the shards to fetch: first those that a batch waits for, then in the order of need."""
        with self._condition:
            wanted = [item for item in self._needs.items() if item[1].held is None and item[1].error is None]
        return sorted(wanted, key=lambda item: (not self._is_urgent(item[0]), item[1].tickets == 0))

    def _is_urgent(self, number: int) -> bool:
        """Return whether the oldest batch that is not complete waits for a shard."""
        with self._condition:
            return bool(self._waiting) and number in self._waiting[0].numbers

    def _look_ahead(self) -> None:
        """Look up the shards of coming batches, as far as the cache has space for them."""
        while self._coming is not None:
            with self._condition:
                missing = sum(need.held is None for need in self._needs.values())
                held = sum(self._shards.shards[number].bytes for number in self._needs)
                enough = missing >= AT_ONCE or len(self._ahead) >= _BATCHES_AHEAD
                if not self._early and (enough or held + self._shards.largest > self._shards.cache.limit):
                    return
            numbers = next(self._coming, None)
            with self._condition:
                if numbers is None:
                    self._coming = None
                elif self._early:  # its ticket was taken already
                    self._early -= 1
                else:
                    self._ahead.append(tuple(numbers))
                    for number in self._ahead[-1]:
                        self._need(number).coming += 1

    async def _bring(self, number: int, need: _Need, requests: asyncio.Semaphore) -> None:
        """Bring one shard into the cache and hold it."""
        held, error = None, None
        self._fetching.add(number)
        try:
            held = await self._shards.download(number, requests, lambda: self._exceeds(number))
        except Exception as failed:
            error = failed
        finally:
            self._fetching.discard(number)
        with self._condition:
            if held is None and error is None:
                need.not_before = time.monotonic() + (_SHORT_PAUSE if self._is_urgent(number) else _NO_ROOM_PAUSE)
            elif self._needs.get(number) is not need or self._closing:
                if held is not None:
                    held.close()
            else:
                need.held, need.error = held, error
            self._condition.notify_all()
        assert self._work is not None
        self._work.set()

    async def _bring_ranges(self, ticket: Ticket, requests: asyncio.Semaphore) -> None:
        """Read the ranges of a ticket into memory."""
        with contextlib.suppress(Exception):  # each sample is read alone then, and its error is raised
            await self._shards.bring(ticket.ranges, requests)
        with self._condition:
            ticket.ranges_here = True
            if ticket.released:
                self._shards.forget(ticket.ranges)
            self._condition.notify_all()

    def _exceeds(self, number: int) -> bool:
        """Return whether a shard for which there is no space may exceed the limit of the cache.

        The oldest batch that is not complete may not wait for ever: shards that later ones need go for its own. Where
        there are none, and no batch before it is left whose shards go when it is handed out, the limit is exceeded.
        """
        if not self._is_urgent(number):
            return False
        with self._condition:
            oldest = self._waiting[0].numbers if self._waiting else ()
            for other, need in reversed(self._needs.items()):
                if other not in oldest and need.held is not None and need.pins <= 0:
                    need.held.close()
                    need.held = None
                    need.not_before = time.monotonic() + _NO_ROOM_PAUSE
                    return False
            if any(other not in oldest for other in self._fetching):
                return False  # what comes for later batches can go once it is whole
            return not any(need.pins > 0 for need in self._needs.values())

    def __repr__(self) -> str:
        with self._condition:
            here = sum(need.held is not None for need in self._needs.values())
            return f"<ShardStage: {here} of {len(self._needs)} shards here, {len(self._ahead)} batches ahead>"
