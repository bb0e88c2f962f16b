"""Batch memory: one tensor a field, filled in place, never overwritten while anybody holds it or a view of it.

Pageable memory is recycled here: the storage of a batch holds its block, which is free again when the storage ends.
Small batches come from torch's allocator, for the C library recycles small blocks by itself. Pinned memory comes from
torch's caching host allocator, which recycles by itself and, other than Penstock, knows of the copies to the device
that still read a block.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.system.modes import outside_inference
from penstock.system.process_events import at_fork

_HUGE_PAGE = 2 << 20
#: Bytes from which on blocks are recycled here: the C library takes large ones from the system, fault by fault.
_RECYCLED = 64 << 10
_CPU = torch.device("cpu")


class Field:
    """What one field of a sample looks like, in the terms of both sides."""

    __slots__ = ("dtype", "nbytes", "shape", "spec", "strides")

    def __init__(self, spec: _native.Spec) -> None:
        self.spec = spec
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.shape = spec.shape
        self.nbytes = spec.nbytes
        #: Elements from one sample, row, column, ... to the next in a batch.
        self.strides = tuple(math.prod(spec.shape[dim:]) for dim in range(len(spec.shape) + 1))


class Rows(NamedTuple):
    """The memory of one field of one batch."""

    tensor: torch.Tensor
    """What the user gets: shape (samples, *field.shape)."""
    address: int
    nbytes: int

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The same memory as bytes, for NumPy: tensor.numpy() would forbid to resize it."""
        return _native.bytes_of(self.tensor, self.address, self.nbytes) if self.nbytes else np.empty(0, np.uint8)


def bytes_in(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the memory of a dense tensor on the CPU, which the array holds: element after element.

    Tensor.numpy() would forbid to resize the tensor, for good.
    """
    size = tensor.numel() * tensor.element_size()
    return _native.bytes_of(tensor, tensor.data_ptr(), size) if size else np.empty(0, np.uint8)


def tensor_on(
    storage: torch.UntypedStorage, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, offset: int = 0
) -> torch.Tensor:
    if dtype is torch.complex32:  # of which torch.empty warns
        whole = tensor_on(storage, (storage.nbytes(),), (1,), torch.uint8).view(dtype)
        return whole.as_strided(shape, strides, offset)
    return torch.empty(0, dtype=dtype, device=_CPU).set_(storage, offset, shape, strides)


def storage_on(holder: object, address: int, nbytes: int) -> torch.UntypedStorage:
    """Return a storage on memory of somebody else's, of at least one byte, which it holds as long as it is held."""
    return torch.frombuffer(_native.bytes_of(holder, address, nbytes), dtype=torch.uint8).untyped_storage()


class _Block:
    """Memory of torch's allocator. Raises MemoryError."""

    def __init__(self, nbytes: int) -> None:
        try:
            self._memory = torch.UntypedStorage(nbytes)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise MemoryError(f"a batch of {nbytes:,} bytes: {str(error).splitlines()[0]}") from None
        self.nbytes, self.address = nbytes, self._memory.data_ptr()
        if nbytes >= _HUGE_PAGE:
            _native.advise_huge_pages(self.address, nbytes)


class _Loan:
    """The right to a block, which the storage of a batch holds: with its end the block is free."""

    def __init__(self, block: _Block, free: _Free) -> None:
        self.block, self._free = block, free

    def __del__(self) -> None:
        self._free.add(self.block)


class _Free:
    """Blocks that nobody holds, at most `keep`. Any thread may call any method, and the garbage collector in one."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._blocks: deque[_Block] = deque()
        _FREE.add(self)
        at_fork(before=_before_fork)

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, block: _Block) -> None:
        """Take a block; the oldest goes where there are too many."""
        self._blocks.append(block)
        if len(self._blocks) > self.keep:
            with contextlib.suppress(IndexError):  # another thread has taken it
                self._blocks.popleft()

    def take(self, nbytes: int) -> _Block | None:
        """Return a block of that size: of several the last that was used, which caches may hold."""
        passed: list[_Block] = []
        found = None
        with contextlib.suppress(IndexError):  # there is none
            while (block := self._blocks.pop()).nbytes != nbytes:
                passed.append(block)
            found = block
        self._blocks.extend(reversed(passed))
        return found

    def discard(self) -> None:
        """Give the pages of the blocks back to the system. A block that another thread takes keeps its own."""
        discarded: list[_Block] = []
        with contextlib.suppress(IndexError):  # there is none left
            while True:
                discarded.append(self._blocks.pop())
                _native.discard_pages(discarded[-1].address, discarded[-1].nbytes)
        self._blocks.extend(reversed(discarded))


_FREE: weakref.WeakSet[_Free] = weakref.WeakSet()


def _before_fork() -> None:
    """Leave a forked child no free blocks: each of their pages would be copied when it is written to next."""
    for free in list(_FREE):
        free.discard()


class Buffers:
    """The batch memory of one loader.

    Args:
        pinned: allocate page-locked memory through torch.
        keep: free blocks kept for the next batches.
    """

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self.pinned = pinned
        self._keep = keep
        self._free = _Free(keep)
        self._blocks: weakref.WeakSet[_Block] = weakref.WeakSet()
        self._created = 0

    def rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for a batch, never an inference tensor. Raises MemoryError."""
        if torch.is_inference_mode_enabled():
            with outside_inference():
                return self._rows(samples, field)
        return self._rows(samples, field)

    def _rows(self, samples: int, field: Field) -> Rows:
        nbytes = samples * field.nbytes
        shape = (samples, *field.shape)
        if self.pinned or nbytes < _RECYCLED:
            if field.dtype is torch.complex32:  # of which torch.empty warns
                bytes_ = torch.empty(nbytes, dtype=torch.uint8, device=_CPU, pin_memory=self.pinned)
                tensor = bytes_.view(field.dtype).view(shape)
            else:
                tensor = torch.empty(shape, dtype=field.dtype, device=_CPU, pin_memory=self.pinned)
            return Rows(tensor, tensor.data_ptr(), nbytes)
        block = self._free.take(nbytes)
        if block is None:
            block = _Block(nbytes)
            self._blocks.add(block)
            self._created += 1
        storage = storage_on(_Loan(block, self._free), block.address, nbytes)
        return Rows(tensor_on(storage, shape, field.strides, field.dtype), block.address, nbytes)

    def begin_anew(self) -> None:
        """Do nothing: rows that nobody holds are free."""

    def keep_times(self, factor: float) -> None:
        """Keep so many times as many free blocks as `keep` says, for more batches in flight; no fewer than `keep`."""
        self._free.keep = max(self._keep, math.ceil(factor * self._keep))

    def counts(self) -> tuple[int, int, int]:
        """Return how many pageable blocks are lent, free, and were ever created."""
        free = len(self._free)
        return len(self._blocks) - free, free, self._created

    def __repr__(self) -> str:
        lent, free, created = self.counts()
        return f"Buffers(pinned={self.pinned}, lent={lent}, free={free}, created={created})"
