"""Filling batches ahead of the user: the only file that starts threads.

`Filling` is one pass over the data. It keeps a few batches in flight in the native pool, hands them out in
order, and turns what went wrong with a sample into the error of its batch. Rows that the native core leaves
to Python are read by Python threads, which start when the first such row appears.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from penstock import _native
from penstock.buffers import Buffers, Field, Rows
from penstock.errors import CorruptSample, InvalidOption, ShapeMismatch
from penstock.order import Indices
from penstock.plan import NativePlan
from penstock.sources.reading import outside_root, system_error
from penstock.stats import Counters
from penstock.tree import LeafNumbers

#: Bytes that batches in flight may take before fewer are kept in flight: what stays in a last-level cache is filled
#: faster. At least 3 always are in flight: one that the user waits for, one in work, one to go on with.
IN_FLIGHT_BYTES = 16 << 20
#: How long closing waits for Python threads that are reading a sample.
JOIN_SECONDS = 2.0
#: Batches in flight at the most, unless prefetch_factor= says otherwise.
IN_FLIGHT = 8


def usable_cpus() -> int:
    """Return how many CPUs this process may really use: its affinity, and its cgroup's quota rounded up."""
    cpus = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))


def cgroup_quota(membership: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> int | None:
    """Return the CPUs of the tightest quota above this process, rounded up, or None where there is none.

    Sources: cpu.max of cgroup v2 and cpu.cfs_quota_us of v1 (Linux, Documentation/admin-guide/cgroup-v2.rst).
    """
    quotas = []
    try:
        with open(membership, encoding="utf-8") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return None
    for _, controllers, path in groups:
        names: tuple[str, ...]
        if controllers == "":
            base, names = mount, ("cpu.max",)
        elif "cpu" in controllers.split(","):
            base, names = f"{mount}/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            words = _read_words(os.path.join(base, *parts[:depth]), names)
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                quotas.append(-(-int(words[0]) // int(words[1])))
    return min(quotas, default=None)


def _read_words(folder: str, names: tuple[str, ...]) -> list[str]:
    words: list[str] = []
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                words += file.read().split()
        except OSError:
            return []
    return words


#: Rows of unknown shape: every sample of such a batch says what it has.
_UNKNOWN = Field(_native.Spec("uint8", [0]))


@dataclass(slots=True)
class _InFlight:
    """A batch that was submitted, or the error that came in its place."""

    indices: Indices
    leaves: LeafNumbers | None = None
    local: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    names: bytes | None = None
    fields: list[Field] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    number: int = -1
    rescues_failed: dict[int, BaseException] = field(default_factory=dict)  # by position in the batch
    rescued: list[str] = field(default_factory=list)  # why Python read a sample, once for each
    other: list[Any] | None = None  # what a sampler gave that is no list of indices
    error: Exception | None = None


class _Rescuers:
    """The threads that read in Python what the native core left to Python.

    They hold the pool and the plan, never the Filling, so that an abandoned iterator can be collected.
    """

    def __init__(self, pool: _native.Pool, plan: NativePlan) -> None:
        self.pool = pool
        # Held while a batch gets its number and its place here: a job of it may come at once.
        self.lock = threading.Lock()
        self.batches: dict[int, _InFlight] = {}  # those in flight, by number
        self._plan = plan
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Start serving; with no threads of its own the caller serves by serve_here."""
        Image.init()  # Pillow looks up its formats once, and not thread-safely
        for number in range(count):
            thread = threading.Thread(target=self._serve, name=f"penstock-python-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self.pool.add_python_server()

    def serve_here(self) -> None:
        """Read all rows that wait now, in the calling thread."""
        while (job := self.pool.take_python(False)) is not None:
            self._rescue(job)

    def join(self) -> None:
        """Wait for the threads; the pool must be closed. A thread that runs this itself is not waited for.

        Nor is one that does not come back from reading a sample: it ends by itself when it does.
        """
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (job := self.pool.take_python(True)) is not None:
            with contextlib.suppress(BaseException):  # it is raised where the batch is handed out
                self._rescue(job)

    def _rescue(self, job: _native.PythonJob) -> None:
        with self.lock:
            batch = self.batches[job.batch]
        try:
            batch.rescued.append(job.reason)  # before the row is finished: the batch may be handed out right then
            leaf, local = self._plan.leaf(batch.leaves, job.position), int(batch.local[job.position])
            value = leaf.rescue(local)
            if not isinstance(value, torch.Tensor):
                if self.pool.finish_pixels(job, value) is None:
                    return
                value = leaf.apply(local)  # the user's own transform has the last word
            self._finish_tensor(job, value)
        except BaseException as error:
            batch.rescues_failed.setdefault(job.position, error)
            self.pool.fail_python(job)
            if not isinstance(error, Exception):
                raise  # Ctrl-C in the caller's thread

    def _finish_tensor(self, job: _native.PythonJob, tensor: torch.Tensor) -> None:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _native.DTYPES or tensor.ndim > _native.MAX_DIMS:
            raise CorruptSample(f"a tensor of {tensor.dtype} with {tensor.ndim} dimensions cannot be batched natively")
        plain = tensor.resolve_conj().resolve_neg().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, dtype=np.uint8)
        self.pool.finish_tensor(job, data, _native.Spec(name, list(tensor.shape)))


def _close(rescuers: _Rescuers) -> None:
    if not rescuers.pool.abandoned:
        rescuers.pool.close()
        rescuers.join()


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
        self._workers = workers
        self._wanted_in_flight = in_flight
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._epoch = epoch
        self._buffers = buffers
        self._counters = counters
        self._timeout = timeout
        self._fields = [None if spec is None else Field(spec) for spec in plan.specs()]
        self._queue: deque[_InFlight] = deque()
        self._target = 1
        self._exhausted = False
        self._lock = threading.Lock()  # next() may be called by several threads: each gets whole batches
        try:
            self._pool = _native.Pool(plan.program, workers)
        except RuntimeError as error:
            raise InvalidOption(f"num_workers={workers}: the system has not so many threads ({error})") from error
        self._rescuers = _Rescuers(self._pool, plan)
        self._finalizer = weakref.finalize(self, _close, self._rescuers)
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
            return self._next()

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
            batch = _InFlight(batch.indices)
            try:
                raise error
            finally:
                del error
        out = self._assemble(batch)
        if self._workers:  # without workers nothing is done before it is asked for
            self._refill()
        self._counters.delivered(len(batch.indices), time.perf_counter() - started, batch.rescued)
        return out

    def close(self) -> None:
        """Stop filling and end the threads. Batches in flight are dropped."""
        self._finalizer()
        self._queue.clear()

    def __repr__(self) -> str:
        state = "open" if self._finalizer.alive else "closed"
        return f"<Filling: {state}, {self._workers} threads, {len(self._queue)} batches in flight>"

    # --- submitting -----------------------------------------------------------------------------------------

    def _refill(self) -> None:
        while not self._exhausted and len(self._queue) < self._target:
            batch = self._next_batch()
            if batch is not None:
                self._queue.append(batch)

    def _choose_target(self, samples: int) -> int:
        """Return how many batches to keep in flight."""
        known = [field for field in self._fields if field is not None]
        if self._workers == 0 or len(known) < len(self._fields):
            return 1  # with rows of unknown shape, the first batch tells
        if self._wanted_in_flight is not None:
            return max(1, self._wanted_in_flight)
        size = samples * sum(field.nbytes for field in known)
        return IN_FLIGHT if size == 0 else max(3, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))

    def _next_batch(self) -> _InFlight | None:
        batch = _InFlight(np.empty(0, dtype=np.int64))
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

    def _submit(self, batch: _InFlight) -> None:
        samples = len(batch.indices)
        if self._target == 1:
            self._target = self._choose_target(samples)
        batch.fields = [field or _UNKNOWN for field in self._fields]
        batch.rows = [self._buffers.rows(samples, field) for field in batch.fields]
        batch.rescues_failed, batch.rescued = {}, []
        fields = [(rows.memory, field.spec) for rows, field in zip(batch.rows, batch.fields, strict=True)]
        with self._rescuers.lock:
            batch.number = self._pool.submit(
                self._seed, self._epoch, batch.local, batch.indices, batch.leaves, batch.names, fields
            )
            self._rescuers.batches[batch.number] = batch

    # --- waiting --------------------------------------------------------------------------------------------

    def _wait(self, batch: _InFlight) -> None:
        if self._workers == 0:
            self._pool.run_here(batch.number)
            self._rescuers.serve_here()
        while (state := self._pool.wait(batch.number, self._timeout)) != "done":
            if state == "python":
                self._rescuers.start(self._workers)
            elif state == "timeout":
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            else:
                raise RuntimeError("the loader's iterator was closed while a batch was waited for")

    def _retire(self, batch: _InFlight) -> list[_native.Failure]:
        del self._rescuers.batches[batch.number]
        failures = self._pool.retire(batch.number)
        failures.sort(key=operator.itemgetter(0))
        return failures

    def _assemble(self, batch: _InFlight) -> Any:
        if batch.other is not None:
            out = default_collate([self._plan.dataset[index] for index in batch.other])
            return _pin(out) if self._buffers.pinned else out
        fields: list[Any] = [rows.tensor for rows in batch.rows]
        labels = self._plan.labels(batch.leaves, batch.local)
        if labels is not None:
            fields.append(_pin(labels) if self._buffers.pinned else labels)
        return fields if self._plan.leaves[0].pair else fields[0]

    # --- failures -------------------------------------------------------------------------------------------

    def _learn(self, batch: _InFlight, failures: list[_native.Failure]) -> bool:
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

    def _error(self, batch: _InFlight, failures: list[_native.Failure]) -> Exception:
        """Return the error of the first sample that failed; a shape counts only where nothing worse happened."""
        grave = [failure for failure in failures if failure[2] != "mismatch"]
        position, number, code, system, _, dtype, shape = (grave or failures)[0]
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
        return self._mismatch(batch, failures, position, number, (dtype, shape))

    def _identify(self, batch: _InFlight, position: int) -> tuple[str, str | None]:
        """Return the ID and the file of a sample of a batch, for messages."""
        name, path = self._plan.leaf(batch.leaves, position).identify(int(batch.local[position]))
        if path is None:  # a number in one of several datasets would name two samples
            name = f"number {batch.indices[position]}"
        return name, path

    def _mismatch(
        self,
        batch: _InFlight,
        failures: list[_native.Failure],
        position: int,
        number: int,
        found: tuple[str, tuple[int, ...]],
    ) -> ShapeMismatch:
        """Return the error that names two samples of a batch which do not agree."""
        of_field = {failure[0]: (failure[5], failure[6]) for failure in failures if failure[1] == number}
        spec = batch.fields[number].spec
        shapes = [of_field.get(i, (spec.dtype, spec.shape)) for i in range(len(batch.indices))]
        first = shapes[0]
        position = next((i for i, shape in enumerate(shapes) if shape != first), position)
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
