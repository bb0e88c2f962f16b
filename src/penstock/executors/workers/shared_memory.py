"""Batch memory that worker processes fill: made by the parent, mapped once by each worker, used batch after batch.

The parent reserves blocks for the fields of a batch and names them in its task; the worker builds the batch in them and
sends no memory, only where each tensor lies. A block is free once nobody holds a tensor on it, as executors/buffers.py
has it. Small tensors are sent by value. All else goes torch's way, each batch in a new file of shared memory.

Processes: SharedBuffers and the tensors' functions at the end are the parent's; WorkerBuffers is a worker's. Blocks
have no name in any file system and need no space in /dev/shm; a worker opens its parent's descriptors by /proc.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import reductions

from penstock.executors.buffers import Block, Field, Rows, Shelf
from penstock.executors.workers.shm_space import ShmSpace

#: Bytes of a field of a batch from which on it lies in shared memory: below, sending it costs less than a block.
SHARED_BYTES = 16 << 10
#: Blocks that a parent makes at the most for one loader: each has two descriptors. The other batches of a program that
#: keeps all of them come torch's way.
MOST_BLOCKS = 128
#: Large tensors of a batch of the user's collate_fn that are copied to shared memory here; torch does the others.
MOST_COPIED = 8
#: Free blocks that a worker keeps for itself.
_OWN_BLOCKS = 4


class BlockName(NamedTuple):
    """By which a worker finds a block."""

    number: int
    """Of the block, in its parent process."""
    pid: int
    descriptor: int
    nbytes: int


class SharedBlock(Block):
    """A storage in memory that processes share."""

    def __init__(self, nbytes: int) -> None:
        descriptor = memory_file(nbytes)
        weakref.finalize(self, os.close, descriptor)
        super().__init__(_storage(descriptor, nbytes))
        self.name = BlockName(next(_numbers), os.getpid(), descriptor, nbytes)
        self._key = reductions.fd_id(descriptor)  # type: ignore[no-untyped-call]
        self._forked = False
        self.lent = False
        """A tensor on it has been made since it was reserved."""
        self.held = False
        """A worker's code, the user's, has kept a part of a batch on it."""

    @property
    def sound(self) -> bool:
        """Whether nobody but this process and the loader's workers has the memory that the storage was made with.

        A program may have sent a batch to another process, or forked one off while it held a batch.
        """
        storage = self.storage
        same = storage.nbytes() == self.nbytes and storage.data_ptr() == self.address
        return same and not (self._forked or self.held) and self._key not in reductions.shared_cache

    def note_fork(self) -> None:
        """Take note of a fork: a batch on this memory is the child's too."""
        self._forked |= self.is_held


class SharedBuffers:
    """The blocks of one loader, in the parent.

    Attributes:
        field_bytes: of a sample, of each field; empty until a worker has reported them.
    """

    def __init__(self) -> None:
        self._shelf = Shelf(0)
        self._made: weakref.WeakSet[SharedBlock] = weakref.WeakSet()
        self.field_bytes: Sequence[int] = ()
        self.space = ShmSpace()
        """For the batches that come torch's way."""

    def reserve(self, samples: int) -> tuple[SharedBlock, ...]:
        """Return blocks for a batch; none where they cannot be had. They are the caller's until it gives them back."""
        blocks: list[SharedBlock] = []
        for nbytes in (samples * field for field in self.field_bytes):
            if nbytes < SHARED_BYTES:
                continue
            block = self._shelf.take(nbytes)
            if block is None:
                try:
                    block = self._make(nbytes)
                except (OSError, RuntimeError):  # no memory, or no descriptors: the batch comes torch's way
                    block = None
            if block is None:
                self.give_back(blocks)
                return ()
            assert isinstance(block, SharedBlock)
            block.lent = False
            blocks.append(block)
        return tuple(blocks)

    def _make(self, nbytes: int) -> SharedBlock | None:
        if len(self._made) >= MOST_BLOCKS:
            return None
        block = SharedBlock(nbytes)
        self._made.add(block)
        _blocks[block.name.number], _shelves[block.name.number] = block, self._shelf
        return block

    def give_back(self, blocks: Iterable[SharedBlock], held: Sequence[int] = ()) -> None:
        """Take back the blocks of a batch that has come, or never comes. Those with a tensor come back with its end.

        held: numbers of those that are not to be used again.
        """
        for block in blocks:
            block.held = block.name.number in held
            if not block.lent:
                self._shelf.give_back(block)

    def learn(self, field_bytes: Sequence[int], in_flight: int) -> None:
        """Take note of the bytes of a sample in each field, and of how many batches are in flight."""
        self.field_bytes = field_bytes
        self._shelf.keep = (in_flight + 2) * len(field_bytes)


