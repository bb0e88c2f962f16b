"""The plan: which steps of reading a dataset the native core does, and which Python does.

A plan is made when a pass begins, because a dataset's transform may be changed between epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, default_collate

import penstock._native as _native
from penstock.errors import InvalidID
from penstock.order.permutations import Indices
from penstock.recipe.collate_fn import only_collates
from penstock.recipe.originals import look_again
from penstock.recipe.steps import Refusal
from penstock.sources.labels import LabelColumn, as_objects
from penstock.sources.native_source import Memory, NativeSource
from penstock.sources.source import unknown
from penstock.sources.tree import LeafNumbers, Node, RemoteLeaves, build, is_foreign
from penstock.sources.unchanged import Unchanged, all_of, collates_as_torch, replaced_fetcher, replaced_in_collating
from penstock.storage.jpeg_index import JpegIndexes
from penstock.storage.tiers import Caches
from penstock.system.deferred import deferred
from penstock.system.modes import outside_inference
from penstock.tables.hugging_face import is_dataset

if TYPE_CHECKING:
    from penstock.sources import cached
else:
    (cached,) = deferred("penstock.sources", "cached")


class Kept(NamedTuple):
    """What is kept of a dataset's files from one pass to the next."""

    caches: Caches | None = None
    """Their bytes, or their pixels."""
    indexes: JpegIndexes | None = None
    """The decoder states of JPEG files."""


@dataclass(frozen=True)
class NativePlan:
    """The native core fills the batches."""

    dataset: Any
    root: Node
    leaves: tuple[NativeSource, ...]

    @cached_property
    def program(self) -> _native.Program:
        return _native.Program([[field.filler for field in leaf.fields] for leaf in self.leaves])

    def keeping(self, kept: Kept) -> NativePlan:
        """Return the plan of a pass that begins, whose files are in the loader's caches and indexes.

        Raises UnsafeCache, and OSError where a cache's folder cannot be made.
        """
        leaves: Sequence[NativeSource] = self.leaves
        if kept.caches is not None:
            leaves = cached.cached(leaves, kept.caches)
        if kept.indexes is not None and any(leaf.images is not None for leaf in leaves):
            leaves = cached.indexed(leaves, kept.indexes)
        return self if leaves is self.leaves else replace(self, leaves=tuple(leaves))

    def same_dataset(self) -> bool:
        """Return whether the dataset is what it was when planned, but for elements of its arrays and lists."""
        return self.root.same_dataset() and self._same_leaves() and collates_as_torch()

    def reusable(self) -> bool:
        """Return whether the plan serves the next pass too: that of sources that last, and are still the same."""
        look_again()
        if not all(leaf.reusable is not None and leaf.reusable() for leaf in self.leaves):
            return False
        return self.same_dataset() and self.same_memory()

    @cached_property
    def same_memory(self) -> Unchanged:
        """Whether the memory that the native core reads, where it reads any, is where it was."""
        return all_of(*(leaf.same_memory for leaf in self.leaves))

    @cached_property
    def in_memory(self) -> bool:
        """Whether the native core reads memory of the user's."""
        return bool(self._memories)

    @cached_property
    def gathers(self) -> bool:
        """Whether rows are copied from memory of the user's: only while the caller waits, for the user may move it."""
        return any(not memory.reads_ahead for memory in self._memories)

    @cached_property
    def _memories(self) -> list[Memory]:
        return [leaf.memory for leaf in self.leaves if leaf.memory is not None]

    @cached_property
    def _same_leaves(self) -> Unchanged:
        return all_of(*(leaf.same_dataset for leaf in self.leaves))

    @cached_property
    def remote(self) -> RemoteLeaves | None:
        """The samples that lie in object stores; None: none does."""
        leaves = tuple(leaf.remote for leaf in self.leaves)
        return RemoteLeaves(leaves, self.root.resolve, sum(leaf.size for leaf in self.leaves)) if any(leaves) else None

    @property
    def fields(self) -> int:
        return len(self.leaves[0].fields)

    @property
    def table(self) -> torch.Tensor | None:
        """What the values of the first field, pixels, are converted to: (channels, 256). None: they are final."""
        return self.leaves[0].table

    @cached_property
    def _named(self) -> bool:
        return any(leaf.files is not None and leaf.files.listed for leaf in self.leaves)

    def specs(self) -> list[_native.Spec | None]:
        """Return the row of each field as far as the plan knows it."""
        found: list[_native.Spec | None] = []
        for column in zip(*(leaf.fields for leaf in self.leaves), strict=True):
            specs = [field.spec for field in column]
            rows = {None if spec is None else (spec.dtype, tuple(spec.shape)) for spec in specs}
            found.append(specs[0] if len(rows) == 1 else None)
        return found

    def names(self, leaves: LeafNumbers | None, local: Indices) -> bytes | None:
        """Return the files of a batch, each followed by a NUL, where the sources have no table."""
        if not self._named:
            return None
        names = [b"."] * len(local)
        for leaf, positions in self._parts(leaves, local):
            if leaf.files is not None and leaf.files.listed:
                for position, name in zip(
                    positions.tolist(), map(leaf.files.name, local[positions].tolist()), strict=True
                ):
                    names[position] = name
        joined = b"\0".join(names) + b"\0"
        if joined.count(b"\0") != len(names):
            wrong = os.fsdecode(next(name for name in names if b"\0" in name))
            raise InvalidID(f"embedded null byte in the path {wrong!r}: no file can have that name")
        return joined

    def labels(self, leaves: LeafNumbers | None, local: Indices) -> Any:
        """Return the collated labels of a batch, as torch's default_collate makes them."""
        column = self.label_column(leaves, local)
        return None if column is None else collated_labels(column)

    def label_column(self, leaves: LeafNumbers | None, local: Indices) -> LabelColumn | None:
        if (first := self.leaves[0].labels) is None:
            return None
        if leaves is None:
            return first(local)
        values: list[Any] = [None] * len(local)
        for leaf, positions in self._parts(leaves, local):
            assert leaf.labels is not None
            part = leaf.labels(local[positions])
            for position, value in zip(positions.tolist(), as_objects(part), strict=True):
                values[position] = value
        return values

    def leaf(self, leaves: LeafNumbers | None, position: int) -> NativeSource:
        return self.leaves[0 if leaves is None else int(leaves[position])]

    def _parts(self, leaves: LeafNumbers | None, local: Indices) -> list[tuple[NativeSource, NDArray[np.int64]]]:
        """Return each leaf in a batch and the positions of its samples."""
        if leaves is None:
            return [(self.leaves[0], np.arange(len(local)))]
        return [(self.leaves[n], np.flatnonzero(leaves == n)) for n in np.unique(leaves).tolist()]


