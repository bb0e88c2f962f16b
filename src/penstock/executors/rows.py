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
from penstock.sample_notes import torch_batch


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

    def open(self, job: Job) -> InlinePass:
        """Return an iterator of the batches."""
        seen = {"dataset": Rows(job.settings.dataset), "collate_fn": _as_it_is, "num_workers": 0}
        return InlineExecutor().open(job, **seen)

    def restart(self, held: InlinePass, job: Job) -> None:
        """Raise RuntimeError: torch keeps no iterator without workers."""
        InlineExecutor().restart(held, job)
