"""Datasets in memory, kept on a device from pass to pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import penstock._native as _native
from penstock.device.stores import Images, Rows, row_bytes, send
from penstock.executors.buffers import bytes_in
from penstock.order.permutations import Indices
from penstock.plan import NativePlan
from penstock.recipe.steps import Refusal
from penstock.sources.native_source import DeviceArrays

#: Of the memory that a device has left, this share stays for the program.
_FOR_THE_PROGRAM = 0.25
_WHAT = "Feed(cache='device')"


@dataclass(frozen=True)
class ResidentPlan:
    """A plan whose arrays are on a device."""

    plan: NativePlan
    device: torch.device
    stores: tuple[Rows, ...]
    """One for each field."""
    firsts: Indices
    """Where the first row of each leaf is in the stores."""

    def images(self) -> Images | None:
        """Return what makes images of the only store's rows; None where rows are the fields."""
        recipes = _recipes(self.plan)
        return Images(self.stores[0], recipes) if recipes else None

    def labels(self) -> torch.Tensor | None:
        """Return the labels of all rows on the device, collated; None where they must be read batch by batch."""
        columns = []
        for leaf in self.plan.leaves:
            held = None if leaf.memory is None else leaf.memory.held
            if leaf.labels is None or held is None or not held.settled:
                return None
            column = leaf.labels(np.arange(leaf.size, dtype=np.int64))
            # Of several leaves torch's collate looks at the labels in each batch; integers stay what they are in all.
            if not isinstance(column, np.ndarray) or (len(self.plan.leaves) > 1 and column.dtype != np.int64):
                return None
            columns.append(column)
        return send(np.concatenate(columns), self.device)

    def hand_to_current_stream(self) -> None:
        """Tell the allocator that the current stream uses the arrays, so that it outlasts them."""
        if self.device.type in ("cpu", "mps"):
            return
        stream = torch.accelerator.current_stream(self.device)
        for store in self.stores:
            store.words.record_stream(stream)


class Resident:
    """Keeps the arrays of one loader's dataset on a device, for as long as it lives itself.

    Where they are not those of the pass before, or have changed as far as a `Watch` can tell, all are copied anew. One
    thread at a time uses it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._watches: list[Watch] = []
        self._stores: tuple[Rows, ...] = ()
        self._refused: tuple[object, Refusal] | None = None

    def refusal(self, plan: NativePlan) -> Refusal | None:
        """Return why batches of a plan are made on the host; None: they fit on the device. Nothing is copied."""
        return _unsuitable(plan) or (None if self._holds(plan) else self._no_room(plan))

    def hold(self, plan: NativePlan) -> ResidentPlan | Refusal:
        """Return the plan with its arrays on the device, or why its batches are made on the host."""
        refusal = _unsuitable(plan)
        if refusal is not None or not self._holds(plan):
            self._watches, self._stores = [], ()  # which makes room
            refusal = refusal or self._no_room(plan) or self._upload(plan)
        if refusal is not None:
            return refusal
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)  # from now on any stream may read them
        firsts = np.cumsum([0, *(leaf.size for leaf in plan.leaves)])[:-1].astype(np.int64)
        return ResidentPlan(plan, self.device, self._stores, firsts)

    def explain(self, plan: NativePlan) -> str:
        """Return where batches of a plan are made, for explain()."""
        refusal = self.refusal(plan)
        if refusal is not None:
            return f"cache    not on {self.device}: {refusal.why}; there with {refusal.remedy}"
        done = "cropped, padded, flipped and gathered" if _recipes(plan) else "gathered"
        return f"cache    {_size(_bytes(_fields(plan)))} of arrays on {self.device}: batches are {done} there"

    def __repr__(self) -> str:
        return f"Resident({_size(self._held_bytes)} on {self.device})"

    @property
    def _held_bytes(self) -> int:
        return sum(store.words.nbytes for store in self._stores)

    def _holds(self, plan: NativePlan) -> bool:
        """Return whether the arrays on the device are those of a plan, as they are now."""
        arrays = [array for arrays in _fields(plan) for array in arrays]
        return len(self._watches) == len(arrays) and all(map(Watch.same, self._watches, arrays))

    def _no_room(self, plan: NativePlan) -> Refusal | None:
        """Return why a plan's arrays do not fit on the device, in the place of those that are there; None: they do."""
        fields = _fields(plan)
        if self._refused is not None and self._refused[0] == _keys(fields):
            return self._refused[1]
        left, needed = available(self.device), _bytes(fields)
        if left is None or needed <= (left := left + self._held_bytes) * (1 - _FOR_THE_PROGRAM):
            return None
        return _refused(
            f"{_size(needed)} of arrays do not fit on {self.device}, which has {_size(left)} left, a quarter of it for "
            "the program"
        )

    def _upload(self, plan: NativePlan) -> Refusal | None:
        """Copy a plan's arrays to the device; return why that failed."""
        fields = _fields(plan)
        watches = [
            Watch(array) for arrays in fields for array in arrays
        ]  # before the copy: what changes meanwhile is seen
        try:
            self._stores = tuple(Rows(arrays, self.device) for arrays in fields)
        except torch.OutOfMemoryError:
            size = _size(_bytes(fields))
            refusal = _refused(f"{self.device} had no room for {size} of arrays, each in one piece")
            self._refused = _keys(fields), refusal  # not tried again while they are the same
            return refusal
        self._watches = watches
        return None


