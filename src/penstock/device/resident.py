"""Feed(cache="device"): the arrays of a dataset go to the device as a pass begins, and batches are gathered there.

All is done on the current stream, and nothing but the beginning of a pass waits for it. Where rows lie, and which
pixels their images show, goes to the device for many batches in one copy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.device.arithmetic import Arithmetic, has_kernels, run_kernel
from penstock.device.copy_stream import CopyStream
from penstock.device.feed import Feed
from penstock.order.batches import as_array
from penstock.order.permutations import Indices
from penstock.passes.carrier import Carrier
from penstock.passes.iterator import MakeCarrier
from penstock.passes.job import Job
from penstock.passes.values import PassInput, PassResources
from penstock.plan import NativePlan
from penstock.recipe.steps import Recipe, Refusal
from penstock.sample_notes import torch_batch
from penstock.system.words import size_of
from penstock.workers.batch import IndexedBatch

#: Of the memory that a device has left, this share stays for the program.
_FOR_THE_PROGRAM = 0.25
#: Bytes that go to the device at a time, through memory that is page-locked.
_PIECE = 16 << 20
#: Batches for which that is computed and copied at once, where the sampler's indices are fixed at the start.
_AT_ONCE = 16
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 0xFFFFFFFFFFFFFFFF


class Rows:
    """The rows of one field in the memory of a device. Raises torch.OutOfMemoryError where it has no room for them.

    array: on the CPU, rows along dimension 0. They are copied piece by piece: a memory-mapped file is never in memory
    as a whole.
    """

    def __init__(self, array: torch.Tensor, device: torch.device) -> None:
        self.dtype, self.shape = array.dtype, tuple(array.shape[1:])
        self.row_bytes = math.prod(self.shape) * array.element_size()
        unit = next(unit for unit in (8, 4, 2, 1) if self.row_bytes % unit == 0)
        #: The same memory in the largest units that a row consists of: (rows, row_bytes // unit).
        self.words = torch.empty((len(array), self.row_bytes // unit), dtype=_WORDS[unit], device=device)
        if array.numel():
            number = max(1, _PIECE // self.row_bytes)
            for some, there in zip(torch.split(array.detach(), number), torch.split(self.words, number), strict=True):
                staged = _host_memory(tuple(some.shape), some.dtype, device).copy_(some)
                there.copy_(staged.view(len(some), -1).view(there.dtype), non_blocking=True)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows at these positions, in memory of their own: shape (positions, *shape)."""
        return self.words.index_select(0, index).view(self.dtype).view(len(index), *self.shape)


def _host_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return host memory that is copied to a device without waiting: torch keeps it until the copy is done."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=device.type not in ("cpu", "mps"))


