"""A pass over the data as torch's programs know it: `Pass` keeps batches in flight, and a `Carrier` makes them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any, NoReturn

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from penstock.errors import WorkerStuck
from penstock.observe import Delivery, Observers, observed
from penstock.order.schedule import Arrivals
from penstock.passes.carrier import Carrier
from penstock.passes.job import Job
from penstock.passes.values import PassInput
from penstock.sample_notes import not_an_end
from penstock.state.streams import Streams
from penstock.system.tracebacks import shorten
from penstock.workers.batch import Batch

INTERRUPTED = (
    "This iterator was interrupted (Ctrl-C) in the middle of next(), and what it had begun is lost. Make a new "
    "iterator; the loader's state_dict() says where the interrupted one was."
)


class Pass(_BaseDataLoaderIter):
    """One pass over the data: an iterator of batches, which a carrier makes.

    For programs that ask it is one of torch's by its class; it shares none of its code. Several threads may call
    next(): each gets whole batches. After an error it continues with the next batch. After an interrupt (Ctrl-C, in any
    line of next()) each next() raises RuntimeError. It ends its threads when it is exhausted (unless it is persistent),
    closed or dropped.

    Args:
        carrier: makes the batches; the pass starts and ends it.
        pass_input: what the sampler gives; a list holds what it gave that is not indices.
        eager: begin batches now, not when the first one is asked for.
    """

    # Over 15 attributes: those that torch's iterators have too.

    observers: Observers = ()
    arrivals: Arrivals | None = None
    """Told which batches come, where they come out of order."""
    streams: Streams | None = None
    """Told the states of the dataset's workers behind the batches."""

    # not torch's: this draws and starts other things
    def __init__(self, carrier: Carrier, pass_input: PassInput, *, eager: bool = False) -> None:
        self._num_workers = carrier.workers
        self._persistent_workers = carrier.resources.persistent
        self._timeout = carrier.resources.timeout
        self._lock = threading.RLock()
        self._profile_name = f"enumerate(DataLoader)#{carrier.profile_name}.__next__"
        self._hold(carrier)  # before its threads start: an interrupt in any line leaves none behind
        try:
            carrier.start()
            vars(self).update(carrier.shown)
            self.begin(pass_input, eager=eager)
        except BaseException:
            carrier.interrupted = True
            self._end()
            raise

    def begin(self, pass_input: PassInput, carrier: Carrier | None = None, *, eager: bool = False) -> None:
        """Begin another pass. carrier: makes its batches; None: the one that this pass has."""
        with self._lock:  # a thread in next() gets its batch before those in flight are forgotten
            if carrier is not None and carrier is not self.carrier:
                self.close()
                self._hold(carrier)
            self._open, self._interrupted = False, True  # until it has begun
            self.carrier.open(pass_input)
            self._begin_with(pass_input)
            self._open, self._interrupted, self._exhausted, self._num_yielded = True, False, False, 0
            if eager:
                self._refill(self._queue)

    def _hold(self, carrier: Carrier) -> None:
        """Make a carrier this pass's own: it ends with it."""
        self.carrier = carrier
        self._end = weakref.finalize(self, carrier.close)
        self._end.atexit = carrier.closes_at_exit

    def _begin_with(self, pass_input: PassInput) -> None:
        self._queue: deque[Any] = deque()
        self._input = pass_input
        self._asked = 0  # batches that the sampler has given

    def close(self) -> None:
        """End the threads and the pass. Batches in flight are dropped."""
        self._end()
        self._open = False
        self._begin_with(self._input)

    def _shutdown_workers(self) -> None:  # under the name that torch's iterator gives it, for programs that call it
        self.close()

    @property
    def reusable(self) -> bool:
        """Whether another pass can be made with the same threads."""
        return self.carrier.reusable and not self._interrupted

    # --- batches in flight ------------------------------------------------------------------------------------------

    def _hand_out(self) -> Delivery:
        """Return the next batch. Raises StopIteration at the end."""
        started = perf_counter()
        carrier, queue, batch = self.carrier, self._queue, None  # close(), in another thread, makes another queue
        try:
            if carrier.prepare(queue, first=not self._num_yielded):
                self._ask_again(queue)
            while batch is None:
                self._refill(queue)
                if not queue:
                    if self._persistent_workers and self.carrier.rest():
                        self._open = False
                    else:
                        self.close()
                    raise StopIteration
                batch = carrier.ready(queue)
            queue.remove(batch)
            delivery = self._assembled(carrier, queue, batch)
        except (StopIteration, WorkerStuck):
            raise
        except Exception:
            self._report(batch, came=False)
            raise
        self._report(batch, came=True)
        delivery.waited = perf_counter() - started
        delivery.begun, delivery.in_flight = batch.begun, len(queue)
        return delivery

    def at_hand(self) -> bool:
        """Return whether next() would wait for no other thread or process."""
        with self._lock:
            return not (self._open and self._queue) or self.carrier.at_hand(self._queue)

    def _ask_again(self, queue: deque[Any]) -> None:
        """Begin the batches in flight from what the sampler gave for them."""
        for number, before in enumerate(queue):
            if before.given is not None:
                batch = queue[number] = self.carrier.new_batch()
                batch.given, batch.place, batch.begun = before.given, before.place, before.begun
                self.carrier.begin(batch)

    def _assembled(self, carrier: Carrier, queue: deque[Any], batch: Any) -> Delivery:
        """Return the delivery of a batch that is ready, or raise its error."""
        try:
            if batch.error is not None:
                batch.raise_error()
            delivery = carrier.delivery(batch)
            if carrier.reads_ahead and self._may_ask():  # without workers nothing is done ahead
                self._refill(queue)
            self._num_yielded += 1
            return delivery
        except StopIteration as error:
            raise not_an_end(error, "while a batch was made") from error
        finally:
            if batch.shards is not None:
                batch.let_shards_go()

    def _report(self, batch: Any, *, came: bool) -> None:
        """Tell of the batch that came, or of the error in its place."""
        if self.arrivals is not None:
            self.arrivals.read(None if batch is None else batch.place)
        if (streams := self.streams) is not None and streams.now is None:
            if came:
                streams.read(batch.stream, batch.state)
            else:
                streams.failed()

    def _refill(self, queue: deque[Any]) -> None:
        carrier = self.carrier
        while len(queue) < carrier.depth(queue) and not self._exhausted:
            if queue and not self._may_ask():
                return
            batch = carrier.new_batch()
            if not self._ask(batch):
                return
            queue.append(batch)
            if batch.given is not None:
                carrier.begin(batch)

    def _may_ask(self) -> bool:
        return self._input.ready is None or self._input.ready()

    def _ask(self, batch: Batch) -> bool:
        """Put what the sampler gives next, or its error, into a batch. False: the sampler is at its end."""
        batch.begun = perf_counter()
        try:
            batch.given = next(self._input.batches, None)
        except Exception as error:
            batch.error = error
        if batch.given is None and batch.error is None:
            self._exhausted = True
            return False
        batch.place = self._asked - (batch.given is None)
        self._asked += batch.given is not None
        return True

    # --- next() -----------------------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        try:
            return observed(self.observers, self._one)
        except Exception as error:
            shorten(error)
            raise
        except BaseException:  # Ctrl-C in any line: what was begun is not known
            self._open, self._interrupted = False, True
            self.carrier.interrupted = True
            self.close()  # a notebook keeps the traceback, and with it this pass
            raise

    def _one(self) -> Delivery:
        with self._lock:
            if not self._open:
                if self._interrupted:
                    raise RuntimeError(INTERRUPTED)
                raise StopIteration
            if torch._C._autograd._profiler_enabled():
                with torch.autograd.profiler.record_function(self._profile_name):
                    return self._hand_out()
            return self._hand_out()

    def __len__(self) -> int:
        if self._input.length is None:
            raise TypeError("the batch sampler of this loader has no length")
        return self._input.length

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("a pass over the data cannot be pickled; pickle the loader")

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Pass: {state}, {self.carrier!r}, {len(self._queue)} batches in flight>"


MakeCarrier = Callable[[Job, "Carrier | None", Callable[[], PassInput]], Carrier]
"""Returns what makes the batches of a pass, called with

- the pass,
- what made those of the pass before, whose iterator is kept; it may make these too,
- what returns the input of the pass; it draws, and is called where nothing is refused any more.
"""


def open_pass(make: MakeCarrier, job: Job, held: _BaseDataLoaderIter | None) -> Pass:
    """Return an iterator of the batches: the one that is held, whose carrier is of the same kind, or a new one."""
    drawn = cache(job.pass_input)
    if not isinstance(held, Pass):  # one in the caller's thread has nothing to end
        held = None
    carrier = make(job, None if held is None else held.carrier, drawn)
    if held is not None and type(carrier) is not type(held.carrier):
        held.close()
        held = None
    if held is None:
        held = Pass(carrier, drawn(), eager=job.eager)
    else:
        held.begin(drawn(), carrier, eager=job.eager)
    if carrier.in_order:
        job.progress.arrivals = None
    held.arrivals, held.streams = job.progress.arrivals, job.streams
    return held