def available(device: torch.device) -> int | None:
    """Return how many bytes this process may still take on a device; None where nobody knows, or for the CPU."""
    if device.type == "cpu":
        return None
    try:
        free, _ = torch.accelerator.get_memory_info(device)
        reserved, used = torch.accelerator.memory_reserved(device), torch.accelerator.memory_allocated(device)
    except (RuntimeError, NotImplementedError):
        return None
    return free + reserved - used


def _unsuitable(plan: NativePlan) -> Refusal | None:
    """Return why a device cannot make the batches of a plan, or None."""
    for leaf in plan.leaves:
        if leaf.memory is None or leaf.memory.held is None:
            return _refused(f"not in memory: {leaf.steps[0].what.strip()}", "datasets in memory only")
    if any(spec is None for spec in plan.specs()):
        return _refused("its datasets give rows of different shapes", "rows of one shape")
    recipes = _recipes(plan)
    if not recipes:
        return None
    sizes = {held.arrays[0].shape[1:] for held in _held(plan)}
    if len(recipes) < len(plan.leaves) or len(sizes) > 1:
        return _refused("its datasets hold images of different sizes", "images of one size")
    height, width, _ = next(iter(sizes))
    if any(_native.map_size(recipe, width, height) is None for recipe in recipes):
        return _refused("its images are resized, or made grey", "a transform that only crops, pads, flips and converts")
    if len({(recipe.dtype, recipe.table) for recipe in recipes}) > 1:
        return _refused("its datasets convert pixels differently", "one conversion for all")
    return None


def _refused(why: str, remedy: str = "more memory, or less data") -> Refusal:
    return Refusal(_WHAT, why, remedy)


def _held(plan: NativePlan) -> list[DeviceArrays]:
    return [held for leaf in plan.leaves if leaf.memory is not None and (held := leaf.memory.held) is not None]


def _recipes(plan: NativePlan) -> list[_native.Recipe]:
    return [held.recipe for held in _held(plan) if held.recipe is not None]


def _fields(plan: NativePlan) -> list[tuple[torch.Tensor, ...]]:
    """Return for each field the arrays of all leaves."""
    return list(zip(*(held.arrays for held in _held(plan)), strict=True))


def _keys(fields: Sequence[Sequence[torch.Tensor]]) -> object:
    return [[key(array) for array in arrays] for arrays in fields]


def _bytes(fields: Sequence[Sequence[torch.Tensor]]) -> int:
    return sum(len(array) * row_bytes(array) for arrays in fields for array in arrays)


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


# --- whether an array is as it was ------------------------------------------------------------------------------------


class Watch:
    """Remembers a tensor on the CPU, and tells whether another is the same one, unchanged.

    It is another one where its memory, shape, strides or dtype differ. It is changed where torch has counted a change
    (``Tensor._version``), or where the CRC-32C of its memory differs, which takes about 40 ms a GB. Tensors with gaps
    between their rows have no CRC.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # held, so that no other can be where it is
        self._key = key(tensor)
        self._crc = _crc(tensor)

    def same(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the one that is watched, as it was."""
        return key(tensor) == self._key and _crc(tensor) == self._crc


def key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where a tensor is, what it is like, and how often torch has changed it in place."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, version


def _crc(tensor: torch.Tensor) -> int:
    """Return the CRC-32C of a tensor's memory from end to end, whatever the order of its dimensions; 0 for gaps."""
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    if tensor.numel() == 0 or not tensor.permute(order).is_contiguous():
        return 0
    return _native.crc32c(bytes_in(tensor).data)
