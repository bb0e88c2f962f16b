"""Batches of samples of like length, with a budget of tokens, keyed by (seed, epoch).

Samples are put into buckets by their lengths. A bucket's samples are shuffled and cut into batches of as many as the
budget allows for its longest sample, and the batches of all buckets are shuffled. An epoch's order is its batches one
behind the other, the same for any number of ranks, and global batch g is the next batch of each rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from penstock.errors import InvalidOption
from penstock.order.permutations import (
    Indices,
    InSequence,
    KeyedSampler,
    KeyedShuffle,
    Listed,
    Order,
    check_one_each,
    checked_column,
    checked_count,
    derived_seed,
    draw_seed,
)
from penstock.system.words import counted

#: The longest length of a bucket is at most this times its shortest: padding is less than a ninth of a batch.
_GROWTH = 9, 8


class CutSampler(KeyedSampler):
    """The base of samplers whose orders say where their batches end."""

    @property
    def batches(self) -> int:
        """The number of batches of an epoch."""
        raise NotImplementedError

    def order(self, seed: int, epoch: int) -> Listed:
        raise NotImplementedError


class CutBatches(Sampler[list[int]]):
    """A batch sampler of what a CutSampler gives: `sampler`."""

    def __init__(self, sampler: CutSampler) -> None:
        self.sampler = sampler
        """The samples in the order of the batches."""

    def __len__(self) -> int:
        return self.sampler.batches

    def __iter__(self) -> Iterator[list[int]]:
        order = self.sampler.order(draw_seed(self.sampler.generator), self.sampler.epoch)
        assert order.ends is not None
        for batch in np.split(order.indices, order.ends[:-1]):
            yield batch.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the passes from now on are. Raises TypeError, InvalidOption."""
        self.sampler.set_epoch(epoch)

    def check_size(self, size: int) -> None:
        """Raise InvalidOption where there are not as many lengths as a dataset has samples."""
        check_one_each("lengths", len(self.sampler), size)

    def __repr__(self) -> str:
        samples, batches = counted(len(self.sampler), "sample"), counted(len(self), "batch", "batches")
        return f"{type(self).__name__}({samples} in {batches})"


