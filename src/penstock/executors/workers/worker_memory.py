"""The memory of a worker process for its batches: the blocks that its parent has reserved, and what it makes itself.

Where the tensors of a batch have sizes of their own, they lie in one block, one behind the other; torchvision's
transforms write theirs there at once.
"""

from __future__ import annotations

import math
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from penstock.executors.buffers import Block, Field, Rows, Shelf
from penstock.executors.workers.shared_memory import (
    MOST_BLOCKS,
    SHARED_BYTES,
    BlockName,
    ByValue,
    InBlock,
    Part,
    SharedBlock,
    mapped,
    memory_file,
    storage_in,
)

#: Large tensors of a batch that get a new file of shared memory each, where none is reserved; torch does the others.
MOST_COPIED = 8
#: Free blocks that a worker keeps for itself.
_OWN_BLOCKS = 4
#: Bytes between the beginnings of tensors in one block: those of a line of the CPU's caches.
_ALIGNED = 64


class _Divided:
    """A block that holds tensors of a batch, one behind the other."""

    def __init__(self, number: int, block: Block) -> None:
        self.number, self.block = number, block
        self._used = 0

    def take(self, nbytes: int) -> Part | None:
        """Return a part that is free; None: there is none of that size left."""
        part = Part(self._used, nbytes)
        if self._used + nbytes > self.block.nbytes:
            return None
        self._used += aligned(nbytes)
        return part


