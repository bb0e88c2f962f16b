"""The threads of a pass over the data: the only file that starts any.

Native threads fill rows (native/pool.h); Python threads read what those leave to Python, and start when the first
such row appears.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

import penstock._native as _native
from penstock.errors import CorruptSample, InvalidOption
from penstock.memory.buffers import Field, Rows, bytes_in
from penstock.observe import Meter, Reading
from penstock.order.batches import as_array
from penstock.plan import NativePlan
from penstock.system.deferred import deferred
from penstock.system.limits import group_memory
from penstock.workers.batch import IndexedBatch
from penstock.workers.collating import BatchMemory

if TYPE_CHECKING:
    from penstock.recipe import keyed_methods
else:
    (keyed_methods,) = deferred("penstock.recipe", "keyed_methods")

#: Threads that read files ahead of the workers, at the most; how many there are is measured (native/pool/read_depth.h).
READERS = 64
#: Bytes of files that they hold ahead at the most, and at the most so much of the memory that this process may take.
READ_AHEAD_BYTES, READ_AHEAD_SHARE = 256 << 20, 8
#: Samples that readers know of where reads block: those in flight, and others whose batches have no memory yet.
SAMPLES_AHEAD = 4 * READERS
#: How long closing waits for Python threads that are reading a sample, in seconds.
JOIN_SECONDS = 0.5
_UNKNOWN = Field(_native.Spec("uint8", [0]))  # rows of unknown shape: every sample says what it has


def read_ahead_bytes() -> int:
    """Return how many bytes of files the readers of a pass may hold ahead."""
    return min(READ_AHEAD_BYTES, _memory() // READ_AHEAD_SHARE)


@cache
def _memory() -> int:
    """Return how many bytes of memory this process may take."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = group_memory().limit
    return memory if limit is None else min(memory, limit)


@dataclass(slots=True, eq=False)
class NativeBatch(IndexedBatch):
    """A batch that was submitted to the pool."""

    names: bytes | None = None
    fields: list[Field] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    prepared: _native.PreparedBatch | None = None
    """What the readers of files know of it, until it is submitted."""
    number: int = -1
    key: tuple[int, int] = (0, 0)  # seed and epoch of its random draws
    python_errors: dict[int, BaseException] = field(default_factory=dict)  # by position in the batch

    @property
    def waits_for_shards(self) -> bool:
        return self.number < 0 and self.shards is not None

    def let_go(self) -> None:
        self.python_errors.clear()
        self.rows.clear()


