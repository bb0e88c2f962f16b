"""Checks of CPUs and of the threads that compete for them, of memory, of limits, and of GPUs and their NUMA nodes."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_info

from penstock.executors.workers.shm_space import FOLDER, HELD, REMEDY
from penstock.insight.check import Check, judged
from penstock.system.cgroup import MEMBERSHIP, MOUNT, exact_quota, memory, throttled_share
from penstock.system.words import counted, size_of

#: Less memory than this is too little for torch, workers and batches.
LEAST, FEW = 512 << 20, 2 << 30
#: A process whose machine has swapped out this share of its memory waits for pages.
SWAPPED = 0.1
#: The share of the available memory that files may fill before pages of the dataset push each other out.
FILLED = 0.8
#: A batch of a usual job: 64 images of 3 x 224 x 224 float32.
USUAL_BATCH = 64 * 3 * 224 * 224 * 4
#: A process with this many files opens the datasets, sockets and shared tensors of a usual job; with FEW_FILES none.
ENOUGH_FILES, FEW_FILES, MANY_FILES = 1024, 512, 65536

PCI_DEVICES = "/sys/bus/pci/devices"
NODES = "/sys/devices/system/node"

_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI's numbers of the vendor, and of the class of display controllers

# --- CPUs ------------------------------------------------------------------------------------------------------------


class Processors(NamedTuple):
    """CPUs of the machine, and what of them this process may use."""

    online: int
    affinity: int
    quota: float | None = None
    """CPUs of the cgroup's quota; None: there is none."""
    throttled: float | None = None
    """The share of periods in which that quota stopped the process's group, 0 to 1."""

    @property
    def usable(self) -> float:
        """CPUs that may really be used at a time."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)


def read_processors(membership: str = MEMBERSHIP, mount: str = MOUNT) -> Processors:
    """Return the CPUs of this process."""
    quota, throttled = exact_quota(membership, mount), throttled_share(membership, mount)
    return Processors(os.cpu_count() or 1, len(os.sched_getaffinity(0)), quota, throttled)


def check_processors(found: Processors) -> Check:
    """Check that the process may use the machine's CPUs."""
    quota = "no quota" if found.quota is None else f"a cgroup quota of {_cpus(found.quota)}"
    if found.quota is not None and found.throttled is not None:
        quota += f", which stopped the process in {found.throttled:.0%} of its periods"
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


# --- memory ----------------------------------------------------------------------------------------------------------


class HostMemory(NamedTuple):
    """Memory of the machine and of this process's cgroup, in bytes."""

    total: int
    available: int
    """What programs may still take: free memory, and caches that give way. At most the cgroup's limit."""
    swap: int = 0
    swapped: int = 0
    limit: int | None = None
    """Of the cgroup; None: there is none."""
    oom_kills: int = 0
    """Processes that the kernel has ended in the cgroup for want of memory."""


def read_memory(meminfo: str = "/proc/meminfo", membership: str = MEMBERSHIP, mount: str = MOUNT) -> HostMemory:
    """Return the memory of the machine. Raises OSError, KeyError."""
    with open(meminfo, encoding="ascii") as lines:
        rows = (line.split() for line in lines)
        values = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1}
    group = memory(membership, mount)
    available = values["MemAvailable"] if group.limit is None else min(values["MemAvailable"], group.limit)
    swap = values.get("SwapTotal", 0)
    swapped = swap - values.get("SwapFree", 0)
    return HostMemory(values["MemTotal"], available, swap, swapped, group.limit, group.oom_kills or 0)


def check_memory(found: HostMemory) -> Check:
    """Check that there is memory for workers and batches, and that little of it is swapped out."""
    limit = "no cgroup limit" if found.limit is None else f"a cgroup limit of {size_of(found.limit)}"
    words = f"{size_of(found.available)} available of {size_of(found.total)}, {limit}"
    if found.swap:
        words += f"; {size_of(found.swapped)} of {size_of(found.swap)} of swap in use"
    if found.oom_kills:
        words += f"; the kernel has ended {counted(found.oom_kills, 'process', 'processes')} of the group so far"
    change = ""
    if found.available < LEAST:
        change = "End what else takes memory, or raise the limit: workers are killed where memory runs out."
    elif found.oom_kills:
        change = "Raise the limit, or lower num_workers=, prefetch_factor= or batch_size=."
    elif found.available < FEW:
        change = "Start few workers, and keep batches small."
    elif found.swapped > SWAPPED * found.total:
        change = "Use less memory (fewer workers, smaller caches): a page that was swapped out is read from the disk."
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


# --- limits ----------------------------------------------------------------------------------------------------------


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


# --- GPUs ------------------------------------------------------------------------------------------------------------


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


def read_installed(devices: str = PCI_DEVICES) -> int:
    """Return how many GPUs of NVIDIA the PCI bus has."""
    found = 0
    for device in Path(devices).glob("*"):
        try:
            vendor, kind = (Path(device, name).read_text("ascii").strip() for name in ("vendor", "class"))
        except OSError:
            continue
        found += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return found


def check_gpus(gpus: list[Gpu], installed: int, cuda_version: str | None) -> Check:
    """Check that torch, built for a version of CUDA or for none, can use the GPUs that are installed."""
    built = "built without CUDA" if cuda_version is None else f"built for CUDA {cuda_version}"
    if gpus:
        shown = ", ".join(f"{gpu.index}: {gpu.name} with {size_of(gpu.memory)}" for gpu in gpus)
        return judged("GPU", f"{counted(len(gpus), 'GPU')} ({shown}); torch is {built}")
    if not installed:
        return judged("GPU", f"none, of those that torch reaches by CUDA; torch is {built}")
    words = f"{counted(installed, 'GPU')} of NVIDIA on the PCI bus, and torch can use none; torch is {built}"
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
