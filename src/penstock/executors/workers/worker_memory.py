"""The memory of a worker process for its batches: a part of the parent's block for each large tensor.

The rows of samples are built there, torchvision's transforms write their tensors there, and other large tensors of a
batch are copied there. What finds no place goes torch's way.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.executors.buffers import Buffers, Field, Rows, storage_on, tensor_on
from penstock.executors.plain_data import has_storage
from penstock.executors.workers.shared_memory import (
    SHARED_BYTES,
    BlockName,
    ByValue,
    OnBlock,
    TensorOn,
    mapped,
    memory_file,
    storage_in,
)

#: Batches after which a block that none of them used is not mapped any more.
_UNUSED = 32
#: Large tensors of a batch that are copied to a new file of memory each, where the block has no place; torch does the
#: others.
MOST_COPIED = 8
#: Free blocks that a worker keeps for the samples of a collate_fn that does not send them.
_OWN_BLOCKS = 4
#: Bytes between the beginnings of tensors in a block: those of a line of the CPU's caches.
_ALIGNED = 64


def aligned(nbytes: int) -> int:
    """Return the bytes that a storage takes of a block."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


class _Use:
    """A worker's use of a block for one batch: each storage on the block holds it."""

    def __init__(self, name: BlockName, mapping: torch.UntypedStorage) -> None:
        self.name, self.mapping = name, mapping
        self._taken = 0

    def take(self, nbytes: int) -> tuple[torch.UntypedStorage, OnBlock] | None:
        """Return a storage on the next part of the block, and its message; None: there is no space left."""
        begin, end = self._taken, self._taken + nbytes
        if end > self.name.nbytes:
            return None
        self._taken = aligned(end)
        storage = storage_on(self, self.mapping.data_ptr() + begin, nbytes)
        return storage, OnBlock(self.name.lease, begin, nbytes)


class _Mappings:
    """The parent's blocks, as this process has mapped them."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[torch.UntypedStorage, int]] = OrderedDict()  # with its latest batch
        self._batches = 0

    def of(self, name: BlockName) -> torch.UntypedStorage | None:
        """Return the memory of a block; None: it cannot be opened."""
        self._batches += 1
        mapping, _ = self._known.pop(name.block, (None, 0))
        if mapping is None:
            try:
                descriptor = os.open(f"/proc/{name.pid}/fd/{name.descriptor}", os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return None
            try:
                mapping = storage_in(descriptor, name.nbytes)
            finally:
                os.close(descriptor)
        self._known[name.block] = mapping, self._batches
        while next(iter(self._known.values()))[1] + _UNUSED < self._batches:
            self._known.popitem(last=False)
        return mapping


class WorkerBuffers:
    """The batch memory of a worker process."""

    def __init__(self) -> None:
        self._mappings = _Mappings()
        self._own = Buffers(pinned=False, keep=_OWN_BLOCKS)
        self._places = True  # what transforms make is expected to be sent, and not to be kept
        self.begin(None)

    def begin(self, name: BlockName | None) -> None:
        """Use this block for the batch that comes."""
        mapping = None if name is None else self._mappings.of(name)
        self._use = None if name is None or mapping is None else _Use(name, mapping)
        self._forks = _forks
        self._placed: dict[int, OnBlock] = {}  # by the address of each storage on the block
        self._made: dict[int, int] = {}  # bytes of what transforms make on the block, by address
        self._unreserved: set[int] = set()  # addresses of rows in new files of memory, which torch sends
        self.sent: dict[int, int] = {}
        """Bytes of each storage of the batch that has, or should have, a place on the block, by address."""

    @property
    def needed(self) -> int:
        """Bytes that the batch takes, or would have taken, of a block."""
        return sum(map(aligned, self.sent.values()))

    def rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for a field of a batch that is sent."""
        nbytes = samples * field.nbytes
        storage = None
        if nbytes >= SHARED_BYTES:
            storage = self._take(nbytes)
            if storage is None and (storage := _unreserved(nbytes)) is not None:
                self._unreserved.add(storage.data_ptr())
        if storage is None:
            tensor = torch.empty((samples, *field.shape), dtype=field.dtype, device="cpu")
        else:
            tensor = tensor_on(storage, (samples, *field.shape), field.strides, field.dtype)
        return Rows(tensor, tensor.data_ptr(), nbytes)

    def own_rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for samples of which a collate_fn makes something else."""
        return self._own.rows(samples, field)

    def room(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return memory on the block for a tensor that a transform makes; None: there is none."""
        nbytes = math.prod(shape) * dtype.itemsize
        storage = self._take(nbytes) if self._places and nbytes >= SHARED_BYTES else None
        if storage is None:
            return None
        self._made[storage.data_ptr()] = nbytes
        return tensor_on(storage, tuple(shape), torch.empty(shape, device="meta").stride(), dtype)

    def _take(self, nbytes: int) -> torch.UntypedStorage | None:
        taken = None if self._use is None else self._use.take(nbytes)
        if taken is None:
            return None
        storage, place = taken
        self._placed[storage.data_ptr()] = place
        return storage

    def packed(self, made: list[Any], *, of_user: bool) -> tuple[Any, bool]:
        """Return the only item of a list, a batch, as it is sent; and whether the user's code has kept a part of it.

        Tensors on the block are sent by where they lie, small ones by value, large ones copied to the block; a part of
        the block that was kept is sent as a copy. What is left torch sends its way: other than plain tensors, and of a
        user's batch also small ones that are a part of their memory, and those that share it: they do so where they
        arrive.
        """
        packing = _Packing(self._take, self._placed, self._unreserved, of_user=of_user)
        batch = packing.packed(made.pop())
        self.sent = packing.sent
        use, self._use = self._use, None
        if use is None or not of_user:
            return batch, False
        sent = sum(nbytes for address, nbytes in self._made.items() if address in self.sent)
        self._places &= 2 * sent >= sum(self._made.values())
        mapping, held = use.mapping, weakref.ref(use)
        del use
        if held() is None and self._forks == _forks:
            return batch, False
        self._places = False
        return _copied(batch, mapping), True


