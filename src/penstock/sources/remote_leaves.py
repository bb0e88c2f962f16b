"""Which samples of a dataset lie in object stores, and where, whoever reads them and whatever their transforms are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.order.permutations import Indices
from penstock.sources.shards_source import ShardsSource
from penstock.sources.source import NativeSource, RemoteSamples, Source
from penstock.sources.tree import LeafNumbers, Node, source_of


@dataclass(frozen=True)
class RemoteLeaves:
    """The parts of a dataset that lie in object stores."""

    leaves: tuple[RemoteSamples | None, ...]
    """Of each part; None: it lies elsewhere."""
    resolve: Callable[[Indices], tuple[LeafNumbers | None, Indices]]
    """Returns the part of each index, None when it is part 0 for all, and the index into it.

    Raises what the dataset raises."""
    size: int
    """The number of samples of all parts."""

    @classmethod
    def of_plan(cls, root: Node, leaves: Sequence[NativeSource]) -> RemoteLeaves:
        """Return those of a plan."""
        return cls(tuple(leaf.remote for leaf in leaves), root.resolve, sum(leaf.size for leaf in leaves))


def remote_leaves(dataset: object) -> RemoteLeaves | None:
    """Return the remote parts of a dataset that Python reads; None: no part is known to lie in an object store."""
    source = source_of(dataset)
    parts: list[Source] = []
    for part in source.parts():
        if not any(part.dataset is one.dataset for one in parts):
            parts.append(part)
    leaves = tuple(part.remote() if isinstance(part, ShardsSource) else None for part in parts)
    if not any(leaves):
        return None
    numbers = {id(part.dataset): number for number, part in enumerate(parts)}

    def resolve(indices: Indices) -> tuple[LeafNumbers | None, Indices]:
        leaf, local = np.empty(len(indices), np.int32), np.empty(len(indices), np.int64)
        for place, index in enumerate(indices.tolist()):
            _, part, inside = source.locate(index)
            size = len(part.dataset)
            if not -size <= inside < size:
                raise IndexError(f"sample index {inside} is out of range")
            leaf[place], local[place] = numbers[id(part.dataset)], inside % size
        return leaf, local

    return RemoteLeaves(leaves, resolve, sum(len(part.dataset) for part in parts))
