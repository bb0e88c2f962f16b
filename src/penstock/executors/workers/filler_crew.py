"""The trainer's end of its fillers: one thread for each starts it by Ray, receives its batches, and replaces it."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import penstock._native as _native
from penstock.cluster.connection import Facts, check, connected, no_place, stored
from penstock.cluster.dispatch import Dispatcher, Window
from penstock.cluster.option import Ray
from penstock.cluster.wire import Memory, Message, connect, hang_up, new_secret
from penstock.errors import ClusterError, WorkerDied
from penstock.executors.buffers import Buffers, Field
from penstock.executors.workers.filler_actor import Filled, FillerActor, Request
from penstock.executors.workers.filler_link import FillerBatch, FillerTraceback, Link, hang_up_on_lost
from penstock.executors.workers.filler_report import FillerReport
from penstock.executors.workers.thread_lifetime import end_crew
from penstock.observe import Meter
from penstock.system.warn_user import warn_user
from penstock.system.words import counted

#: How often a batch may be in work in a filler that is lost, before its error is raised.
_LOSSES = 3
#: How often in a row a filler may fail to start.
_STARTS = 3
#: Seconds between looks at a filler that is starting, and for which the others are waited for once one is there.
_LOOK, _OTHERS = 1.0, 5.0
#: Seconds between looks at which fillers Ray has given up.
_WATCH = 0.5


class FillerCrew:
    """The fillers of a loader. Their threads hold this, never the iterator, which can be collected.

    Args:
        cluster: where they run.
        job: their FillJob, pickled.
        files: of the dataset, some, with their sizes: each node must see them.
        count: fillers.
        buffers: batch memory.
        meter: gets what the fillers spend in each stage.
        report: kept up to date for explain().

    Raises:
        InvalidOption, ClusterUnreachable: from `connected`.
        ClusterError: the object store of Ray has no space for the job.
    """

    # More than 15 attributes: all are guarded by one lock, and each decision looks at few of them.

    def __init__(
        self,
        cluster: Ray,
        job: bytes,
        files: list[tuple[str, int]],
        count: int,
        *,
        buffers: Buffers,
        meter: Meter,
        report: FillerReport,
    ) -> None:
        self._ray, self._cluster, self._files = connected(cluster), cluster, files
        self._job = stored(self._ray, job)
        self._secret = new_secret()
        self._buffers, self._meter, self._report = buffers, meter, report
        report.begin(count)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._numbers = itertools.count()
        self._batches: dict[int, FillerBatch] = {}
        self._dispatcher, self._window = Dispatcher(), Window(cluster.limit)
        self._live: dict[int, Link] = {}
        self._actors: dict[int, Any] = {}  # of each filler, from the time on that Ray is asked for it
        self._error: Exception | None = None
        self._none_since: float | None = time.monotonic()  # no filler is at work
        self._closed, self._closing = False, threading.Event()
        self._key = 0, 0  # seed and epoch of the pass
        self.ended = threading.Event()
        self._left: list[tuple[Any, ...]] = []  # stages of fillers that are gone
        self._left_calls: list[Any] = []
        self._threads = [
            threading.Thread(target=self._run, args=(slot,), name=f"penstock-filler-{slot}", daemon=True)
            for slot in range(count)
        ]
        self._watcher = threading.Thread(target=self._watch, name="penstock-filler-watch", daemon=True)
        meter.open(self._stages, self._calls)
        atexit.register(self.close)  # before Ray's own: a call of Ray's behind that would start a cluster

    def start(self) -> None:
        """Start the fillers, and wait until they are at work, or some are and the others are late.

        Raises:
            ClusterError: none can start, or one is not fit for the work.
        """
        for thread in (*self._threads, self._watcher):
            thread.start()
        deadline: float | None = None
        with self._changed:
            while self._error is None and len(self._live) < len(self._threads):
                if self._live:
                    deadline = deadline or time.monotonic() + _OTHERS
                    if time.monotonic() > deadline:
                        break
                self._changed.wait(_LOOK)
            error, live = self._error, len(self._live)
        if error is not None:
            raise error
        if live < len(self._threads):
            warn_user(
                f"{live} of {counted(len(self._threads), 'filler')} started: each needs {self._cluster.demand()} of "
                "the Ray cluster, and the others will begin when it has so much free"
            )

    # --- the pass's side --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a pass: what was asked for is forgotten."""
        with self._lock:
            for number in self._batches:
                self._dispatcher.forget(number)
            self._batches.clear()
            self._window = Window(self._cluster.limit)

    def next_number(self) -> int:
        """Return the number of a new request."""
        return next(self._numbers)

    def submit(self, batch: FillerBatch, key: tuple[int, int]) -> None:
        """Ask for a batch, once however often it is submitted. key: seed and epoch of the pass."""
        with self._lock:
            if batch.number not in self._batches:
                self._batches[batch.number] = batch
                self._dispatcher.ask(batch.number)
                self._window.asked()
            self._key = key
        self._flow()

    def room(self) -> bool:
        """Return whether another batch may be in flight."""
        with self._lock:
            return self._window.room(self._dispatcher.fillers)

    def forget(self, batch: FillerBatch) -> None:
        """Take note that a batch was handed out."""
        with self._lock:
            self._batches.pop(batch.number, None)
            self._window.gone(batch.number)

    def wait(self, batches: list[FillerBatch], timeout: float) -> FillerBatch | None:
        """Wait until one of the batches is done and return it; None: `timeout` seconds (0: no limit) went by.

        Raises what ended the crew.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while (found := next((batch for batch in batches if batch.done), None)) is None:
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise RuntimeError("the loader's iterator was closed while a batch was waited for")
                remaining = deadline - time.monotonic()
                if timeout and remaining <= 0:
                    return None
                self._changed.wait(remaining if timeout else None)
        return found

    @property
    def failed(self) -> bool:
        """Whether an error has ended the crew's work."""
        return self._error is not None

    def describe(self) -> str:
        """Return which fillers have how many requests."""
        with self._lock:
            places = [f"filler {one.slot} on {one.facts.place}" for one in self._live.values()]
            return f"{self._dispatcher!r}; at work: {', '.join(places) or 'none'}"

    def close(self) -> None:
        """End the fillers. In a forked child their connections are the parent's, and nothing is done."""
        end_crew([*self._threads, self._watcher], self._stop, self.ended, self._pid)

    def _stop(self) -> None:
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            self._closing.set()
            self._report.running = False
            self._changed.notify_all()
            live, actors = list(self._live.values()), list(self._actors.values())
        for filler in live:
            hang_up(filler.connection)
        for actor in actors:
            self._kill(actor)
        self._meter.close(self._stages, self._calls)

    # --- the threads' side ------------------------------------------------------------------------------------------

    def _run(self, slot: int) -> None:
        """Have a filler at work in a slot, one after the other, until the crew is closed."""
        failures = 0
        while not self._closed and failures < _STARTS:
            filler = None
            try:
                filler = self._start(slot)
                failures = 0
                self._join(filler)
                with filler.connection:
                    while True:
                        self._came(filler, filler.receive(partial(self._allocate, filler)))
            except (EOFError, OSError) as error:
                failures += filler is None
                last: Exception = error
            except self._ray.exceptions.RayError as error:
                failures += 1
                last = error
            except SystemExit:  # by Ray, where the program has ended its connection
                return
            except Exception as error:
                self._fail(error)
                return
            finally:
                if filler is not None:
                    self._leave(filler)
                self._kill(self._actors.pop(slot, None))
        if not self._closed:
            text = " ".join(str(last).split())[:400]
            self._fail(ClusterError(f"filler {slot} failed to start {_STARTS} times: {type(last).__name__}: {text}"))

    def _start(self, slot: int) -> Link:
        """Return a filler that Ray has started, connected. Raises RayActorError, OSError, EOFError, ClusterError."""
        with self._lock:
            if self._closed or not self._ray.is_initialized():  # asked now, Ray would start a cluster
                raise ClusterError("the connection to Ray has ended")
            actor = self._ray.remote(FillerActor).options(**self._cluster.placement()).remote(slot)
            self._actors[slot] = actor
        opened = actor.open.remote(self._job, self._secret, self._files)
        while True:
            try:
                facts: Facts = self._ray.get(opened, timeout=_LOOK)
                break
            except self._ray.exceptions.GetTimeoutError:
                self._look_for_any()
            except self._ray.exceptions.RayTaskError as error:
                raise ClusterError(f"filler {slot} cannot work on its node: {error.cause}") from error
        check(facts, f"filler {slot}")
        serving = actor.serve.remote()
        local = facts.local if facts.host == self._ray.util.get_node_ip_address() else ""
        return Link(slot, serving, facts, connect(facts.host, facts.port, local, self._secret))

    def _look_for_any(self) -> None:
        """Raise ClusterError, or WorkerDied, where no filler has been at work for too long."""
        with self._lock:
            if self._closed:
                raise ClusterError("the fillers were ended")
            since, begun = self._none_since, self._report.lost > 0
        if since is None or time.monotonic() - since < self._cluster.start_timeout:
            return
        error: Exception = no_place(self._ray, self._cluster, "filler")
        if begun:
            error = WorkerDied(f"all fillers of the Ray cluster were lost, and {error}")
        raise error

    def _watch(self) -> None:
        """Hang up on fillers that Ray has given up: a machine that stands still does not end its connections."""
        while not self._closing.wait(_WATCH):
            with self._lock:
                live = list(self._live.values())
            hang_up_on_lost(self._ray, live)

    def _join(self, filler: Link) -> None:
        with self._lock:
            self._live[filler.name] = filler
            self._dispatcher.join(filler.name)
            self._report.places[filler.slot] = filler.facts.place
            self._none_since = None
            self._changed.notify_all()
        self._flow()

    def _leave(self, filler: Link) -> None:
        """Have what a filler was to make made by others."""
        with self._lock:
            if self._closed:
                return
            self._live.pop(filler.name, None)
            self._report.places.pop(filler.slot, None)
            again = self._dispatcher.leave(filler.name)
            self._left += filler.stages
            self._left_calls += filler.calls
            self._report.lost += 1
            self._report.arriving.end(filler.name)
            self._report.again += len(again)
            if not self._live:
                self._none_since = time.monotonic()
            ending = self._blamed(again)
            self._changed.notify_all()
        self._flow()
        if ending is not None:
            self._give_up(ending, self._cause(filler))

    def _blamed(self, again: list[int]) -> FillerBatch | None:
        """Count a loss against the batches that a filler had; return the one that is not asked for again, if any.

        After the first loss each of them is made alone: what two more fillers are lost by is one batch.
        """
        for number in again:
            batch = self._batches[number]
            batch.losses += 1
            if batch.losses >= _LOSSES:
                self._dispatcher.forget(number)
                return batch
        return None

    def _give_up(self, batch: FillerBatch, why: str) -> None:
        given = repr(batch.given[0] if batch.given else None)
        error = WorkerDied(
            f"{_LOSSES} fillers ended one after the other while they made the same batch, of samples {given[:200]}: "
            f"one of these may end its process. The last one: {why}"
        )
        with self._lock:
            self._window.came(batch.number, 0)
            batch.error = error
            self._changed.notify_all()

    def _cause(self, filler: Link) -> str:
        """Return what Ray says of the end of a filler."""
        try:
            self._ray.get(filler.serving, timeout=_LOOK)
        except Exception as error:
            return " ".join(str(error).split())[:400] or type(error).__name__
        return "it left"

    def _came(self, filler: Link, message: Message) -> None:
        filled = message.value if isinstance(message.value, Filled) else Filled(error=message.error)
        self._report.arriving.end(filler.name)
        if filled.error is not None and filled.traceback:
            filled.error.__cause__ = FillerTraceback(filled.traceback)
        with self._lock:
            filler.stages, filler.calls = filled.stages or filler.stages, filled.calls or filler.calls
            self._report.came(filler.name, filler.facts.place, message.size, filled.tiers)
            wanted = self._dispatcher.done(filler.name, message.number)
            batch = self._batches.get(message.number)
            if wanted and batch is not None:
                self._window.came(message.number, message.size)
                batch.filled, batch.error = filled, filled.error
                self._changed.notify_all()
        self._flow()

    def _flow(self) -> None:
        """Decide under the lock who makes what, and ask for it outside."""
        with self._lock:
            asked = []
            for filler, number in self._dispatcher.assign():
                batch = self._batches[number]
                assert batch.given is not None
                assert isinstance(filler, int)
                asked.append((self._live[filler], number, Request(self._key, *batch.given)))
        for link, number, request in asked:
            link.request(number, request)

    def _allocate(self, filler: Link, size: int) -> Memory:
        self._report.arriving.begin(filler.name)
        rows = self._buffers.rows(1, Field(_native.Spec("uint8", [size])))
        return Memory(rows.tensor, rows.memory)

    def _fail(self, error: Exception) -> None:
        """End the crew's work with an error, which whoever waits gets."""
        with self._lock:
            self._error = self._error or error
            self._changed.notify_all()

    def _kill(self, actor: Any) -> None:
        if actor is not None:
            with suppress(Exception):  # it is gone, or Ray is
                if self._ray.is_initialized():
                    self._ray.kill(actor)

    # --- counts -----------------------------------------------------------------------------------------------------

    def _stages(self) -> list[tuple[Any, ...]]:
        return [*self._left, *(row for filler in list(self._live.values()) for row in filler.stages)]

    def _calls(self) -> list[Any]:
        return [*self._left_calls, *(row for filler in list(self._live.values()) for row in filler.calls)]
