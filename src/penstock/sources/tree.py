"""Subset and ConcatDataset, which refer to other datasets: the only walk over them; and the tuple of all adapters.

The sources of Subset and ConcatDataset hand each question on to the sources of the datasets in them. For batches
`build` makes a tree of nodes, which lead from indices to leaves and indices into these.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

import penstock._native as _native
from penstock.order.mix import Mix
from penstock.order.permutations import Indices
from penstock.recipe.steps import Refusal
from penstock.settings import known_size
from penstock.sources.native_source import NativeSource, RemoteSamples
from penstock.sources.source import Source, native_of, replaced, unknown
from penstock.sources.unchanged import DatasetState, Unchanged, all_of, always, same_items

LeafNumbers = NDArray[np.int32]


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # uint8 is a mask to torch


class Unresolved(Exception):
    """What a Subset holds at an index is not a whole number: only the dataset itself can resolve it."""


def whole(index: object) -> int | None:
    """Return an index as a Python int; None for all that the dataset itself must make sense of."""
    if type(index) is int:
        return index
    if isinstance(index, np.integer):
        return int(index)
    if isinstance(index, torch.Tensor) and index.ndim == 0 and index.dtype in _INTEGERS:
        return int(index)
    return None


class Node(NamedTuple):
    """A dataset, or one in it, as it was when a plan was made."""

    size: int
    resolve: Callable[[Indices], tuple[LeafNumbers | None, Indices]]
    """Returns the leaf of each index, None when it is leaf 0 for all, and the index into it.

    Negative indices count from the end. Raises IndexError, Unresolved."""
    same_dataset: Unchanged
    """Whether the dataset is made up as it was, but for what its leaves know of themselves."""
    leaf: NativeSource | None = None
    """What the dataset is, where it is not made of others."""


MakeLeaf = Callable[[Source], Node | Refusal]
"""Returns the node of a dataset that is not made of others, or why there is none."""


# --- the adapters of Subset and ConcatDataset -------------------------------------------------------------------------


class _Compound(Source):
    """The adapter of a dataset that is made of others; `node` reaches these."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._children: dict[int, Source] = {}

    @property
    def inner(self) -> Sequence[Any]:
        raise NotImplementedError

    def find(self, index: int) -> tuple[int, int] | None:
        """Return the number of the dataset in it that has a sample, and the index there; None: only it itself knows."""
        raise NotImplementedError

    def node(self, make_leaf: MakeLeaf) -> Node | Refusal:
        """Return the node of the dataset, or why Python must read it."""
        raise NotImplementedError

    def same_dataset(self) -> Unchanged:
        """Return whether it is made of the datasets that it is made of now."""
        return all_of(DatasetState(self.dataset).same, same_items(self.inner))

    def child(self, part: int) -> Source:
        if part not in self._children:
            self._children[part] = source_of(self.inner[part])
        return self._children[part]

    def locate(self, index: int) -> tuple[str, Source, int]:
        found = self.find(index)
        if found is None:
            raise IndexError(f"sample index {index} is out of range")
        prefix, source, inside = self.child(found[0]).locate(found[1])
        return (f"{found[0]}/{prefix}" if isinstance(self, ConcatSource) else prefix), source, inside

    def parts(self, most: int | None = None) -> Iterator[Source]:
        for part in range(len(self.inner))[:most]:
            yield from self.child(part).parts(most)


class SubsetSource(_Compound):
    """The adapter of torch.utils.data.Subset."""

    classes = (Subset,)

    @property
    def inner(self) -> Sequence[Any]:
        return (self.dataset.dataset,)

    def find(self, index: int) -> tuple[int, int] | None:
        number = whole(self.dataset.indices[index])
        return None if number is None else (0, number)

    def node(self, make_leaf: MakeLeaf) -> Node | Refusal:
        chosen: Any = self.dataset.indices  # read for each batch: its elements may be exchanged at any time
        try:  # of a long list only the first are looked at; each batch looks at its own, and raises Unresolved
            first = chosen[:1000] if isinstance(chosen, list | np.ndarray | torch.Tensor) else []
            # numpy() of the user's tensor would keep it from being resized
            _whole_numbers(first.clone() if isinstance(first, torch.Tensor) else first)
        except Unresolved:
            return Refusal("Subset", "its indices are not whole numbers", "a list of whole numbers")
        child = _node(self.child(0), make_leaf)
        if isinstance(child, Refusal):
            return child

        def resolve(indices: Indices) -> tuple[LeafNumbers | None, Indices]:
            if isinstance(chosen, np.ndarray):
                found: Any = chosen[_from_start(indices, len(chosen))]
            elif isinstance(chosen, torch.Tensor):
                found = chosen[torch.from_numpy(_from_start(indices, len(chosen)))]
            else:  # a list may hold millions of objects: only those of this batch are looked at
                found = [chosen[i] for i in indices.tolist()]
            return child.resolve(_whole_numbers(found))

        return Node(len(chosen), resolve, all_of(self.same_dataset(), child.same_dataset))


