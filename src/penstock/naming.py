"""What a sample is called in messages and manifests: its ID and its file, as far as its dataset tells."""

from __future__ import annotations

import operator
from bisect import bisect_right
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from penstock.sources import TensorFolder

#: Attributes under which datasets hold the IDs of their samples: ours, and those of the well-known tutorial.
_ID_LISTS = ("ids", "list_IDs", "IDs", "list_ids")


def name_of(dataset: Any, index: Any) -> tuple[str, str | None]:
    """Return (ID, file) of a sample: the index itself where the dataset has no IDs, None where it has no files."""
    try:
        return _name(dataset, operator.index(index))
    except Exception:  # a dataset of any kind, asked for what it need not have
        text = repr(index)
        return text if len(text) <= 200 else text[:197] + "...", None


def _name(dataset: Any, index: int) -> tuple[str, str | None]:
    if isinstance(dataset, Subset):
        return _name(dataset.dataset, operator.index(dataset.indices[index]))
    if isinstance(dataset, ConcatDataset):
        number = index % len(dataset)
        part = bisect_right(dataset.cumulative_sizes, number)
        name, path = _name(dataset.datasets[part], number - (dataset.cumulative_sizes[part - 1] if part else 0))
        return (name, path) if path is not None else (f"{part}/{name}", None)
    if isinstance(dataset, TensorFolder):
        return dataset.ids[index], dataset.path(index % len(dataset))
    samples = getattr(dataset, "samples", None)  # of torchvision's DatasetFolder, and of ours
    if samples is not None and len(samples) == len(dataset):
        first = samples[index][0] if isinstance(samples[index], tuple) else None
        if isinstance(first, str):
            return first, first
    for attribute in _ID_LISTS:
        ids = getattr(dataset, attribute, None)
        if isinstance(ids, (list, tuple)) and len(ids) == len(dataset):
            return str(ids[index]), None
    return str(index), None
