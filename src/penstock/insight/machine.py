"""What the machine gives to a loader: CPUs, memory, limits, file systems and GPUs; or what of it concerns a dataset."""

from __future__ import annotations

import os
import re
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_info
from torch.utils.data import DataLoader, IterableDataset

from penstock.executors.workers.shm_space import FOLDER, HELD, REMEDY
from penstock.insight.check import Check, State, checked, judged
from penstock.sources.naming import names_of
from penstock.sources.shards import Shards
from penstock.storage.objects import is_url
from penstock.system.limits import MEMBERSHIP, MOUNT, cpu_quota, group_memory
from penstock.system.words import counted, size_of

#: The most samples whose files are looked at.
LOOKED_AT = 1024
#: Less memory than this is too little for torch, workers and batches.
LEAST, FEW = 512 << 20, 2 << 30
#: The share of the available memory that files may fill before pages of the dataset push each other out.
FILLED = 0.8
#: A batch of a usual job: 64 images of 3 x 224 x 224 float32.
USUAL_BATCH = 64 * 3 * 224 * 224 * 4
#: A process with this many files opens the datasets, sockets and shared tensors of a usual job; with FEW_FILES none.
ENOUGH_FILES, FEW_FILES, MANY_FILES = 1024, 512, 65536

PCI_DEVICES = "/sys/bus/pci/devices"
NODES = "/sys/devices/system/node"
#: The GPUs that NVIDIA's driver knows.
DRIVEN = "/proc/driver/nvidia/gpus"
#: The kernel's table of mounts, and the file systems whose bytes come over a network.
TABLE = "/proc/self/mountinfo"
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "afs", "wekafs")


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
    cpus = read_processors()
    workers = max(1, int(cpus.usable)) if of.workers is None else of.workers  # of a usual job one a CPU
    yield checked("CPUs", lambda: check_processors(cpus))
    yield checked("OpenMP threads", lambda: check_openmp(read_pools(), cpus.usable))
    yield checked("memory", lambda: check_memory(read_memory()))
    if (size := of.bytes) is not None:
        yield checked("page cache", lambda: check_page_cache(read_memory(), size, exact=of.exact))
    yield checked(FOLDER, lambda: check_shared_memory(read_space(), workers, of.prefetch_factor))
    yield checked("open files", lambda: check_open_files(*read_open_files()))
    if dataset is None or of.folder is not None:
        folder = of.folder or tempfile.gettempdir()
        yield checked("file system", lambda: check_file_system(folder))
    if dataset is None:
        gpus: list[Gpu] = []

        def check_them() -> Check:
            gpus.extend(read_gpus())
            return check_gpus(gpus, len(list(Path(DRIVEN).glob("*"))), torch.version.cuda)

        yield checked("GPU", check_them)
        for one in gpus:
            yield checked(f"NUMA of GPU {one.index}", partial(check_node, one))


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


class Processors(NamedTuple):
    """CPUs of the machine, and what of them this process may use."""

    online: int
    affinity: int
    quota: float | None = None
    """CPUs of the cgroup's quota; None: there is none."""

    @property
    def usable(self) -> float:
        """CPUs that may really be used at a time."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)


def read_processors(membership: str = MEMBERSHIP, mount: str = MOUNT) -> Processors:
    """Return the CPUs of this process."""
    return Processors(os.cpu_count() or 1, len(os.sched_getaffinity(0)), cpu_quota(membership, mount))


def check_processors(found: Processors) -> Check:
    """Check that the process may use the machine's CPUs."""
    quota = "no quota" if found.quota is None else f"a cgroup quota of {_cpus(found.quota)}"
    words = (
        f"{_cpus(found.usable)} usable: the machine has {found.online:,}, the affinity mask allows "
        f"{found.affinity:,}, {quota}"
    )
    change = ""
    if found.quota is not None and found.quota < found.affinity:
        change = (
            "Raise the quota (docker run --cpus=, resources.limits.cpu of Kubernetes), and start no more workers than "
            f"it has CPUs ({max(1, int(found.quota))}): threads beyond it are stopped for the rest of each period."
        )
    elif found.affinity < found.online:
        change = (
            "Widen the affinity mask, if that was not wanted: taskset, docker run --cpuset-cpus=, --cpus-per-task= of "
            "Slurm."
        )
    elif found.affinity == 1:
        change = "Give the job more CPUs: loading and training share this one."
    return judged("CPUs", words, change, bad=found.quota is not None and found.quota < min(1, found.affinity))


def _cpus(number: float) -> str:
    return f"{number:,.3g} CPU{'' if number <= 1 else 's'}"


def read_pools() -> list[tuple[str, int]]:
    """Return the OpenMP and BLAS pools that libraries have loaded into this process, and their threads."""
    return [(str(one.get("internal_api") or one.get("user_api")), int(one["num_threads"])) for one in threadpool_info()]