class ConcatSource(_Compound):
    """The adapter of torch.utils.data.ConcatDataset and penstock.Mix."""

    classes = (ConcatDataset, Mix)

    @property
    def inner(self) -> Sequence[Any]:
        return self.dataset.datasets  # type: ignore[no-any-return]

    def find(self, index: int) -> tuple[int, int] | None:
        ends = self.dataset.cumulative_sizes
        if not -ends[-1] <= index < ends[-1]:
            return None
        number = index % ends[-1]
        part = bisect_right(ends, number)
        return part, number - (ends[part - 1] if part else 0)

    def node(self, make_leaf: MakeLeaf) -> Node | Refusal:
        def make_single(source: Source) -> Node | Refusal:  # the samples of a ConcatDataset are read one by one
            leaf = make_leaf(source)
            if isinstance(leaf, Refusal) or not source.batches_differ:
                return leaf
            why = "single samples of Hugging Face datasets may have other dtypes than their batches"
            return Refusal(type(self.dataset).__name__, why, "datasets.concatenate_datasets")

        children = []
        for part in range(len(self.inner)):
            node = _node(self.child(part), make_single)
            if isinstance(node, Refusal):
                return node
            children.append(node)
        ends = np.asarray(self.dataset.cumulative_sizes, dtype=np.int64)
        size = int(ends[-1])

        def resolve(indices: Indices) -> tuple[LeafNumbers, Indices]:
            if int(indices.min(initial=0)) < -size:
                raise ValueError("absolute value of index should not exceed dataset length")  # as ConcatDataset does
            positions = _from_start(indices, size)
            part = np.searchsorted(ends, positions, side="right")
            numbers = np.zeros(len(positions), dtype=np.int32)
            local = np.empty(len(positions), dtype=np.int64)
            for number in np.unique(part).tolist():
                chosen = part == number
                begin = int(ends[number - 1]) if number else 0
                inner, local[chosen] = children[number].resolve(positions[chosen] - begin)
                if inner is not None:
                    numbers[chosen] = inner
            return numbers, local

        return Node(size, resolve, all_of(self.same_dataset(), *(child.same_dataset for child in children)))


#: The adapters, in the order in which they are tried: the module without which no dataset is of its kind, and the
#: adapter's own module and name. A new source is a file, and a row here.
SOURCES = (
    ("torch", "penstock.sources.tree", "SubsetSource"),
    ("torch", "penstock.sources.tree", "ConcatSource"),
    ("penstock.sources.tensor_folder", "penstock.sources.tensor_folder", "TensorFolderSource"),
    ("penstock.sources.image_folder", "penstock.sources.image_files", "ImageTableSource"),
    ("penstock.sources.shards", "penstock.sources.shards_source", "ShardsSource"),
    ("torch", "penstock.sources.arrays", "TensorDatasetSource"),
    ("torch", "penstock.sources.arrays", "ArraysSource"),
    ("torchvision.datasets", "penstock.sources.torchvision_datasets", "TorchvisionFolderSource"),
    ("torchvision.datasets", "penstock.sources.torchvision_datasets", "ImageArraySource"),
    ("datasets", "penstock.sources.hugging_face", "HuggingFaceSource"),
    ("penstock.tables.table", "penstock.sources.table_source", "TableSource"),
)


@cache
def _adapter(module: str, name: str) -> type[Source]:
    kind: type[Source] = getattr(import_module(module), name)
    return kind


def source_of(dataset: Any) -> Source:
    """Return the adapter of a map-style dataset; subclasses have that of their class, which says what holds of them."""
    for needed, *adapter in SOURCES:
        if needed in sys.modules and isinstance(dataset, (kind := _adapter(*adapter)).kinds()):
            return kind(dataset)
    return Source(dataset)


