"""What a sample is called: its ID and its file, as far as its dataset tells; the IDs of all samples."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from penstock.sources import ImageFolder, TensorFolder

#: Attributes under which datasets hold the IDs of their samples: ours, and those of the well-known tutorial.
_ID_LISTS = ("ids", "list_IDs", "IDs", "list_ids")


def name_of(dataset: Any, index: Any) -> tuple[str, str | None]:
    """Return (ID, file) of a sample, as messages and manifests name it.

    The ID is the file where the dataset has no IDs, and the index where it has no files either; the file is None where
    there is none.
    """
    try:
        part, leaf, number = _leaf(dataset, operator.index(index))
        name, path = _name(leaf, number)
        return (name, path) if path is not None else (part + name, None)
    except Exception:  # a dataset of any kind, asked for what it need not have
        return _short(index), None


def id_of(dataset: Any, index: Any) -> str:
    """Return the ID of a sample, the same wherever its dataset lies: of a file its name below the dataset's root.

    A sample of a ConcatDataset has the number of its part before it: "0/ID".
    """
    try:
        part, leaf, number = _leaf(dataset, operator.index(index))
        name, path = _name(leaf, number)
        return part + (below(leaf, name) if name == path else name)
    except Exception:  # as above
        return _short(index)


def id_list(leaf: Any) -> list[Any] | tuple[Any, ...] | None:
    """Return the list of IDs that a dataset of Python's has, None without one."""
    for attribute in _ID_LISTS:
        ids = getattr(leaf, attribute, None)
        if isinstance(ids, (list, tuple)) and len(ids) == len(leaf):
            return ids
    return None


def file_pairs(leaf: Any) -> Any:
    """Return the (file, class) pairs of a dataset that is made like torchvision's DatasetFolder, None of another."""
    samples = getattr(leaf, "samples", None)
    if not isinstance(samples, Sequence) or not samples or len(samples) != len(leaf):
        return None
    first = samples[0]
    return samples if isinstance(first, tuple) and first and isinstance(first[0], str) else None


def below(leaf: Any, path: str) -> str:
    """Return a file's name below its dataset's root."""
    root = getattr(leaf, "root", None)
    if not isinstance(root, (str, os.PathLike)):
        return path
    return path.removeprefix(os.path.join(os.fsdecode(root), ""))


def _leaf(dataset: Any, index: int) -> tuple[str, Any, int]:
    """Return (what the ID begins with, dataset, index) of a sample, below those that stand for other datasets."""
    if isinstance(dataset, Subset):
        return _leaf(dataset.dataset, operator.index(dataset.indices[index]))
    if isinstance(dataset, ConcatDataset):
        number = index % len(dataset)
        part = bisect_right(dataset.cumulative_sizes, number)
        inner, leaf, number = _leaf(
            dataset.datasets[part], number - (dataset.cumulative_sizes[part - 1] if part else 0)
        )
        return f"{part}/{inner}", leaf, number
    return "", dataset, index


def _name(leaf: Any, index: int) -> tuple[str, str | None]:
    if isinstance(leaf, TensorFolder):
        return leaf.ids[index], leaf.path(index % len(leaf))
    if isinstance(leaf, ImageFolder):
        path = leaf.samples[index][0]
        return path, path
    pairs = file_pairs(leaf)
    if pairs is not None and isinstance(pairs[index], tuple):
        path = pairs[index][0]
        return path, path
    ids = id_list(leaf)
    return str(index if ids is None else ids[index]), None


def _short(index: Any) -> str:
    text = repr(index)
    return text if len(text) <= 200 else text[:197] + "..."
