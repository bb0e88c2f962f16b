"""What the machine gives to a loader: CPUs, memory, limits and file systems; or what of it concerns a dataset."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from penstock.carriers.post_mortem import FOLDER, REMEDY
from penstock.sources.naming import names_of
from penstock.sources.shards import Shards
from penstock.state.manifest import file_size
from penstock.system.limits import MEMBERSHIP, MOUNT, cpu_quota, group_memory
from penstock.system.urls import is_url
from penstock.system.words import counted, size_of

#: Folders of these names are splits of a dataset, and hardly its classes.
SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
#: Less memory than this is too little for torch, workers and batches.
LEAST, FEW = 512 << 20, 2 << 30
#: The share of the available memory that files may fill before pages of the dataset push each other out.
FILLED = 0.8
#: A batch of a usual job: 64 images of 3 x 224 x 224 float32.
USUAL_BATCH = 64 * 3 * 224 * 224 * 4
#: A process with this many files opens the datasets, sockets and shared tensors of a usual job; with FEW_FILES none.
ENOUGH_FILES, FEW_FILES, MANY_FILES = 1024, 512, 65536
#: The kernel's table of mounts, and the file systems whose bytes come over a network, or through another program.
TABLE = "/proc/self/mounts"
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "afs", "wekafs")
INDIRECT = ("fuse", "9p", "virtiofs", "vboxsf")


class State(Enum):
    """How a checked property stands."""

    OK = "ok"
    LOOK = "worth a look"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One checked property."""

    name: str
    state: State
    found: str
    """What was found, with numbers and units."""
    change: str = ""
    """What to do; empty where nothing is to be done."""


def judged(name: str, found: str, change: str = "", *, bad: bool = False) -> Check:
    """Return a check that is in order where nothing is to be done, and else is worth a look, or bad."""
    return Check(name, State.BAD if bad else State.LOOK if change else State.OK, found, change)


def checked(name: str, check: Callable[[], Check]) -> Check:
    """Return what a check returns; one that raises an exception is unknown, with the reason."""
    try:
        return check()
    except Exception as error:
        return Check(name, State.UNKNOWN, f"the check failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class DatasetFiles:
    """What the checks know of a dataset, and of its loader."""

    folder: str | None = None
    """Where its files lie; None: it has none, or does not say."""
    bytes: int | None = None
    """Of all its files; None: it is not known."""
    checks: tuple[Check, ...] = ()
    """What is wrong with them."""
    workers: int | None = None
    """Worker processes of its loader; None: no loader says."""
    prefetch_factor: int = 2


NO_FILES = DatasetFiles()


def examine(of: DatasetFiles = NO_FILES) -> Iterator[Check]:
    """Yield the checks, one after the other, each when it is done: of the machine, and of what concerns a dataset."""
    quota, affinity = cpu_quota(), len(os.sched_getaffinity(0))
    usable = min(affinity, quota or affinity)  # of which a usual job has a worker each
    workers = max(1, int(usable)) if of.workers is None else of.workers
    yield checked("CPUs", lambda: check_processors(os.cpu_count() or 1, affinity, quota))
    yield checked("memory", lambda: check_memory(*read_memory()))
    if (size := of.bytes) is not None:
        yield checked("page cache", lambda: check_page_cache(read_memory()[1], size))
    yield checked(FOLDER, lambda: check_shared_memory(FOLDER, workers, of.prefetch_factor))
    yield checked("open files", lambda: check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)))
    if (folder := of.folder) is not None:
        yield checked("file system", lambda: check_file_system(folder))
    yield from of.checks