def check_openmp(pools: list[tuple[str, int]], usable: float) -> Check:
    """Check that no pool has more threads than there are usable CPUs."""
    shown = ", ".join(f"{library} {threads:,}" for library, threads in pools) or "no pool is loaded"
    words = f"threads: {shown}; OMP_NUM_THREADS is {os.environ.get('OMP_NUM_THREADS') or 'not set'}"
    limit = max(1, round(usable))
    many = any(threads > limit for _, threads in pools)
    change = f"Set OMP_NUM_THREADS={limit}: more threads than the {_cpus(usable)} wait for each other." if many else ""
    return judged("OpenMP threads", words, change)


class HostMemory(NamedTuple):
    """Memory of the machine and of this process's cgroup, in bytes."""

    total: int
    available: int
    """What programs may still take: free memory, and caches that give way. At most the cgroup's limit."""
    limit: int | None = None
    """Of the cgroup; None: there is none."""
    oom_kills: int = 0
    """Processes that the kernel has ended in the cgroup for want of memory."""


def read_memory(meminfo: str = "/proc/meminfo", membership: str = MEMBERSHIP, mount: str = MOUNT) -> HostMemory:
    """Return the memory of the machine. Raises OSError, KeyError."""
    with open(meminfo, encoding="ascii") as lines:
        rows = (line.split() for line in lines)
        values = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}
    group = group_memory(membership, mount)
    available = values["MemAvailable"] if group.limit is None else min(values["MemAvailable"], group.limit)
    return HostMemory(values["MemTotal"], available, group.limit, group.oom_kills or 0)


def check_memory(found: HostMemory) -> Check:
    """Check that there is memory for workers and batches."""
    limit = "no cgroup limit" if found.limit is None else f"a cgroup limit of {size_of(found.limit)}"
    words = f"{size_of(found.available)} available of {size_of(found.total)}, {limit}"
    if found.oom_kills:
        words += f"; the kernel has ended {counted(found.oom_kills, 'process', 'processes')} of the group so far"
    change = ""
    if found.available < LEAST:
        change = "End what else takes memory, or raise the limit: workers are killed where memory runs out."
    elif found.oom_kills:
        change = "Raise the limit, or lower num_workers=, prefetch_factor= or batch_size=."
    elif found.available < FEW:
        change = "Start few workers, and keep batches small."
    return judged("memory", words, change, bad=found.available < LEAST)


def check_page_cache(found: HostMemory, dataset: int, *, exact: bool) -> Check:
    """Check that a dataset's files, of so many bytes, stay in memory from one epoch to the next.

    exact: all files were looked at; else some of them.
    """
    about = "" if exact else "about "
    words = f"the dataset's {about}{size_of(dataset)} and {size_of(found.available)} that the page cache may take"
    if dataset <= found.available * FILLED:
        return judged("page cache", f"{words}: it fits, and only the first epoch reads the disk")
    change = (
        "Every epoch reads the disk. Fewer bytes (penstock pack --max-side=), more memory, or cache=FOLDER on a fast "
        "local disk help, where the disk is what holds the loop up."
    )
    return judged("page cache", f"{words}: it does not fit", change)


def read_space(folder: str = FOLDER) -> tuple[int, int] | None:
    """Return (all bytes, free bytes) of /dev/shm; None: there is no such folder."""
    try:
        found = os.statvfs(folder)
    except FileNotFoundError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def check_shared_memory(space: tuple[int, int] | None, workers: int, prefetch_factor: int) -> Check:
    """Check that batches of worker processes, of a usual job's size, fit into /dev/shm, where they come torch's way."""
    if space is None:
        words = f"there is no {FOLDER}: worker processes cannot hand torch's tensors over"
        return judged(FOLDER, words, f"Mount a tmpfs at {FOLDER}, or read with worker_method='thread'.", bad=True)
    size, free = space
    planned = (workers * prefetch_factor + HELD) * USUAL_BATCH
    words = (
        f"{size_of(free)} free of {size_of(size)}; a usual job of "
        f"{counted(workers, 'worker process', 'worker processes')} with prefetch_factor={prefetch_factor} and batches "
        f"of {size_of(USUAL_BATCH)} may have {size_of(planned)} there"
    )
    return judged(FOLDER, words, "" if planned <= free else REMEDY)


