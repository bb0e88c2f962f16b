"""The worker's end of a worker process: what torch's worker loop takes for the dataset and for worker_init_fn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker

from penstock.call_counts import ThreadCalls, counted_here
from penstock.executors.collating import collate_in
from penstock.executors.fetch import Fetch, Note
from penstock.executors.workers.progress import Board, WorkerStage
from penstock.executors.workers.worker_memory import Packed, WorkerBuffers
from penstock.hooks.calls import natively_in_this_process
from penstock.recipe.patches import Lease
from penstock.state.delivery import Delivered, Task
from penstock.state.streams import StatefulStream, restore_dataset, state_of


class TaskDataset:
    """What torch's worker takes for the dataset: indexed by the messages of tasks, it returns batches.

    Args:
        fetch: makes them.
        dataset: the user's.
        states: of the dataset in each worker as the pass begins; None: it has no state_dict().
        in_place: batches are built in shared memory.
    """

    def __init__(self, fetch: Fetch, dataset: Any, states: list[Any] | None, *, in_place: bool = False) -> None:
        self.fetch = fetch
        self.dataset = dataset
        self._states = states
        self._memory = WorkerBuffers() if in_place else None
        self.begin: Note  # in a worker, as
        self.lease: Lease  # on what is exchanged there, for the life of the process

    def go_on(self, worker: int) -> None:
        """Let the dataset of a worker go on where a state says."""
        if self._states is not None:
            restore_dataset(self.dataset, self._states[worker])
            self._states = []

    def __getitem__(self, message: tuple[Any, ...]) -> Any:
        task = Task.of(message)
        try:
            batch = self.fetch.load(task) if self._memory is None else self._packed(task, self._memory)
        except Exception:  # which torch sends; what else is raised ends the process here
            self.begin(WorkerStage.DONE, None)
            raise
        self.begin(WorkerStage.DONE, None)
        bad = [] if self.fetch.replacing is None else self.fetch.replacing.take_news()
        memory, calls = self._memory, counted_here()
        needed, kept = (0, False) if memory is None else (memory.needed, memory.kept)
        if self._states is None and not (bad or needed or kept or calls):
            return batch
        state = None if self._states is None else state_of(self.dataset)
        return Delivered(batch, bad, state, needed, kept, calls)

    __getitems__ = __getitem__

    def _packed(self, task: Task, memory: WorkerBuffers) -> Packed:
        """Return the batch of a task, built in place, as it is sent.

        A user's collate_fn may keep what it was given, or what it returns: a block that somebody holds is not used
        again.
        """
        fetch = self.fetch
        memory.begin(task.block)
        filled = fetch.fill(task, memory if fetch.stacks or fetch.only_collates else None)
        if filled is None:
            memory.begin(task.block)  # it may be filled in part
            made = [fetch.load_samples(task, partial(self._collate, memory) if fetch.stacks else None)]
        else:
            made = [fetch.collate_filled(task, filled)]
            del filled
        return memory.packed(made)

    def _collate(self, memory: WorkerBuffers, task: Task, samples: Any) -> Any:
        self.begin(WorkerStage.COLLATE, None, len(samples))
        return collate_in(memory, task.given, samples)


class StreamBatches:
    """The collate_fn of a worker process for an iterable dataset: its batches come with the calls that it has counted.

    packs: the small tensors of its batches are sent by value. Torch would send a descriptor of shared memory for each,
    which takes some 200 us.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], *, packs: bool) -> None:
        self._collate_fn = collate_fn
        self._memory = WorkerBuffers() if packs else None

    def __call__(self, samples: Any) -> Any:
        """Return the batch, as it is sent."""
        memory = self._memory
        if memory is not None:
            memory.begin(None)
        if memory is None or self._collate_fn is not default_collate:
            batch = self._collate_fn(samples)
        else:
            batch = collate_in(memory, None, samples)
        if memory is not None:
            batch = memory.packed([batch])
        calls = counted_here()
        return Delivered(batch, calls=calls) if calls else batch


def identity(batch: Any) -> Any:
    """Return a batch that is collated: the collate_fn of torch's worker."""
    return batch


@dataclasses.dataclass(frozen=True)
class WorkerStart:
    """The worker_init_fn that torch's worker calls: before the user's, it sets up Penstock's parts of the worker."""

    board: Board
    init: Callable[[int], Any] | None
    composes: bool

    def __call__(self, worker: int) -> None:
        if self.composes:
            natively_in_this_process(ThreadCalls())
        begin, each = self.board.report(worker)
        begin(WorkerStage.INIT, None)
        tasked = torch_worker._worker_info.dataset  # type: ignore[union-attr]
        if isinstance(tasked, TaskDataset):
            tasked.begin = tasked.fetch.note = begin
            tasked.fetch.each = each
            tasked.lease = tasked.fetch.lease()
        if isinstance(tasked, StatefulStream):
            tasked.worker = worker
        if isinstance(tasked, TaskDataset | StatefulStream):
            torch_worker._worker_info = _with_dataset(torch_worker._worker_info, tasked.dataset)
        if self.init is not None:
            self.init(worker)
            if isinstance(tasked, TaskDataset):
                tasked.fetch.renew()
        if isinstance(tasked, TaskDataset):
            tasked.go_on(worker)
        begin(WorkerStage.DONE if isinstance(tasked, TaskDataset) else WorkerStage.ITERATING, None)


def _with_dataset(info: Any, dataset: Any) -> Any:
    """Return torch's WorkerInfo with another dataset."""
    if dataclasses.is_dataclass(info):
        return dataclasses.replace(info, dataset=dataset)  # type: ignore[type-var]
    return type(info)(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=dataset)  # torch before 2.11
