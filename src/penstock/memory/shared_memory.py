"""Batch memory that worker processes fill: made by the parent, mapped once by each worker, used batch after batch.

The parent reserves a block for each batch and names it in the task. The worker (worker_memory.py) builds the batch's
large tensors in it, one behind the other, and sends no memory, only where each storage lies. Small tensors are sent by
value. What finds no place goes torch's way, in new files of shared memory.

A reservation is a `Lease`. The record of the task holds it until the batch has come, and each storage that is made on
the block holds it for as long as a tensor, a view or an array has that storage. The end of the lease frees the block;
nothing else does. How it ends says whether the block is used again: see `State`.

Bounds: a block is as large as the largest of the last `RECENT` batches, rounded up by an eighth at most. The parent
has at most one for each batch in flight and `MOST_KEPT` more: a program that keeps more batches than that gets the
others torch's way. At most one for each batch in flight, and two more, are free. Blocks have no name in any file
system and need no space in /dev/shm; a worker opens its parent's descriptors by /proc.

Processes: SharedBuffers, Lease and the functions that make tensors of messages are the parent's, where any thread may
use them; a worker makes what it sends, OnBlock and InMessage.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from enum import Enum
from typing import Any, NamedTuple

import torch

import penstock._native as _native
from penstock.memory.buffers import storage_on
from penstock.system.process_events import at_fork

#: Bytes of a tensor from which on it lies in a block: below, sending it costs less.
SHARED_BYTES = 16 << 10
#: Blocks beside those of batches in flight. A tensor that a program keeps keeps its whole block.
MOST_KEPT = 6
#: Batches whose sizes say how large the next block is.
RECENT = 16


class BlockName(NamedTuple):
    """By which a worker finds a block and names its lease."""

    lease: int
    block: int
    pid: int
    descriptor: int
    nbytes: int
    oldest: int
    """The number of the parent's oldest block: those before it are gone, and workers need not keep them mapped."""


class SharedBlock:
    """Memory that processes share. blocks: all of its owner, itself in time."""

    def __init__(self, nbytes: int, blocks: weakref.WeakSet[SharedBlock]) -> None:
        at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
        self.blocks = blocks
        self.descriptor = memory_file(nbytes)
        weakref.finalize(self, os.close, self.descriptor)
        self.number, self.nbytes = next(_numbers), nbytes
        self._mapping = storage_in(self.descriptor, nbytes)
        self.address = self._mapping.data_ptr()


class State(Enum):
    """What may touch the block of a lease."""

    RESERVED = "reserved"
    """Nobody yet: no task names the block."""
    SENT = "sent"
    """A worker may write to it, also after a lease that ended so: its pass was left, or its worker lost."""
    RECEIVED = "received"
    """The parent's tensors, and nobody else: the worker has finished with it."""
    RETIRED = "retired"
    """Somebody who gives no notice: the block is never used again."""


class Lease:
    """The right to a block for one batch. Whoever may touch the memory holds it; with its end the block is free.

    block: which nobody else has. free: where the block goes then.
    """

    _frees = frozenset({State.RESERVED, State.RECEIVED})  # when Python ends, a module's names go before its objects

    def __init__(self, block: SharedBlock, free: deque[SharedBlock]) -> None:
        self._block, self._free = block, free
        self.state = State.RESERVED
        self.number = next(_numbers)
        _leases[self.number] = self

    def received(self, *, kept: bool = False) -> None:
        """Take note that the batch of the task has come, or its error. Raises RuntimeError: it was not sent.

        kept: the user's code in the worker holds a part of the block.
        """
        if self.state is State.RESERVED:
            raise RuntimeError(f"{self}: it was not sent")
        if kept:
            self.state = State.RETIRED
        elif self.state is State.SENT:
            self.state = State.RECEIVED

    def forked(self) -> None:
        """Take note that the process has forked: a child has its tensors, too."""
        if self.state is State.RECEIVED:
            self.state = State.RETIRED

    def sent(self) -> BlockName:
        """Return the name of the block, for a task: from here on a worker may write to it. Raises RuntimeError."""
        if self.state is not State.RESERVED:
            raise RuntimeError(f"{self}: it was sent before")
        self.state = State.SENT
        block = self._block
        oldest = min(one.number for one in block.blocks)
        return BlockName(self.number, block.number, os.getpid(), block.descriptor, block.nbytes, oldest)

    def storage(self, begin: int, nbytes: int) -> torch.UntypedStorage:
        """Return a storage on a part of the block, which holds this lease."""
        return storage_on(self, self._block.address + begin, nbytes)

    def __del__(self) -> None:
        if self.state in self._frees:
            self._free.append(self._block)

    def __repr__(self) -> str:
        return f"Lease(number={self.number}, block={self._block.number}, state={self.state.value})"


