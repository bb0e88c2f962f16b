"""One pass over data that is on a device: batches gathered there."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.device.lane import Working
from penstock.device.resident import Held
from penstock.device.stores import Images, sent
from penstock.executors.batch import IndexedBatch
from penstock.executors.iterator import Course, Handed, IndexedPass, Means
from penstock.observe import Delivery
from penstock.order.batches import as_array
from penstock.sample_notes import torch_batch

#: Batches that are gathered together: operations of a device cost the same for few samples and for many.
_TOGETHER = 16
#: Bytes of the device that they may take.
_ROOM = 64 << 20


@dataclass(slots=True, eq=False)
class _Batch(IndexedBatch):
    """What a batch is made of."""

    places: torch.Tensor | None = None
    """Its rows in the stores, on the device."""
    image: torch.Tensor | None = None


class Gathering(IndexedPass):
    """One pass over the data of a plan whose arrays are on a device: what `Filling` gives, and where they are.

    Several batches are gathered together, ahead of the one that is asked for, where the sampler may be asked ahead and
    there are workers. Each batch has memory of its own; pixels that a table is yet to be applied to get it by that.
    What is no column of numbers, such as labels by a target_transform, is left on the host, to be moved. An error is
    raised at its batch, and the next call goes on with the next one. Nothing waits for the device.

    Args:
        held: the plan and its arrays.
        course: the dataset indices of each batch; a list holds what a sampler gave that is none.
        means: workers are not started.
        working: makes the stream current that all is done on; None: the caller's is.
    """

    def __init__(
        self,
        held: Held,
        course: Course,
        means: Means,
        working: Working | None = None,
    ) -> None:
        super().__init__(means)
        self._most = _TOGETHER if means.workers and means.ahead else 1
        self._num_workers = 0  # for programs that ask for the workers
        self.begin(held, course, working)

    def begin(self, held: Held, course: Course, working: Working | None = None) -> None:
        """Begin a pass."""
        self._held = held
        self._working = working or contextlib.nullcontext
        self._images: Images | None = None
        self._labels: torch.Tensor | None = None
        self._asked: deque[_Batch] = deque()  # those in the queue of the pass are made
        self._target = 1
        self._prepared = False
        self._start(course, eager=False)

    def close(self) -> None:
        super().close()
        self._asked = deque()

    def __repr__(self) -> str:
        return f"<Gathering: {'open' if self._open else 'closed'}, on {self._held.device}>"

    def _hand_out(self, handed: Handed) -> Delivery:
        with self._working():
            return super()._hand_out(handed)

    def _new_batch(self) -> _Batch:
        return _Batch()

    def _depth(self, queue: deque[_Batch]) -> int:
        return self._target

    def _refill(self, queue: deque[_Batch], *, done: int = 0) -> None:
        asked = self._asked  # close(), in another thread, makes another one
        self._sort_out(queue, asked)
        if not queue:
            self._gather(queue, asked)

    def _ready(self, queue: deque[_Batch]) -> _Batch:
        return queue[0]

    # --- several batches ------------------------------------------------------------------------------------

    def _gather(self, ready: deque[_Batch], asked: deque[_Batch]) -> None:
        """Make the next batches ready; none where the pass is at its end."""
        super()._refill(asked)
        group = list(asked)[: self._target]
        if not group:
            return
        try:
            self._make(group)
            self._grow(group)
        except torch.OutOfMemoryError as error:
            if len(group) == 1:
                group[0].error = error
            else:  # each by itself, from now on
                self._target = self._most = 1
                group = []
        except Exception as error:  # of the dataset's labels, say
            group[0].error = error
            group = group[:1]
        if group:
            ready.extend(group)
            self._sort_out(ready, asked)
        else:
            self._gather(ready, asked)

    def _sort_out(self, ready: deque[_Batch], asked: deque[_Batch]) -> None:
        """Take those that are ready out of those that were asked for; again, after an interrupt."""
        while asked and any(asked[0] is batch for batch in ready):
            asked.popleft()

    def _begin_indices(self, batch: _Batch) -> None:
        batch.leaves, batch.local = self._held.plan.root.resolve(batch.indices)

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
        ours = [batch for batch in group if batch.other is None and batch.error is None]
        if not ours:
            return
        held, course = self._held, self._course
        numbers = [len(batch.indices) for batch in ours]
        leaves = None if ours[0].leaves is None else np.concatenate([batch.leaves for batch in ours])
        rows = np.concatenate([batch.local for batch in ours])
        places = sent(rows if leaves is None else rows + held.firsts[leaves], held.device)
        for batch, part in zip(ours, torch.split(places, numbers), strict=True):
            batch.places = part
        if self._images is not None:
            samples = np.concatenate([batch.indices for batch in ours])
            positions = np.concatenate([as_array(batch.positions) for batch in ours])
            maps = self._images.maps(course.seed & 0xFFFFFFFFFFFFFFFF, course.epoch, leaves, samples, positions)
            made = self._images.take(places, maps)
            for batch, image in zip(ours, torch.split(made, numbers), strict=True):
                batch.image = image

    # --- one batch ------------------------------------------------------------------------------------------

    def _assemble(self, batch: _Batch) -> Any:
        return self._means.deliver(self._made(batch))

    def _made(self, batch: _Batch) -> Any:
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
        return fields if plan.leaves[0].pair else fields[0]


def _by_itself(image: torch.Tensor) -> torch.Tensor:
    """Return an image field in contiguous memory of its own."""
    if image.is_contiguous() and image.untyped_storage().nbytes() == image.nbytes:
        return image
    return image.clone(memory_format=torch.contiguous_format)