class NativeCrew:
    """The threads of one pass: the native pool, and those that read in Python what it leaves to Python.

    They hold the pool and the plan, never the pass, so that an abandoned iterator can be collected.

    readers: reader threads at the most, where reads block; None: none where the caller does all work.
    """

    def __init__(self, plan: NativePlan, threads: int, meter: Meter, readers: int | None = None) -> None:
        try:
            recorded = bool(meter.sinks)
            readers = (READERS if threads else 0) if readers is None else readers
            self.pool = _native.Pool(plan.program, threads, readers, read_ahead_bytes(), recorded)
        except RuntimeError as error:
            raise InvalidOption(f"num_workers={threads}: the system cannot start so many threads ({error})") from error
        self._meter, self._stages, counts = meter, self.pool.stages, self.pool.reading
        self._reading_counts = lambda: (Reading(**counts()),)
        meter.open(self._stages)
        if any(leaf.memory is None for leaf in plan.leaves):  # else all of it is memory
            meter.reading.open(self._reading_counts)
        self._spans = self.pool.take_spans
        if recorded:
            meter.open_spans(self._spans)
        # Held while a batch gets its number and its place here: a job of it may come at once.
        self.lock = threading.Lock()
        self.batches: dict[int, NativeBatch] = {}  # those in flight, by number
        self._submitted = 0
        self._closed = False
        self.plan = plan
        self.fields = [None if spec is None else Field(spec) for spec in plan.specs()]
        """Of the batches to be submitted; None: of unknown shape, which the first batch tells."""
        self._threads: list[threading.Thread] = []
        self._reading: dict[int, tuple[int, int, float]] = {}  # by thread: batch, position, since when

    def start(self, count: int) -> None:
        """Start serving; without threads the caller serves by serve_here."""
        Image.init()  # Pillow looks up its formats once, and not thread-safely
        for number in range(count):
            thread = threading.Thread(target=self._serve, name=f"penstock-python-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self.pool.add_python_server()

    def resolve(self, batch: NativeBatch) -> None:
        """Find where the samples of a batch lie. Raises what the dataset raises."""
        batch.leaves, batch.local = self.plan.root.resolve(batch.indices)
        batch.names = self.plan.names(batch.leaves, batch.local)

    def prepare(self, batch: NativeBatch) -> None:
        (seed, epoch), positions = batch.key, as_array(batch.positions)
        seed &= 0xFFFFFFFFFFFFFFFF
        batch.prepared = self.pool.prepare(
            seed, epoch, batch.local, batch.indices, positions, batch.leaves, batch.names
        )

    def submit(self, batch: NativeBatch, memory: BatchMemory, *, staged: bool = False) -> None:
        """Have the pool fill a batch, which is known here, and holds its rows, before the pool begins.

        memory: for the rows. staged: memory of the user's is copied now.
        """
        if batch.prepared is None:
            self.prepare(batch)
        assert batch.prepared is not None
        batch.python_errors, batch.read_by_python = {}, []
        batch.fields = [field or _UNKNOWN for field in self.fields]
        batch.rows = [memory.rows(len(batch.indices), field) for field in batch.fields]
        fields: list[Any] = [(*rows, field.spec) for rows, field in zip(batch.rows, batch.fields, strict=True)]
        with self.lock:
            self.batches[self._submitted] = batch
            batch.number, batch.prepared = self.pool.submit(batch.prepared, fields, staged), None
            self._submitted += 1

    def retire(self, batch: NativeBatch) -> list[_native.Failure]:
        """Return what failed in a batch that is done, and forget the batch."""
        del self.batches[batch.number]
        return self.pool.retire(batch.number)

    def fill_here(self, batch: NativeBatch, memory: BatchMemory) -> list[_native.Failure]:
        """Fill a batch in the calling thread, and return what failed. memory: for the rows."""
        self.submit(batch, memory)
        self.pool.run_here(batch.number)
        self.serve_here()
        while self.pool.wait(batch.number, 0) != "done":
            self.serve_here()
        return self.retire(batch)

    def serve_here(self) -> None:
        """Read all rows that wait now, in the calling thread."""
        while (job := self.pool.take_python(False)) is not None:
            self._read_in_python(job)

    def close(self) -> None:
        """End the threads. In a forked child they do not exist, and nothing is done."""
        if not (self._closed or self.pool.abandoned):
            self._closed = True
            self.pool.close()
            self._join()
            self._meter.close(self._stages)
            self._meter.reading.close(self._reading_counts)
            self._meter.close_spans(self._spans)

    def _join(self) -> None:
        """Wait for Python's threads, but not for the one that runs this itself.

        Nor for one that does not come back from reading a sample: it ends by itself when it does.
        """
        deadline = monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                with contextlib.suppress(RuntimeError):  # Ctrl-C came while it was started: it finds the pool closed
                    thread.join(max(0.0, deadline - monotonic()))

    def _serve(self) -> None:
        while (job := self.pool.take_python(True)) is not None:
            with contextlib.suppress(BaseException):  # it is raised where the batch is handed out
                self._read_in_python(job)

    def busy(self) -> list[tuple[int, int, float]]:
        """Return (batch, position in it, seconds since it began) of each sample that a Python thread reads now."""
        now = monotonic()
        return [(batch, position, now - since) for batch, position, since in list(self._reading.values())]

    def _read_in_python(self, job: _native.PythonJob) -> None:
        with self.lock:
            batch = self.batches[job.batch]
        self._reading[threading.get_ident()] = (job.batch, job.position, monotonic())
        try:
            # Before the row is finished: the batch may be handed out right then.
            batch.read_by_python.append(job.reason)
            leaf, local = self.plan.leaf(batch.leaves, job.position), int(batch.local[job.position])
            value = leaf.read_in_python(local)
            if not isinstance(value, torch.Tensor):
                if self.pool.finish_pixels(job, value) is None:
                    return
                with keyed_methods.of_sample(*batch.key, job.sample, batch.positions[job.position]):
                    value = leaf.sample_in_python(local)  # the user's own transform has the last word
                value = value[job.field] if leaf.form.views else value
            self._finish_tensor(job, value, *leaf.identify(local))
        except BaseException as error:
            batch.python_errors.setdefault(job.position, error)
            self.pool.fail_python(job)
            if not isinstance(error, Exception):
                raise  # Ctrl-C in the caller's thread
        finally:
            self._reading.pop(threading.get_ident(), None)

    def _finish_tensor(self, job: _native.PythonJob, tensor: torch.Tensor, sample_id: str, path: str | None) -> None:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _native.DTYPES or tensor.ndim > _native.MAX_DIMS:
            raise CorruptSample(
                f"sample {sample_id!r} ({path or 'in memory'}) is a tensor of {tensor.dtype} with {tensor.ndim} "
                f"dimensions; up to {_native.MAX_DIMS} are batched: reshape it, or write your own Dataset",
                sample_id=sample_id,
                path=path,
            )
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self.pool.finish_tensor(job, bytes_in(plain), _native.Spec(name, list(tensor.shape)))