def _note_fork() -> None:
    for block in list(_blocks.values()):
        block.note_fork()


os.register_at_fork(after_in_parent=_note_fork)
_numbers = itertools.count()
_blocks: weakref.WeakValueDictionary[int, SharedBlock] = weakref.WeakValueDictionary()
_shelves: weakref.WeakValueDictionary[int, Shelf] = weakref.WeakValueDictionary()


def memory_file(nbytes: int) -> int:
    """Return the descriptor of a new file in memory. Raises OSError."""
    descriptor = os.memfd_create("penstock-batch", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)  # memory that is not to be had is an error here, not a SIGBUS later
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _storage(descriptor: int, nbytes: int) -> torch.UntypedStorage:
    return torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes)  # type: ignore[attr-defined, no-any-return]


class WorkerBuffers:
    """The batch memory of a worker process."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[int, Block] = OrderedDict()
        self._free: list[BlockName] = []
        self._used: dict[int, int] = {}  # numbers of blocks that rows lie in, by address
        self._copied: dict[int, int] = {}  # numbers of blocks, by the address of the storage that was copied to each
        self._unreserved: dict[int, Block] = {}  # by address: rows, and copied storages, that lie in no block
        self._seen: Counter[int] = Counter()  # tensors of the user's batch, by the address of their storage
        self._of_user = False
        self.large: dict[int, tuple[int, bool]] = {}
        """By address, the bytes of each large storage in the batch, and whether it is sent in a block."""

    def begin(self, names: Sequence[BlockName]) -> None:
        """Use these blocks for the batch that comes."""
        self._free = list(names)
        self._used, self._copied, self._unreserved, self.large = {}, {}, {}, {}
        self._seen = Counter()

    @property
    def placed(self) -> int:
        """How many fields of the batch lie in blocks."""
        return len(self._used)

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
        block = None if nbytes < SHARED_BYTES else self._reserved(nbytes)
        return None if block is None else _rows_on(block, samples, field)

    def note_unreserved(self, block: Block) -> None:
        """Take note that rows of the batch lie in shared memory that the parent has not reserved."""
        self._unreserved[block.address] = block

    def _reserved(self, nbytes: int) -> Block | None:
        """Return a block that the parent has reserved; None: none has that size, or it cannot be opened."""
        name = next((name for name in self._free if name.nbytes == nbytes), None)
        if name is None:
            return None
        self._free.remove(name)
        block = self._mapped.get(name.number)
        if block is None:
            try:
                descriptor = os.open(f"/proc/{name.pid}/fd/{name.descriptor}", os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return None
            try:
                block = Block(_storage(descriptor, name.nbytes))
            finally:
                os.close(descriptor)
            self._mapped[name.number] = block
            if len(self._mapped) > MOST_BLOCKS:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(name.number)
        self._used[block.address] = name.number
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
        number = self._used.get(address, self._copied.get(address))
        if number is not None:
            self.large[address] = storage.nbytes(), True
            return _InBlock(number, tensor)
        # A quantised tensor is more than its elements, and torch warns of each empty one of complex halves.
        plain = not tensor.is_quantized and tensor.dtype is not torch.complex32
        if storage.nbytes() < SHARED_BYTES:
            return _ByValue(tensor) if plain and self._alone(tensor, storage) else tensor
        if address in self._unreserved:
            self.large[address] = storage.nbytes(), False
            return self._unreserved[address].tensor(
                tensor.shape, tensor.stride(), tensor.dtype, int(tensor.storage_offset())
            )
        if not plain or storage.is_shared() or tensor.is_conj() or tensor.is_neg() or len(self.large) >= MOST_COPIED:
            return tensor
        return self._copy(tensor, storage, address)

    def _copy(self, tensor: torch.Tensor, storage: torch.UntypedStorage, address: int) -> Any:
        """Copy the storage of a tensor into a block, or other shared memory, and return the tensor there."""
        block = self._reserved(storage.nbytes())
        self.large[address] = storage.nbytes(), block is not None
        if block is not None:
            self._copied[address] = self._used.pop(block.address)
        else:
            block = _unreserved(storage.nbytes())
            if block is None:
                return tensor
            self._unreserved[address] = block
        block.storage.copy_(storage)
        return self._packed_tensor(tensor)

    def take_back(self, packed: Any) -> tuple[Any, tuple[int, ...]]:
        """Return a packed batch with copies of the rows that somebody in this process holds, and the blocks of these.

        The blocks are forgotten. Called when nobody but the user's code can hold a part of the batch.
        """
        held = {number: self._mapped[number] for number in self._used.values() if self._mapped[number].is_held}
        if not held:
            return packed, ()
        copies = {number: _copy_of(block) for number, block in held.items()}
        for number in held:
            del self._mapped[number]
        return mapped(lambda part: part.copied(copies) if type(part) is _InBlock else part, packed, whole=True), (
            *held,
        )


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


def mapped(function: Callable[[Any], Any], batch: Any, *, whole: bool = False) -> Any:
    """Return a batch with a function's value in the place of each leaf of its dictionaries, lists and tuples.

    whole: a class derived from a named tuple is a leaf: its constructor may look at what it gets.
    """
    kind = type(batch)
    if kind is dict:
        return {key: mapped(function, value, whole=whole) for key, value in batch.items()}
    if kind in (list, tuple):
        return kind(mapped(function, value, whole=whole) for value in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields") and (not whole or kind.__bases__ == (tuple,)):
        return kind(*(mapped(function, value, whole=whole) for value in batch))
    return function(batch)


def _unreserved(nbytes: int) -> Block | None:
    """Return memory for one batch alone; None: the system has none of the kind, and torch shares the batch its way."""
    try:
        descriptor = memory_file(nbytes)
    except OSError:
        return None
    try:
        return Block(_storage(descriptor, nbytes))
    finally:
        os.close(descriptor)


class _InBlock:
    """A tensor in a block, on its way to the parent."""

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self._arguments = (number, tensor.dtype, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())

    def copied(self, copies: Mapping[int, Block]) -> Any:
        """Return the tensor on a copy of its block; this, where there is none."""
        number, dtype, offset, shape, strides = self._arguments
        return self if number not in copies else copies[number].tensor(shape, strides, dtype, offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_block, self._arguments


class _ByValue:
    """A small tensor on its way to the parent."""

    def __init__(self, tensor: torch.Tensor) -> None:
        elements = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        self._arguments = (elements, tensor.dtype, tuple(tensor.shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_value, self._arguments


def _in_block(
    number: int, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    block = _blocks[number]
    tensor = block.tensor(shape, strides, dtype, offset)
    if not block.lent:  # it comes back once, however many tensors lie on it; who takes it looks whether any is left
        block.lent = True
        _shelves[number].lend(block, tensor)
    return tensor


def _by_value(elements: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    if elements:
        tensor.view(-1).view(torch.uint8).numpy()[:] = memoryview(elements)
    return tensor
