"""What the machine gives to a loader: all checks of it, or those of them that concern one dataset."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.executors.workers.shm_space import FOLDER
from penstock.insight.check import Check, checked
from penstock.insight.machine import disk, host
from penstock.sources.naming import names_of
from penstock.sources.shards import Shards
from penstock.storage.objects import is_url

#: The most samples whose files are looked at.
LOOKED_AT = 1024


@dataclass(frozen=True)
class DatasetFiles:
    """What the checks know of a dataset, and of its loader."""

    folder: str | None = None
    """Where its files lie; None: it has none, or does not say."""
    bytes: int | None = None
    """Of all its files; None: it is not known."""
    exact: bool = True
    """All files were looked at; else some of them."""
    workers: int | None = None
    """Worker processes of its loader; None: no loader says."""
    prefetch_factor: int = 2


def examine(dataset: DatasetFiles | None = None) -> Iterator[Check]:
    """Yield the checks, one after the other, each when it is done.

    Args:
        dataset: only what concerns this dataset is checked; None: the whole machine, with a usual job in mind.
    """
    of = dataset or DatasetFiles()
    yield checked("CPUs", lambda: host.check_processors(host.read_processors()))
    yield checked("OpenMP threads", lambda: host.check_openmp(host.read_pools(), host.read_processors().usable))
    yield checked("memory", lambda: host.check_memory(host.read_memory()))
    if (size := of.bytes) is not None:
        yield checked("page cache", lambda: host.check_page_cache(host.read_memory(), size, exact=of.exact))
    yield checked(FOLDER, lambda: host.check_shared_memory(host.read_space(), _workers(of), of.prefetch_factor))
    yield checked("open files", lambda: host.check_open_files(*host.read_open_files()))
    if dataset is None or of.folder is not None:
        folder = of.folder or tempfile.gettempdir()
        yield checked("file system", lambda: disk.check_file_system(folder))
        yield checked("cold reads", lambda: disk.check_cold_reads(folder))
    if dataset is None:
        gpus: list[host.Gpu] = []
        yield checked("GPU", lambda: host.check_gpus(_kept(gpus), host.read_installed(), torch.version.cuda))
        for one in gpus:
            yield checked(f"NUMA of GPU {one.index}", partial(host.check_node, one))


def _workers(dataset: DatasetFiles) -> int:
    """Return the worker processes of a dataset's loader, or of a usual job: one a CPU."""
    return max(1, int(host.read_processors().usable)) if dataset.workers is None else dataset.workers


def _kept(gpus: list[host.Gpu]) -> list[host.Gpu]:
    gpus += host.read_gpus()
    return gpus


def dataset_files(dataset: Any) -> DatasetFiles:
    """Return what the file system says of the files of a dataset, or of a loader's; no sample is read.

    A dataset of the user's own that has neither lists of files nor a folder under a well-known name has no files here.
    Its __len__ is called.
    """
    if isinstance(dataset, DataLoader):
        found, workers = dataset_files(dataset.dataset), dataset.num_workers
        return replace(found, workers=workers, prefetch_factor=dataset.prefetch_factor or 2) if workers else found
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return DatasetFiles()
    if type(dataset) is Shards:  # those in an object store are not files of this machine
        whole = sum(shard.bytes for shard in dataset.description.shards)
        return DatasetFiles() if is_url(dataset.root) else DatasetFiles(dataset.root, whole)
    size = len(dataset)
    step = max(1, -(-size // LOOKED_AT))  # samples evenly spread
    paths = [path for _, path in names_of(dataset, range(0, size, step)) if path is not None]
    sizes = {path: bytes_ for path in paths if (bytes_ := _size(path)) is not None}
    if not sizes:
        return DatasetFiles()
    several = len(sizes) < len(paths)  # samples that share a file, or whose files are not there
    total = sum(sizes.values()) if several or step == 1 else int(sum(sizes.values()) / len(sizes) * size)
    folder = os.path.commonpath([os.path.abspath(path) for path in sizes])
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    return DatasetFiles(folder, total, exact=step == 1 and not several)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
