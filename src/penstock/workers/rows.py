"""Rows that are gathered in the caller's thread, batch by batch, without a plan and without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate

import penstock._native as _native
from penstock.order.batches import BatchOrder, settled_at_start
from penstock.order.permutations import Indices
from penstock.plan import refuse_options
from penstock.recipe.originals import READING, look_again, replaced_in_class
from penstock.sample_notes import torch_batch
from penstock.settings import Method, Settings
from penstock.sources.unchanged import replaced_fetcher
from penstock.system.deferred import deferred
from penstock.workers import indexed

if TYPE_CHECKING:
    from penstock.workers import collated
else:
    (collated,) = deferred("penstock.workers", "collated")

#: Bytes of a batch that one thread fills from memory, cache line by cache line, while others would be woken.
SMALL_BATCH, CACHE_LINE = 64 << 10, 64
#: Bytes of a batch that worker processes make while the loop works, where they are asked for.
_LARGE_BATCH = 8 << 20
#: Samples of a batch where a sampler of the user's makes the batches.
_UNKNOWN_BATCH = 256

_DTYPES = frozenset(getattr(torch, name) for name in _native.DTYPES)


def gathers_rows(settings: Settings) -> bool:
    """Return whether a pass is one over batches of rows to which nothing else is done: each pass asks anew."""
    tensors = _tensors_of(settings.dataset)
    if tensors is None:
        if settings.collate_fn is not default_collate:
            return replaced_fetcher() is None and collated.gathers_collated(settings)
        # Without workers the class is read once it has made some samples: a pass in the caller's thread does that.
        learns = settings.num_workers > 0 or settings.seed is not None
        if "indexed" in settings.known and not settings.known["indexed"]:
            return False
        found = gathers_indexed(settings, learns=learns)
        if learns:
            settings.known["indexed"] = found
        return found
    if not (
        settings.seed is None
        and settings.on_demand
        and getattr(settings.device, "cache", None) is None  # of a Feed: a plan says what lives on the device
        and not (settings.persistent_workers or settings.timeout or settings.prefetch_given)
    ):
        return False
    if settings.known.get("rows") is not tensors:  # what is done to one of them meanwhile `Rows` sees
        if not _are_plain(tensors):
            return False
        row = sum(max(CACHE_LINE, one.stride(0) * one.itemsize) for one in tensors)
        if not fits_small(row, settings.batch_size or _UNKNOWN_BATCH):
            return False
        settings.known["rows"] = tensors
    return is_native(settings.batched, settings.collate_fn, settings.worker_init_fn, settings.method)


def gathers_indexed(settings: Settings, *, learns: bool) -> bool:
    """Return whether the batches of a dataset are gathered, whose class only indexes.

    learns: a class that was not read yet is read now.
    """
    if not may_be_gathered(settings) or not (learns or indexed.are_known(settings.dataset)):
        return False
    if not is_native(True, settings.collate_fn, settings.worker_init_fn, settings.method):
        return False
    if settings.num_workers and not settings.on_demand:
        settled = BatchOrder(settings).cuts_itself() or settled_at_start(settings.index_sampler)
        if not settled:
            return False
    rows = indexed.rows_of(settings.dataset, learns=learns)
    if rows is None or not settings.num_workers:
        return rows is not None
    return rows.row_bytes() * (settings.batch_size or _UNKNOWN_BATCH) <= _LARGE_BATCH


def may_be_gathered(settings: Settings) -> bool:
    """Return whether nothing in its arguments has a loader's batches made one sample at a time."""
    return (
        settings.batched
        and settings.collate_fn is default_collate
        and settings.method is None
        and not settings.iterable
    )


def holds_rows(dataset: object) -> bool:
    """Return whether a dataset is a TensorDataset, or a Subset of one by a list, whose rows torch can gather."""
    tensors = _tensors_of(dataset)
    return tensors is not None and _are_plain(tensors)


def _tensors_of(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a TensorDataset, or of the one that a Subset is of by a list; None: it is another."""
    while type(dataset) is Subset and type(dataset.indices) is list and _OWN.isdisjoint(vars(dataset)):
        dataset = dataset.dataset
    known = type(dataset) is TensorDataset and _OWN.isdisjoint(vars(dataset))
    found = getattr(dataset, "tensors", None) if known else None
    return found if type(found) is tuple else None


#: Methods that a program may give to one object.
_OWN = frozenset({"__getitem__", "__getitems__"})


def is_native(batched: bool, collate_fn: object, worker_init_fn: object, method: Method | None) -> bool:
    """Return whether the native core may read rows for a loader with these arguments: torch's functions are its own."""
    now = [getattr(owner, name, None) for owner, name in _FUNCTIONS]
    if now != _approved:
        look_again()
        if any(replaced_in_class(kind, READING) is not None for kind in (TensorDataset, Subset)):
            return False
        _approved[:] = now
    return method is not Method.PROCESS and refuse_options(batched, collate_fn, worker_init_fn) is None


#: What a row goes through on its way to a batch.
_FUNCTIONS = [
    *((kind, name) for kind in (TensorDataset, Subset) for name in READING.split() if name.startswith("__")),
    *((collate, name) for name in ("default_collate", "collate")),
]
_approved: list[Any] = []
"""These, when they were torch's."""


def fits_small(row_bytes: int, batch_size: int | None) -> bool:
    """Return whether a batch is gathered in less time than it takes to wake threads. None: its size is not known."""
    return row_bytes * (batch_size or SMALL_BATCH) <= SMALL_BATCH


def _are_plain(tensors: tuple[torch.Tensor, ...]) -> bool:
    return all(map(_is_plain, tensors)) and len(set(map(len, tensors))) == 1


def _is_plain(tensor: Any) -> bool:
    """Return whether a stack of rows of a tensor is no more than a copy of their elements."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype in _DTYPES
        and 0 < tensor.ndim <= 1 + _native.MAX_DIMS
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        # index_select does not look: a program may have resized the storage
        and tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + tensor.numel()) * tensor.itemsize
    )


class Rows:
    """A TensorDataset, or a Subset of one, as a pass is to see it: `__getitems__` returns the collated samples."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: Indices | list[Any]) -> Any:
        if isinstance(indices, list):  # a sampler of the user's gave something else than numbers
            return torch_batch(self._dataset, indices)
        dataset, rows = self._dataset, torch.from_numpy(indices)
        try:
            while type(dataset) is Subset:
                chosen = [dataset.indices[row] for row in rows.tolist()]
                if not set(map(type, chosen)) <= {int}:
                    break
                dataset, rows = dataset.dataset, torch.from_numpy(np.array(chosen, dtype=np.int64))
            if type(dataset) is TensorDataset and all(map(_is_plain, dataset.tensors)):
                return [tensor.index_select(0, rows) for tensor in dataset.tensors]
        except (IndexError, OverflowError, RuntimeError):  # a negative index, one that is not there, or a dtype
            pass
        return torch_batch(self._dataset, indices.tolist())
