"""A pass over the data as torch's programs know it: `Pass` keeps batches in flight, and a `Filler` makes them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NoReturn

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from penstock.errors import WorkerStuck
from penstock.executors.filler import Batch, BatchRequest, Filler, PassInput
from penstock.executors.workers.native import ThreadWorker
from penstock.observe import Delivery, Observers, observed
from penstock.order.leftover import Arrivals
from penstock.system.warn_user import warn_user

#: What was in flight and its delivery, once it is to be handed out; empty before.
Handed = list[tuple[Any, Delivery]]


class Pass(_BaseDataLoaderIter):
    """One pass over the data: an iterator of batches, which a filler makes.

    For programs that ask it is one of torch's by its class; it shares none of its code. Several threads may call
    next(): each gets whole batches. After an error it goes on with the next batch. It ends its threads when it is
    exhausted (unless it is persistent), closed or dropped.

    An interrupt (Ctrl-C, in any line) loses no batch: what the sampler gave is kept until it is in flight, a batch in
    flight until it is handed out, and one that did not reach its caller comes with the next call.

    Args:
        filler: makes the batches; the pass starts and ends it.
        pass_input: what the sampler gives; a list holds what it gave that is no indices.
        eager: begin batches now, not when the first one is asked for.
    """

    # Over 15 attributes: those that torch's iterators have too.

    observers: Observers = ()
    arrivals: Arrivals | None = None
    """Told which batches come, where they come out of order."""

    # not torch's: this draws and starts other things
    def __init__(self, filler: Filler, pass_input: PassInput, *, eager: bool = False) -> None:
        self._num_workers = filler.workers
        self._persistent_workers = filler.resources.persistent
        self._timeout = filler.resources.timeout
        self._lock = threading.Lock()
        self._profile_name = "enumerate(DataLoader)#Pass.__next__"
        self._hold(filler)  # before its threads start: an interrupt in any line leaves none behind
        try:
            filler.start()
        except BaseException:
            self._end()
            raise
        self.begin(pass_input, eager=eager)

    def begin(self, pass_input: PassInput, filler: Filler | None = None, *, eager: bool = False) -> None:
        """Begin another pass. filler: makes its batches; None: the one that this pass has."""
        if filler is not None:
            self.close()
            self._hold(filler)
        self.filler.open(pass_input)
        self._begin_with(pass_input)
        self._open, self._exhausted, self._num_yielded = True, False, 0
        if eager:
            self._refill(self._queue)

    def _hold(self, filler: Filler) -> None:
        """Make a filler this pass's own: it ends with it."""
        self.filler = filler
        self._end: Callable[[], object] = weakref.finalize(self, filler.close)

    def _begin_with(self, pass_input: PassInput) -> None:
        """Forget the batches in flight and those that did not reach their caller."""
        self._queue: deque[Any] = deque()
        self._back: deque[Delivery] = deque()
        self._input = pass_input
        self._given: deque[BatchRequest] = deque()  # by the sampler, and not in flight: at most one
        self._asked = 0  # batches that the sampler has given
        self._cut = False  # an interrupt came from within the sampler

    def close(self) -> None:
        """End the threads and the pass. Batches in flight are dropped."""
        self._end()
        self._open = False
        self._begin_with(self._input)

    def _shutdown_workers(self) -> None:  # under the name that torch's iterator gives it, for programs that call it
        self.close()

    def _end_pass(self) -> None:
        if self._persistent_workers and self.filler.rest():
            self._open = False
        else:
            self.close()

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made with the same threads."""
        return self.filler.reusable

    # --- batches in flight ------------------------------------------------------------------------------------------

    def _hand_out(self, handed: Handed) -> Delivery:
        """Return the next batch. Raises StopIteration at the end.

        What is in flight and the delivery are added to `handed` before it is dropped: then nothing can lose it.
        """
        started = perf_counter()
        filler, queue, batch = self.filler, self._queue, None  # close(), in another thread, makes another queue
        try:
            filler.prepare(queue)
            while batch is None:
                self._refill(queue)
                if not queue:
                    self._end_pass()
                    raise StopIteration
                batch = filler.ready(queue)
            if batch.error is not None:
                self._drop(batch)
                batch.raise_error()
            try:
                out = filler.assemble(batch)
            except Exception:
                self._drop(batch)
                raise
            if filler.reads_ahead:  # without workers nothing is done ahead
                self._refill(queue, done=1)
            delivery = filler.delivery(batch, out)
            self._report(batch, came=True)
        except (StopIteration, WorkerStuck):
            raise
        except Exception:
            self._report(batch, came=False)
            raise
        delivery.waited = perf_counter() - started
        delivery.begun, delivery.in_flight = batch.begun, len(queue) - 1
        handed.append((batch, delivery))
        self._drop(batch)
        return delivery

    def _report(self, batch: Any, *, came: bool) -> None:
        """Tell of the batch that came, or of the error in its place."""
        if batch is not None:
            if batch.reported:
                return
            batch.reported = True
        if self.arrivals is not None:
            self.arrivals.read(None if batch is None else batch.place)
        self.filler.report(batch, came=came)

    def _drop(self, batch: Any) -> None:
        """Drop what was in flight, where it is still in the queue."""
        if batch in self._queue:
            self._queue.remove(batch)
        if batch is not None:
            self.filler.drop(batch)

    def _refill(self, queue: deque[Any], *, done: int = 0) -> None:
        """Ask for batches ahead. done: so many in the queue are to be handed out now."""
        filler = self.filler
        if queue and not (queue[0].settled and queue[-1].settled):  # an interrupt came before, or they begin anew
            for batch in queue:
                self._settle(batch)
        filler.push(queue, done)
        while not self._exhausted and len(queue) < filler.depth(queue) + done:
            if queue and not self._input.ready():
                return
            if not self._ask(queue, filler.new_batch()):
                return
            filler.push(queue, done)

    def _ask(self, queue: deque[Any], batch: Batch) -> bool:
        """Put what the sampler gives next, or its error, into a queue. False: the sampler is at its end."""
        try:
            batch.given = self._next_request()
        except Exception as error:
            batch.error = error
        if batch.given is None and batch.error is None:
            self._exhausted = True
            return False
        batch.place = self._asked - 1
        queue.append(batch)
        self._settle(batch)
        return True

    def _next_request(self) -> BatchRequest | None:
        """Return what the sampler gives next, the same until it is in flight. None: the end.

        Raises what the sampler raises, and RuntimeError where an interrupt has ended it.
        """
        if not self._given:
            try:  # in one step of the interpreter, so that an interrupt comes before it or after it
                self._given.extend(islice(self._input.batches, 1))
            except Exception:
                raise
            except BaseException as error:  # with a frame behind this one it came from within the sampler
                self._cut = error.__traceback__ is not None and error.__traceback__.tb_next is not None
                raise
            if not self._given:
                if self._cut and self._asked != self._input.length:  # an interrupted generator is at its end
                    raise RuntimeError("the sampler was interrupted, and gives no more batches: begin a new pass")
                return None
            self._cut = False
            self._asked += 1
        return self._given[0]

    def _settle(self, batch: Batch) -> None:
        """Begin a batch that is in a queue: after an interrupt, or for another plan, a second time."""
        if batch.settled:
            return
        if batch.given is not None:
            batch.begun = batch.begun or perf_counter()
            if self._given and self._given[0] is batch.given:
                self._given.clear()
            self.filler.begin(batch)
        batch.settled = True

    # --- next() -----------------------------------------------------------------------------------------------------

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
        return [ThreadWorker(f"thread-{number}", self.filler.ended) for number in range(self._num_workers)]

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("a pass over the data cannot be pickled; pickle the loader")

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Pass: {state}, {self.filler!r}, {len(self._queue)} batches in flight>"


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
