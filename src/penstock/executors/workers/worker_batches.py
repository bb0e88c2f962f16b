"""The batches of a worker process, made in the shared memory that its parent has reserved for them."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from functools import partial
from typing import Any

from penstock.executors.buffers import Field, Rows
from penstock.executors.collating import Build, layout_of
from penstock.executors.fetch import Fetch
from penstock.executors.workers.shared_memory import SHARED_BYTES, Needs
from penstock.executors.workers.worker_memory import MOST_COPIED, OwnMemory, WorkerBuffers, aligned
from penstock.recipe.result_memory import placed
from penstock.state.delivery import Task


class WorkerBatches:
    """Builds the batches of a worker process in place.

    A user's collate_fn may keep what it was given, or what it returns: what lies in a block that somebody holds is sent
    as a copy, and that block is not used again.

    Attributes:
        lacking: what batches need, where there was no block for a large tensor of the latest one.
        held: numbers of the blocks that the user's code in this process holds a part of.
    """

    def __init__(self) -> None:
        self._buffers = WorkerBuffers()
        self._own = OwnMemory(self._buffers)
        self._rows_are_sent = True  # the batch before lay in the rows of its samples
        self._each: tuple[int, ...] | None = None  # bytes of a sample in each large tensor of the batch before
        self.lacking: Needs | None = None
        self.held: tuple[int, ...] = ()

    def load(self, fetch: Fetch, task: Task) -> Any:
        """Return the batch of a task, as it is sent."""
        self.lacking, self.held = None, ()
        self._buffers.begin(task.blocks)
        try:
            return self._made(fetch, task)
        except BaseException:
            self._buffers.abandon()
            raise

    def _made(self, fetch: Fetch, task: Task) -> Any:
        filled = fetch.fill(task, self._buffers if fetch.stacks else self if fetch.keeps_rows else None)
        if filled is None:
            self._buffers.begin(task.blocks)  # some may be filled in part
            if fetch.stacks:
                return fetch.load_samples(task, partial(self._collate, fetch))
            with placed(self._buffers.room):
                made = [fetch.load_samples(task)]
            return self._sent(made, len(task.given) if isinstance(task.given, Sized) else 0)
        if fetch.stacks:
            self._report(filled.row_bytes, len(task.given))
            return self._buffers.packed(fetch.collate_filled(task, filled))
        rows = {one.untyped_storage().data_ptr() for one in filled.rows}
        made = [fetch.collate_filled(task, filled)]
        del filled
        return self._sent(made, len(task.given), rows)

    def rows(self, samples: int, field: Field) -> Rows:
        """Return memory for the samples that a user's collate_fn is given."""
        reserved = self._buffers.reserved_rows(samples, field) if self._rows_are_sent else None
        return reserved or self._own.rows(samples, field)

    def _collate(self, fetch: Fetch, task: Task, samples: Any) -> Any:
        """Return what default_collate gives for the samples, as it is sent."""
        if type(samples) not in (list, tuple) or not samples:  # of a __getitems__: default_collate has the word
            return fetch.collate(task, samples)
        fetch.note("collate", None, len(samples))
        layout = layout_of(samples[0])
        build = Build(layout, len(samples), self._buffers)
        build.take(samples, 0)
        batch = build.finish(task.given)
        if build.agrees:
            self._report(tuple(field.nbytes for field in layout.fields), len(samples))
        return self._buffers.packed(batch)

    def _sent(self, made: list[Any], samples: int, rows: Iterable[int] = ()) -> Any:
        """Return the only item of a list, a batch of the user's collate_fn, as it is sent. rows: where samples lie."""
        batch = made.pop()
        packed = self._buffers.packed(batch, of_user=True)
        self._rows_are_sent = not self._buffers.large.keys().isdisjoint(rows)
        del batch
        sizes = tuple(nbytes for nbytes, _ in self._buffers.large.values())
        alike = samples > 0 and len(sizes) <= MOST_COPIED and not any(size % samples for size in sizes)
        each = tuple(size // samples for size in sizes) if alike else ()
        if not all(placed for _, placed in self._buffers.large.values()):
            if each and each == self._each:
                self.lacking = Needs(field_bytes=each)
            elif not each or self._each is not None:
                self.lacking = Needs(loose_bytes=sum(map(aligned, sizes)))
        self._each = each
        packed, self.held = self._buffers.take_back(packed)
        return packed

    def _report(self, sizes: tuple[int, ...], samples: int) -> None:
        """Take note of the bytes of a sample in each field of a batch, where one has no block."""
        if self._buffers.placed < sum(size * samples >= SHARED_BYTES for size in sizes):
            self.lacking = Needs(field_bytes=sizes)