def aligned(nbytes: int) -> int:
    """Return the bytes that a tensor takes of a divided block."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


class WorkerBuffers:
    """The batch memory of a worker process."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[int, Block] = OrderedDict()
        self._places = True  # what transforms make is expected to be sent, and not to be kept
        self.begin(())

    def begin(self, names: Sequence[BlockName]) -> None:
        """Use these blocks for the batch that comes."""
        self._free = list(names)
        self._divided: _Divided | None = None
        # By the address of each storage that lies in a block, or was copied to one: its number, and the part of it.
        self._placed: dict[int, tuple[int, Part | None]] = {}
        self._lent: set[int] = set()  # numbers of the blocks in which rows lie, or what transforms make
        self._made: dict[int, int] = {}  # bytes of what transforms make in the divided block, by address
        self._unreserved: dict[int, Block] = {}  # by address: rows, and copied storages, that lie in no block
        self._seen: Counter[int] = Counter()  # tensors of the user's batch, by the address of their storage
        self._of_user = False
        self.large: dict[int, tuple[int, bool]] = {}
        """By address, the bytes of each large storage in the batch, and whether it is sent in a block."""

    def abandon(self) -> None:
        """Forget the blocks of a batch that failed: whoever made its samples may hold them."""
        for number in self._lent:
            self._mapped.pop(number, None)
        self.begin(())

    @property
    def placed(self) -> int:
        """How many fields of the batch lie in blocks."""
        return len(self._lent)

    def rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for a field of a batch."""
        nbytes = samples * field.nbytes
        rows = self.reserved_rows(samples, field)
        if rows is not None:
            return rows
        block = _unreserved(nbytes) if nbytes >= SHARED_BYTES else None
        if block is None:
            tensor = torch.empty((samples, *field.shape), dtype=field.dtype, device="cpu")
            return Rows(tensor, tensor.data_ptr(), nbytes)
        self.note_unreserved(block)
        return _rows_on(block, samples, field)

    def reserved_rows(self, samples: int, field: Field) -> Rows | None:
        """Return memory for a field of a batch in a block that the parent has reserved; None: it has reserved none."""
        nbytes = samples * field.nbytes
        found = None if nbytes < SHARED_BYTES else self._reserved(nbytes)
        if found is None:
            return None
        number, block = found
        self._placed[block.address] = number, None
        self._lent.add(number)
        return _rows_on(block, samples, field)

    def note_unreserved(self, block: Block) -> None:
        """Take note that rows of the batch lie in shared memory that the parent has not reserved."""
        self._unreserved[block.address] = block

    def room(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return memory for a tensor that a transform makes, in the divided block; None: there is none."""
        nbytes = math.prod(shape) * dtype.itemsize
        found = self._part(nbytes) if self._places and nbytes >= SHARED_BYTES else None
        if found is None:
            return None
        number, part, block = found
        self._placed[block.address] = number, part
        self._lent.add(number)
        self._made[block.address] = nbytes
        return block.tensor(tuple(shape), torch.empty(shape, device="meta").stride(), dtype)

    def _part(self, nbytes: int) -> tuple[int, Part, Block] | None:
        """Return the number of the divided block, a free part of it, and that part as a block.

        None: none is reserved, or it cannot be opened, or is full.
        """
        if self._divided is None:
            name = next((name for name in self._free if name.divided), None)
            block = None if name is None else self._opened(name)
            if name is None or block is None:
                return None
            self._divided = _Divided(name.number, block)
        part = self._divided.take(nbytes)
        return None if part is None else (self._divided.number, part, part.of(self._divided.block))

    def _reserved(self, nbytes: int) -> tuple[int, Block] | None:
        """Return the number of a block that the parent has reserved, and the block.

        None: none has that size, or it cannot be opened.
        """
        name = next((name for name in self._free if name.nbytes == nbytes and not name.divided), None)
        block = None if name is None else self._opened(name)
        return None if name is None or block is None else (name.number, block)

    def _opened(self, name: BlockName) -> Block | None:
        """Return a block, which is not free from here on; None: it cannot be opened."""
        self._free.remove(name)
        block = self._mapped.get(name.number)
        if block is None:
            try:
                descriptor = os.open(f"/proc/{name.pid}/fd/{name.descriptor}", os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return None
            try:
                block = Block(storage_in(descriptor, name.nbytes))
            finally:
                os.close(descriptor)
            self._mapped[name.number] = block
            if len(self._mapped) > MOST_BLOCKS:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(name.number)
        return block

    def packed(self, batch: Any, *, of_user: bool = False) -> Any:
        """Return a batch as it is sent: tensors in blocks by where they lie, small ones by value, large ones copied.

        What is left, as other than plain tensors, torch sends its way; of a batch of the user's collate_fn also small
        ones that share memory with others, or are a part of it: they do so where they arrive.
        """
        self._of_user = of_user
        if of_user:
            mapped(self._count, batch, whole=True)
        return mapped(self._packed_tensor, batch, whole=of_user)

    def _count(self, tensor: Any) -> Any:
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_cpu:
            self._seen[tensor.untyped_storage().data_ptr()] += 1
        return tensor

    def _alone(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Return whether a tensor is all that lies in its memory, in the usual layout, and the only one of a batch."""
        if not self._of_user:
            return tensor.is_contiguous()
        usual = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").stride() == tensor.stride()
        return usual and tensor.nbytes == storage.nbytes() and self._seen[storage.data_ptr()] == 1

    def _packed_tensor(self, tensor: Any) -> Any:
        if type(tensor) is not torch.Tensor:
            return tensor
        if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
            return tensor
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._placed:
            self.large[address] = storage.nbytes(), True
            return InBlock(*self._placed[address], tensor)
        # A quantised tensor is more than its elements, and torch warns of each empty one of complex halves.
        plain = not tensor.is_quantized and tensor.dtype is not torch.complex32
        if storage.nbytes() < SHARED_BYTES:
            return ByValue(tensor) if plain and self._alone(tensor, storage) else tensor
        if address in self._unreserved:
            self.large[address] = storage.nbytes(), False
            return self._unreserved[address].tensor(
                tensor.shape, tensor.stride(), tensor.dtype, int(tensor.storage_offset())
            )
        if not plain or storage.is_shared() or tensor.is_conj() or tensor.is_neg():
            return tensor
        return self._copy(tensor, storage, address)

    def _copy(self, tensor: torch.Tensor, storage: torch.UntypedStorage, address: int) -> Any:
        """Copy the storage of a tensor into a block, or other shared memory, and return the tensor there."""
        nbytes = storage.nbytes()
        block: Block | None
        if (whole := self._reserved(nbytes)) is not None:
            number, block = whole
            self._placed[address] = number, None
        elif (found := self._part(nbytes)) is not None:
            number, part, block = found
            self._placed[address] = number, part
        else:
            self.large[address] = nbytes, False
            block = _unreserved(nbytes) if len(self._unreserved) < MOST_COPIED else None
            if block is None:
                return tensor
            self._unreserved[address] = block
        block.storage.copy_(storage)
        return self._packed_tensor(tensor)

    def take_back(self, packed: Any) -> tuple[Any, tuple[int, ...]]:
        """Return a packed batch with copies of the rows that somebody in this process holds, and the blocks of these.

        The blocks are forgotten. Called when nobody but the user's code can hold a part of the batch.
        """
        sent = sum(nbytes for address, nbytes in self._made.items() if address in self.large)
        self._places &= 2 * sent >= sum(self._made.values())
        held = {number: self._mapped[number] for number in self._lent if self._mapped[number].is_held}
        if not held:
            return packed, ()
        self._places &= self._divided is None or self._divided.number not in held
        for number in held:
            del self._mapped[number]
        copies: dict[Any, Block] = {}  # of storages, by the block and the part

        def copied(leaf: Any) -> Any:
            if type(leaf) is not InBlock or leaf.number not in held:
                return leaf
            key = leaf.number, leaf.part
            if key not in copies:
                copies[key] = _copy_of(held[leaf.number] if leaf.part is None else leaf.part.of(held[leaf.number]))
            return copies[key].tensor(*leaf.layout)

        return mapped(copied, packed, whole=True), tuple(held)


class OwnMemory:
    """Shared memory of a worker process for the rows of samples that its collate_fn makes something else of.

    As default_collate of torch has it in a worker, they lie in shared memory; it is used again once nobody holds it.

    Args:
        buffers: takes note of each block.
    """

    def __init__(self, buffers: WorkerBuffers) -> None:
        self._buffers = buffers
        self._shelf = Shelf(_OWN_BLOCKS)

    def rows(self, samples: int, field: Field) -> Rows:
        """Return uninitialised memory for a field of a batch: private, where the system has no more to share."""
        nbytes = max(1, samples * field.nbytes)
        try:
            block = self._shelf.take(nbytes) or SharedBlock(nbytes)
        except OSError:
            tensor = torch.empty((samples, *field.shape), dtype=field.dtype, device="cpu")
            return Rows(tensor, tensor.data_ptr(), samples * field.nbytes)
        rows = _rows_on(block, samples, field)
        self._shelf.lend(block, rows.tensor)
        self._buffers.note_unreserved(block)
        return rows


def _rows_on(block: Block, samples: int, field: Field) -> Rows:
    tensor = block.tensor((samples, *field.shape), field.strides, field.dtype)
    return Rows(tensor, block.address, samples * field.nbytes)


def _copy_of(block: Block) -> Block:
    """Return a block of private memory with what a block holds."""
    storage = torch.UntypedStorage(block.nbytes)  # type: ignore[no-untyped-call]
    storage.copy_(block.storage)
    return Block(storage)


def _unreserved(nbytes: int) -> Block | None:
    """Return memory for one batch alone; None: the system has none of the kind, and torch shares the batch its way."""
    try:
        descriptor = memory_file(nbytes)
    except OSError:
        return None
    try:
        return Block(storage_in(descriptor, nbytes))
    finally:
        os.close(descriptor)