def collated_labels(labels: LabelColumn) -> Any:
    """Return labels as torch's default_collate makes a batch of them. Raises what it raises."""
    if isinstance(labels, np.ndarray):
        return torch.from_numpy(labels)
    # As items of samples: strings, for one, collate otherwise inside a sample than by themselves.
    return default_collate([(label,) for label in labels])[0]


@dataclass(frozen=True)
class PythonPlan:
    """Python calls the dataset: in the caller's thread, in torch's worker processes or in threads of this process."""

    why: Callable[[], Refusal]
    """Returns why the native core does not read the dataset; only explain() asks."""
    filled: NativePlan | None = None
    """Fills whole batches where Python works, for the user's functions."""
    unseen: bool = False
    """These functions leave the samples to default_collate as they are."""
    kept: Kept = Kept()  # noqa: RUF009  a tuple
    """Of the files that are read natively."""
    foreign: tuple[object, type] | None = None
    """The dataset, and its class, where that is one that no adapter serves: nothing of it can be native, whatever
    the dataset does now, and the plan serves each pass."""

    @property
    def reason(self) -> Refusal:
        return self.why()

    def keeping(self, kept: Kept) -> PythonPlan:
        """Return the plan of a pass that begins, as NativePlan.keeping does."""
        return self if self.filled is None else replace(self, filled=self.filled.keeping(kept), kept=kept)


Plan = NativePlan | PythonPlan


def plan(
    dataset: object,
    *,
    batched: bool,
    collate_fn: object,
    worker_init_fn: object,
    processes: bool = False,
    raw: bool = False,
) -> Plan:
    """Decide what reads a dataset.

    Args:
        dataset: what the loader was given.
        batched: the loader makes batches (batch_size or batch_sampler is not None).
        collate_fn: None or torch's default_collate for the native core.
        worker_init_fn: None for the native core, which has no worker process to call it in.
        processes: worker processes were asked for by name.
        raw: images stay pixels where a NativePlan has their table, for a device to convert.
    """
    if isinstance(dataset, IterableDataset) or processes or is_foreign(dataset):
        why = partial(_why_python, dataset, batched, collate_fn, worker_init_fn, processes)
        return PythonPlan(why, foreign=(dataset, type(dataset)))
    look_again()
    with outside_inference():  # what a plan holds outlives the mode
        return _plan_known(dataset, batched, collate_fn, worker_init_fn, raw)


