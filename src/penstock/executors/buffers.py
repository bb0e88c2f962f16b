"""Batch memory: one tensor a field, filled in place, never overwritten while anybody holds it or a view of it.

Pageable memory is recycled here: a torch storage, which a batch may resize, share or exchange as its user likes. It is
lent again when nobody else holds it, which its use count says, and only where it is still what was lent. Small batches
come from torch's allocator, for the C library recycles small blocks by itself. Pinned memory comes from torch's caching
host allocator, which recycles by itself and, other than Penstock, knows of the copies to the device that still read a
block.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import penstock._native as _native
from penstock.system.modes import outside_inference

_HUGE_PAGE = 2 << 20
#: Bytes from which on blocks are recycled here: the C library takes large ones from the system, fault by fault.
_RECYCLED = 64 << 10
_CPU = torch.device("cpu")
# How many users in C++ a storage has; not in builds of torch without CUDA.
_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a native dtype name, such as "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


class Field:
    """What one field of a sample looks like, in the terms of both sides."""

    __slots__ = ("dtype", "nbytes", "shape", "spec", "strides")

    def __init__(self, spec: _native.Spec) -> None:
        self.spec = spec
        self.dtype = torch_dtype(spec.dtype)
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
    storage: torch.UntypedStorage,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    offset: int = 0,
) -> torch.Tensor:
    """Return a tensor on a storage, from an element on."""
    if dtype is torch.complex32:  # of which torch.empty warns
        whole = tensor_on(storage, (storage.nbytes(),), (1,), torch.uint8).view(dtype)
        return whole.as_strided(shape, strides, offset)
    return torch.empty(0, dtype=dtype, device=_CPU).set_(storage, offset, shape, strides)


class Block:
    """A storage of torch, and where its memory lay when it was made."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.nbytes = storage.nbytes()
        self.address = storage.data_ptr()

    def tensor(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, offset: int = 0
    ) -> torch.Tensor:
        """Return a tensor on this memory, from an element on."""
        return tensor_on(self.storage, shape, strides, dtype, offset)

    def holders(self) -> tuple[int, int]:
        """Return how many hold the storage: in C++, and its one Python object."""
        storage = self.storage
        return 0 if _use_count is None else _use_count(storage._cdata), sys.getrefcount(storage)

    @property
    def is_held(self) -> bool:
        """Whether anybody but its owner holds the storage."""
        return self.holders() != _ALONE

    @property
    def sound(self) -> bool:
        """Whether the storage has the memory that it was made with, and has it alone.

        Its user may have resized it, or moved it to memory that processes share.
        """
        storage = self.storage
        return storage.nbytes() == self.nbytes and storage.data_ptr() == self.address and not storage.is_shared()


def _new_block(nbytes: int) -> Block:
    """Return a block of torch's allocator. Raises MemoryError."""
    try:
        block = Block(torch.UntypedStorage(nbytes))  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise MemoryError(f"a batch of {nbytes:,} bytes: {str(error).splitlines()[0]}") from None
    if nbytes >= _HUGE_PAGE:
        _native.advise_huge_pages(block.address, nbytes)
    return block


def _holders_alone() -> tuple[int, int] | None:
    """Return what holders() of a block gives that nobody else holds; None: this torch does not tell.

    It tells by the use count, or by the Python object, which all users in C++ hold together (torch from 2.10 on).
    """
    block = _new_block(8)
    tensor = block.tensor((8,), (1,), torch.uint8)
    used = block.holders()
    user = tensor.untyped_storage()  # the very object that the block holds
    held = block.holders()
    del tensor
    named = block.holders()
    del user
    alone = block.holders()
    return alone if alone not in (used, held, named) else None


_ALONE = _holders_alone()


class _Loan(weakref.ref[torch.Tensor]):
    """Tells when the tensor of a block is gone; views of it may still hold the block."""

    __slots__ = ("block",)
    block: Block


class Shelf:
    """Which blocks are lent, and which have come back.

    Any thread may call any method, and the garbage collector in the middle of one: there is no lock, and each step on
    a dict or deque is one that the interpreter does at once.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._lent: dict[int, _Loan] = {}  # by id: hashing a weak reference asks what it refers to
        self._back: deque[Block] = deque()  # their tensors are gone; in the order in which they went

    def lend(self, block: Block, tensor: torch.Tensor) -> None:
        """Take note that a tensor rests on a block."""
        loan = _Loan(tensor, self._came_back)
        loan.block = block
        self._lent[id(loan)] = loan

    def take(self, nbytes: int) -> Block | None:
        """Return a block of that size that nobody holds: of several the last that came back, which caches may hold."""
        back = self._back
        passed: list[Block] = []
        found = None
        while back and found is None:
            try:
                block = back.pop()
            except IndexError:  # another thread has taken it
                break
            if block.nbytes != nbytes or block.is_held:
                passed.append(block)
            elif block.sound:  # else it is not ours any more
                found = block
        if passed:
            back.extend(reversed(passed))
        return found

    def give_back(self, block: Block) -> None:
        """Take a block that is free, or whose tensor is gone: whoever takes it looks whether a view holds it."""
        if _ALONE is None:
            return
        self._back.append(block)
        if len(self._back) > self.keep:
            with contextlib.suppress(IndexError):  # another thread has taken it
                self._back.popleft()

    def counts(self) -> tuple[int, int]:
        """Return how many blocks are lent and free."""
        back = list(self._back)
        held = sum(block.is_held for block in back)
        return len(self._lent) + held, len(back) - held

    def _came_back(self, loan: Any) -> None:
        # The tensor holds its memory until this returns, and views of it longer: whoever takes the block looks.
        self._lent.pop(id(loan), None)
        self.give_back(loan.block)


class Buffers:
    """The batch memory of one loader.

    Args:
        pinned: allocate page-locked memory through torch.
        keep: free blocks kept for the next batches.
    """

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self.pinned = pinned
        self._keep = keep
        self._shelf = Shelf(keep)
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
        block = self._shelf.take(nbytes)
        if block is None:
            block = _new_block(nbytes)
            self._created += 1
        tensor = block.tensor(shape, field.strides, field.dtype)
        self._shelf.lend(block, tensor)
        return Rows(tensor, block.address, nbytes)

    def keep_times(self, factor: float) -> None:
        """Keep so many times as many free blocks as `keep` says, for more batches in flight; no fewer than `keep`."""
        self._shelf.keep = max(self._keep, math.ceil(factor * self._keep))

    def counts(self) -> tuple[int, int, int]:
        """Return how many pageable blocks are lent, free, and were ever created."""
        return *self._shelf.counts(), self._created

    def __repr__(self) -> str:
        lent, free, created = self.counts()
        return f"Buffers(pinned={self.pinned}, lent={lent}, free={free}, created={created})"
