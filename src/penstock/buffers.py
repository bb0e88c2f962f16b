"""Batch memory: one tensor a field, filled in place, never overwritten while anybody holds it or a view of it.

Pageable memory is recycled here: a block goes back to the loader's pool when the last tensor, view or array
that rests on it is gone. Pinned memory comes from torch's caching host allocator, which recycles by itself
and, other than we, knows of the copies to the device that still read a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from penstock import _native


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a native dtype name, such as "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@dataclass(frozen=True)
class Rows:
    """The memory of one field of one batch."""

    tensor: torch.Tensor
    """What the user gets: shape (samples, *spec.shape)."""
    memory: NDArray[np.uint8]
    """The same memory as bytes, for the native core."""
    spec: _native.Spec
    """Shape and dtype of one sample."""


class Buffers:
    """The batch memory of one loader.

    Args:
        pinned: allocate page-locked memory through torch.
        keep: free blocks kept for the next batches.
    """

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self.pinned = pinned
        self._blocks = _native.BlockPool(keep)

    def keep(self, blocks: int) -> None:
        """Set how many free blocks are kept."""
        self._blocks.set_keep(blocks)

    def rows(self, samples: int, spec: _native.Spec) -> Rows:
        """Return uninitialised memory for a batch. Raises MemoryError."""
        nbytes = samples * spec.nbytes
        if self.pinned:
            flat = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            memory: NDArray[np.uint8] = flat.numpy()
        else:
            memory = self._blocks.lend(nbytes)
            flat = torch.from_numpy(memory)
        return Rows(flat.view(torch_dtype(spec.dtype)).view(samples, *spec.shape), memory, spec)

    def counts(self) -> tuple[int, int, int]:
        """Return how many pageable blocks are lent, free, and were ever created."""
        return self._blocks.counts()

    def __repr__(self) -> str:
        lent, free, created = self.counts()
        return f"Buffers(pinned={self.pinned}, lent={lent}, free={free}, created={created})"
