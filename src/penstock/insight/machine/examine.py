"""All checks of the machine, or those of them that concern one dataset."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from penstock.executors.workers.shm_space import FOLDER
from penstock.insight.check import Check, State, checked
from penstock.insight.machine import accelerator, files, limits, memory, processors
from penstock.insight.machine.limits import Planned
from penstock.system.mounts import Mount

T = TypeVar("T")


@dataclass(frozen=True)
class DatasetFiles:
    """What the checks know of a dataset, and of its loader."""

    folder: str | None = None
    """Where its files lie; None: it has none, or does not say."""
    bytes: int | None = None
    """Of all its files; None: it is not known."""
    exact: bool = True
    """All files were looked at; else some of them."""
    planned: Planned | None = None
    """Batches of worker processes that come torch's way; None: no loader says."""


def examine(dataset: DatasetFiles | None = None) -> Iterator[Check]:
    """Yield the checks, one after the other, each when it is done.

    Args:
        dataset: only what concerns this dataset is checked; None: the whole machine, with a usual job in mind.
    """
    alone = dataset is None
    of = dataset or DatasetFiles()
    yield from _processors(alone=alone)
    yield from _memory(of)
    yield from _limits(of, alone=alone)
    if alone or of.folder is not None:
        yield from _folder(tempfile.gettempdir() if of.folder is None else of.folder)
    if alone:
        yield from _gpus()


def _processors(*, alone: bool) -> Iterator[Check]:
    yield checked("CPUs", processors.check_processors, processors.read_processors)
    yield checked(
        "OpenMP threads",
        processors.check_openmp,
        processors.read_pools,
        _usable,
        partial(os.environ.get, "OMP_NUM_THREADS"),
    )
    yield checked("OpenCV threads", processors.check_opencv, processors.read_opencv, processors.read_start_method)
    yield checked("start method", processors.check_start_method, processors.read_start_method)
    if alone:
        yield checked("GIL", lambda found: processors.check_gil(*found), processors.read_gil)


def _memory(dataset: DatasetFiles) -> Iterator[Check]:
    yield checked("memory", memory.check_memory, memory.read_memory)
    yield checked("swap", memory.check_swap, memory.read_memory)
    if dataset.bytes is not None:
        check = partial(memory.check_page_cache, dataset=dataset.bytes, exact=dataset.exact)
        yield checked("page cache", check, memory.read_memory)


def _limits(dataset: DatasetFiles, *, alone: bool) -> Iterator[Check]:
    yield checked(
        FOLDER,
        limits.check_shared_memory,
        limits.read_shared_memory,
        lambda: dataset.planned or limits.usual_plan(_usable()),
    )
    yield checked("open files", lambda found: limits.check_open_files(*found), limits.read_open_files)
    if alone:
        yield checked("locked memory", lambda found: limits.check_locked_memory(*found), limits.read_locked_memory)


def _folder(folder: str) -> Iterator[Check]:
    mounted = partial(files.read_mount, folder)
    yield checked("file system", lambda found: files.check_file_system(folder, *found), mounted)
    yield checked("cold reads", lambda found: _read_rate(folder, found[0]), mounted)


def _read_rate(folder: str, mount: Mount | None) -> Check:
    if mount is not None and mount.in_memory:
        return files.check_read_rate(folder, mount, None)
    try:
        rate = files.read_rate(folder, files.MOST)
    except OSError as error:
        return Check("cold reads", State.UNKNOWN, f"no file to measure with could be written to {folder}: {error}")
    return files.check_read_rate(folder, mount, rate)


def _gpus() -> Iterator[Check]:
    """Yield the checks of GPUs. The rate is measured before the link is read: an idle GPU lowers the link's speed."""
    gpus: list[accelerator.Gpu] = []

    def found() -> list[accelerator.Gpu]:
        gpus.extend(accelerator.read_gpus())
        return gpus

    yield checked("GPU", accelerator.check_gpus, found, accelerator.read_installed, lambda: torch.version.cuda)
    for gpu in gpus:
        link = partial(_at, gpu, accelerator.read_link)
        yield checked(
            f"copies to GPU {gpu.index}",
            partial(accelerator.check_pinned, gpu),
            partial(accelerator.measure_pinned, gpu),
            link,
        )
        yield checked(f"PCIe of GPU {gpu.index}", partial(accelerator.check_link, gpu), link)
        yield checked(
            f"NUMA of GPU {gpu.index}",
            partial(accelerator.check_node, gpu),
            partial(_at, gpu, accelerator.read_node),
            accelerator.read_affinity,
        )


def _at(gpu: accelerator.Gpu, read: Callable[[str], T]) -> T | None:
    return None if gpu.address is None else read(gpu.address)


def _usable() -> float:
    return processors.read_processors().usable
