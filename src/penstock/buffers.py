"""Batch memory: one tensor a field, filled in place, never overwritten while anybody holds it or a view of it.

Pageable memory is recycled here: a block goes back to the loader's pool when the last tensor, view or array
that rests on it is gone. Pinned memory comes from torch's caching host allocator, which recycles by itself
and, other than we, knows of the copies to the device that still read a block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock import _native


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a native dtype name, such as "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


class Field:
    """What one field of a sample looks like, in the terms of both sides."""

    __slots__ = ("dtype", "nbytes", "shape", "spec")

    def __init__(self, spec: _native.Spec) -> None:
        self.spec = spec
        self.dtype = torch_dtype(spec.dtype)
        self.shape = spec.shape
        self.nbytes = spec.nbytes


class Rows(NamedTuple):
    """The memory of one field of one batch."""

    tensor: torch.Tensor
    """What the user gets: shape (samples, *field.shape)."""
    memory: NDArray[np.uint8]
    """The same memory as bytes, for the native core."""


class Buffers:
    """The batch memory of one loader.

    Args:
        pinned: allocate page-locked memory through torch.
        keep: free blocks kept for the next batches.
    """

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self.pinned = pinned
        self._blocks = _native.BlockPool(keep)

    def rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for a batch. Raises MemoryError."""
        nbytes = samples * field.nbytes
        if self.pinned:
            tensor = torch.empty((samples, *field.shape), dtype=field.dtype, device="cpu", pin_memory=True)
            memory: NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy() if nbytes else np.empty(0, np.uint8)
            return Rows(tensor, memory)
        memory = self._blocks.lend(nbytes)
        if nbytes == 0:  # which frombuffer refuses
            return Rows(torch.empty((samples, *field.shape), dtype=field.dtype, device="cpu"), memory)
        return Rows(torch.frombuffer(memory, dtype=field.dtype).view(samples, *field.shape), memory)

    def counts(self) -> tuple[int, int, int]:
        """Return how many pageable blocks are lent, free, and were ever created."""
        return self._blocks.counts()

    def __repr__(self) -> str:
        lent, free, created = self.counts()
        return f"Buffers(pinned={self.pinned}, lent={lent}, free={free}, created={created})"
