"""The worker's end of a worker process: what torch's worker loop takes for the dataset and for worker_init_fn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from penstock.call_counts import ThreadCalls, counted_here
from penstock.executors.fetch import Fetch
from penstock.executors.workers.progress import Board, WorkerStage
from penstock.executors.workers.worker_batches import WorkerBatches
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
        self._builder = WorkerBatches() if in_place else None
        self.begin: Callable[[str, Any], None]  # in a worker, as
        self.lease: Lease  # on what is exchanged there, for the life of the process

    def go_on(self, worker: int) -> None:
        """Let the dataset of a worker go on where a state says."""
        if self._states is not None:
            restore_dataset(self.dataset, self._states[worker])
            self._states = []

    def __getitem__(self, message: tuple[Any, ...]) -> Any:
        task = Task.of(message)
        try:
            batch = self.fetch.load(task) if self._builder is None else self._builder.load(self.fetch, task)
        except Exception:  # which torch sends; what else is raised ends the process here
            self.begin(WorkerStage.DONE, None)
            raise
        self.begin(WorkerStage.DONE, None)
        bad = [] if self.fetch.replacing is None else self.fetch.replacing.take_news()
        memory, calls = None if self._builder is None else self._builder.buffers, counted_here()
        needed, kept = (0, False) if memory is None else (memory.needed, memory.kept)
        if self._states is None and not (bad or needed or kept or calls):
            return batch
        state = None if self._states is None else state_of(self.dataset)
        return Delivered(batch, bad, state, needed, kept, calls)

    __getitems__ = __getitem__


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
