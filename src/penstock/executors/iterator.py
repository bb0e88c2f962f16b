"""A pass over the data as torch's programs know it: what the iterators over threads have in common."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NoReturn, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter

from penstock.executors.batch import Batch, IndexedBatch
from penstock.executors.buffers import Buffers
from penstock.executors.cursor import SamplerCursor
from penstock.executors.tuning import Knobs
from penstock.executors.tuning_trial import Setting
from penstock.executors.workers.filler_report import FillerReport
from penstock.executors.workers.native import ThreadWorker
from penstock.executors.workers.shared_memory import SharedBuffers
from penstock.observe import Delivery, Meter, Observers, observed
from penstock.order.permutations import Indices, Positions
from penstock.recipe.patches import Lease
from penstock.sources.tree import Unresolved
from penstock.system.warn_user import warn_user

#: Bytes that batches in flight may take before fewer are kept in flight: what stays in a last-level cache is filled
#: faster. At least 3 always are in flight: one that the user waits for, one in work, one to go on with.
IN_FLIGHT_BYTES = 16 << 20
#: Batches in flight at the most, unless prefetch_factor= says otherwise.
IN_FLIGHT = 8


def batches_that_fit(size: int) -> int:
    """Return how many batches of so many bytes are kept in flight."""
    return IN_FLIGHT if size == 0 else max(3, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))


@dataclass(frozen=True)
class PassInput:
    """What a pass goes through, and the key of its random draws."""

    batches: Iterator[tuple[Any, Positions]]
    """What the sampler gives for each batch, and where its samples stand in the order of the epoch."""
    length: int | None
    """Of the sampler, for len()."""
    seed: int
    epoch: int
    promised: int | None = None
    """The length of an iterable dataset, where a program has called len() of the loader."""
    dataset: str = ""
    """The repr of that dataset."""
    coming: Callable[[], Iterator[Indices]] | None = None
    """Returns the indices of each batch, independently of `batches`, for who looks ahead; None: they are not known."""
    samples: int = 0
    """Of the pass on all ranks, where they are known."""
    ready: Callable[[], bool] = lambda: True
    """Returns whether `batches` gives the next one at once: while others are in flight, it is not waited for."""


@dataclass(frozen=True)
class PassResources:
    """What a pass works with, from its loader."""

    workers: int
    """Threads; 0: the caller's thread does all work, in next()."""
    in_flight: int | None
    """Batches in flight; None: chosen by their size."""
    buffers: Buffers
    meter: Meter = field(default_factory=Meter)
    """Adds up what the workers spend in each stage."""
    shared: SharedBuffers | None = None
    """Batch memory that worker processes fill; None: each batch comes in memory of its own, as torch's does."""
    timeout: float = 0
    """Seconds to wait for a batch, 0 for ever."""
    ahead: bool = True
    """Batches may be taken from the sampler before the user calls next() for them."""
    settled: bool = False
    """All indices of the pass are settled when the first is taken: it cannot be seen how far ahead they are taken."""
    persistent: bool = False
    """The iterator is used for the next pass too."""
    fillers: FillerReport | None = None
    """Is told where the fillers of a Ray cluster are."""


#: What was in flight and its delivery, once it is to be handed out; empty before.
Handed = list[tuple[Any, Delivery]]


class Crew(Protocol):
    """The threads of a pass. They never hold the pass itself, so that an abandoned one can be collected."""

    ended: threading.Event

    def close(self) -> None:
        """End the threads."""