class _Packing:
    """One batch on its way into the message that it is sent in.

    Args:
        take: returns a storage on the block, and notes it in `placed`; None: there is no space left.
        placed: by address, the storages on the block.
        unreserved: addresses of those that torch sends, in shared memory already.
        of_user: the batch is that of the user's collate_fn.
    """

    def __init__(
        self,
        take: Callable[[int], torch.UntypedStorage | None],
        placed: dict[int, OnBlock],
        unreserved: set[int],
        *,
        of_user: bool,
    ) -> None:
        self._take, self._placed, self._unreserved, self._of_user = take, placed, unreserved, of_user
        self._seen: Counter[int] = Counter()  # tensors of the batch, by the address of their storage
        self._messages: dict[int, Any] = {}  # by tensor: one that comes twice arrives as one
        self._copies = 0  # in new files of shared memory
        self.sent: dict[int, int] = {}

    def packed(self, batch: Any) -> Any:
        """Return the batch as it is sent."""
        if self._of_user:
            mapped(self._count, batch, whole=True)
        return mapped(self._message, batch, whole=self._of_user)

    def _count(self, tensor: Any) -> Any:
        if type(tensor) is torch.Tensor and has_storage(tensor):
            self._seen[tensor.untyped_storage().data_ptr()] += 1
        return tensor

    def _message(self, tensor: Any) -> Any:
        if type(tensor) is not torch.Tensor or not has_storage(tensor):
            return tensor
        if not self._of_user:
            return self._new_message(tensor)
        if id(tensor) not in self._messages:
            self._messages[id(tensor)] = self._new_message(tensor)
        return self._messages[id(tensor)]

    def _new_message(self, tensor: torch.Tensor) -> Any:
        if tensor.requires_grad or tensor.is_quantized:
            return tensor
        if tensor.is_conj() or tensor.is_neg():  # torch would send the elements and forget how to read them
            tensor = tensor.resolve_conj().resolve_neg()
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._placed or address in self._unreserved:
            self.sent[address] = storage.nbytes()
            return TensorOn(self._placed[address], tensor) if address in self._placed else tensor
        if storage.is_shared() or (self._of_user and self._seen[address] > 1):
            return tensor
        if storage.nbytes() < SHARED_BYTES:
            return ByValue(tensor) if self._is_by_value(tensor, storage) else tensor
        if tensor.nbytes == storage.nbytes():
            return self._copy(tensor, storage)
        return self._copy(tensor, None) if tensor.is_contiguous() and tensor.nbytes >= SHARED_BYTES else tensor

    def _is_by_value(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        if tensor.dtype is torch.complex32 or not tensor.is_contiguous():  # torch warns of an empty one of these
            return False
        if not self._of_user:
            return True
        usual = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").stride() == tensor.stride()
        return usual and tensor.nbytes == storage.nbytes()

    def _copy(self, tensor: torch.Tensor, storage: torch.UntypedStorage | None) -> Any:
        """Return a copy of a tensor on the block, or in new shared memory. storage: all of it is copied; None: none."""
        self.sent[tensor.data_ptr()] = tensor.nbytes
        taken = self._take(tensor.nbytes)
        if taken is None and self._copies < MOST_COPIED:
            self._copies += 1
            taken = _unreserved(tensor.nbytes)
        if taken is None:
            return tensor
        if storage is None:
            copy = tensor_on(taken, tuple(tensor.shape), tensor.stride(), tensor.dtype)
            copy.copy_(tensor)
        else:
            taken.copy_(storage)
            copy = tensor_on(taken, tuple(tensor.shape), tensor.stride(), tensor.dtype, int(tensor.storage_offset()))
        place = self._placed.get(taken.data_ptr())
        return copy if place is None else TensorOn(place, copy)


def _copied(batch: Any, mapping: torch.UntypedStorage) -> Any:
    """Return a packed batch with copies of what lies on the block, for torch to send."""
    storages: dict[OnBlock, torch.UntypedStorage] = {}
    tensors: dict[int, torch.Tensor] = {}

    def copied(leaf: Any) -> Any:
        if type(leaf) is not TensorOn:
            return leaf
        if leaf.storage not in storages:
            _, begin, nbytes = leaf.storage.place
            storages[leaf.storage] = torch.UntypedStorage(nbytes)  # type: ignore[no-untyped-call]
            storages[leaf.storage].copy_(storage_on(mapping, mapping.data_ptr() + begin, nbytes))
        return tensors.setdefault(id(leaf), tensor_on(storages[leaf.storage], *leaf.layout))

    return mapped(copied, batch, whole=True)


def _unreserved(nbytes: int) -> torch.UntypedStorage | None:
    """Return shared memory for one batch only; None: the system has none of the kind, and torch shares it its way."""
    try:
        descriptor = memory_file(nbytes)
    except OSError:
        return None
    try:
        return storage_in(descriptor, nbytes)
    finally:
        os.close(descriptor)


_forks = 0  # of this process: a child of a worker may hold a part of its block


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork)
