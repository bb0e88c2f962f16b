"""One pass over a TensorDataset whose batches are small: its rows are gathered in the caller's thread, batch by batch.

Such a batch takes a few microseconds, less than it takes to begin a pass of native threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

from penstock.executors.inline import InlineExecutor, InlinePass
from penstock.executors.job import Job
from penstock.order.permutations import Indices
from penstock.plan import NativePlan, Plan
from penstock.sample_notes import torch_batch
from penstock.settings import Settings

#: Bytes of a batch that one thread fills from memory, cache line by cache line, while others would be woken.
SMALL_BATCH, CACHE_LINE = 64 << 10, 64


class Rows:
    """A TensorDataset as a pass is to see it: `__getitems__` returns what default_collate makes of the samples."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: Indices | list[Any]) -> Any:
        tensors = self._dataset.tensors
        if isinstance(indices, list):  # a sampler of the user's gave something else than numbers
            return torch_batch(self._dataset, indices)
        if type(self._dataset) is TensorDataset and all(map(_is_plain, tensors)):
            rows = torch.from_numpy(indices)
            try:
                return [tensor.index_select(0, rows) for tensor in tensors]
            except (IndexError, RuntimeError):  # a negative index, one that is not there, or a dtype
                pass
        return torch_batch(self._dataset, indices.tolist())


def _is_plain(tensor: Any) -> bool:
    """Return whether a stack of rows of a tensor is no more than a copy of their elements."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        # index_select does not look: a program may have resized the storage
        and tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + tensor.numel()) * tensor.itemsize
    )


def _as_it_is(batch: Any) -> Any:
    return batch


class RowsExecutor:
    """The caller's thread, for a TensorDataset in small batches, where torch would do nothing ahead of the loop."""

    def accepts(self, job: Job) -> bool:
        """Return whether the rows are gathered, and no bad sample is replaced."""
        return job.substitutes is None and gathers_rows(job.settings, job.plan)

    def open(self, job: Job) -> InlinePass:
        """Return an iterator of the batches."""
        seen = {"dataset": Rows(job.settings.dataset), "collate_fn": _as_it_is, "num_workers": 0}
        return InlineExecutor().open(job, **seen)

    def restart(self, held: InlinePass, job: Job) -> None:
        """Raise RuntimeError: torch keeps no iterator without workers."""
        InlineExecutor().restart(held, job)


def gathers_rows(settings: Settings, chosen: Plan) -> bool:
    """Return whether a pass is one over small batches of a TensorDataset to which nothing else is done."""
    return (
        type(settings.dataset) is TensorDataset
        and settings.seed is None
        and settings.on_demand
        and settings.batched
        and settings.device is None
        and not (settings.persistent_workers or settings.timeout or settings.prefetch_given)
        and is_small(settings, chosen)
    )


def is_small(settings: Settings, chosen: Plan) -> bool:
    """Return whether the native core fills a batch from memory in less time than it takes to wake threads."""
    if not isinstance(chosen, NativePlan) or any(leaf.memory is None for leaf in chosen.leaves):
        return False
    row = sum(max(CACHE_LINE, field.spec.nbytes) if field.spec else SMALL_BATCH for field in chosen.leaves[0].fields)
    return row * (settings.batch_size or SMALL_BATCH) <= SMALL_BATCH