class Pass(_BaseDataLoaderIter):
    """One pass over the data: an iterator of batches.

    For programs that ask it is one of torch's by its class; it shares none of its code. Several threads may call
    next(): each gets whole batches. After an error it goes on with the next batch. It ends its threads when it is
    exhausted (unless it is persistent), closed or dropped.

    An interrupt (Ctrl-C, in any line) loses no batch: what the sampler gave is kept until it is in flight, a batch in
    flight until it is handed out, and one that did not reach its caller comes with the next call.
    """

    # Over 25 methods and 15 attributes: those that every kind of pass defines, and those that torch's iterators have.

    def __init__(self, resources: PassResources) -> None:  # not torch's: this draws and starts other things
        self._resources = resources
        self._num_workers = resources.workers
        self._persistent_workers = resources.persistent
        self._timeout = resources.timeout
        self._num_yielded = 0
        self._begin_with(PassInput(iter(()), None, 0, 0))
        self._open = False
        self._exhausted = False
        self._reads_ahead = bool(resources.workers) and resources.ahead
        """Batches are begun before the user calls next() for them."""
        self._setting = Setting(resources.workers)
        self._batch_bytes = 0  # of a batch, once that is known
        self._lock = threading.Lock()
        self._ended = threading.Event()  # set when the threads are gone
        self._end: Callable[[], object] | None = None
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    observers: Observers = ()
    _lease = Lease()
    """On the functions of other packages that are exchanged while the pass is open."""

    # --- what each kind of pass does in its own way -----------------------------------------------------------------

    @abstractmethod
    def _new_batch(self) -> Any:
        """Return an empty Batch."""

    @abstractmethod
    def _begin(self, batch: Any) -> None:
        """Begin to make a batch of what the sampler gave. After an interrupt the same batch comes a second time."""

    @abstractmethod
    def _depth(self, queue: deque[Any]) -> int:
        """Return how many batches to keep in flight."""

    @abstractmethod
    def _ready(self, queue: deque[Any]) -> Any:
        """Wait for a batch and return it, with its error where it failed; None: look at the queue again.

        Raises WorkerStuck.
        """

    @abstractmethod
    def _assemble(self, batch: Any) -> Any:
        """Return a batch as its user gets it."""

    def _prepare(self) -> None:
        """Do what comes before the sampler is called."""

    def _delivery(self, batch: Any, out: Any, waited: float) -> Delivery:
        """Return the delivery of a batch."""
        return Delivery(out, batch.count, waited, batch.rescued)

    def knobs(self) -> Knobs | None:
        """Return what of the pass may be tuned while it runs; None: nothing."""
        return None

    def tune(self, setting: Setting) -> None:
        """Go on with another setting, which changes no batch. Any thread may call it."""
        self._setting = setting
        if setting.in_flight is not None:
            self._resources.buffers.keep_times((setting.in_flight + 2) / (IN_FLIGHT + 2))

    def _in_flight_of(self, size: int) -> int:
        """Return how many batches of so many bytes are to be in flight."""
        self._batch_bytes = size
        if self._resources.in_flight is not None:
            return max(1, self._resources.in_flight)
        return self._setting.in_flight or batches_that_fit(size)

    # --- batches in flight ------------------------------------------------------------------------------------------

    def _hand_out(self, handed: Handed) -> Delivery:
        """Return the next batch. Raises StopIteration at the end.

        What is in flight and the delivery are added to `handed` before it is dropped: then nothing can lose it.
        """
        started = perf_counter()
        queue = self._queue  # close(), in another thread, makes another one
        self._prepare()
        batch = None
        while batch is None:
            self._refill(queue)
            if not queue:
                self._end_pass()
                raise StopIteration
            batch = self._ready(queue)
        if batch.error is not None:
            self._fail(batch)
        try:
            out = self._assemble(batch)
        except Exception:
            self._drop(batch)
            raise
        if self._reads_ahead:  # without workers nothing is done ahead
            self._refill(queue, done=1)
        delivery = self._delivery(batch, out, perf_counter() - started)
        delivery.begun, delivery.in_flight = batch.begun, len(queue) - 1
        handed.append((batch, delivery))
        self._drop(batch)
        return delivery

    def _fail(self, batch: Any) -> NoReturn:
        """Raise a batch's error. What its traceback holds of the batch holds neither the error nor the memory."""
        error, batch.error = batch.error, None
        self._drop(batch)
        batch.let_go()
        try:
            raise error
        finally:
            del error

    def _drop(self, batch: Any) -> None:
        """Drop what was in flight, where it is still in the queue."""
        if self._queue and self._queue[0] is batch:
            self._queue.popleft()

    def _refill(self, queue: deque[Any], *, done: int = 0) -> None:
        """Ask for batches ahead. done: so many in the queue are to be handed out now."""
        if queue and not queue[-1].settled:  # an interrupt came before: those behind the first of them are not, either
            for batch in queue:
                self._settle(batch)
        while not self._exhausted and len(queue) < self._depth(queue) + done:
            if queue and not self._input.ready():
                return
            if not self._ask(queue, self._new_batch()):
                return

    def _end_pass(self) -> None:
        self.close()

    def _ask(self, queue: deque[Any], batch: Batch) -> bool:
        """Put what the sampler gives next, or its error, into a queue. False: the sampler is at its end."""
        try:
            batch.given = self._cursor.take()
        except Exception as error:
            batch.error = error
        if batch.given is None and batch.error is None:
            self._exhausted = True
            return False
        queue.append(batch)
        self._settle(batch)
        return True

    def _settle(self, batch: Batch) -> None:
        """Begin a batch that is in a queue: after an interrupt, or for another plan, a second time."""
        if batch.settled:
            return
        if batch.given is not None:
            batch.begun = batch.begun or perf_counter()
            self._cursor.taken(batch.given)
            self._begin(batch)
        batch.settled = True

    def _hold(self, crew: Crew) -> None:
        """Make a crew this pass's own: it ends with it."""
        self.close()
        self._ended = crew.ended
        self._end = weakref.finalize(self, crew.close)

    def _start(self, pass_input: PassInput, *, eager: bool) -> None:
        """Begin a pass. eager: batches are begun now, not at the first next()."""
        self._begin_with(pass_input)
        self._exhausted = False
        self._num_yielded = 0
        self._open = True
        if eager:
            self._refill(self._queue)

    def _begin_with(self, pass_input: PassInput) -> None:
        """Forget the batches in flight and those that did not reach their caller."""
        self._queue: deque[Any] = deque()
        self._input, self._cursor = pass_input, SamplerCursor(pass_input.batches, pass_input.length)
        self._back: deque[Delivery] = deque()

    def close(self) -> None:
        """End the threads and the pass. Batches in flight are dropped."""
        if self._end is not None:
            self._end()
        self._lease.close()
        self._open = False
        self._begin_with(self._input)

    def _shutdown_workers(self) -> None:  # under the name that torch's iterator gives it, for programs that call it
        self.close()

    def __next__(self) -> Any:
        handed: Handed = []
        try:
            return observed(self.observers, partial(self._one, handed))
        except BaseException:
            if handed and not handed[0][1].refused:
                self._take_back(*handed[0])
            raise

    def _take_back(self, inside: Any, delivery: Delivery) -> None:
        """Keep a batch that was handed out and did not reach its caller."""
        with self._lock:
            if not (self._back and self._back[0] is delivery):
                self._back.appendleft(delivery)
            self._drop(inside)

    def _one(self, handed: Handed) -> Delivery:
        with self._lock:
            if not self._open:
                raise StopIteration
            if self._back:
                handed.append((None, self._back[0]))
                return self._back.popleft()
            if torch._C._autograd._profiler_enabled():
                with torch.autograd.profiler.record_function(self._profile_name):
                    delivery = self._hand_out(handed)
            else:
                delivery = self._hand_out(handed)
            self._num_yielded += 1
            if self._input.promised is not None and self._num_yielded > self._input.promised:
                warn_of_more(self._input.dataset, self._input.promised, self._num_yielded, self._num_workers)
            return delivery

    def __len__(self) -> int:
        if self._input.length is None:
            raise TypeError("the batch sampler of this loader has no length")
        return self._input.length

    @property
    def _workers(self) -> list[ThreadWorker]:
        """The threads, under the name that torch's iterator gives its workers."""
        return [ThreadWorker(f"thread-{number}", self._ended) for number in range(self._num_workers)]

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("a pass over the data cannot be pickled; pickle the loader")


