"""Rows of a TensorDataset, which torch gathers in the caller's thread: a small batch needs no plan and no worker."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.plan import refuse_options
from penstock.recipe.originals import READING, look_again, replaced_in_class
from penstock.sample_notes import torch_batch
from penstock.settings import Method, Settings

#: Bytes of a batch that one thread fills from memory, cache line by cache line, while others would be woken.
SMALL_BATCH, CACHE_LINE = 64 << 10, 64

_DTYPES = frozenset(getattr(torch, name) for name in _native.DTYPES)


def rows_of(
    dataset: object, *, batched: bool, collate_fn: object, worker_init_fn: object, method: Method | None
) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors whose rows are the samples of a TensorDataset, or of a Subset of one by a list.

    None: the dataset is another one, or the native core does not read it with these arguments of its loader.
    """
    if method is Method.PROCESS or type(dataset) not in _KINDS:
        return None
    inner: Any = dataset
    while type(inner) is Subset and type(inner.indices) is list and _OWN.isdisjoint(vars(inner)):
        inner = inner.dataset
    if type(inner) is not TensorDataset or not _OWN.isdisjoint(vars(inner)):
        return None
    tensors: tuple[torch.Tensor, ...] = inner.tensors
    if type(tensors) is not tuple or not all(map(_is_plain, tensors)) or len(set(map(len, tensors))) != 1:
        return None
    look_again()
    return tensors if _are_torchs() and refuse_options(batched, collate_fn, worker_init_fn) is None else None


_KINDS = (TensorDataset, Subset)
#: Methods that an object may have of its own.
_OWN = frozenset({"__getitem__", "__getitems__"})
_approved: list[Any] = []
"""The methods of the two classes, as they were when they were torch's."""


def _are_torchs() -> bool:
    """Return whether the methods of the two classes are those that torch has defined."""
    now = [
        getattr(kind, name, None)
        for kind in _KINDS
        for name in ("__getitem__", "__getitems__", "__len__", "__getattribute__", "__getattr__")
    ]
    if now != _approved:
        if any(replaced_in_class(kind, READING) is not None for kind in _KINDS):
            return False
        _approved[:] = now
    return True


def gathers_rows(settings: Settings) -> bool:
    """Return whether a pass is one over small batches of rows to which nothing else is done."""
    if (
        settings.seed is not None
        or not settings.on_demand
        or settings.device is not None
        or (settings.persistent_workers or settings.timeout or settings.prefetch_given)
    ):
        return False
    tensors = rows_of(
        settings.dataset,
        batched=settings.batched,
        collate_fn=settings.collate_fn,
        worker_init_fn=settings.worker_init_fn,
        method=settings.method,
    )
    return tensors is not None and fits_small(
        sum(max(CACHE_LINE, one[:1].nbytes) for one in tensors), settings.batch_size
    )


def fits_small(row_bytes: int, batch_size: int | None) -> bool:
    """Return whether a batch is gathered in less time than it takes to wake threads. None: its size is not known."""
    return row_bytes * (batch_size or SMALL_BATCH) <= SMALL_BATCH


def _is_plain(tensor: Any) -> bool:
    """Return whether a stack of rows of a tensor is no more than a copy of their elements."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype in _DTYPES
        and 0 < tensor.ndim <= _native.MAX_DIMS
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
                dataset, rows = dataset.dataset, torch.tensor(chosen, dtype=torch.int64, device="cpu")
            if type(dataset) is TensorDataset and all(map(_is_plain, dataset.tensors)):
                return [tensor.index_select(0, rows) for tensor in dataset.tensors]
        except (IndexError, RuntimeError):  # a negative index, one that is not there, or a dtype
            pass
        return torch_batch(self._dataset, indices.tolist())
