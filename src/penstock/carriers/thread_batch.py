"""A batch that Python threads make, a part each, and what each of them is doing."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.memory.buffers import Buffers
from penstock.sample_notes import add_note, not_an_end
from penstock.state.delivery import Task
from penstock.system.randomness import Generators
from penstock.workers.batch import Batch
from penstock.workers.collating import Build, Layout, layout_of
from penstock.workers.worker import Worker

#: Samples are written to their rows when they take so many bytes: a core's own cache still holds them.
AT_A_TIME_BYTES = 768 << 10


@dataclass(slots=True)
class Activity:
    """What a thread is doing."""

    stage: str = ""
    part: Sequence[Any] = ()
    """The indices of the samples that the thread fetches now."""
    left: Any = field(default_factory=lambda: iter(()))
    """A list's iterator over these indices: its length hint says how far the thread is, at no cost to the thread."""
    since: float = 0.0

    def begin(self, part: Sequence[Any]) -> None:
        """Take note of the samples that are made from now on."""
        self.part, self.stage, self.since = part, "getitem", time.monotonic()

    def each(self, indices: Iterable[Any]) -> Iterator[Any]:
        """Yield indices, and know which sample is being made."""
        part = indices if isinstance(indices, list | tuple) else list(indices)
        self.left = left = iter(part)
        self.begin(part)
        return left

    def position(self) -> int:
        """Return the position in the part of the sample that is being fetched."""
        return max(0, len(self.part) - operator.length_hint(self.left) - 1)

    def sample(self) -> Any:
        return self.part[self.position()] if self.part else None

    def __str__(self) -> str:
        return f"__getitem__ of sample {self.sample()!r}" if self.stage == "getitem" else self.stage


class SampleRows:
    """Where the samples of batches are built: the layout that they have in common, and the memory of their batches.

    Any thread may call any method.

    Attributes:
        sample_bytes: of a sample, once one is known.
        at_a_time: samples that are made before they are written to their rows.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.sample_bytes: int | None = None
        self.at_a_time = 1
        self._lock = threading.Lock()
        self._buffers = buffers
        self._layout: Layout | None = None

    def build_for(self, batch: FetchedBatch, sample: Any) -> Build:
        with self._lock:
            if batch.build is None:
                count = len(batch.indices or ())
                layout = self._layout  # finish() may forget it meanwhile
                if layout is None:
                    layout = self._layout = layout_of(sample)
                    self.sample_bytes = layout.nbytes
                    self.at_a_time = max(1, AT_A_TIME_BYTES // max(1, layout.nbytes))
                batch.build = Build(layout, count, self._buffers)
            return batch.build

    def finish(self, batch: FetchedBatch, build: Build) -> Any:
        """Return the batch whose samples are all built."""
        if not build.agrees:
            self._layout = None  # the next batch may be of the other kind
        return build.finish(batch.indices)


@dataclass(slots=True, eq=False)
class FetchedBatch(Batch):
    """A batch that threads make."""

    task: Task | None = None
    """None: nothing was prepared for the batch."""
    indices: list[Any] | None = None
    """Of the samples, which are fetched one by one; None: the task is done in one go."""
    taken: int = 0
    unfinished: int = 0
    build: Build | None = None
    samples: list[Any] = field(default_factory=list)
    result: Any = None
    failed: tuple[int, BaseException] | None = None
    """Position and error of the first sample that failed: an earlier one may fail while threads are at work."""
    done: bool = False
    submitted: bool = False
    """Threads have got it."""

    @property
    def waits_for_shards(self) -> bool:
        return self.shards is not None and not self.submitted

    def let_go(self) -> None:
        self.result = None

    def fail(self, position: int, error: BaseException) -> None:
        """Keep the error of a sample, where it is the first of the batch; the crew's lock is held."""
        if self.failed is None or position < self.failed[0]:
            self.failed = (position, error)

    def make_part(
        self, begin: int, end: int, worker: Worker, rows: SampleRows | None, generators: Generators, activity: Activity
    ) -> tuple[int, BaseException] | None:
        """Make a part of the samples in the calling thread, and return the position and the error of one that failed.

        Args:
            begin, end: of the part; of a task that is done in one go 0 and 1.
            worker: the thread's own, whose `each` is that of the activity.
            rows: where samples are built; None: they are kept for collate_fn.
            generators: of the thread, for the task's seed.
        """
        task, at, build = self.task, begin, None
        assert task is not None
        try:
            if self.indices is None:
                activity.begin([task.given])
                generators.set_sample_key(task.seed, task.epoch, activity, task.positions)
                self.result = worker.make(task)
                return None
            while at < end:  # a few at a time, which are written to their rows while caches hold them
                until = end if rows is None else min(end, at + rows.at_a_time)
                generators.set_sample_key(task.seed, task.epoch, activity, task.positions[at:until])
                samples = worker.part(task, at, until)
                if rows is None:
                    self.samples[at:until] = samples
                else:
                    activity.stage = "collate"
                    build = build or rows.build_for(self, samples[0])
                    build.take(samples, at)
                at = until
                del samples
            return None
        except BaseException as error:
            return at + activity.position(), self._noted(error)
        finally:
            activity.stage = ""

    def _noted(self, error: BaseException) -> BaseException:
        """Return an error with a note of its thread; for a StopIteration, another (see not_an_end)."""
        add_note(error, f"in {threading.current_thread().name}")
        return not_an_end(error, "by the dataset")

    def collate(self, worker: Worker, rows: SampleRows | None) -> None:
        if self.build is not None and rows is not None:
            self.result = rows.finish(self, self.build)
        else:
            assert self.task is not None
            self.result = worker.collate(self.task, self.samples)