class IndexedPass(Pass):
    """A pass over indices into a native plan."""

    def _begin(self, batch: IndexedBatch) -> None:
        assert batch.given is not None
        wanted, batch.positions = batch.given
        if isinstance(wanted, list):
            batch.other = wanted
            return
        batch.wanted = batch.indices = wanted
        batch.other = batch.error = None
        try:
            self._begin_indices(batch)
        except Unresolved:
            batch.other = wanted.tolist()
        except Exception as error:  # of the user's dataset
            batch.error = error

    @abstractmethod
    def _begin_indices(self, batch: Any) -> None:
        """Begin to make a batch of indices."""


def pinned(batch: Any) -> Any:
    """Return a batch of any structure with its tensors in page-locked memory, as torch's loader gives it."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]


def warn_of_more(dataset: str, promised: int, yielded: int, workers: int) -> None:
    """Warn as torch's iterator does, in its words, of more than an iterable dataset said that it has."""
    text = (
        f"Length of IterableDataset {dataset} was reported to be {promised}"
        f"(when accessing len(dataloader)), but {yielded} samples have been fetched. "
    )
    if workers:
        text += (
            "For multiprocessing data-loading, this could be caused by not properly configuring the "
            "IterableDataset replica at each worker. Please see "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
        )
    warn_user(text)