def dataset_files(dataset: Any) -> DatasetFiles:
    """Return what the file system says of the files of a dataset, or of a loader's; no sample is read.

    A user's dataset that has neither lists of files nor a folder under a well-known name has no files here.
    Its __len__ is called.
    """
    if isinstance(dataset, DataLoader):
        found, workers = dataset_files(dataset.dataset), dataset.num_workers
        return replace(found, workers=workers, prefetch_factor=dataset.prefetch_factor or 2) if workers else found
    if isinstance(dataset, IterableDataset):
        return NO_FILES
    try:
        size = len(dataset)
    except (TypeError, NotImplementedError):  # a map-style dataset without a length
        return NO_FILES
    if type(dataset) is Shards:  # those in an object store are not files of this machine
        whole = sum(shard.bytes for shard in dataset.description.shards)
        return NO_FILES if is_url(dataset.root) else DatasetFiles(dataset.root, whole)
    paths = dict.fromkeys(path for _, path in names_of(dataset, range(size)) if path is not None)
    sizes = {path: bytes_ for path in paths if (bytes_ := file_size(path)) is not None}
    checks = tuple(_check_files(dataset, list(paths), sizes))
    if not sizes:
        return replace(NO_FILES, checks=checks)
    folder = os.path.commonpath([os.path.abspath(path) for path in sizes])
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    return DatasetFiles(folder, sum(sizes.values()), checks)


def _check_files(dataset: Any, paths: list[str], there: Container[str]) -> Iterator[Check]:
    """Yield that files are missing, or that a folder of splits was taken for one of classes."""
    if gone := [path for path in paths if path not in there]:
        words = f"{len(gone):,} of {counted(len(paths), 'file')} {'is' if len(gone) == 1 else 'are'} missing, the first"
        yield judged("files", f"{words}: {gone[0]}", "Restore them, or leave them out.", bad=True)
    classes = getattr(dataset, "classes", None)
    if classes and isinstance(classes, list) and all(str(name).lower() in SPLITS for name in classes):
        words = f"{counted(len(classes), 'class', 'classes')}: {', '.join(classes)}"
        root = os.path.join(getattr(dataset, "root", ""), classes[0])
        yield judged("classes", words, f"These are names of splits: give the folder of one, such as {root}.")


# --- CPUs and memory -------------------------------------------------------------------------------------------------


def check_processors(online: int, affinity: int, quota: float | None) -> Check:
    """Check that the process may use the machine's CPUs: those of its affinity mask, and its cgroup's quota of them."""
    of_group = "no quota" if quota is None else f"a cgroup quota of {_cpus(quota)}"
    words = (
        f"{_cpus(min(affinity, quota or affinity))} usable: the machine has {online:,}, the affinity mask allows "
        f"{affinity:,}, {of_group}"
    )
    change = ""
    if quota is not None and quota < affinity:
        change = (
            "Raise the quota (docker run --cpus=, resources.limits.cpu of Kubernetes), and start no more workers than "
            f"it has CPUs ({max(1, int(quota))}): threads beyond it are stopped for the rest of each period."
        )
    elif affinity < online:
        change = (
            "Widen the affinity mask, if that was not wanted: taskset, docker run --cpuset-cpus=, --cpus-per-task= of "
            "Slurm."
        )
    elif affinity == 1:
        change = "Give the job more CPUs: loading and training share this one."
    return judged("CPUs", words, change, bad=quota is not None and quota < min(1, affinity))


def _cpus(number: float) -> str:
    return f"{number:,.3g} CPU{'' if number <= 1 else 's'}"


def read_memory(
    meminfo: str = "/proc/meminfo", membership: str = MEMBERSHIP, mount: str = MOUNT
) -> tuple[int, int, int | None, int]:
    """Return the total and the available memory, the limit of the cgroup (None: it has none), and its OOM kills.

    Available is what programs may still take: free memory, and caches that give way, at most the limit. In bytes.
    Raises OSError, KeyError.
    """
    with open(meminfo, encoding="ascii") as lines:
        rows = (line.split() for line in lines)
        values = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}
    group, available = group_memory(membership, mount), values["MemAvailable"]
    return values["MemTotal"], min(available, group.limit or available), group.limit, group.oom_kills or 0


