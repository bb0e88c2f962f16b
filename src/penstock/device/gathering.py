"""One pass over data that is on a device: batches gathered there."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from penstock.device.copy_stream import CopyStream
from penstock.device.resident import ResidentPlan
from penstock.device.stores import Images, send
from penstock.executors.filler import Filler, IndexedBatch, PassInput, PassResources
from penstock.executors.iterator import FillerExecutor
from penstock.executors.job import Job
from penstock.order.batches import as_array
from penstock.sample_notes import torch_batch


class ResidentFiller(Filler):
    """Makes the batches of a plan whose arrays are on a device: those of `NativeFiller`, where the arrays are.

    A batch is gathered when it is asked for: the device does it behind what it was given before. Each batch has memory
    of its own; pixels that a table is yet to convert get theirs by the conversion. Labels that are no column of
    numbers, such as those of a target_transform, stay on the host, to be moved. Nothing waits for the device.

    Args:
        held: the plan and its arrays.
        resources: workers are not started.
        stream: batches are made on it; None: on the calling thread's current one.
    """

    def __init__(self, held: ResidentPlan, resources: PassResources, stream: CopyStream | None = None) -> None:
        super().__init__(resources)
        self.workers = 0
        self._held = held
        self._working = contextlib.nullcontext if stream is None else stream.working
        self._images: Images | None = None
        self._labels: torch.Tensor | None = None
        self._prepared = False

    def close(self) -> None:
        """End nothing: no thread works."""

    def __repr__(self) -> str:
        return f"arrays on {self._held.device}"

    def new_batch(self) -> IndexedBatch:
        return IndexedBatch()

    def begin(self, batch: IndexedBatch) -> None:
        batch.begin(partial(self._resolve, batch))

    def _resolve(self, batch: IndexedBatch) -> None:
        batch.leaves, batch.local = self._held.plan.root.resolve(batch.indices)

    def depth(self, queue: deque[IndexedBatch]) -> int:
        return 1

    def ready(self, queue: deque[IndexedBatch]) -> IndexedBatch:
        return queue[0]

    def assemble(self, batch: IndexedBatch) -> Any:
        with self._working():
            if not self._prepared:
                self._held.hand_to_current_stream()
                self._images, self._labels = self._held.images(), self._held.labels()
                self._prepared = True
            return self._assembled(batch)

    def _assembled(self, batch: IndexedBatch) -> Any:
        held, plan = self._held, self._held.plan
        if batch.other is not None:
            return torch_batch(plan.dataset, batch.other)
        rows = batch.local if batch.leaves is None else batch.local + held.firsts[batch.leaves]
        places = send(rows, held.device)
        if self._images is not None:
            seed, epoch = self._input.seed & 0xFFFFFFFFFFFFFFFF, self._input.epoch
            maps = self._images.maps(seed, epoch, batch.leaves, batch.indices, as_array(batch.positions))
            image = self._images.take(places, maps)
            fields: list[Any] = [image if plan.table is not None else image.contiguous()]
        else:
            fields = [store.take(places) for store in held.stores]
        if self._labels is not None:
            fields.append(self._labels.index_select(0, places))
        elif (labels := plan.labels(batch.leaves, batch.local)) is not None:
            fields.append(labels)  # of any structure: it goes with what else is moved
        return plan.leaves[0].form.batch(fields)


@dataclass(frozen=True)
class ResidentExecutor(FillerExecutor):
    """Gathers batches from data that lives on the device."""

    held: ResidentPlan
    stream: CopyStream

    def filler(self, job: Job, held: Filler | None, drawn: Callable[[], PassInput]) -> ResidentFiller:
        return ResidentFiller(self.held, job.resources, self.stream)
