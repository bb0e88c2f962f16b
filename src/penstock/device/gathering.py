"""One pass over data that is on a device: batches gathered there."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.device.copy_stream import CopyStream
from penstock.device.resident import ResidentPlan
from penstock.device.stores import Images, send
from penstock.executors.filler import Filler, IndexedBatch, PassInput, PassResources
from penstock.executors.iterator import FillerExecutor
from penstock.executors.job import Job
from penstock.order.batches import as_array
from penstock.sample_notes import torch_batch

#: Batches that are gathered together: operations of a device cost the same for few samples and for many.
_TOGETHER = 16
#: Bytes of the device that they may take.
_ROOM = 64 << 20


@dataclass(slots=True, eq=False)
class _Batch(IndexedBatch):
    """What a batch is made of."""

    image: torch.Tensor | None = None
    places: torch.Tensor | None = None
    """Its rows in the stores, on the device; set last."""

    @property
    def gathered(self) -> bool:
        """Whether nothing of the batch is left to be gathered."""
        return self.places is not None or self.other is not None or self.error is not None


class ResidentFiller(Filler):
    """Makes the batches of a plan whose arrays are on a device: those of `NativeFiller`, where the arrays are.

    Several batches are gathered together, ahead of the one that is asked for, where the sampler may be asked ahead and
    there are workers. Each batch has memory of its own; pixels that a table is yet to convert get theirs by the
    conversion. Labels that are no column of numbers, such as those of a target_transform, stay on the host, to be
    moved. An error is raised at its batch, and the next call goes on with the next one. Nothing waits for the device.

    Args:
        held: the plan and its arrays.
        resources: workers are not started.
        stream: batches are made on it; None: on the calling thread's current one.
    """

    def __init__(self, held: ResidentPlan, resources: PassResources, stream: CopyStream | None = None) -> None:
        super().__init__(resources)
        self.workers = 0
        self.ended = threading.Event()
        self._most = _TOGETHER if resources.workers and resources.ahead else 1
        self._held = held
        self._working = contextlib.nullcontext if stream is None else stream.working
        self._images: Images | None = None
        self._labels: torch.Tensor | None = None
        self._target = 1
        self._prepared = False

    def close(self) -> None:
        self.ended.set()

    def __repr__(self) -> str:
        return f"arrays on {self._held.device}"

    def new_batch(self) -> _Batch:
        return _Batch()

    def begin(self, batch: _Batch) -> None:
        batch.begin(partial(self._resolve, batch))

    def _resolve(self, batch: _Batch) -> None:
        batch.leaves, batch.local = self._held.plan.root.resolve(batch.indices)

    def depth(self, queue: deque[_Batch]) -> int:
        return self._target

    def ready(self, queue: deque[_Batch]) -> _Batch:
        batch = queue[0]
        while not batch.gathered:
            group = list(queue)[: self._target]
            try:
                with self._working():
                    self._make(group)
                self._grow(group)
            except torch.OutOfMemoryError as error:
                if len(group) == 1:
                    batch.error = error
                self._target = self._most = 1  # each by itself, from now on
            except Exception as error:  # of the dataset's labels, say
                batch.error = error
        return batch

    # --- several batches ------------------------------------------------------------------------------------

    def _grow(self, group: list[_Batch]) -> None:
        """Gather twice as many batches the next time, as far as there is room."""
        most = self._most
        samples = max(len(batch.indices) for batch in group)
        if self._images is not None and samples:
            most = min(most, max(1, _ROOM // self._images.bytes_of(samples)))
        self._target = min(2 * self._target, most)

    def _make(self, group: list[_Batch]) -> None:
        if not self._prepared:
            self._held.hand_to_current_stream()
            self._images, self._labels = self._held.images(), self._held.labels()
            self._prepared = True
        ours = [batch for batch in group if not batch.gathered]
        held, pass_input = self._held, self._input
        numbers = [len(batch.indices) for batch in ours]
        leaves = None if ours[0].leaves is None else np.concatenate([batch.leaves for batch in ours])
        rows = np.concatenate([batch.local for batch in ours])
        places = send(rows if leaves is None else rows + held.firsts[leaves], held.device)
        if self._images is not None:
            samples = np.concatenate([batch.indices for batch in ours])
            positions = np.concatenate([as_array(batch.positions) for batch in ours])
            maps = self._images.maps(pass_input.seed & 0xFFFFFFFFFFFFFFFF, pass_input.epoch, leaves, samples, positions)
            made = self._images.take(places, maps)
            for batch, image in zip(ours, torch.split(made, numbers), strict=True):
                batch.image = image
        for batch, part in zip(ours, torch.split(places, numbers), strict=True):
            batch.places = part

    # --- one batch ------------------------------------------------------------------------------------------

    def assemble(self, batch: _Batch) -> Any:
        with self._working():
            return self._assembled(batch)

    def _assembled(self, batch: _Batch) -> Any:
        plan = self._held.plan
        if batch.other is not None:
            return torch_batch(plan.dataset, batch.other)
        assert batch.places is not None
        if batch.image is not None:
            fields: list[Any] = [batch.image if plan.table is not None else _by_itself(batch.image)]
        else:
            fields = [store.take(batch.places) for store in self._held.stores]
        if self._labels is not None:
            fields.append(self._labels.index_select(0, batch.places))
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


def _by_itself(image: torch.Tensor) -> torch.Tensor:
    """Return an image field in contiguous memory of its own."""
    if image.is_contiguous() and image.untyped_storage().nbytes() == image.nbytes:
        return image
    return image.clone(memory_format=torch.contiguous_format)