def check_memory(total: int, available: int, limit: int | None = None, oom_kills: int = 0) -> Check:
    """Check that programs may take enough memory, and that the kernel ended no process of the cgroup for want of it."""
    of_group = "no cgroup limit" if limit is None else f"a cgroup limit of {size_of(limit)}"
    words = f"{size_of(available)} available of {size_of(total)}, {of_group}"
    if oom_kills:
        words += f"; the kernel has killed {counted(oom_kills, 'process', 'processes')} of the group so far"
    change = ""
    if available < LEAST:
        change = "End other programs that take memory, or raise the limit: workers are killed where memory runs out."
    elif oom_kills:
        change = "Raise the limit, or lower num_workers=, prefetch_factor= or batch_size=."
    elif available < FEW:
        change = "Start few workers, and keep batches small."
    return judged("memory", words, change, bad=available < LEAST)


def check_page_cache(available: int, dataset: int) -> Check:
    """Check that a dataset's files, of about so many bytes, stay in memory from one epoch to the next."""
    words = f"the dataset's {size_of(dataset)} and {size_of(available)} that the page cache may take"
    if dataset <= available * FILLED:
        return judged("page cache", f"{words}: it fits, and only the first epoch reads the disk")
    change = (
        "Every epoch reads the disk. Fewer bytes (penstock pack --max-side=), more memory, or cache=FOLDER on a fast "
        "local disk help, where the disk is what holds the loop up."
    )
    return judged("page cache", f"{words}: it does not fit", change)


# --- limits and file systems -----------------------------------------------------------------------------------


def check_shared_memory(folder: str, workers: int, prefetch_factor: int) -> Check:
    """Check that batches of worker processes, of a usual job's size, fit into /dev/shm, where they come torch's way."""
    try:
        space = os.statvfs(folder)
    except FileNotFoundError:
        words = f"there is no {folder}: worker processes cannot hand torch's tensors over"
        return judged(FOLDER, words, f"Mount a tmpfs at {folder}, or read with worker_method='thread'.", bad=True)
    free = space.f_bavail * space.f_frsize
    planned = (workers * prefetch_factor + 2) * USUAL_BATCH
    words = (
        f"{size_of(free)} free of {size_of(space.f_blocks * space.f_frsize)}; a usual job of "
        f"{counted(workers, 'worker process', 'worker processes')} with prefetch_factor={prefetch_factor} and batches "
        f"of {size_of(USUAL_BATCH)} may have {size_of(planned)} there"
    )
    return judged(FOLDER, words, "" if planned <= free else REMEDY)


def check_open_files(soft: int, hard: int) -> Check:
    """Check `ulimit -n`: each tensor that a worker process hands over takes a file descriptor."""
    first, most = (float("inf") if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    words = f"ulimit -n is {first:,}, and may be raised to {most:,}".replace("inf", "any number")
    if first >= ENOUGH_FILES:
        return judged("open files", words)
    raised = f"ulimit -n {min(most, MANY_FILES)} before the job" if most > first else ""
    if most < ENOUGH_FILES:
        raised += f"{', and have' if raised else 'Have'} the hard limit raised (limits.conf)"
    change = f"{raised}: a tensor of a worker process takes a file each, and 'Too many open files' ends the pass."
    return judged("open files", words, change, bad=first < FEW_FILES)


def check_file_system(folder: str, table: str = TABLE) -> Check:
    """Check the kind of a folder's file system: proc_pid_mounts(5)."""
    path, kind, point = os.path.realpath(folder), "", ""
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        for mount in (line.split() for line in file):
            at = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount[1])  # spaces are octal numbers
            # A later mount covers an earlier one at the same point.
            if (path == at or path.startswith(at.rstrip("/") + "/")) and len(at) >= len(point):
                point, kind = at, mount[2]
    words = f"{folder} lies on {kind}, mounted at {point}"
    if kind in REMOTE:
        change = (
            "Pack many small files into shards (penstock pack), keep them on a local disk (cache=FOLDER), or copy "
            "them: each file costs round trips over the network."
        )
        return judged("file system", f"{words}: over a network", change)
    if kind.startswith(INDIRECT):
        change = "Copy the files to a disk of this machine: each call passes through another program."
        return judged("file system", f"{words}: through a program in user space or a host", change)
    return judged("file system", words)
