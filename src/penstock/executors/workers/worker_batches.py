"""The batches of a worker process, made in the shared memory that its parent has reserved for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import default_collate

from penstock.call_counts import counted_here
from penstock.executors.collating import Build, layout_of
from penstock.executors.fetch import Fetch
from penstock.executors.workers.worker_memory import Packed, WorkerBuffers
from penstock.state.delivery import Delivered, Task


class WorkerBatches:
    """Builds the batches of a worker process in place.

    A user's collate_fn may keep what it was given, or what it returns: a block that somebody holds is not used again.
    """

    def __init__(self) -> None:
        self.buffers = WorkerBuffers()

    def load(self, fetch: Fetch, task: Task) -> Any:
        """Return the batch of a task, as it is sent."""
        self.buffers.begin(task.block)
        filled = fetch.fill(task, self.buffers if fetch.stacks or fetch.keeps_rows else None)
        if filled is None:
            self.buffers.begin(task.block)  # it may be filled in part
            made = [fetch.load_samples(task, partial(self._collate, fetch) if fetch.stacks else None)]
        else:
            made = [fetch.collate_filled(task, filled)]
            del filled
        return self.buffers.packed(made)

    def _collate(self, fetch: Fetch, task: Task, samples: Any) -> Any:
        """Return what default_collate gives for the samples."""
        if type(samples) not in (list, tuple) or not samples or type(samples[0]) in (str, bytes):
            # Of a __getitems__, or a list of strings: default_collate has the word.
            return fetch.collate(task, samples)
        fetch.note("collate", None, len(samples))
        build = Build(layout_of(samples[0]), len(samples), self.buffers)
        build.take(samples, 0)
        return build.finish(task.given)


class StreamBatches:
    """The collate_fn of a worker process for an iterable dataset: its batches come with the calls that it has counted.

    packs: the small tensors of its batches are sent by value. Torch would send a descriptor of shared memory for each,
    which takes some 200 us.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], *, packs: bool) -> None:
        self._collate_fn, self._packs = collate_fn, packs
        self._buffers: WorkerBuffers | None = None

    def __call__(self, samples: Any) -> Any:
        """Return the batch, as it is sent."""
        batch = self._packed(samples) if self._packs else self._collate_fn(samples)
        calls = counted_here()
        return Delivered(batch, calls=calls) if calls else batch

    def _packed(self, samples: Any) -> Packed:
        buffers = self._buffers = self._buffers or WorkerBuffers()
        buffers.begin(None)
        built = self._built(samples, buffers) if self._collate_fn is default_collate else None
        return buffers.packed([self._collate_fn(samples) if built is None else built])

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
