"""Subset and ConcatDataset: from an index into the dataset to a leaf and an index into that leaf."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from penstock import _native
from penstock.mix import Mix
from penstock.order import Indices
from penstock.recognise import Leaf, recognise, replaced
from penstock.steps import Refusal

LeafNumbers = NDArray[np.int32]


class Node(Protocol):
    """A part of the dataset."""

    size: int

    def resolve(self, indices: Indices) -> tuple[LeafNumbers | None, Indices]:
        """Return the leaf of each index, None when it is leaf 0 for all, and the index into it.

        Negative indices count from the end. Raises IndexError.
        """


class LeafNode:
    """One recognised dataset."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size

    def resolve(self, indices: Indices) -> tuple[LeafNumbers | None, Indices]:
        inside = _from_start(indices, self.size)
        if self.number == 0:
            return None, inside
        return np.full(len(inside), self.number, dtype=np.int32), inside


class SubsetNode:
    """torch.utils.data.Subset: sample i is sample indices[i] of its dataset."""

    def __init__(self, chosen: Sequence[int] | NDArray[np.int64], child: Node) -> None:
        self._chosen = chosen
        self._child = child
        self.size = len(chosen)

    def resolve(self, indices: Indices) -> tuple[LeafNumbers | None, Indices]:
        positions = _from_start(indices, self.size)
        if isinstance(self._chosen, np.ndarray):
            chosen: Indices = self._chosen[positions].astype(np.int64)
        else:  # a list may hold millions of objects: only those of this batch are looked at
            chosen = np.array([operator.index(self._chosen[i]) for i in positions.tolist()], dtype=np.int64)
        return self._child.resolve(chosen)


class ConcatNode:
    """torch.utils.data.ConcatDataset: the samples of each dataset after those of the one before."""

    def __init__(self, ends: Sequence[int], children: Sequence[Node]) -> None:
        self._ends = np.asarray(ends, dtype=np.int64)
        self._children = children
        self.size = int(self._ends[-1])

    def resolve(self, indices: Indices) -> tuple[LeafNumbers | None, Indices]:
        if int(indices.min(initial=0)) < -self.size:
            raise ValueError("absolute value of index should not exceed dataset length")  # as ConcatDataset does
        positions = _from_start(indices, self.size)
        part = np.searchsorted(self._ends, positions, side="right")
        leaves = np.zeros(len(positions), dtype=np.int32)
        local = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(part).tolist():
            here = part == number
            begin = int(self._ends[number - 1]) if number else 0
            inner, local[here] = self._children[number].resolve(positions[here] - begin)
            if inner is not None:
                leaves[here] = inner
        return leaves, local


def build(dataset: object, raw: bool = False) -> tuple[Node, list[Leaf]] | Refusal:
    """Return the tree of a dataset and its leaves, or why Python must read it.

    raw: images stay pixels, where every leaf has the same table of what they become.
    """
    leaves: list[Leaf] = []
    root = _build(dataset, leaves, raw)
    if isinstance(root, Refusal):
        return root
    if not all(_same(leaf.table, leaves[0].table) for leaf in leaves):
        return build(dataset)
    if not leaves:
        return Refusal(type(dataset).__name__, "it holds no dataset", "a dataset in it")
    first = leaves[0]
    if any(leaf.pair != first.pair or len(leaf.fillers) != len(first.fillers) for leaf in leaves):
        return Refusal("ConcatDataset", "its datasets have samples of different structure", "datasets of alike samples")
    for specs in zip(*(leaf.specs for leaf in leaves), strict=True):
        if len({spec.dtype for spec in specs if spec is not None}) > 1:
            return Refusal("ConcatDataset", "its datasets give different dtypes, which torch promotes", "one dtype")
    if any((leaf.labels is None) != (first.labels is None) for leaf in leaves):
        return Refusal("ConcatDataset", "only some of its datasets have labels", "labels for all of them")
    return root, leaves


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Return whether two tables are equal bit for bit."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _build(dataset: object, leaves: list[Leaf], raw: bool) -> Node | Refusal:
    if type(dataset) in (Subset, ConcatDataset, Mix):
        refusal = replaced(dataset)
        if refusal is not None:
            return refusal
    if type(dataset) is Subset:
        chosen: Any = dataset.indices
        if isinstance(chosen, torch.Tensor):
            chosen = chosen.numpy(force=True)
        if isinstance(chosen, np.ndarray) and (chosen.ndim != 1 or chosen.dtype.kind not in "iu"):
            return Refusal("Subset", f"its indices are {chosen.ndim}-d of {chosen.dtype}", "a list of whole numbers")
        if isinstance(chosen, list) and any(type(i) is bool or not hasattr(i, "__index__") for i in chosen[:1000]):
            return Refusal("Subset", "its indices are no whole numbers", "a list of whole numbers")
        child = _build(dataset.dataset, leaves, raw)
        return child if isinstance(child, Refusal) else SubsetNode(chosen, child)
    if isinstance(dataset, ConcatDataset) and type(dataset) in (ConcatDataset, Mix):
        children: list[Node] = []
        for part in dataset.datasets:
            node = _build(part, leaves, raw)
            if isinstance(node, Refusal):
                return node
            children.append(node)
        return ConcatNode(dataset.cumulative_sizes, children)
    leaf = recognise(dataset, raw)
    if isinstance(leaf, Refusal):
        return leaf
    leaves.append(leaf)
    return LeafNode(len(leaves) - 1, leaf.size)


def _from_start(indices: Indices, size: int) -> Indices:
    """Return the indices with negative ones counted from the end. Raises IndexError."""
    if _native.count_from_start(indices, size):
        return np.where(indices < 0, indices + size, indices)
    return indices