def read_open_files() -> tuple[float, float]:
    """Return the (soft, hard) limit of open files; infinite for none."""
    soft, hard = (
        float("inf") if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def check_open_files(soft: float, hard: float) -> Check:
    """Check `ulimit -n`: each tensor that a worker process hands over takes a file descriptor."""
    words = f"ulimit -n is {soft:,}, and may be raised to {hard:,}".replace("inf", "any number")
    if soft >= ENOUGH_FILES:
        return judged("open files", words)
    change = f"ulimit -n {min(hard, MANY_FILES)} before the job" if hard > soft else ""
    if hard < ENOUGH_FILES:
        change += f"{', and have' if change else 'Have'} the hard limit raised (limits.conf)"
    change += ": a tensor of a worker process takes a file each, and 'Too many open files' ends the pass."
    return judged("open files", words, change, bad=soft < FEW_FILES)


def mount_of(path: str, table: str = TABLE) -> tuple[str, str]:
    """Return (the file system's kind, the folder that it is mounted at) of a path: proc_pid_mountinfo(5).

    Both are empty where the system does not say.
    """
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return "", ""
    resolved, kind, point = os.path.realpath(path), "", ""
    for words in lines:
        if "-" not in words[6:] or len(words) < 10:
            continue
        mounted = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])  # spaces are octal numbers
        below = resolved == mounted or resolved.startswith(mounted.rstrip("/") + "/")
        if below and len(mounted) >= len(point):  # a later mount covers an earlier one at the same point
            kind, point = words[words.index("-", 6) + 1], mounted
    return kind, point


def check_file_system(folder: str, table: str = TABLE) -> Check:
    """Check the kind of a folder's file system."""
    name, (kind, point) = "file system", mount_of(folder, table)
    if not kind:
        return Check(name, State.UNKNOWN, f"{folder}: /proc/self/mountinfo does not say what it lies on")
    words = f"{folder} lies on {kind}, mounted at {point}"
    if kind in REMOTE:
        change = (
            "Pack many small files into shards (penstock pack), keep them on a local disk (cache=FOLDER), or copy "
            "them: each file costs round trips over the network."
        )
        return judged(name, f"{words}: over a network", change)
    if kind.startswith("fuse") or kind in ("9p", "virtiofs", "vboxsf"):
        change = "Copy the files to a disk of this machine: each call passes through another program."
        return judged(name, f"{words}: through a program in user space or a host", change)
    return judged(name, words)


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it."""

    index: int
    name: str
    memory: int
    """In bytes."""
    address: str = ""
    """On the PCI bus: "0000:3b:00.0"; empty: torch does not say."""


def read_gpus() -> list[Gpu]:
    """Return the GPUs that torch can use. The first call sets CUDA up."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.cuda.get_device_properties(index)
        numbers: list[Any] = [getattr(device, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
        address = "" if None in numbers else "{:04x}:{:02x}:{:02x}.0".format(*numbers)
        found.append(Gpu(index, device.name, device.total_memory, address))
    return found


def check_gpus(gpus: list[Gpu], installed: int, cuda_version: str | None) -> Check:
    """Check that torch, built for a version of CUDA or for none, can use the GPUs that are installed."""
    built = "built without CUDA" if cuda_version is None else f"built for CUDA {cuda_version}"
    if gpus:
        shown = ", ".join(f"{gpu.index}: {gpu.name} with {size_of(gpu.memory)}" for gpu in gpus)
        return judged("GPU", f"{counted(len(gpus), 'GPU')} ({shown}); torch is {built}")
    if not installed:
        return judged("GPU", f"none, of those that torch reaches by CUDA; torch is {built}")
    words = f"NVIDIA's driver knows {counted(installed, 'GPU')}, and torch can use none; torch is {built}"
    change = "Install a torch with CUDA."
    if cuda_version is not None:
        change = (
            "Give the container its GPUs (docker run --gpus all), look whether CUDA_VISIBLE_DEVICES hides them, and "
            "whether nvidia-smi finds a driver that is new enough."
        )
    return judged("GPU", words, change, bad=True)


def read_node(gpu: Gpu, devices: str = PCI_DEVICES, nodes: str = NODES) -> tuple[int, set[int]] | None:
    """Return (the NUMA node of a GPU, the CPUs of that node); None: the machine has one node, or does not say."""
    try:
        node = int(Path(devices, gpu.address, "numa_node").read_text("ascii"))
        if node < 0 or len(list(Path(nodes).glob("node[0-9]*"))) < 2:
            return None
        cpus: set[int] = set()
        for part in Path(nodes, f"node{node}", "cpulist").read_text("ascii").strip().split(","):  # "0-3,8"
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return None
    return node, cpus


def check_node(gpu: Gpu, devices: str = PCI_DEVICES, nodes: str = NODES, affinity: set[int] | None = None) -> Check:
    """Check that this process may run on CPUs of a GPU's NUMA node. affinity: its CPUs; None: as the system says."""
    name, found = f"NUMA of GPU {gpu.index}", read_node(gpu, devices, nodes)
    if found is None:
        return judged(name, "the machine has one NUMA node, or does not say which the GPU is at")
    node, cpus = found
    affinity = os.sched_getaffinity(0) if affinity is None else affinity
    near = len(cpus & affinity)
    words = f"the GPU is at node {node}; {near:,} of the {counted(len(affinity), 'CPU')} of this process are there"
    bind = f"numactl --cpunodebind={node} --preferred={node}"
    return judged(name, words, "" if near else f"{bind} before the job: each copy crosses from another node's memory.")