class SharedBuffers:
    """The blocks of one loader, in the parent. A forked child begins with none of its parent's."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque(maxlen=RECENT)
        self._in_flight = 0
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._blocks: weakref.WeakSet[SharedBlock] = weakref.WeakSet()
        self._free: deque[SharedBlock] = deque(maxlen=self._in_flight + 2)

    def expect(self, in_flight: int) -> None:
        """Take note of how many batches of the passes from here on are in flight."""
        if in_flight != self._in_flight:
            self._in_flight = in_flight
            self._free = deque(self._free, self._in_flight + 2)

    def learn(self, nbytes: int) -> None:
        """Take note of what the large tensors of a batch that has come take of a block."""
        self._sizes.append(nbytes)

    @property
    def block_bytes(self) -> int:
        """What the next batch is expected to take, rounded up so that sizes that grow need few new blocks."""
        need = max(self._sizes, default=0)
        step = max(4096, 1 << max(0, need.bit_length() - 4))
        return -(-need // step) * step

    def reserve(self) -> Lease | None:
        """Return a block for a batch; None where batches need none, or it cannot be had."""
        if self._pid != os.getpid():
            self._begin()
        nbytes = self.block_bytes
        if nbytes < SHARED_BYTES:
            return None
        block = self._take(nbytes)
        if block is None and len(self._blocks) < self._in_flight + MOST_KEPT:
            try:
                block = SharedBlock(nbytes, self._blocks)
            except (OSError, RuntimeError):  # no memory, or no descriptors
                return None
            self._blocks.add(block)
        return None if block is None else Lease(block, self._free)

    def _take(self, nbytes: int) -> SharedBlock | None:
        """Return a free block, of several the last that was used, which caches may hold. Those that do not fit end."""
        while self._free:
            block = self._free.pop()
            if nbytes <= block.nbytes <= 2 * nbytes:
                return block
        return None

    def counts(self) -> tuple[int, int]:
        """Return how many blocks there are, and how many of them are free."""
        return len(self._blocks), len(self._free)


_numbers = itertools.count()
_leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
_at_forks: list[list[Lease]] = []
"""The leases of each fork that is under way: none of them ends before it is noted."""


def _before_fork() -> None:
    _at_forks.append(list(_leases.values()))


def _after_fork_in_parent() -> None:
    for lease in _at_forks.pop() if _at_forks else ():  # none: another thread has made the first block meanwhile
        lease.forked()


def _after_fork_in_child() -> None:
    _at_forks.clear()
    _leases.clear()


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


class OnBlock:
    """A storage in a block, on its way to the parent."""

    def __init__(self, lease: int, begin: int, nbytes: int) -> None:
        self.place = lease, begin, nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _storage, self.place


class InMessage:
    """A small storage on its way to the parent."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        nbytes = storage.nbytes()
        self._bytes = _native.bytes_of(storage, storage.data_ptr(), nbytes).tobytes() if nbytes else b""

    def __reduce__(self) -> tuple[Any, ...]:
        return _stored, (self._bytes,)


def _storage(lease: int, begin: int, nbytes: int) -> torch.UntypedStorage:
    found = _leases[lease]
    found.received()
    return found.storage(begin, nbytes)


def _stored(values: bytes) -> torch.UntypedStorage:
    if not values:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(bytearray(values), dtype=torch.uint8).untyped_storage()
