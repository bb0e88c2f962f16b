"""A filler: an actor of Ray that fills the batches that one trainer asks for, with a pass of this package's own.

Its main thread makes the batches, in the order of the requests; one thread reads requests, another sends batches. It
ends when the trainer hangs up. Nothing here knows of Ray but by `cluster`.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from penstock.call_counts import CallRow
from penstock.cluster.connection import Facts, here, unseen
from penstock.cluster.dispatch import REQUESTS
from penstock.cluster.wire import Listener, hang_up, in_new_memory, pieces_of, receive, send, whole
from penstock.errors import ClusterError
from penstock.executors.buffers import Buffers
from penstock.executors.fetch import Fetch
from penstock.executors.filler import Filler, PassInput, PassResources
from penstock.executors.iterator import Pass
from penstock.executors.native import NativeFiller
from penstock.executors.threads import ThreadFiller, worker_seed
from penstock.executors.workers.worker_thread import WORKER_INFO, ThreadWorkerInfo, set_for_this_thread
from penstock.observe import Delivery, Meter, Observer
from penstock.order.permutations import Positions
from penstock.plan import NativePlan, plan
from penstock.recipe.patches import Lease
from penstock.sample_notes import add_note
from penstock.state.manifest import BadSample
from penstock.state.substitutes import Substitutes
from penstock.stats import TierCounts
from penstock.storage.tiers import Caches
from penstock.system.randomness import seed_process

#: Seconds that a filler waits for its trainer.
_PATIENCE = 60.0


@dataclass(frozen=True)
class FillJob:
    """What a filler works with, as it is sent to it."""

    dataset: Any
    fetch: Callable[..., Fetch]
    """Called with read=, what reads a sample in the dataset's place or None, returns what calls the dataset."""
    read: Any
    native: bool
    """The trainer's plan is native."""
    collate_fn: Any
    substitutes: Substitutes | None
    """How bad samples are replaced; None raises their errors."""
    raw: bool
    """Images stay pixels, for the trainer's device to convert."""
    caches: Caches | None
    init: Any
    """The loader's worker_init_fn, for a dataset that Python reads."""
    fillers: int
    threads: int
    """Native ones of each filler."""
    folder: str
    """The trainer's working folder, which relative paths begin at."""


@dataclass(frozen=True, slots=True)
class Request:
    """A batch that is asked for."""

    key: tuple[int, int]
    """Seed and epoch of the pass."""
    given: Any
    """By the sampler."""
    positions: Positions


@dataclass(slots=True)
class Filled:
    """The answer to a request."""

    batch: Any = None
    samples: int = 0
    rescued: Sequence[str] = ()
    """Why Python read a sample of a native plan, one reason a sample."""
    bad: list[BadSample] = field(default_factory=list)
    error: BaseException | None = None
    traceback: str = ""
    """Of the error."""
    stages: list[tuple[Any, ...]] = field(default_factory=list)
    """What the filler has counted since it began, as observe.StageReader returns it."""
    calls: list[CallRow] = field(default_factory=list)
    tiers: dict[str, TierCounts] = field(default_factory=dict)
    """What the filler's caches keep."""


