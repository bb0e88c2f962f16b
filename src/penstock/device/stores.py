"""Rows and images on a device, and batches gathered of them there.

All is done on the current stream, and nothing waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.executors.buffers import torch_dtype
from penstock.order.permutations import Indices
from penstock.sources.tree import LeafNumbers

#: Bytes that go to the device at a time, through memory that is page-locked.
_PIECE = 16 << 20
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Rows:
    """The rows of one field of all leaves, one after another, in the memory of a device.

    Args:
        parts: of each leaf, on the CPU: rows along dimension 0, of one dtype and shape.
        device: where to. They are copied piece by piece: a memory-mapped file is never in memory as a whole.

    Raises:
        torch.OutOfMemoryError: the device has no room for them.
    """

    def __init__(self, parts: Sequence[torch.Tensor], device: torch.device) -> None:
        first = parts[0]
        self.dtype = first.dtype
        self.shape = tuple(first.shape[1:])
        self.row_bytes = row_bytes(first)
        unit = next(unit for unit in (8, 4, 2, 1) if self.row_bytes % unit == 0)
        #: The same memory in the largest units that a row consists of: (rows, row_bytes // unit).
        self.words = torch.empty((sum(map(len, parts)), self.row_bytes // unit), dtype=_WORDS[unit], device=device)
        for part, place in zip(parts, torch.split(self.words, [len(part) for part in parts]), strict=True):
            if part.numel():
                _upload(part, place)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows at these positions, in memory of their own: shape (positions, *shape)."""
        if self.row_bytes == 0:
            return torch.empty((len(index), *self.shape), dtype=self.dtype, device=self.words.device)
        return self.words.index_select(0, index).view(self.dtype).view(len(index), *self.shape)


def row_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a row of a tensor."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def _upload(rows: torch.Tensor, place: torch.Tensor) -> None:
    number = max(1, _PIECE // row_bytes(rows))
    for some, there in zip(torch.split(rows.detach(), number), torch.split(place, number), strict=True):
        staged = host_memory(tuple(some.shape), some.dtype, place.device)
        staged.copy_(some)
        there.copy_(staged.view(len(some), -1).view(place.dtype), non_blocking=True)


def host_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return host memory that is copied to a device without waiting: torch keeps it until the copy is done."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=device.type not in ("cpu", "mps"))


def send(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a copy of an array on a device."""
    given = torch.from_numpy(array)
    staged = host_memory(tuple(given.shape), given.dtype, device)
    return staged.copy_(given).to(device, non_blocking=True)


class Images:
    """Makes fields of the images of a store, by recipes that only crop, pad, flip and convert.

    Args:
        store: images of (height, width, channels) uint8.
        recipes: one for each leaf, with equal tables and equal sizes of their results.
    """

    def __init__(self, store: Rows, recipes: Sequence[_native.Recipe]) -> None:
        self._device = device = store.words.device
        self._height, self._width, channels = store.shape
        self._recipes = recipes
        size = _native.map_size(recipes[0], self._width, self._height)
        assert size is not None
        self._size = size
        self._pixels = store.words.view(torch.uint8).view(-1, channels)
        self._places = torch.int32 if len(self._pixels) < 1 << 31 else torch.int64
        self._dtype = torch_dtype(recipes[0].dtype)
        fills = [np.frombuffer(fill, np.uint8) for recipe in recipes for fill in recipe.fills]
        #: Of each leaf, the fills of those before it.
        self._before = np.cumsum([0, *(len(recipe.fills) for recipe in recipes)])[:-1]
        self._fills = send(np.stack(fills), device) if fills else None
        self._elements: torch.Tensor | None = None
        table = recipes[0].table
        if table is not None:
            word = _WORDS[self._dtype.itemsize]
            given = [np.frombuffer(table, np.uint8).reshape(channels, 256, -1)]
            given += [fill.reshape(channels, 1, -1) for fill in fills]
            elements = np.concatenate(given, axis=1)
            firsts = np.arange(channels, dtype=np.int32) * np.int32(elements.shape[1])
            self._elements = send(elements.reshape(-1), device).view(word)
            self._firsts = send(firsts, device).view(-1, 1, 1)

    def maps(
        self, seed: int, epoch: int, leaves: LeafNumbers | None, samples: Indices, positions: Indices
    ) -> torch.Tensor:
        """Return what axis_maps gives for samples of these leaves, on its way to the device."""
        height, width = self._size
        maps = host_memory((len(samples), height + width), torch.int32, self._device)
        out = maps.numpy()
        source = (self._width, self._height)
        if leaves is None:
            _native.axis_maps(self._recipes[0], seed, epoch, samples, positions, *source, out)
        else:
            for number in np.unique(leaves).tolist():
                here = np.flatnonzero(leaves == number)
                some = np.empty((len(here), height + width), dtype=np.int32)
                key = (seed, epoch, samples[here], positions[here])
                _native.axis_maps(self._recipes[number], *key, *source, some)
                some[some < 0] -= self._before[number]
                out[here] = some
        return maps.to(self._device, non_blocking=True)

    def take(self, index: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        """Return the fields of the images at these positions: shape (positions, channels, height, width).

        Where the result is pixels, its channels lie together in memory.
        """
        height = self._size[0]
        rows, columns = maps[:, :height].unsqueeze(2), maps[:, height:].unsqueeze(1)
        first = (index * (self._height * self._width)).to(self._places).view(-1, 1, 1)
        places = (first + rows * self._width) + columns
        outside = inside = None
        if self._fills is not None:
            outside = torch.minimum(rows, columns)  # -1 - k where fill k is shown: of two, the later operation's
            inside = outside >= 0
            places.mul_(inside)
        pixels = self._pixels.index_select(0, places.view(-1)).view(*places.shape, -1)
        if self._elements is None:
            if outside is not None and inside is not None:
                pixels = torch.where(inside.unsqueeze(-1), pixels, self._colours(outside))
            return pixels.permute(0, 3, 1, 2) if pixels.shape[-1] > 1 else pixels.squeeze(-1).unsqueeze(1)
        codes = pixels.permute(0, 3, 1, 2).to(torch.int32, memory_format=torch.contiguous_format)
        if outside is not None and inside is not None:  # fill k comes after the 256 values
            codes = torch.where(inside.unsqueeze(1), codes, 255 - outside.unsqueeze(1))
        made = self._elements.index_select(0, codes.add_(self._firsts).view(-1))
        return made.view(self._dtype).view(codes.shape)

    def _colours(self, outside: torch.Tensor) -> torch.Tensor:
        """Return the fill of each position, or what broadcasts to it."""
        assert self._fills is not None
        if len(self._fills) == 1:
            return self._fills[0]
        fills = (-1 - outside).clamp_(min=0)
        return self._fills.index_select(0, fills.view(-1)).view(*outside.shape, -1)