class Buckets(CutBatches):
    """A batch sampler of samples of similar length, in batches that stay within a budget of tokens when padded.

    With a loader's ``seed=`` the batches are a function of (seed, epoch), ``shard=`` gives each rank other batches of
    one order, and a state continues with any number of ranks. Where the number of batches is not a multiple of the
    ranks, the last ones repeat: ``padded`` counts their samples. An epoch's first batch takes O(N) time, and about 20
    bytes a sample.

    Args:
        lengths: of each sample, shape (N,), whole numbers of 0 or more.
        max_tokens: the most that a batch may hold when padded: its samples times the longest of its bucket. None: no
            budget.
        batch_size: the most samples of a batch; None: as many as the budget allows.
        boundaries: the shortest length of each bucket but the first, ascending; None: lengths of a bucket differ by an
            eighth at most.
        shuffle: False: buckets come from short to long, and their samples in the dataset's order.
        generator: where the seeds of passes without ``seed=`` come from; None: torch's global generator.

    Raises InvalidOption, TypeError: see docs/order.md.
    """

    def __init__(
        self,
        lengths: Sequence[int] | NDArray[Any] | torch.Tensor,
        max_tokens: int | None = None,
        *,
        batch_size: int | None = None,
        boundaries: Sequence[int] | None = None,
        shuffle: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        if max_tokens is None and batch_size is None:
            raise InvalidOption("Buckets needs max_tokens=, batch_size= or both: they say how large a batch is")
        if not isinstance(shuffle, bool):
            raise TypeError(f"shuffle must be True or False, not {shuffle!r}")
        budget = None if max_tokens is None else checked_count("max_tokens", max_tokens)
        most = None if batch_size is None else checked_count("batch_size", batch_size)
        super().__init__(LengthBuckets(checked_lengths(lengths, budget), budget, most, boundaries, shuffle, generator))


class LengthBuckets(CutSampler):
    """The samples of Buckets in the order of their batches; lengths and boundaries are those of `Buckets`, checked.

    Which bucket a sample is in, and how many samples of which bucket a batch holds, is the same in each epoch.
    """

    def __init__(
        self,
        lengths: Indices,
        budget: int | None,
        most: int | None,
        boundaries: Sequence[int] | None,
        shuffle: bool,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(generator)
        self.random = shuffle
        edges = _edges(int(lengths.max())) if boundaries is None else _checked_boundaries(boundaries)
        self._bucket = np.searchsorted(edges, lengths, side="right").astype(np.uint16)  # of each sample
        counts = np.bincount(self._bucket, minlength=len(edges) + 1)
        longest = np.zeros(len(counts), dtype=np.int64)
        np.maximum.at(longest, self._bucket, lengths)
        begins, sizes, first = [], [], 0
        for count, length in zip(counts.tolist(), longest.tolist(), strict=True):
            size = count if budget is None else budget // max(length, 1)
            size = size if most is None else min(size, most)
            if count:
                starts = np.arange(0, count, size, dtype=np.int64)
                begins.append(starts + first)
                sizes.append(np.minimum(count - starts, size))
            first += count
        # Where each batch begins among all samples in the order of their buckets, and how many samples it has.
        self._begins, self._sizes = np.concatenate(begins), np.concatenate(sizes)
        hashed = hashlib.blake2b(f"{budget} {most} {edges.tolist()}".encode(), digest_size=8)
        hashed.update(lengths.tobytes())
        self._facts = hashed.hexdigest()

    @property
    def batches(self) -> int:
        return len(self._begins)

    def fingerprint(self) -> str:
        return f"{self._facts} {'shuffled' if self.random else 'in sequence'}"

    def order(self, seed: int, epoch: int) -> Listed:
        size, batches = len(self), np.arange(self.batches, dtype=np.int64)
        samples: Order = KeyedShuffle(size, seed, epoch) if self.random else InSequence()
        drawn = samples.take(0, size)
        by_bucket = drawn[np.argsort(self._bucket[drawn], kind="stable")]
        if self.random:
            batches = KeyedShuffle(self.batches, derived_seed(seed, epoch, b"buckets"), epoch).take(0, self.batches)
        sizes, begins = self._sizes[batches], self._begins[batches]
        ends = np.cumsum(sizes)
        return Listed(by_bucket[np.arange(size) + np.repeat(begins - (ends - sizes), sizes)], ends)

    def __len__(self) -> int:
        return len(self._bucket)


def _edges(longest: int) -> Indices:
    """Return the shortest length of each bucket but the first."""
    edges, edge = [], 1
    while edge <= longest:
        edges.append(edge)
        edge = max(edge + 1, edge * _GROWTH[0] // _GROWTH[1])
    return np.array(edges, dtype=np.int64)


def checked_lengths(lengths: Any, budget: int | None = None) -> Indices:
    """Return lengths as int64. Raises InvalidOption, TypeError."""
    given = checked_column("lengths", lengths)
    if given.dtype.kind not in "iu":
        raise TypeError(f"lengths are of dtype {given.dtype}: whole numbers are needed")
    checked: Indices = given.astype(np.int64)
    if (given < 0).any() or (checked < 0).any():
        i = int((checked < 0).argmax())
        raise InvalidOption(f"lengths[{i}] is {given[i]}: a length is 0 or more")
    if budget is not None and int(checked.max()) > budget:
        i = int(checked.argmax())
        raise InvalidOption(
            f"lengths[{i}] is {checked[i]}, more than max_tokens={budget}: leave the sample out, or allow more tokens"
        )
    return checked


def _checked_boundaries(boundaries: Sequence[int]) -> Indices:
    edges = np.asarray(boundaries)
    if edges.ndim != 1 or (len(edges) and edges.dtype.kind not in "iu") or len(edges) > 65000:
        raise InvalidOption(f"boundaries={boundaries!r}: they are up to 65,000 whole numbers, ascending")
    edges = edges.astype(np.int64)
    if (np.diff(edges) <= 0).any():
        raise InvalidOption(f"boundaries={boundaries!r} do not ascend")
    return edges
