"""The batches of a worker process, made in the shared memory that its parent has reserved for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch.utils.data import default_collate

from penstock.executors.buffers import Field, Rows
from penstock.executors.collating import Build, layout_of
from penstock.executors.fetch import Fetch
from penstock.executors.workers.worker_memory import WorkerBuffers
from penstock.recipe.result_memory import placed
from penstock.state.delivery import Task


class WorkerBatches:
    """Builds the batches of a worker process in place.

    A user's collate_fn may keep what it was given, or what it returns: what lies on a block that somebody holds is sent
    as a copy, and that block is not used again.

    Attributes:
        needed: bytes that the latest batch takes of a block.
        kept: the user's code in this process holds a part of the block.
    """

    def __init__(self) -> None:
        self._buffers = WorkerBuffers()
        self._rows_are_sent = True  # the batch before lay in the rows of its samples
        self.needed = 0
        self.kept = False

    def load(self, fetch: Fetch, task: Task) -> Any:
        """Return the batch of a task, as it is sent."""
        self.needed, self.kept = 0, False
        self._buffers.begin(task.block)
        try:
            batch = self._made(fetch, task)
            self.needed = self._buffers.needed
            return batch
        finally:
            self._buffers.begin(None)

    def _made(self, fetch: Fetch, task: Task) -> Any:
        filled = fetch.fill(task, self._buffers if fetch.stacks else self if fetch.keeps_rows else None)
        if filled is None:
            self._buffers.begin(task.block)  # it may be filled in part
            if fetch.stacks:
                return fetch.load_samples(task, partial(self._collate, fetch))
            with placed(self._buffers.room):
                made = [fetch.load_samples(task)]
            return self._sent(made)
        if fetch.stacks:
            return self._of_torch(fetch.collate_filled(task, filled))
        rows = {one.untyped_storage().data_ptr() for one in filled.rows}
        made = [fetch.collate_filled(task, filled)]
        del filled
        return self._sent(made, rows)

    def rows(self, samples: int, field: Field) -> Rows:
        """Return memory for the samples that a user's collate_fn is given."""
        return (self._buffers.rows if self._rows_are_sent else self._buffers.own_rows)(samples, field)

    def _collate(self, fetch: Fetch, task: Task, samples: Any) -> Any:
        """Return what default_collate gives for the samples, as it is sent."""
        if type(samples) not in (list, tuple) or not samples or type(samples[0]) in (str, bytes):
            # Of a __getitems__, or a list of strings: default_collate has the word.
            return fetch.collate(task, samples)
        fetch.note("collate", None, len(samples))
        build = Build(layout_of(samples[0]), len(samples), self._buffers)
        build.take(samples, 0)
        return self._of_torch(build.finish(task.given))

    def _of_torch(self, batch: Any) -> Any:
        """Return a batch of default_collate, as it is sent."""
        packed, _ = self._buffers.packed([batch], of_user=False)
        return packed

    def _sent(self, made: list[Any], rows: Iterable[int] = ()) -> Any:
        """Return the only item of a list, a batch of the user's collate_fn, as it is sent. rows: where samples lie."""
        packed, self.kept = self._buffers.packed(made, of_user=True)
        self._rows_are_sent = not self._buffers.sent.keys().isdisjoint(rows)
        return packed


class StreamBatches:
    """The collate_fn of a worker process for an iterable dataset: the small tensors of its batches are sent by value.

    Torch would send a descriptor of shared memory for each, which takes some 200 us.
    """

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn
        self._buffers: WorkerBuffers | None = None

    def __call__(self, samples: Any) -> Any:
        """Return the batch, as it is sent."""
        buffers = self._buffers = self._buffers or WorkerBuffers()
        buffers.begin(None)
        built = self._built(samples, buffers) if self._collate_fn is default_collate else None
        packed, _ = buffers.packed([self._collate_fn(samples) if built is None else built], of_user=built is None)
        return packed

    def _built(self, samples: Any, buffers: WorkerBuffers) -> Any:
        """Return what default_collate gives, in memory that is not shared yet; None: it has the word."""
        if type(samples) is not list or not samples or type(samples[0]) in (str, bytes):
            return None
        try:
            build = Build(layout_of(samples[0]), len(samples), buffers)
            build.take(samples, 0)
            return build.finish(None) if build.agrees else None
        except Exception:  # which default_collate raises without our notes
            return None
