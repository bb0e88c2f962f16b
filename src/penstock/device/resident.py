"""Datasets in memory, kept on a device from pass to pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import penstock._native as _native
from penstock.device.stores import Images, Rows, row_bytes, send
from penstock.device.watch import Watch, key
from penstock.order.permutations import Indices
from penstock.plan import NativePlan
from penstock.recipe.steps import Refusal
from penstock.sources.native_source import DeviceArrays

#: Of the memory that a device has left, this share stays for the program.
_FOR_THE_PROGRAM = 0.25
_WHAT = "Feed(cache='device')"
_Kept = tuple[list[Watch], Rows]


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
            column = leaf.labels.now(np.arange(leaf.size, dtype=np.int64))
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

    Arrays that are not those of the pass before, or have changed as far as a `Watch` can tell, are copied anew. One
    thread at a time uses it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: list[_Kept] = []
        self._refused: tuple[object, Refusal] | None = None

    def refusal(self, plan: NativePlan) -> Refusal | None:
        """Return why batches of a plan are made on the host; None: they fit on the device. Nothing is copied."""
        found = self._fit(plan, release=False)
        return found if isinstance(found, Refusal) else None

    def hold(self, plan: NativePlan) -> ResidentPlan | Refusal:
        """Return the plan with its arrays on the device, or why its batches are made on the host."""
        current = self._fit(plan, release=True)
        self._kept = []
        if isinstance(current, Refusal):
            return current
        fields = _fields(plan)
        try:
            self._kept = [
                one or ([Watch(array) for array in arrays], Rows(arrays, self.device))
                for one, arrays in zip(current, fields, strict=True)
            ]
        except torch.OutOfMemoryError:
            size = _size(sum(map(_bytes, fields)))
            refusal = _refused(f"{self.device} had no room for {size} of arrays, each in one piece")
            self._refused = _keys(fields), refusal  # not tried again while they are the same
            return refusal
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)  # from now on any stream may read them
        firsts = np.cumsum([0, *(leaf.size for leaf in plan.leaves)])[:-1].astype(np.int64)
        return ResidentPlan(plan, self.device, tuple(store for _, store in self._kept), firsts)

    def explain(self, plan: NativePlan) -> str:
        """Return where batches of a plan are made, for explain()."""
        refusal = self.refusal(plan)
        if refusal is not None:
            return f"cache    not on {self.device}: {refusal.why}; there with {refusal.remedy}"
        done = "cropped, padded, flipped and gathered" if _recipes(plan) else "gathered"
        return f"cache    {_size(sum(map(_bytes, _fields(plan))))} of arrays on {self.device}: batches are {done} there"

    def __repr__(self) -> str:
        return f"Resident({_size(sum(store.words.nbytes for _, store in self._kept))} on {self.device})"

    def _fit(self, plan: NativePlan, *, release: bool) -> list[_Kept | None] | Refusal:
        """Return what is kept of each field of a plan and still the same, or why the device cannot make its batches.

        release: all else that is kept is dropped, and makes room; else it is counted as room.
        """
        refusal = _unsuitable(plan)
        if refusal is not None:
            return refusal
        fields = _fields(plan)
        current = [
            one if one and _same(one[0], arrays) else None
            for one, arrays in itertools.zip_longest(self._kept[: len(fields)], fields)
        ]
        if release:
            self._kept = [one for one in current if one]
        if self._refused is not None and self._refused[0] == _keys(fields):
            return self._refused[1]
        needed = sum(_bytes(arrays) for arrays, one in zip(fields, current, strict=True) if one is None)
        left = available(self.device) if needed else None
        if left is None:
            return current
        left += sum(one[1].words.nbytes for one in self._kept if one not in current)
        if needed <= left * (1 - _FOR_THE_PROGRAM):
            return current
        return _refused(
            f"{_size(needed)} of arrays do not fit on {self.device}, which has {_size(left)} left, a quarter of it for "
            "the program"
        )


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


def _same(watches: Sequence[Watch], arrays: Sequence[torch.Tensor]) -> bool:
    return len(watches) == len(arrays) and all(watch.same(array) for watch, array in zip(watches, arrays, strict=True))


def _bytes(arrays: Sequence[torch.Tensor]) -> int:
    return sum(len(array) * row_bytes(array) for array in arrays)


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
