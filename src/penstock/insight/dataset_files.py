"""Where a dataset's files lie, and how many bytes they have: of some samples, evenly spread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from penstock.insight.machine.examine import DatasetFiles
from penstock.insight.machine.limits import USUAL_BATCH, Planned
from penstock.sources.naming import names_of
from penstock.sources.shards import Shards
from penstock.storage.objects import is_url

#: The most samples whose files are looked at.
LOOKED_AT = 1024


def dataset_files(dataset: Any) -> DatasetFiles:
    """Return what the file system says of the files of a dataset, or of a loader's; no sample is read.

    A dataset of the user's own that has neither lists of files nor a folder under a well-known name has no files here.
    Its __len__ is called.
    """
    if isinstance(dataset, DataLoader):
        found = dataset_files(dataset.dataset)
        return replace(found, planned=_planned(dataset)) if dataset.num_workers else found
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return DatasetFiles()
    if type(dataset) is Shards:
        return _of_shards(dataset)
    size = len(dataset)
    step = max(1, -(-size // LOOKED_AT))
    looked_at: Sequence[int] = range(0, size, step)
    paths = [path for _, path in names_of(dataset, looked_at) if path is not None]
    sizes = {path: bytes_ for path in paths if (bytes_ := _size(path)) is not None}
    if not sizes:
        return DatasetFiles()
    several = len(sizes) < len(paths)  # samples that share a file, or whose files are not there
    total = sum(sizes.values()) if several or step == 1 else int(sum(sizes.values()) / len(sizes) * size)
    return DatasetFiles(_folder_of(list(sizes)), total, exact=step == 1 and not several)


def _planned(loader: DataLoader[Any]) -> Planned:
    """Return the batches that a loader's worker processes may have in flight, of the size of a usual job's."""
    return Planned(loader.num_workers, loader.prefetch_factor or 2, USUAL_BATCH, known=False)


def _of_shards(dataset: Shards) -> DatasetFiles:
    """Return what a folder of packed shards says of itself; of one in an object store nothing."""
    if is_url(dataset.root):
        return DatasetFiles()
    return DatasetFiles(dataset.root, sum(shard.bytes for shard in dataset.description.shards))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def _folder_of(paths: list[str]) -> str:
    """Return the folder that all of these files lie in or below."""
    folder = os.path.commonpath([os.path.abspath(path) for path in paths])
    return folder if os.path.isdir(folder) else os.path.dirname(folder)
