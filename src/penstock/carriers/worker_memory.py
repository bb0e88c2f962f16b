"""The memory of a worker process for its batches: a part of the parent's block for each large tensor.

The rows of samples are built there, and other large tensors of a batch are copied there. What finds no place goes
torch's way.
"""

from __future__ import annotations

import io
import os
import pickle
import weakref
from collections import OrderedDict
from typing import Any

import torch

from penstock.carriers.pipes import MessagePickler
from penstock.memory.buffers import Field, Rows, storage_on, tensor_on
from penstock.memory.shared_mappings import has_storage
from penstock.memory.shared_memory import SHARED_BYTES, BlockName, InMessage, OnBlock, memory_file, storage_in
from penstock.system.process_events import at_fork

#: Batches after which a block that none of them used is not mapped any more.
_UNUSED = 32
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
        gone = (n for n, (_, used) in self._known.items() if n < name.oldest or used + _UNUSED < self._batches)
        for number in [*gone]:
            del self._known[number]
        return mapping


class WorkerBuffers:
    """The batch memory of a worker process.

    Attributes:
        needed: bytes that the latest batch takes, or would have taken, of a block.
        kept: the user's code in this process holds a part of the block.
    """

    def __init__(self) -> None:
        at_fork(after_in_parent=_count_fork)
        self._mappings = _Mappings()
        self.begin(None)

    def begin(self, name: BlockName | None) -> None:
        """Use this block for the batch that comes."""
        self._name = name
        mapping = None if name is None else self._mappings.of(name)
        self._use = None if name is None or mapping is None else _Use(name, mapping)
        self._placed: dict[int, tuple[torch.UntypedStorage, OnBlock]] = {}  # storages on the block, by their _cdata
        self._forks, self.needed, self.kept = _forks, 0, False

    def begin_anew(self) -> None:
        self.begin(self._name)

    def rows(self, samples: int, field: Field) -> Rows:
        shape, nbytes = (samples, *field.shape), samples * field.nbytes
        storage = self.storage(nbytes) if nbytes >= SHARED_BYTES else None
        if storage is None:
            tensor = torch.empty(shape, dtype=field.dtype, device="cpu")
        else:
            tensor = tensor_on(storage, shape, field.strides, field.dtype)
        return Rows(tensor, tensor.data_ptr(), nbytes)

    def storage(self, nbytes: int) -> torch.UntypedStorage | None:
        """Return memory on the block, or else its own shared memory; None: the system has none of the kind."""
        self.needed += aligned(nbytes)
        taken = None if self._use is None else self._use.take(nbytes)
        if taken is None:
            return _unreserved(nbytes)
        self._placed[taken[0]._cdata] = taken
        return taken[0]

    def message_of(self, storage: torch.UntypedStorage, nbytes: int) -> Any:
        """Return what a storage is sent as. nbytes: of a tensor on it."""
        whole = storage.nbytes()
        if storage._cdata not in self._placed and not storage.is_shared():
            if whole < SHARED_BYTES:
                return InMessage(storage)
            copy = self.storage(whole) if whole <= 2 * nbytes else None
            if copy is not None:
                storage = copy.copy_(storage)
        _, message = self._placed.get(storage._cdata, (None, storage))
        return message

    def packed(self, made: list[Any]) -> Packed:
        """Return the only item of a list, a batch, as it is sent.

        Storages on the block are sent by where they lie, small ones by value, large ones are copied to the block. What
        is left torch sends its way: other than plain tensors, and small parts of large storages.
        """
        packed = Packed(made.pop(), self)
        use, self._use = self._use, None
        if use is not None:
            held = weakref.ref(use)
            self._placed.clear()
            del use
            self.kept = held() is not None or self._forks != _forks
        return packed


class Packed:
    """A batch as it is sent: it arrives as the batch, which its own pickler has written."""

    def __init__(self, batch: Any, buffers: WorkerBuffers) -> None:
        written = io.BytesIO()
        _Pickler(written, buffers).dump(batch)
        self._message = written.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._message,)


class _Pickler(MessagePickler):
    """Sends each storage of plain tensors once: tensors that share memory do so where they arrive."""

    def __init__(self, file: io.BytesIO, buffers: WorkerBuffers) -> None:
        super().__init__(file)
        self._buffers = buffers
        self._sent: dict[int, tuple[torch.UntypedStorage, Any]] = {}

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is torch.Tensor and has_storage(value) and not (value.requires_grad or value.is_quantized)
        if not plain or value.is_conj() or value.is_neg():
            return super().reducer_override(value)
        storage = value.untyped_storage()
        if storage._cdata not in self._sent:
            self._sent[storage._cdata] = storage, self._buffers.message_of(storage, value.nbytes)
        _, message = self._sent[storage._cdata]
        return tensor_on, (message, tuple(value.shape), value.stride(), value.dtype, int(value.storage_offset()))


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