def _why_python(dataset: object, batched: bool, collate_fn: object, worker_init_fn: object, processes: bool) -> Refusal:
    """Return why nothing of a dataset can be native."""
    look_again()
    if isinstance(dataset, IterableDataset):
        return Refusal(type(dataset).__name__, "an iterable dataset makes its own order", "")
    refusal = refuse_options(batched, collate_fn, worker_init_fn)
    if processes:
        by_name = Refusal("worker_method='process'", "it requests worker processes", "worker_method=None")
        return refusal or by_name
    return refusal or unknown(dataset)


def _plan_known(dataset: object, batched: bool, collate_fn: object, worker_init_fn: object, raw: bool) -> Plan:
    """Decide what reads a dataset of a class that an adapter serves."""
    refusal = refuse_options(batched, collate_fn, worker_init_fn)
    if refusal is None:
        found = _natively(dataset, raw)
        return PythonPlan(lambda: found) if isinstance(found, Refusal) else found
    if is_dataset(dataset):  # the rows of a table are dictionaries, which no batch is filled with for code of a user's
        return PythonPlan(lambda: refusal)
    # Whether the collate_fn leaves the samples to torch's default_collate, all of them as they are.
    unseen = collate_fn is None or collate_fn is default_collate or only_collates(collate_fn)
    unseen = unseen and replaced_in_collating() is None and collates_as_torch()
    filled = fill_plan(dataset, unseen=unseen) if batched and replaced_fetcher() is None else None
    return PythonPlan(lambda: refusal, filled, unseen)


def fill_plan(dataset: object, *, unseen: bool) -> NativePlan | None:
    """Return how the native core fills the batches of a dataset for code of the user's.

    None: it does not, or a batch may hold other elements than the samples one by one; or lies in an object store.

    unseen: the code leaves the samples to default_collate; else they must lie as the dataset's samples do.
    """

    found = _natively(dataset, False)
    if isinstance(found, Refusal) or any(
        leaf.form.keys is not None or leaf.remote is not None for leaf in found.leaves
    ):
        return None
    if not unseen:
        alike = [None if leaf.images is None else leaf.images.as_samples for leaf in found.leaves]
        if not all(are_samples is not None and are_samples() for are_samples in alike):
            return None
    return found


def _natively(dataset: object, raw: bool) -> NativePlan | Refusal:
    """Return how the native core fills the batches of a dataset, or why it cannot."""
    tree = build(dataset, raw)
    if isinstance(tree, Refusal):
        return tree
    root, leaves = tree
    return NativePlan(dataset, root, tuple(leaves))


def refuse_options(batched: bool, collate_fn: object, worker_init_fn: object) -> Refusal | None:
    """Return which argument of its loader has Python read a dataset that the native core could read, or None."""
    if (fetcher := replaced_fetcher()) is not None:
        what = f"{fetcher.__module__}.{fetcher.__qualname__}"
        return Refusal(what, "it makes the batches instead of torch's fetcher", "torch's own fetcher")
    if not batched:
        return Refusal("batch_size=None", "samples are not batched", "a batch size")
    if collate_fn is not None and collate_fn is not default_collate:
        return Refusal("collate_fn", "your own function makes the batches", "the default collate_fn")
    if (replaced := replaced_in_collating()) is not None:
        return replaced
    if not collates_as_torch():
        why = "your own function collates tensors or tuples"
        return Refusal("default_collate_fn_map", why, "torch's own map")
    if worker_init_fn is not None and not only_seeds(worker_init_fn):
        return Refusal("worker_init_fn", "it is called in worker processes", "seed= instead")
    return None


def only_seeds(worker_init_fn: object) -> bool:
    """Return whether it is what Lightning sets after seed_everything(workers=True), or Transformers' Trainer does.

    It seeds the global generators of a worker process; the native core has none, and draws from none.
    """
    function = worker_init_fn.func if isinstance(worker_init_fn, partial) else worker_init_fn
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
    return name in (
        "lightning.fabric.utilities.seed.pl_worker_init_function",
        "lightning_fabric.utilities.seed.pl_worker_init_function",
        "transformers.trainer_utils.seed_worker",
    )
