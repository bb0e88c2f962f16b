"""Batches of documents that are laid one behind another, as many as a number of tokens allows, keyed by (seed, epoch).

The documents come in the loader's order, shuffled or in sequence. A document that does not fit into what is left of a
batch begins the next one. The last batch of an epoch has fewer tokens. Shuffles need a few batches more or fewer; so
that each epoch has the same number, one in a hundred is spare: what is left of these cuts other batches in two.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import torch

from penstock.order.buckets import CutSampler
from penstock.order.permutations import Indices, InSequence, KeyedShuffle, Listed, Order, derived_seed

#: Shuffles of an epoch that are tried for one with few enough batches; most often the first is one.
_TRIES = 100


class DocumentOrder(CutSampler):
    """Documents in the order of their batches.

    Args:
        lengths: of each document, shape (N,), at most `tokens` each, and not all of them 0.
        tokens: the most of a batch.
    """

    def __init__(self, lengths: Indices, tokens: int, *, shuffle: bool, generator: torch.Generator | None) -> None:
        super().__init__(generator)
        self.random = shuffle
        self._lengths, self._tokens = lengths, tokens

    @cached_property
    def batches(self) -> int:
        """The number of batches of each epoch."""
        needed = len(self._ends(self._documents(0, 0)))
        return min(needed + 1 + needed // 100, int(np.count_nonzero(self._lengths))) if self.random else needed

    def fingerprint(self) -> str:
        hashed = hashlib.blake2b(f"{self._tokens}".encode() + self._lengths.tobytes(), digest_size=8).hexdigest()
        return f"{hashed} {'shuffled' if self.random else 'in sequence'}"

    def order(self, seed: int, epoch: int) -> Listed:
        for tried in range(_TRIES):
            documents = self._documents(derived_seed(seed, epoch, tried) if tried else seed, epoch)
            ends = self._ends(documents)
            if len(ends) <= self.batches:
                return Listed(documents, self._with_more(ends, documents))
        documents = self._documents(0, 0)  # which the number of batches was found with
        return Listed(documents, self._with_more(self._ends(documents), documents))

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

    def _with_more(self, ends: Indices, documents: Indices) -> Indices:
        """Return the ends of all batches of an epoch, some of which are cut before a document, evenly spread."""
        full = np.flatnonzero(self._lengths[documents])
        batch = np.searchsorted(ends, full, side="right")
        places = full[1:][batch[1:] == batch[:-1]]  # where both parts have tokens
        chosen = np.linspace(0, len(places) - 1, self.batches - len(ends)).astype(np.int64)
        return np.union1d(ends, places[chosen])

    def __len__(self) -> int:
        return len(self._lengths)
