"""What a worker process does for a task: a batch of a map-style dataset, or the next one of an iterable dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import IterDataPipe, default_collate
from torch.utils.data.graph_settings import apply_random_seed

from penstock.call_counts import counted_here
from penstock.carriers.board import WorkerStage
from penstock.carriers.protocol import Exhausted
from penstock.carriers.worker_memory import Packed, WorkerBuffers
from penstock.hooks.calls import ANSWERED
from penstock.recipe import patches
from penstock.recipe.unseeded_generators import reseed_copy
from penstock.sample_notes import collated
from penstock.state.delivery import Delivered, Task
from penstock.state.streams import Split, Stream, restore_dataset, state_of
from penstock.workers.collating import collate_in
from penstock.workers.worker import Note, Worker


class BatchWork:
    """Batches of a map-style dataset.

    Args:
        states: of the dataset in each worker as the pass begins; None: it has no state_dict().
        in_place: batches are built in shared memory.
        earlier: how often workers got copies of the dataset before.
    """

    def __init__(self, worker: Worker, states: list[Any] | None, *, in_place: bool, earlier: int) -> None:
        self.worker = worker
        self._earlier = earlier
        self._states = states
        self._memory = WorkerBuffers() if in_place else None
        self._note: Note  # in a worker, as
        self._lease: patches.Lease  # on what is exchanged there, for the life of the process
        self._number = 0

    @property
    def dataset(self) -> Any:
        return self.worker.dataset

    @property
    def collate_fn(self) -> Any:
        return self.worker.collate_fn

    def seed(self, shared: int | None) -> None:
        """No worker shares a seed with the others."""

    def start(self, number: int, note: Note, each: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        self._number, self._note, self._lease = number, note, self.worker.lease()
        self.worker.note, self.worker.each = note, each
        reseed_copy(self.worker.dataset, self._earlier, number)

    def begin(self) -> None:
        if self._states is not None:
            restore_dataset(self.worker.dataset, self._states[self._number])
            self._states = []
        self._note(WorkerStage.DONE, None)

    def make(self, value: tuple[Any, ...]) -> Any:
        task = Task.of(*value)
        self._lease.meet()  # a sample of an earlier batch may have imported a package
        try:
            batch = self.worker.make(task) if self._memory is None else self._packed(task, self._memory)
        except Exception:  # what else is raised ends the process here
            self._note(WorkerStage.DONE, None)
            raise
        self._note(WorkerStage.DONE, None)
        bad = [] if self.worker.replacing is None else self.worker.replacing.take_news()
        memory, calls = self._memory, counted_here()
        needed, kept = (0, False) if memory is None else (memory.needed, memory.kept)
        if self._states is None and not (bad or needed or kept or calls):
            return batch
        state = None if self._states is None else state_of(self.worker.dataset)
        return Delivered(batch, bad, state, needed, kept, calls)

    def _packed(self, task: Task, memory: WorkerBuffers) -> Packed:
        """Return the batch of a task, built in place, as it is sent.

        A user's collate_fn may keep what it was given, or what it returns: a block that somebody holds is not used
        again.
        """
        memory.begin(task.block)
        return memory.packed([self.worker.make(task, memory)])


class StreamWork:
    """Batches of an iterable dataset, as torch's fetcher makes them.

    Args:
        part: what a worker goes through: the dataset, or what shares it out.
        states: of the dataset and its iterator in each worker as the first pass begins; None: it has none.
        split: the streams whose states these are; None: each worker has one.
        batched: batches are made of samples; False: each sample is one.
        packs: the small tensors of a batch are sent by value. Torch would send a descriptor of shared memory for each,
            which takes some 200 us.
    """

    def __init__(
        self,
        dataset: Any,
        part: Any,
        collate_fn: Callable[[Any], Any],
        states: list[Any] | None,
        split: Split | None,
        *,
        batched: bool,
        drop_last: bool,
        packs: bool,
    ) -> None:
        self.dataset, self._part, self.collate_fn = dataset, part, collate_fn
        self._states, self._split = states, split
        self._batched, self._drop_last = batched, drop_last
        self._memory = WorkerBuffers() if packs else None
        self._note: Note  # in a worker, as
        self._streams: dict[int, Stream]  # that are not at their ends
        self._number = 0

    def seed(self, shared: int | None) -> None:
        if isinstance(self.dataset, IterDataPipe):
            assert shared is not None
            self.dataset = self._part = apply_random_seed(self.dataset, torch.Generator().manual_seed(shared))

    def start(self, number: int, note: Note, each: Callable[[Iterable[Any]], Iterator[Any]]) -> None:
        self._number, self._note = number, note

    def begin(self) -> None:
        number, states, self._states = self._number, self._states, None if self._states is None else []
        if self._split is None:
            self._streams = {number: Stream(self._part, states[number] if states else None)}
        else:
            info = torch.utils.data.get_worker_info()
            assert info is not None and states is not None
            if not states:  # of the pass before
                self._split = self._split.afresh(info.num_workers)
                states = [None] * info.num_workers
            own = range(number, len(states), info.num_workers)
            self._streams = self._split.opened({stream: states[stream] for stream in own}, brief=True)
        self._note(WorkerStage.ITERATING, None)

    def make(self, value: Any) -> Any:
        ANSWERED.meet_imported()
        number, asked = value
        stream, stateful = self._streams.get(number), self._states is not None
        samples = None if stream is None else self._taken(stream, asked)
        if stream is None or samples is None:
            self._streams.pop(number, None)
            return Exhausted(stream.end() if stateful and stream else None, whole=not self._streams)
        memory = self._memory
        if memory is not None:
            memory.begin(None)
        if memory is None or self.collate_fn is not default_collate:
            batch = collated(self.collate_fn, None, samples)
        else:
            batch = collate_in(memory, None, samples)
        if memory is not None:
            batch = memory.packed([batch])
        state, calls = stream.state() if stateful else None, counted_here()
        return batch if state is None and not calls else Delivered(batch, state=state, calls=calls)

    def _taken(self, stream: Stream, given: Any) -> Any:
        """Return the samples of a batch, or the sample where they are not batched; None: there are no more."""
        samples = stream.take(len(given) if self._batched else 1)
        if not samples or (self._drop_last and self._batched and len(samples) < len(given)):
            return None
        return samples if self._batched else samples[0]
