"""Batches of documents that are laid one behind another, as many as a number of tokens allows, keyed by (seed, epoch).

The documents come in the loader's order, shuffled or in sequence. A document that does not fit into what is left of a
batch begins the next one. The last batch of an epoch has fewer tokens.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import torch

from penstock.order.buckets import CutSampler
from penstock.order.permutations import Indices, InSequence, KeyedShuffle, Listed, Order


class DocumentOrder(CutSampler):
    """Documents in the order of their batches.

    Args:
        lengths: of each document, shape (N,), at most `tokens` each.
        tokens: the most of a batch.
        seed: of the loader; None: it has none.
    """

    def __init__(
        self, lengths: Indices, tokens: int, *, shuffle: bool, generator: torch.Generator | None, seed: int | None
    ) -> None:
        super().__init__(generator)
        self.random = shuffle
        self._lengths, self._tokens, self._seed = lengths, tokens, seed or 0

    @cached_property
    def batches(self) -> int:
        """The number of batches of epoch 0; other shuffles may have a few more or fewer."""
        return len(self._ends(self._documents(self._seed, 0)))

    def fingerprint(self) -> str:
        hashed = hashlib.blake2b(f"{self._tokens}".encode() + self._lengths.tobytes(), digest_size=8).hexdigest()
        return f"{hashed} {'shuffled' if self.random else 'in sequence'}"

    def order(self, seed: int, epoch: int) -> Listed:
        documents = self._documents(seed, epoch)
        return Listed(documents, self._ends(documents))

    def _documents(self, seed: int, epoch: int) -> Indices:
        order: Order = KeyedShuffle(len(self), seed, epoch) if self.random else InSequence()
        return order.take(0, len(self))

    def _ends(self, documents: Indices) -> Indices:
        """Return the number of documents up to the end of each batch."""
        totals = self._lengths[documents].cumsum()
        ends: list[int] = []
        before = 0
        while not ends or ends[-1] < len(totals):
            ends.append(int(np.searchsorted(totals, before + self._tokens, side="right")))
            before = int(totals[ends[-1] - 1])
        return np.array(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._lengths)
