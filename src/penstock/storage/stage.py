"""The shards that one pass needs, brought into the local cache ahead of need, by one thread.

The pass takes a ticket for each batch, which holds the batch's shards until it is released: they cannot be deleted
then. What later batches need is known from the order of the pass, and fetched before anybody waits for it: several
shards at a time, as far ahead as the cache has space, which they get in the order of need. Shards that no coming batch
needs are released. Ranges of shards, of which few samples are needed, come into memory in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.storage.cache_folder import CacheFolder, HeldFile, NoRoom
from penstock.storage.remote_shards import LOOK_AGAIN, REQUESTS, Range

#: Shards that are fetched at once, at the most.
AT_ONCE = 4
#: Batches whose shards are looked up ahead, at the most: with few shards all of them may be here.
_BATCHES_AHEAD = 4096
#: How long the end of a pass waits for its thread, in seconds.
_JOIN_SECONDS = 5.0


Held = HeldFile | contextlib.ExitStack
"""A shard, or a range, that is here until it is closed."""


class Fetching(Protocol):
    """What brings one shard into the cache."""

    def open(self, *, beyond: bool) -> tuple[HeldFile | None, HeldFile | None]:
        """Return the whole shard, or its unfinished file, as CacheFolder.open does."""

    async def fetch(self, part: HeldFile, requests: asyncio.Semaphore) -> Held | None:
        """Return the whole shard of its unfinished file; None: it was deleted at once."""


class StagedShard(Protocol):
    """A shard, as its description says."""

    @property
    def bytes(self) -> int: ...

    @property
    def samples(self) -> int: ...


class Stageable(Protocol):
    """Shards that a stage brings into the local cache: RemoteShards, or the row groups of a table."""

    cache: CacheFolder

    @property
    def shards(self) -> Sequence[StagedShard]: ...

    @property
    def largest(self) -> int:
        """Bytes of the largest shard."""

    def place(self, shard: int) -> str:
        """Return where a shard comes from, for messages."""

    def download(self, shard: int) -> Fetching: ...

    def wants_whole(self, shard: int, samples: int) -> bool:
        """Note that samples of a shard are wanted; return whether so many were that all of it is worth fetching."""

    async def bring(self, one: Range, requests: asyncio.Semaphore) -> Held:
        """Read a part of a shard into memory, until what is returned is closed."""


@dataclass(eq=False)
class _Need:
    """A shard, or a range, that a pass needs."""

    tickets: int = 0
    """Of batches that are in flight."""
    coming: int = 0
    """Batches that are yet to come."""
    held: Held | None = None
    error: BaseException | None = None


@dataclass(eq=False)
class Ticket:
    """The shards, by number, and the ranges of one batch."""

    stage: ShardStage
    wanted: tuple[int | Range, ...]
    released: bool = False

    def ready(self) -> bool:
        """Return whether all are here. Raises what went wrong with a shard."""
        with self.stage.condition:
            needs = [self.stage.needs.get(key) or _Need() for key in self.wanted]
            for error in (self.stage.failed, *(need.error for need in needs)):
                if error is not None:  # the traceback of the error itself would keep the pass, and so its shards
                    raise copy.copy(error) from error.__cause__
            return not self.released and all(need.held for need in needs)

    def wait(self, seconds: float | None) -> bool:
        """Wait until all are here, in slices in which Ctrl-C is seen; False: they were not within so many seconds.

        Raises as `ready`.
        """
        begun, stage = time.monotonic(), self.stage
        with stage.condition:
            stage.awaited = self
            stage.wake()
            try:
                while not self.ready():
                    if stage.closing or (seconds is not None and time.monotonic() - begun > seconds):
                        return False
                    stage.condition.wait(0.05)
                return True
            finally:
                stage.awaited = None

    def release(self) -> None:
        """Let the shards go. A second call does nothing."""
        if not self.released:
            self.released = True
            self.stage.release(self)


class ShardStage:
    """The shards that one pass needs. Any number of threads may call it.

    Args:
        coming: the shards of each batch of the pass from its first batch on, computed independently of the pass; None:
            they are not known before a ticket is taken.
    """

    def __init__(self, shards: Stageable, coming: Iterator[Iterable[int]] | None = None) -> None:
        self._shards = shards
        self._coming = coming
        self._ahead: deque[tuple[int, ...]] = deque()  # of batches that have no ticket yet
        self.needs: dict[int | Range, _Need] = {}  # in the order in which they came up
        self.awaited: Ticket | None = None
        self._refused: Ticket | None = None  # it was awaited when there was no space
        self.condition = threading.Condition()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Event | None = None
        self.closing = False
        self.failed: BaseException | None = None

    # --- the pass's side --------------------------------------------------------------------------------------------

    def ticket(self, wanted: Iterable[int | Range]) -> Ticket:
        """Return a ticket for the next batch, whose shards and ranges these are."""
        ticket = Ticket(self, tuple(dict.fromkeys(wanted)))
        with self.condition:
            for key in ticket.wanted:
                need = self._need(key)
                need.tickets += 1
                need.error = None  # another attempt, for who takes another ticket
            if self._ahead:
                for number in self._ahead.popleft():
                    need = self._need(number)
                    need.coming -= 1
                    self._let_go(number, need)
            elif self._coming is not None:
                next(self._coming, None)  # this batch
            if self._thread is None and not self.closing:
                self._thread = threading.Thread(target=self._run, name="penstock-download", daemon=True)
                self._thread.start()
        self.wake()
        return ticket

    def release(self, ticket: Ticket) -> None:
        if os.getpid() != self._process:
            return
        with self.condition:
            for key in ticket.wanted:
                if (need := self.needs.get(key)) is not None:
                    need.tickets -= 1
                    self._let_go(key, need)
        self.wake()

    def missing(self) -> str:
        """Return, for messages, the shards that batches wait for; empty where there are none."""
        with self.condition:
            keys = [key for key, need in self.needs.items() if need.tickets and not need.held]
        urls = list(dict.fromkeys(self._shards.place(key if isinstance(key, int) else key[0]) for key in keys))
        return f"{', '.join(urls[:3])}{' and others' * (len(urls) > 3)}"

    def close(self) -> None:
        """End the downloads and the thread. In a forked child they do not exist, and nothing is done."""
        if os.getpid() != self._process:
            return
        with self.condition:
            self.closing = True
            thread = self._thread
            self.condition.notify_all()
        self.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)
        with self.condition:
            for need in self.needs.values():
                if need.held is not None:
                    need.held.close()
            self.needs.clear()
            self._ahead.clear()

    # --- both sides, with the lock held -----------------------------------------------------------------------------

    def _need(self, key: int | Range) -> _Need:
        return self.needs.setdefault(key, _Need())

    def _let_go(self, key: int | Range, need: _Need) -> None:
        """Let a shard go where nobody needs it any more."""
        if need.tickets <= 0 and need.coming <= 0:
            self.needs.pop(key, None)
            if need.held is not None:
                need.held.close()

    def wake(self) -> None:
        loop, work = self._loop, self._work
        if loop is not None and work is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(work.set)

    # --- the thread's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            with self.condition:
                self.failed = error
                self.condition.notify_all()

    async def _main(self) -> None:
        self._loop, self._work = asyncio.get_running_loop(), asyncio.Event()
        requests = asyncio.Semaphore(REQUESTS)
        running: dict[int | Range, asyncio.Task[None]] = {}
        try:
            while not self.closing:
                self._work.clear()
                running = {key: task for key, task in running.items() if not task.done()}
                again = self._begin(running, requests)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._work.wait(), LOOK_AGAIN if again else None)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    def _begin(self, running: dict[int | Range, asyncio.Task[None]], requests: asyncio.Semaphore) -> bool:
        """Begin to fetch what is needed first; return whether something waits for space, or for other processes."""
        with self.condition:
            self._look_ahead()
            wanted = [item for item in self.needs.items() if item[1].held is None and item[1].error is None]
            awaited = self.awaited
        first = () if awaited is None else awaited.wanted
        waits = False
        shards = sum(isinstance(key, int) for key in running)
        for key, need in sorted(wanted, key=lambda item: (item[0] not in first, item[1].tickets == 0)):
            if key in running:
                continue
            if not isinstance(key, int):
                running[key] = asyncio.create_task(self._bring_range(key, need, requests))
                continue
            if shards >= AT_ONCE:
                break
            try:
                # What was released just now may serve: the limit is exceeded where there is no space twice.
                beyond = awaited is self._refused and key in first
                held, part = self._shards.download(key).open(beyond=beyond)
            except NoRoom:
                self._refused = awaited
                return True
            except Exception as error:
                self._came(key, need, None, error)
                continue
            if part is not None:
                running[key] = asyncio.create_task(self._bring(key, need, part, requests))
                # One that is ended before it has begun would keep the lock, until Python collects it.
                running[key].add_done_callback(lambda _, part=part: part.close())  # type: ignore[misc]
                shards += 1
            elif held is not None:
                self._came(key, need, held)
            else:
                waits = True
        return waits

    def _look_ahead(self) -> None:
        """Look up the shards of coming batches, as far as the cache has space for them. The lock is held."""
        while self._coming is not None:
            shards = {key: need for key, need in self.needs.items() if isinstance(key, int)}
            missing = sum(need.held is None for need in shards.values())
            space = sum(self._shards.shards[number].bytes for number in shards) + self._shards.largest
            if missing >= AT_ONCE or len(self._ahead) >= _BATCHES_AHEAD or space > self._shards.cache.limit:
                return
            numbers = next(self._coming, None)
            if numbers is None:
                self._coming = None
                return
            self._ahead.append(tuple(numbers))
            for number in self._ahead[-1]:
                self._need(number).coming += 1

    async def _bring(self, number: int, need: _Need, part: HeldFile, requests: asyncio.Semaphore) -> None:
        """Fetch one shard and hold it."""
        try:
            self._came(number, need, await self._shards.download(number).fetch(part, requests))
        except Exception as failed:
            self._came(number, need, None, failed)

    async def _bring_range(self, key: Range, need: _Need, requests: asyncio.Semaphore) -> None:
        """Read a range into memory."""
        try:
            self._came(key, need, await self._shards.bring(key, requests))
        except Exception:  # the sample is read by itself then, and its error is raised
            self._came(key, need, contextlib.ExitStack())

    def _came(self, key: int | Range, need: _Need, held: Held | None, error: Exception | None = None) -> None:
        with self.condition:
            if self.needs.get(key) is need and not self.closing:
                need.held, need.error = held, error
            elif held is not None:
                held.close()
            self.condition.notify_all()
        assert self._work is not None
        self._work.set()