def is_foreign(dataset: Any) -> bool:
    """Return whether no adapter serves the class of a map-style dataset: its own code reads all of it."""
    return type(source_of(dataset)) is Source


# --- the plan's tree --------------------------------------------------------------------------------------------------


def build(dataset: object, raw: bool = False) -> tuple[Node, list[NativeSource]] | Refusal:
    """Return the tree of a dataset and its leaves, or why Python must read it.

    raw: images stay pixels, where every leaf has the same table of what they become.
    """
    leaves: list[NativeSource] = []

    def make_leaf(source: Source) -> Node | Refusal:
        leaf = native_of(source, raw)
        if isinstance(leaf, Refusal):
            return leaf
        leaves.append(leaf)
        return _leaf_node(len(leaves) - 1, leaf.size, leaf)

    root = _node(source_of(dataset), make_leaf)
    if isinstance(root, Refusal):
        return root
    if not all(same_table(leaf.table, leaves[0].table) for leaf in leaves):
        return build(dataset)
    if not leaves:
        return Refusal(type(dataset).__name__, "it holds no dataset", "a dataset in it")
    first = leaves[0]
    if len({(leaf.form, len(leaf.fields)) for leaf in leaves}) > 1:
        return Refusal("ConcatDataset", "its datasets have samples of different structure", "datasets of alike samples")
    for fields in zip(*(leaf.fields for leaf in leaves), strict=True):
        if len({field.spec.dtype for field in fields if field.spec is not None}) > 1:
            return Refusal("ConcatDataset", "its datasets give different dtypes, which torch promotes", "one dtype")
    if any((leaf.labels is None) != (first.labels is None) for leaf in leaves):
        return Refusal("ConcatDataset", "only some of its datasets have labels", "labels for all of them")
    return root, leaves


def _node(source: Source, make_leaf: MakeLeaf) -> Node | Refusal:
    if not isinstance(source, _Compound):
        return make_leaf(source)
    if type(source.dataset) not in source.kinds():
        return unknown(source.dataset)
    return replaced(source.dataset) or source.node(make_leaf)


def _leaf_node(number: int, size: int, leaf: NativeSource | None = None) -> Node:
    rows = None if leaf is None else leaf.rows

    def resolve(indices: Indices) -> tuple[LeafNumbers | None, Indices]:
        inside = _from_start(indices, size)
        if rows is not None:
            inside = rows(inside)
        return None if number == 0 else np.full(len(inside), number, dtype=np.int32), inside

    return Node(size, resolve, always, leaf)


def same_table(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Return whether two tables are equal bit for bit."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _whole_numbers(values: list[Any] | NDArray[Any] | torch.Tensor) -> Indices:
    """Return what a Subset holds at some indices. Raises Unresolved."""
    try:
        if isinstance(values, list):
            return np.array(values if set(map(type, values)) <= {int} else list(map(whole, values)), dtype=np.int64)
        array = values.numpy(force=True) if isinstance(values, torch.Tensor) else values
    except (TypeError, OverflowError):  # None, or another dtype: only the dataset itself makes sense of it
        raise Unresolved from None
    if array.ndim != 1 or array.dtype.kind not in "iu" or values.dtype is torch.uint8:  # which torch takes for a mask
        raise Unresolved
    return array.astype(np.int64, copy=False)


def _from_start(indices: Indices, size: int) -> Indices:
    """Return the indices with negative ones counted from the end. Raises IndexError."""
    if _native.count_from_start(indices, size):
        return np.where(indices < 0, indices + size, indices)
    return indices


# --- samples in object stores -----------------------------------------------------------------------------------------


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

    @property
    def by_client(self) -> bool:
        """Whether the client of object stores brings a part of them."""
        return any(leaf is not None and leaf.by_client for leaf in self.leaves)


def remote_leaves(dataset: object) -> RemoteLeaves | None:
    """Return the remote parts of a dataset that Python reads; None: no part is known to lie in an object store."""
    sources: list[Source] = []

    def make_leaf(source: Source) -> Node:
        sources.append(source)
        return _leaf_node(len(sources) - 1, known_size(source.dataset) or 0)  # what lies in a store has a length

    root = _node(source_of(dataset), make_leaf)
    leaves = tuple(source.remote() for source in sources)
    if isinstance(root, Refusal) or not any(leaves):
        return None
    return RemoteLeaves(leaves, root.resolve, sum(len(source.dataset) for source in sources))
