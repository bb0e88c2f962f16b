"""One pass over the data: batches filled ahead of the user, and handed out in order.

`Filling` keeps a few batches in flight in the native pool, waits for the oldest, and turns what went wrong with a
sample into the error of its batch.
"""

from __future__ import annotations

import operator
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from penstock import _native
from penstock.buffers import Buffers, Field
from penstock.errors import ShapeMismatch
from penstock.order import Indices
from penstock.plan import NativePlan
from penstock.sources.reading import outside_root, system_error
from penstock.stats import Counters
from penstock.workers import InFlight, NativeWorker, Workers

#: Bytes that batches in flight may take before fewer are kept in flight: what stays in a last-level cache is filled
#: faster. At least 3 always are in flight: one that the user waits for, one in work, one to go on with.
IN_FLIGHT_BYTES = 16 << 20
#: Batches in flight at the most, unless prefetch_factor= says otherwise.
IN_FLIGHT = 8

#: Rows of unknown shape: every sample of such a batch says what it has.
_UNKNOWN = Field(_native.Spec("uint8", [0]))


class Filling(Iterator[Any]):
    """One pass over the data: an iterator of batches.

    Args:
        plan: what fills the batches.
        batches: the dataset indices of each batch; a list holds what a sampler gave that is none.
        length: what len() returns.
        workers: native threads; 0 fills each batch in the caller's thread when it is asked for.
        in_flight: batches in flight, or None to choose by their size.
        seed, epoch: what random draws depend on, besides the sample.
        buffers, counters: the loader's.
        timeout: seconds to wait for a batch, 0 for ever.
        eager: start filling now, not when the first batch is asked for.

    After an error the iterator goes on with the next batch. It ends its threads when it is exhausted,
    closed or dropped.
    """

    def __init__(
        self,
        plan: NativePlan,
        batches: Iterator[Indices | list[Any]],
        *,
        length: int | None,
        workers: int,
        in_flight: int | None,
        seed: int,
        epoch: int,
        buffers: Buffers,
        counters: Counters,
        timeout: float = 0,
        eager: bool = False,
    ) -> None:
        self._plan = plan
        self._batches = batches
        self._length = length
        self._threads = workers
        self._wanted_in_flight = in_flight
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._epoch = epoch
        self._buffers = buffers
        self._counters = counters
        self._timeout = timeout
        self._fields = [None if spec is None else Field(spec) for spec in plan.specs()]
        self._queue: deque[InFlight] = deque()
        self._target = 1
        self._exhausted = False
        self._lock = threading.Lock()  # next() may be called by several threads: each gets whole batches
        self._crew = Workers(plan, workers)
        self._pool = self._crew.pool
        self._finalizer = weakref.finalize(self, self._crew.close)
        if eager:
            self._refill()

    def __iter__(self) -> Filling:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the batch sampler of this loader has no length")
        return self._length

    def __next__(self) -> Any:
        with self._lock:
            if torch._C._autograd._profiler_enabled():  # under the name that profilers look for
                with torch.autograd.profiler.record_function("enumerate(DataLoader)#Filling.__next__"):
                    return self._next()
            return self._next()

    @property
    def _workers(self) -> list[NativeWorker]:
        """The native threads, under the name that torch's iterator gives its workers."""
        return [NativeWorker(f"native-{number}", self._crew.ended) for number in range(self._threads)]

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("a pass over the data cannot be pickled; pickle the loader")

    def _next(self) -> Any:
        if not self._finalizer.alive:
            raise StopIteration
        started = time.perf_counter()
        self._refill()
        if not self._queue:
            self.close()
            raise StopIteration
        batch = self._queue[0]
        if batch.number >= 0:
            self._wait(batch)
        self._queue.popleft()
        error = batch.error
        if batch.number >= 0:
            failures = self._retire(batch)
            while failures and self._learn(batch, failures):
                self._submit(batch)
                self._wait(batch)
                failures = self._retire(batch)
            if failures:
                error = self._error(batch, failures)
                # What the error's traceback holds of the batch must hold neither the error nor its memory.
                batch.rescues_failed.clear()
                batch.rows.clear()
        if error is not None:
            # A raised error holds this frame: what the frame holds is let go, so that no cycle keeps buffers.
            batch = InFlight(batch.indices)
            try:
                raise error
            finally:
                del error
        out = self._assemble(batch)
        if self._threads:  # without workers nothing is done before it is asked for
            self._refill()
        samples = len(batch.indices if batch.other is None else batch.other)
        self._counters.delivered(samples, time.perf_counter() - started, batch.rescued)
        return out

    def close(self) -> None:
        """Stop filling and end the threads. Batches in flight are dropped."""
        self._finalizer()
        self._queue.clear()

    def __repr__(self) -> str:
        state = "open" if self._finalizer.alive else "closed"
        return f"<Filling: {state}, {self._threads} threads, {len(self._queue)} batches in flight>"

    # --- submitting -----------------------------------------------------------------------------------------

    def _refill(self) -> None:
        while not self._exhausted and len(self._queue) < self._target:
            batch = self._next_batch()
            if batch is not None:
                self._queue.append(batch)

    def _choose_target(self, samples: int) -> int:
        """Return how many batches to keep in flight."""
        known = [field for field in self._fields if field is not None]
        if self._threads == 0 or len(known) < len(self._fields):
            return 1  # with rows of unknown shape, the first batch tells
        if self._wanted_in_flight is not None:
            return max(1, self._wanted_in_flight)
        size = samples * sum(field.nbytes for field in known)
        return IN_FLIGHT if size == 0 else max(3, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))

    def _next_batch(self) -> InFlight | None:
        batch = InFlight(np.empty(0, dtype=np.int64))
        try:
            indices = next(self._batches)
            if isinstance(indices, list):
                batch.other = indices
                return batch
            batch.indices = indices
            batch.leaves, batch.local = self._plan.root.resolve(batch.indices)
            batch.names = self._plan.names(batch.leaves, batch.local)
            self._submit(batch)
        except StopIteration:
            self._exhausted = True
            return None
        except Exception as error:  # of the user's sampler or dataset: raised when this batch's turn has come
            batch.error = error
        return batch

    def _submit(self, batch: InFlight) -> None:
        samples = len(batch.indices)
        if self._target == 1:
            self._target = self._choose_target(samples)
        batch.fields = [field or _UNKNOWN for field in self._fields]
        batch.rows = [self._buffers.rows(samples, field) for field in batch.fields]
        batch.rescues_failed, batch.rescued = {}, []
        fields = [(rows.memory, field.spec) for rows, field in zip(batch.rows, batch.fields, strict=True)]
        with self._crew.lock:
            batch.number = self._pool.submit(
                self._seed, self._epoch, batch.local, batch.indices, batch.leaves, batch.names, fields
            )
            self._crew.batches[batch.number] = batch

    # --- waiting --------------------------------------------------------------------------------------------

    def _wait(self, batch: InFlight) -> None:
        if self._threads == 0:
            self._pool.run_here(batch.number)
            self._crew.serve_here()
        while (state := self._pool.wait(batch.number, self._timeout)) != "done":
            if state == "python":
                self._crew.start(self._threads)
            elif state == "timeout":
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            else:
                raise RuntimeError("the loader's iterator was closed while a batch was waited for")

    def _retire(self, batch: InFlight) -> list[_native.Failure]:
        del self._crew.batches[batch.number]
        failures = self._pool.retire(batch.number)
        failures.sort(key=operator.itemgetter(0))
        return failures

    def _assemble(self, batch: InFlight) -> Any:
        if batch.other is not None:
            out = default_collate([self._plan.dataset[index] for index in batch.other])
            return _pin(out) if self._buffers.pinned else out
        fields: list[Any] = [rows.tensor for rows in batch.rows]
        labels = self._plan.labels(batch.leaves, batch.local)
        if labels is not None:
            fields.append(_pin(labels) if self._buffers.pinned else labels)
        return fields if self._plan.leaves[0].pair else fields[0]

    # --- failures -------------------------------------------------------------------------------------------

    def _learn(self, batch: InFlight, failures: list[_native.Failure]) -> bool:
        """Take over the rows' shape from a batch whose samples agree on another one; False: they do not."""
        if any(code != "mismatch" for _, _, code, *_ in failures):
            return False
        learned = list(self._fields)
        for number in {failure[1] for failure in failures}:
            found = {(dtype, shape) for _, field_, _, _, _, dtype, shape in failures if field_ == number}
            count = sum(failure[1] == number for failure in failures)
            if len(found) != 1 or count != len(batch.indices):
                return False
            dtype, shape = found.pop()
            learned[number] = Field(_native.Spec(dtype, shape))
        self._fields = learned
        return True

    def _error(self, batch: InFlight, failures: list[_native.Failure]) -> Exception:
        """Return the error of the first sample that failed; a shape counts only where nothing worse happened."""
        grave = [failure for failure in failures if failure[2] != "mismatch"]
        position, number, code, system, *_ = (grave or failures)[0]
        name, path = self._identify(batch, position)
        if code == "python":
            error = batch.rescues_failed[position]
            error.add_note(
                f"at position {position} of a batch of {len(batch.indices)}: sample {name!r} ({path or 'in memory'})"
            )
            return error if isinstance(error, Exception) else RuntimeError(f"sample {name!r} was interrupted")
        if code == "io":
            return system_error(system, name, path or name)
        if code == "escapes":
            return outside_root(name, path or name)
        return self._mismatch(batch, failures, number)

    def _identify(self, batch: InFlight, position: int) -> tuple[str, str | None]:
        """Return the ID and the file of a sample of a batch, for messages."""
        name, path = self._plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
        if path is None:  # a number in one of several datasets would name two samples
            name = f"number {batch.indices[position]}"
        return name, path

    def _mismatch(self, batch: InFlight, failures: list[_native.Failure], number: int) -> ShapeMismatch:
        """Return the error that names two samples of a batch which do not agree in a field."""
        of_field = {failure[0]: (failure[5], failure[6]) for failure in failures if failure[1] == number}
        spec = batch.fields[number].spec
        shapes = [of_field.get(i, (spec.dtype, spec.shape)) for i in range(len(batch.indices))]
        first = shapes[0]
        position = next((i for i, shape in enumerate(shapes) if shape != first), 0)
        name, path = self._identify(batch, position)
        other, _ = self._identify(batch, 0)
        return ShapeMismatch(
            f"sample {name!r} ({path or 'in memory'}) has {_shape(shapes[position])}; this batch holds "
            f"{_shape(first)}, as sample {other!r} does. Give collate_fn= to batch samples of different shapes or "
            "dtypes, or a transform that makes them equal",
            sample_id=name,
            path=path,
        )


def _pin(batch: Any) -> Any:
    """Return a batch of any structure with its tensors in page-locked memory, as torch's loader gives it."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]


def _shape(shape: tuple[str, tuple[int, ...]]) -> str:
    return f"shape {tuple(shape[1])} of {shape[0]}"
