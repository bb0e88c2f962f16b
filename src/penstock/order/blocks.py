"""The order of samples that lie in blocks, such as the shards of an object store: shuffled within a window of blocks.

The blocks come in a random order. Each block's samples are shuffled and cut into as many chunks as the window has
blocks, and one chunk after the other goes into one slot of the epoch after the other, from the block's own slot on.
A slot so holds a chunk of each block of a window that moves on by one block a slot, and is shuffled within itself. The
chunks before the first full window are in the first slot, and those behind the last one in the last slot.

All of this is a function of (seed, epoch, position): any position is computed only from its slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidOption
from penstock.order.permutations import Indices, KeyedShuffle, Order, check_positions, derived_seed
from penstock.system.randomness import digest

#: Blocks in the window where nothing else is given.
DEFAULT_WINDOW = 8
#: Slots whose order is kept: threads may take positions on both sides of the end of a slot.
_KEPT_SLOTS = 3


def checked_window(window: object) -> int:
    """Return a window= argument: the number of blocks, at least 1. Raises InvalidOption."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise InvalidOption(f"window={window!r}: it is the number of shards that are shuffled together, 1 or more")
    return window


@dataclass(frozen=True, eq=False)
class Blocks:
    """Samples in blocks, and how many blocks are shuffled together.

    Args:
        sizes: the number of samples in each block, int64.
        members: the index of each sample, block after block; None: the samples are numbered block after block.
    """

    sizes: NDArray[np.int64]
    window: int
    members: Indices | None = None
    noun: str = "shard"
    """What messages call a block."""

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Return the number of samples up to the end of each block."""
        return np.cumsum(self.sizes, dtype=np.int64)

    @property
    def samples(self) -> int:
        return int(self.ends[-1]) if len(self.sizes) else 0

    @property
    def full(self) -> bool:
        """Whether the window holds all blocks, and the order is that of a full shuffle."""
        return self.window >= len(self.sizes)

    def kind(self) -> str:
        """Return what tells the order from orders of other blocks and windows; empty for a full shuffle."""
        if self.full:
            return ""
        cut = digest(len(self.sizes), *np.unique(self.sizes).tolist()[:16], self.samples)[:4].hex()
        return f" in windows of {self.window} of {len(self.sizes)} {self.noun}s ({cut})"

    def order(self, seed: int, epoch: int) -> Order:
        if self.full:
            return KeyedShuffle(self.samples, seed, epoch)
        return BlockShuffle(self, seed, epoch)

    def of_samples(self, indices: Indices) -> NDArray[np.int64]:
        if self.members is None:
            return np.searchsorted(self.ends, indices, side="right")
        return self._block_of_sample[indices]

    @cached_property
    def _block_of_sample(self) -> NDArray[np.int64]:
        assert self.members is not None
        blocks = np.empty(self.samples, dtype=np.int64)
        blocks[self.members] = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return blocks


def grouped(block_of_position: NDArray[np.int64], window: int) -> Blocks:
    """Return the blocks of samples, of which each lies in a block of a known number; empty blocks are left out."""
    members = np.argsort(block_of_position, kind="stable").astype(np.int64)
    sizes = np.bincount(block_of_position)
    return Blocks(sizes[sizes > 0].astype(np.int64), window, members)


def joined(parts: Sequence[Blocks]) -> Blocks:
    """Return the blocks of datasets that stand one behind the other, with the largest window of theirs."""
    begins = np.cumsum([0, *(part.samples for part in parts)])
    members = None
    if any(part.members is not None for part in parts):
        own = [np.arange(part.samples) if part.members is None else part.members for part in parts]
        members = np.concatenate([one + begin for one, begin in zip(own, begins, strict=False)])
    sizes = np.concatenate([part.sizes for part in parts])
    return Blocks(sizes, max(part.window for part in parts), members)


class BlockShuffle:
    """The order of an epoch, shuffled within a window of blocks; several threads may take positions at once.

    Memory: a few numbers for each block, and 8 bytes for each sample of a few slots.

    Args:
        blocks: with a window of fewer blocks than there are.
        seed, epoch: the key. Only the low 64 bits of the seed count.
    """

    def __init__(self, blocks: Blocks, seed: int, epoch: int) -> None:
        self._blocks = blocks
        self._key = (seed, epoch)
        count, window = len(blocks.sizes), blocks.window
        self.sequence = self._shuffle(count, b"blocks", 0).take(0, count)
        """The blocks in the order in which they come into the window."""
        sizes = blocks.sizes[self.sequence]
        filled = np.zeros(count - window + 1, dtype=np.int64)
        for chunk in range(window):
            of_chunk = sizes * (chunk + 1) // window - sizes * chunk // window
            slots = np.clip(np.arange(count) + chunk - (window - 1), 0, count - window)  # of the chunk of each block
            np.add.at(filled, slots, of_chunk)
        self._slot_ends = np.cumsum(filled)
        self._slots = lru_cache(_KEPT_SLOTS)(self._indices)

    def take(self, begin: int, count: int) -> Indices:
        """Return the indices at positions begin to begin + count - 1. Raises IndexError."""
        check_positions(begin, count, self._blocks.samples)
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            slot = int(np.searchsorted(self._slot_ends, begin + done, side="right"))
            first = int(self._slot_ends[slot - 1]) if slot else 0
            part = self._slots(slot)[begin + done - first :][: count - done]
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def _indices(self, slot: int) -> Indices:
        window, last = self._blocks.window, len(self._slot_ends) - 1
        chunks = []
        for place in range(slot, slot + window):
            # A block has its chunks in the slots from place - (window - 1) to place; the ends take what lies beyond.
            low = 0 if slot == 0 else slot - place + window - 1
            high = window if slot == last else slot - place + window
            chunks.append(self._chunks(int(self.sequence[place]), low, high))
        together = np.concatenate(chunks)
        order: Indices = together[self._shuffle(len(together), b"in-slot", slot).take(0, len(together))]
        return order

    def _chunks(self, block: int, low: int, high: int) -> Indices:
        """Return the indices in chunks low to high - 1 of a block."""
        blocks = self._blocks
        size = int(blocks.sizes[block])
        begin, end = size * low // blocks.window, size * high // blocks.window
        offsets = self._shuffle(size, b"in-block", block).take(begin, end - begin)
        places: Indices = offsets + (int(blocks.ends[block]) - size)
        return places if blocks.members is None else blocks.members[places]

    def _shuffle(self, size: int, name: bytes, number: int) -> KeyedShuffle:
        seed, epoch = self._key
        return KeyedShuffle(size, derived_seed(seed, epoch, name, number), epoch)
