"""Batch memory that worker processes fill: made by the parent, mapped once by each worker, used batch after batch.

The parent reserves blocks for a batch and names them in its task: one for each field, or one for all of its tensors,
where these have sizes of their own. The worker (worker_memory.py) builds the batch in them and sends no memory, only
where each tensor lies. A block is free once nobody holds a tensor on it, as executors/buffers.py has it. Small tensors
are sent by value. All else goes torch's way, each batch in a new file of shared memory.

Processes: SharedBuffers and the functions at the end are the parent's; a worker makes what it sends, InBlock and
ByValue. Blocks have no name in any file system and need no space in /dev/shm; a worker opens its parent's descriptors
by /proc.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import reductions

from penstock.executors.buffers import Block, Shelf
from penstock.executors.workers.shm_space import ShmSpace

#: Bytes of a field of a batch from which on it lies in shared memory: below, sending it costs less than a block.
SHARED_BYTES = 16 << 10
#: Blocks that a parent makes at the most for one loader: each has two descriptors. The other batches of a program that
#: keeps all of them come torch's way.
MOST_BLOCKS = 128
#: Divided blocks beside those of batches in flight. A tensor that a program keeps keeps its whole block: a program that
#: keeps one of each batch gets the others torch's way, each tensor in memory of its own.
MOST_KEPT = 6


class BlockName(NamedTuple):
    """By which a worker finds a block."""

    number: int
    """Of the block, in its parent process."""
    pid: int
    descriptor: int
    nbytes: int
    divided: bool
    """Any number of tensors lie in it, one behind the other; else it has the size of one field."""


class Needs(NamedTuple):
    """The shared memory that batches need."""

    field_bytes: tuple[int, ...] = ()
    """Bytes of a sample in each field."""
    loose_bytes: int = 0
    """Bytes of a batch's large tensors where they make no fields, each with an end that is aligned."""


class Part(NamedTuple):
    """The part of a divided block that one storage has."""

    begin: int
    nbytes: int

    def of(self, block: Block) -> Block:
        """Return the part of a block: a storage of its own, which holds the block's."""
        return Block(block.storage[self.begin : self.begin + self.nbytes])


class SharedBlock(Block):
    """A storage in memory that processes share."""

    def __init__(self, nbytes: int, *, divided: bool = False) -> None:
        descriptor = memory_file(nbytes)
        weakref.finalize(self, os.close, descriptor)
        super().__init__(storage_in(descriptor, nbytes))
        self.name = BlockName(next(_numbers), os.getpid(), descriptor, nbytes, divided)
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
        needs: of its batches, as the workers have reported them.
    """

    def __init__(self) -> None:
        self._fields, self._divided = Shelf(0), Shelf(0)
        self._made: weakref.WeakSet[SharedBlock] = weakref.WeakSet()
        self._most_divided = 0
        self.needs = Needs()
        self.space = ShmSpace()
        """For the batches that come torch's way."""

    def reserve(self, samples: int) -> tuple[SharedBlock, ...]:
        """Return blocks for a batch; none where they cannot be had. They are the caller's until it gives them back."""
        blocks: list[SharedBlock] = []
        fields = [(samples * nbytes, self._fields) for nbytes in self.needs.field_bytes]
        for nbytes, shelf in [*fields, (self.needs.loose_bytes, self._divided)]:
            if nbytes < SHARED_BYTES:
                continue
            block = shelf.take(nbytes)
            if block is None:
                try:
                    block = self._make(nbytes, shelf)
                except (OSError, RuntimeError):  # no memory, or no descriptors: the batch comes torch's way
                    block = None
            if block is None:
                self.give_back(blocks)
                return ()
            assert isinstance(block, SharedBlock)
            block.lent = False
            blocks.append(block)
        return tuple(blocks)

    def _make(self, nbytes: int, shelf: Shelf) -> SharedBlock | None:
        divided = shelf is self._divided
        alike = sum(block.nbytes == nbytes for block in self._made if block.name.divided) if divided else 0
        if len(self._made) >= MOST_BLOCKS or (divided and alike >= self._most_divided):
            return None
        block = SharedBlock(nbytes, divided=divided)
        self._made.add(block)
        _blocks[block.name.number], _shelves[block.name.number] = block, shelf
        return block

    def give_back(self, blocks: Iterable[SharedBlock], held: Container[int] | None = ()) -> None:
        """Take back the blocks of a batch that has come, or never comes. Those with a tensor come back with its end.

        held: numbers of those that are not to be used again; None: all of them.
        """
        for block in blocks:
            block.held = held is None or block.name.number in held
            if not block.lent and not block.held:  # while both are collected, no weak reference leads to a shelf
                (self._divided if block.name.divided else self._fields).give_back(block)

    def learn(self, needs: Needs, in_flight: int) -> None:
        """Take note of what a worker has reported, and of how many batches are in flight."""
        loose = needs.loose_bytes
        if loose and not _parts_hold():
            loose = 0
        if loose:  # sizes a sixteenth to an eighth apart
            step = max(SHARED_BYTES, 1 << loose.bit_length() - 4)
            loose = max(self.needs.loose_bytes, -(-loose // step) * step)
        self.needs = Needs(needs.field_bytes, loose)
        self._fields.keep = (in_flight + 2) * len(needs.field_bytes)
        self._divided.keep, self._most_divided = (in_flight + 2) * bool(loose), in_flight + MOST_KEPT


@functools.cache
def _parts_hold() -> bool:
    """Return whether this torch tells that a part of a block is in use."""
    block = Block(torch.UntypedStorage(16))  # type: ignore[no-untyped-call]
    tensor = Part(8, 8).of(block).tensor((8,), (1,), torch.uint8)
    held = block.is_held
    del tensor
    return held and not block.is_held


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


def storage_in(descriptor: int, nbytes: int) -> torch.UntypedStorage:
    """Return a storage in a file of memory. Raises RuntimeError."""
    return torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes)  # type: ignore[attr-defined, no-any-return]


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


class InBlock:
    """A tensor in a block, on its way to the parent. part: that of its storage, in a divided block."""

    def __init__(self, number: int, part: Part | None, tensor: torch.Tensor) -> None:
        self.number, self.part = number, part
        self.layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, int(tensor.storage_offset())

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_block, (self.number, self.part, *self.layout)


class ByValue:
    """A small tensor on its way to the parent."""

    def __init__(self, tensor: torch.Tensor) -> None:
        elements = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        self._arguments = (elements, tensor.dtype, tuple(tensor.shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_value, self._arguments


def _in_block(number: int, part: Part | None, *layout: Any) -> torch.Tensor:
    block = _blocks[number]
    tensor = (block if part is None else part.of(block)).tensor(*layout)
    if not block.lent:  # it comes back once, however many tensors lie on it; who takes it looks whether any is left
        block.lent = True
        _shelves[number].lend(block, tensor)
    return tensor


def _by_value(elements: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    if elements:
        tensor.view(-1).view(torch.uint8).numpy()[:] = memoryview(elements)
    return tensor