class FillerActor:
    """The actor. Ray calls its methods one after the other, in the main thread of a process that is its own.

    Args:
        number: of the filler, from 0 on.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def open(self, job: bytes, secret: bytes, files: Sequence[tuple[str, int]]) -> Facts:
        """Return what the trainer must know before it connects. files: with their sizes as the trainer sees them."""
        facts = here()
        self._listener = Listener(facts.host)
        self._job, self._secret, self._place = job, secret, facts.place
        return here(missing=unseen(files), port=self._listener.port, local=self._listener.local)

    def serve(self) -> None:
        """Fill batches until the trainer hangs up."""
        with self._listener.accept(self._secret, _PATIENCE) as connection:
            _Service(connection, self._number, f"filler {self._number} on {self._place}").run(self._job)


class _Inbox:
    """The requests that have come and are not begun."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, Request]] = deque()
        self._changed = threading.Condition()
        self._ended = False

    def put(self, number: int, request: Request) -> None:
        with self._changed:
            self._held.append((number, request))
            self._changed.notify()

    def end(self) -> None:
        """No request comes any more, and none is wanted."""
        with self._changed:
            self._held.clear()
            self._ended = True
            self._changed.notify()

    def key(self) -> tuple[int, int] | None:
        """Wait for a request; return the key of its pass, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._ended)
            return self._held[0][1].key if self._held else None

    def of_pass(self, key: tuple[int, int]) -> bool:
        """Return whether the next request has come, and is of this pass."""
        with self._changed:
            return bool(self._held) and self._held[0][1].key == key

    def take(self, key: tuple[int, int]) -> tuple[int, Request] | None:
        """Wait for a request and return it; None: another pass begins, or nothing comes any more."""
        if self.key() != key:
            return None
        with self._changed:
            return self._held.popleft() if self._held else None


class _Last(Observer):
    """Keeps the delivery that came last."""

    def __init__(self) -> None:
        self.delivery = Delivery(None, 0)

    def delivered(self, delivery: Delivery) -> None:
        self.delivery = delivery


class _Service:
    """What a filler does for the trainer at the other end of a connection.

    Args:
        connection: to the trainer.
        number: of the filler.
        name: of the filler, for messages.
    """

    def __init__(self, connection: socket.socket, number: int, name: str) -> None:
        self._connection, self._number, self._name = connection, number, name
        self._inbox = _Inbox()
        self._outbox: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._meter = Meter()
        self._numbers: deque[int] = deque()  # of the requests that the pass has taken
        self._last = _Last()
        self._caches: Caches | None = None

    def run(self, job: bytes) -> None:
        """Fill batches until the trainer hangs up."""
        threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._send)]
        for thread in threads:
            thread.start()
        threading.current_thread().name = self._name  # which errors name
        failed: Exception | None = None
        try:
            unpickled: FillJob = pickle.loads(job)
            work, self._caches = _Work(unpickled, self._number, self._meter), unpickled.caches
        except Exception as error:
            add_note(error, f"in {self._name}, where the dataset was unpickled or prepared")
            failed = error
        while (key := self._inbox.key()) is not None:
            try:
                if failed is None:
                    made = work.begin(PassInput(self._given(key), None, *key, ready=partial(self._inbox.of_pass, key)))
            except Exception as error:  # of worker_init_fn
                add_note(error, f"in {self._name}, before its first batch")
                failed = error
            if failed is None:
                self._fill(made, work)
                continue
            for number, _ in self._requests(key):
                self._answer(number, Filled(error=_sendable(failed, self._name), traceback=_text(failed)))
        self._outbox.put(None)
        threads[1].join()

    def _fill(self, made: Pass, work: _Work) -> None:
        """Make the batches of one pass."""
        made.observers = (self._last,)
        try:
            while True:
                try:
                    filled = Filled(next(made))
                    last = self._last.delivery
                    filled.samples, filled.rescued = last.samples, list(last.read_by_python)
                except StopIteration:
                    return
                except Exception as error:
                    filled = Filled(error=_sendable(error, self._name), traceback=_text(error))
                self._last.delivery = Delivery(None, 0)
                filled.bad = work.news()
                self._answer(self._numbers.popleft(), filled)
        finally:
            made.close()

    def _given(self, key: tuple[int, int]) -> Iterator[tuple[Any, Positions]]:
        for number, request in self._requests(key):
            self._numbers.append(number)
            yield request.given, request.positions

    def _requests(self, key: tuple[int, int]) -> Iterator[tuple[int, Request]]:
        while (taken := self._inbox.take(key)) is not None:
            yield taken

    def _answer(self, number: int, filled: Filled) -> None:
        filled.stages = [(stage, *time) for stage, time in self._meter.stages().items()]
        filled.calls = _call_rows(self._meter)
        filled.tiers = {} if self._caches is None else self._caches.counts()
        try:
            pieces = pieces_of(number, filled)
        except Exception as error:
            add_note(error, f"in {self._name}, which sends its batches as pickles")
            pieces = pieces_of(number, Filled(error=_sendable(error, self._name), traceback=_text(error)))
        self._outbox.put(pieces)

    def _read(self) -> None:
        try:
            while True:
                message = receive(self._connection, in_new_memory)
                if message.error is not None:
                    self._answer(message.number, Filled(error=message.error))
                else:
                    self._inbox.put(message.number, message.value)
        except (OSError, EOFError, ClusterError):
            pass
        finally:
            self._inbox.end()

    def _send(self) -> None:
        try:
            while (pieces := self._outbox.get()) is not None:
                send(self._connection, pieces)
                del pieces  # whoever waits holds no batch
        except OSError:
            hang_up(self._connection)


class _Work:
    """What makes batches: a native pass, or one in the thread that calls next().

    Raises:
        ClusterError: a native plan whose pixels are for the trainer's device cannot be made here.
    """

    def __init__(self, job: FillJob, number: int, meter: Meter) -> None:
        with suppress(OSError):  # files were looked at by their absolute paths
            os.chdir(job.folder)
        torch.set_num_threads(job.threads)
        self._job, self._number = job, number
        self._plan = None
        if job.native:
            found = plan(
                job.dataset, batched=True, collate_fn=job.collate_fn, worker_init_fn=None, raw=job.raw,
                caches=job.caches,
            )  # fmt: skip
            self._plan = found if isinstance(found, NativePlan) else None
            if job.raw and (self._plan is None or self._plan.table is None):
                raise ClusterError(
                    "this node cannot read the dataset natively as the trainer can: install the same packages on it"
                )
        fields = 2 if self._plan is None else self._plan.fields
        self._resources = PassResources(
            workers=0 if self._plan is None else job.threads,
            in_flight=None,
            buffers=Buffers(pinned=False, keep=fields * (REQUESTS + 2)),
            meter=meter,
        )
        self._begun = False

    def begin(self, pass_input: PassInput) -> Pass:
        """Return a pass. Raises what worker_init_fn raises."""
        job = self._job
        made: Filler
        if self._plan is not None:
            made = NativeFiller(self._plan, self._resources, substitutes=job.substitutes, fetch=job.fetch)
        else:
            seed = worker_seed(pass_input.seed, pass_input.epoch) + self._number
            if not self._begun:
                self._begin_as_worker(seed)
            made = ThreadFiller(job.fetch(read=job.read), self._resources, seed)
        return Pass(made, pass_input)

    def _begin_as_worker(self, seed: int) -> None:
        """Do what torch's worker process does before its first batch."""
        seed_process(seed)
        self._lease = Lease(WORKER_INFO)
        set_for_this_thread(ThreadWorkerInfo(self._number, self._job.fillers, seed, self._job.dataset, "ray"))
        if self._job.init is not None:
            self._job.init(self._number)
        self._begun = True

    def news(self) -> list[BadSample]:
        """Return the samples that were found bad since the last call."""
        return [] if self._job.substitutes is None else self._job.substitutes.take_news()


def _sendable(error: BaseException, name: str) -> BaseException:
    """Return an error that both ends can pickle: the error itself, or one of the same words."""
    try:
        pickle.loads(whole(error))
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            add_note(told, note)
        add_note(told, f"in {name}; the error itself, a {type(error).__qualname__}, cannot be pickled")
        return told
    return error


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _call_rows(meter: Meter) -> list[CallRow]:
    rows = []
    for function, counts in meter.calls.counts().items():
        rows.append(CallRow(function, "", counts.answered))
        rows += [CallRow(function, why, one.calls, one.example) for why, one in counts.refused.items()]
    return rows
