"""Batches that the native core fills in the thread that fetches them, for code that leaves them to default_collate.

A worker process, a worker thread or the caller's thread asks for the batch of a task. Nothing runs beside it but
readers of files, where reads block.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.memory.buffers import Buffers, bytes_in
from penstock.observe import Meter
from penstock.order.permutations import Indices
from penstock.plan import Kept, NativePlan, collated_labels, fill_plan
from penstock.sources.labels import LabelColumn, as_objects
from penstock.sources.tree import whole
from penstock.state.delivery import Task
from penstock.workers.collating import BatchMemory
from penstock.workers.failures import agree_on_fields
from penstock.workers.native_crew import READERS, NativeBatch, NativeCrew

#: How often a batch is filled, where its samples tell of what shape they are.
_TRIES = 2
#: Free blocks of memory that are kept for the next batches.
_KEPT = 16

SetKey = Callable[[int], None]
"""Keys random draws to the sample at a position of the batch."""


@dataclass(frozen=True, eq=False)
class FinishedBatch:
    """A batch whose rows are filled."""

    plan: NativePlan
    rows: tuple[Any, ...]
    """A tensor a field."""
    labels: LabelColumn | None

    def batch(self) -> Any:
        """Return what default_collate makes of the samples. Raises what it raises."""
        labels = [] if self.labels is None else [collated_labels(self.labels)]
        return self.plan.leaves[0].form.batch([*self.rows, *labels])

    def samples(self) -> list[Any]:
        """Return the samples: their tensors lie in the rows, and each has its storage."""
        labels = [] if self.labels is None else [as_objects(self.labels)]
        return self.plan.leaves[0].form.samples([*map(_own_storages, self.rows), *labels])


def _own_storages(rows: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors in the memory of the rows, each of which is to torch's eyes all that its storage holds."""
    elements = bytes_in(rows).view(str(rows.dtype).removeprefix("torch.")).reshape(rows.shape)
    return list(map(torch.from_numpy, elements))


class NativeBatches:
    """Fills the batches of a dataset in the threads that call it, any number of them. A forked process may continue.

    Picklable where the dataset is. What a worker_init_fn does to the dataset of its process is seen: the dataset is
    looked at before each batch, and planned anew where it has changed.

    Args:
        kept: of its files.
        plan: of the dataset; None: one is made with the first batch.
        unseen: the samples are left to default_collate; else the user's code looks at them.
    """

    def __init__(self, dataset: Any, kept: Kept, plan: NativePlan | None = None, *, unseen: bool = True) -> None:
        self._dataset, self._kept, self._plan = dataset, kept, plan
        self.unseen = unseen
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[NativeCrew] = deque()
        self._refused: tuple[int, int] | None = None  # the pass whose dataset is not native any more
        self.memory = Buffers(pinned=False, keep=_KEPT)

    def fill(self, task: Task, memory: BatchMemory | None, seed: int, set_key: SetKey | None) -> FinishedBatch | None:
        """Return the batch of a task, None where Python must make it.

        Args:
            task: a batch.
            memory: for the rows; None: this object's own.
            seed: of the native draws.
            set_key: called with each position before the user's function makes that label; None: nothing need be done.

        Raises what the user's function of labels raises.
        """
        if self._pid != os.getpid():
            self._begin()
        indices = _numbers(task.given)
        crew = None if indices is None else self._take(task)
        if indices is None or crew is None:
            return None
        batch = _fill(crew, indices, task, memory or self.memory, seed)
        self._idle.append(crew)  # not where it was interrupted
        if batch is None:
            return None
        rows = tuple(one.tensor for one in batch.rows)
        return FinishedBatch(crew.plan, rows, _labels(crew.plan, batch, set_key))

    def _take(self, task: Task) -> NativeCrew | None:
        """Return a crew without threads for the dataset as it is now, used by this thread only; None: there is none."""
        try:
            crew = self._idle.pop()
        except IndexError:
            crew = None
        if crew is not None and _serves(crew.plan):
            return crew
        if self._refused == (task.seed, task.epoch):
            return None
        if self._plan is None or not _serves(self._plan):
            found = fill_plan(self._dataset, unseen=self.unseen)
            self._plan = None if found is None else found.keeping(self._kept)
        if self._plan is None or not _serves(self._plan):
            self._plan, self._refused = None, (task.seed, task.epoch)
            return None
        return NativeCrew(self._plan, 0, Meter(), READERS)

    def of(self, dataset: Any) -> NativeBatches:
        return NativeBatches(dataset, self._kept, unseen=self.unseen)

    def __reduce__(self) -> tuple[Any, ...]:
        caches = self._kept.caches
        if caches is not None:
            caches = caches.in_folders()  # memory would be taken once a process
        return partial(NativeBatches, unseen=self.unseen), (self._dataset, self._kept._replace(caches=caches))


def _fill(crew: NativeCrew, indices: Indices, task: Task, memory: BatchMemory, seed: int) -> NativeBatch | None:
    """Return the batch of a task, filled in the calling thread; None: a sample fails, or is not like the others."""
    for _ in range(_TRIES):
        batch = NativeBatch(indices=indices, positions=task.positions, key=(seed, task.epoch))
        try:
            crew.resolve(batch)
        except Exception:  # the dataset itself raises it, or knows better
            return None
        failures = crew.fill_here(batch, memory)
        if not crew.plan.same_memory():
            return None
        if not failures:
            return batch
        if not agree_on_fields(crew, batch, failures, lenient=False):
            return None
    return None


def _serves(plan: NativePlan) -> bool:
    return plan.same_dataset() and plan.same_memory()


def _numbers(given: Any) -> Indices | None:
    """Return the indices of a batch; None: there is none, or the dataset must make sense of one."""
    numbers = list(map(whole, given)) if isinstance(given, list | tuple) else []
    if not numbers or None in numbers:
        return None
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError:
        return None


def _labels(plan: NativePlan, batch: NativeBatch, set_key: SetKey | None) -> LabelColumn | None:
    """Return the labels of a batch; set_key: as for NativeBatches.fill."""
    leaves, local = batch.leaves, batch.local
    if set_key is None or not any(leaf.calls_python for leaf in plan.leaves):
        return plan.label_column(leaves, local)
    labels: list[Any] = []
    for position in range(len(local)):
        set_key(position)
        one = slice(position, position + 1)
        column = plan.label_column(None if leaves is None else leaves[one], local[one])
        labels += [] if column is None else as_objects(column)
    return labels