def _send(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    given = torch.from_numpy(array)
    return _host_memory(tuple(given.shape), given.dtype, device).copy_(given).to(device, non_blocking=True)


class Images:
    """Makes pixels of the images of a store, by a recipe that only crops, pads and flips.

    Args:
        store: images of (height, width, channels) uint8.
        recipe: for which `refusal` has no objection.
    """

    def __init__(self, store: Rows, recipe: Recipe) -> None:
        self._device, self._recipe = store.words.device, recipe.native
        self._height, self._width, channels = store.shape
        size = _native.map_size(recipe.native, self._width, self._height)
        assert size is not None and recipe.fills is not None
        self._size = size
        self._images = store.words.view(torch.uint8).view(-1, self._height, self._width, channels)
        self._pixels = self._images.view(-1, channels)
        self._places = torch.int32 if len(self._pixels) < 1 << 31 else torch.int64
        fills = [np.frombuffer(fill, np.uint8) for fill in recipe.fills]
        self._fills = _send(np.stack(fills), self._device) if fills else None

    def maps(self, seed: int, epoch: int, samples: Indices, positions: Indices) -> torch.Tensor:
        """Return what axis_maps gives for samples, on its way to the device."""
        maps = _host_memory((len(samples), sum(self._size)), torch.int32, self._device)
        source = (self._width, self._height)
        _native.axis_maps(self._recipe, seed, epoch, samples, positions, *source, maps.numpy())
        return maps.to(self._device, non_blocking=True)

    def finished(
        self, index: torch.Tensor, maps: torch.Tensor, arithmetic: Arithmetic | None, feed: Feed
    ) -> torch.Tensor | None:
        """Return the images at these positions as the Feed wants them, made by one kernel; None: there is none."""
        if not has_kernels(self._device):
            return None
        shape = (len(index), self._images.shape[-1], *self._size)
        table = None if arithmetic is None else arithmetic.on(self._device, feed.dtype)
        dtype = torch.uint8 if table is None else table.dtype
        layout = torch.channels_last if feed.channels_last else torch.contiguous_format
        out = torch.empty(shape, dtype=dtype, device=self._device, memory_format=layout)
        done = run_kernel("gather", self._device, self._images, index, maps, self._fills, table, out)
        return out if done else None

    def take(self, index: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        """Return the pixels of the images at these positions: shape (positions, channels, height, width).

        Its channels lie together in memory.
        """
        height = self._size[0]
        rows, columns = maps[:, :height].unsqueeze(2), maps[:, height:].unsqueeze(1)
        first = (index * (self._height * self._width)).to(self._places).view(-1, 1, 1)
        places = (first + rows * self._width) + columns
        outside = torch.minimum(rows, columns)  # -1 - k where fill k is shown: of two, the later operation's
        inside = outside >= 0
        if self._fills is not None:
            places.mul_(inside)
        pixels = self._pixels.index_select(0, places.view(-1)).view(*places.shape, -1)
        if self._fills is not None:
            fills = (-1 - outside).clamp_(min=0).view(-1)
            colours = self._fills.index_select(0, fills).view(pixels.shape)
            pixels = torch.where(inside.unsqueeze(-1), pixels, colours)
        return pixels.permute(0, 3, 1, 2) if pixels.shape[-1] > 1 else pixels.squeeze(-1).unsqueeze(1)


# --- what can be there ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidentPlan:
    """A plan whose arrays are on a device."""

    plan: NativePlan
    device: torch.device
    rows: tuple[Rows, ...]
    """One for each field."""

    @cached_property
    def images(self) -> Images | None:
        """What makes images of the only field, on the stream that was current first; None: rows are the fields."""
        recipe = self.plan.leaves[0].recipe
        return None if recipe is None else Images(self.rows[0], recipe)

    def hand_to_current_stream(self) -> None:
        """Tell the allocator that the current stream uses the arrays, so that it outlasts them."""
        if self.device.type not in ("cpu", "mps"):
            stream = torch.accelerator.current_stream(self.device)
            for rows in self.rows:
                rows.words.record_stream(stream)


def hold(plan: NativePlan, device: torch.device) -> ResidentPlan | Refusal:
    """Return the plan with its arrays on the device as they are now, or why its batches are made on the host."""
    refused = refusal(plan, device)
    if refused is not None:
        return refused
    try:
        rows = tuple(Rows(array, device) for array in _arrays(plan))
    except torch.OutOfMemoryError:
        return _refused(f"{device} had no room for {size_of(_bytes(plan))} of arrays, each in one piece")
    if device.type != "cpu":
        torch.accelerator.synchronize(device)  # from now on any stream may read them
    return ResidentPlan(plan, device, rows)


def refusal(plan: NativePlan, device: torch.device) -> Refusal | None:
    """Return why batches of a plan are made on the host; None: they are made on the device, where there is room."""
    leaf = plan.leaves[0]
    if leaf.memory is None or leaf.memory.held is None:
        return _refused(f"not in memory: {leaf.steps[0].what.strip()}", "datasets in memory only")
    if len(plan.leaves) > 1:
        return _refused("several datasets are joined", "one dataset, or a Subset of it")
    if leaf.recipe is not None:
        height, width, _ = leaf.memory.held[0].shape[1:]
        if _native.map_size(leaf.recipe.native, width, height) is None:
            return _refused(
                "its images are resized, or made grey", "a transform that only crops, pads, flips and converts"
            )
        if leaf.recipe.fills is None:
            return _refused("its values are converted on the host", "a conversion to floats at the transform's end")
    left, needed = available(device), _bytes(plan)
    if left is None or needed <= left * (1 - _FOR_THE_PROGRAM):
        return None
    return _refused(
        f"{size_of(needed)} of arrays do not fit on {device}, which has {size_of(left)} left, a quarter of it for the "
        "program"
    )


def explain(plan: NativePlan, device: torch.device) -> str:
    refused = refusal(plan, device)
    if refused is not None:
        return f"cache    not on {device}: {refused.why}; there with {refused.remedy}"
    done = "gathered" if plan.leaves[0].recipe is None else "cropped, padded, flipped and gathered"
    return f"cache    {size_of(_bytes(plan))} of arrays on {device}: batches are {done} there"


def available(device: torch.device) -> int | None:
    """Return how many bytes this process may still take on a device; None where nobody knows, or for the CPU."""
    if device.type == "cpu":
        return None
    try:
        module = torch.get_device_module(device)
        free: int = module.mem_get_info(device)[0]
        return free + int(module.memory_reserved(device) - module.memory_allocated(device))
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def _refused(why: str, remedy: str = "more memory, or less data") -> Refusal:
    return Refusal("Feed(cache='device')", why, remedy)


def _arrays(plan: NativePlan) -> tuple[torch.Tensor, ...]:
    memory = plan.leaves[0].memory
    assert memory is not None and memory.held is not None
    return memory.held


def _bytes(plan: NativePlan) -> int:
    return sum(array.numel() * array.element_size() for array in _arrays(plan))


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ResidentBatch(IndexedBatch):
    """A batch to be gathered on a device."""

    places: torch.Tensor | None = None
    """Where its rows lie, on the device."""
    maps: torch.Tensor | None = None
    """Which pixels its images show, on the device; None: it has no images."""

    def let_go(self) -> None:
        self.places = self.maps = None


class ResidentCarrier(Carrier):
    """Makes the batches of a plan whose arrays are on a device: those of `NativeCarrier`, where the arrays are.

    A batch is gathered when it is asked for: the device does it behind what it was given before. Each batch has memory
    of its own; pixels that a table is yet to convert get theirs by the conversion. Labels of images stay on the host,
    to be moved. Nothing waits for the device.

    Args:
        held: the plan and its arrays, until the carrier is closed.
        resources: workers are not started.
        stream: batches are made on it.
        feed: what a kernel does to pixels, too, where there is one.
    """

    def __init__(self, held: ResidentPlan, resources: PassResources, stream: CopyStream, feed: Feed) -> None:
        super().__init__(resources)
        self.workers = 0
        self._plan, self._device, self._feed = held.plan, held.device, feed
        self._arithmetic = None if held.plan.table is None else Arithmetic(held.plan.table)
        self._held: ResidentPlan | None = held
        self._working = stream.working

    def close(self) -> None:
        self._held = None  # an iterator that is kept does not keep the arrays

    def __repr__(self) -> str:
        return f"arrays on {self._device}"

    def new_batch(self) -> ResidentBatch:
        return ResidentBatch()

    def depth(self, queue: deque[ResidentBatch]) -> int:
        return _AT_ONCE if self.resources.settled else 1

    def begin(self, batch: ResidentBatch) -> None:
        batch.begin(partial(self._resolve, batch))

    def _resolve(self, batch: ResidentBatch) -> None:
        batch.leaves, batch.local = self._plan.root.resolve(batch.indices)

    def ready(self, queue: deque[ResidentBatch]) -> ResidentBatch:
        to_be_sent = [one for one in queue if one.error is None and one.other is None and one.places is None]
        if queue[0] in to_be_sent:
            with self._working():
                self._send_places(to_be_sent, self._arrays())
        return queue[0]

    def _arrays(self) -> ResidentPlan:
        """Return the plan with its arrays. Raises RuntimeError where another thread has closed the pass."""
        if self._held is None:
            raise RuntimeError("the loader's iterator was closed while a batch was made")
        return self._held

    def _send_places(self, batches: list[ResidentBatch], held: ResidentPlan) -> None:
        """Compute for all these batches what the device needs to know of them, and copy it there."""
        held.hand_to_current_stream()
        sizes = [len(batch.local) for batch in batches]
        places = torch.split(_send(np.concatenate([batch.local for batch in batches]), held.device), sizes)
        for batch, some in zip(batches, places, strict=True):
            batch.places = some
        if (images := held.images) is not None:
            samples, positions = (
                np.concatenate([as_array(given) for given in column])
                for column in zip(*((batch.indices, batch.positions) for batch in batches), strict=True)
            )
            maps = torch.split(images.maps(self._input.seed & _WORD, self._input.epoch, samples, positions), sizes)
            for batch, some in zip(batches, maps, strict=True):
                batch.maps = some

    def assemble(self, batch: ResidentBatch) -> Any:
        plan = self._plan
        if batch.other is not None:
            return torch_batch(plan.dataset, batch.other)
        held = self._arrays()
        assert batch.places is not None
        with self._working():
            if (images := held.images) is None or batch.maps is None:
                fields = [rows.take(batch.places) for rows in held.rows]
            else:
                image = images.finished(batch.places, batch.maps, self._arithmetic, self._feed)
                if image is None:
                    image = images.take(batch.places, batch.maps)
                    image = image if plan.table is not None else image.contiguous()
                fields = [image]
            labels = plan.labels(batch.leaves, batch.local)
            return plan.leaves[0].form.batch(fields if labels is None else [*fields, labels])


def resident_carrier(held: ResidentPlan, stream: CopyStream, feed: Feed) -> MakeCarrier:
    """Return what makes passes of batches that are gathered from data which lives on the device as long as the pass."""
    given = [held]  # the carrier alone keeps the arrays

    def make(job: Job, held: Carrier | None, drawn: Callable[[], PassInput]) -> Carrier:
        if given:
            return ResidentCarrier(given.pop(), job.resources, stream, feed)
        assert held is not None  # the pass that this has made begins anew
        return held

    return make
