"""What this process may use of the machine: CPUs and memory, by its affinity, its cgroups and the kernel's counts.

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and filesystems/proc.rst. A value that is
not there is None.
"""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic

import numpy as np

MEMBERSHIP = "/proc/self/cgroup"
MOUNT = "/sys/fs/cgroup"

_NO_LIMIT = 1 << 62  # cgroup v1 writes "no limit" as the largest number of whole pages
#: Bytes: just less than the largest block whose release malloc takes for a sign.
_BLOCK = 31 << 20
_M_TRIM_THRESHOLD = -1  # of malloc.h
_KEPT = 256 << 20
_QUOTA_SECONDS = 10


def host_cpus() -> int:
    """Return how many CPUs this process may run on: its affinity."""
    return len(os.sched_getaffinity(0))


def machine_cpu_seconds(path: str = "/proc/stat") -> float:
    """Return the CPU time of all processes of the machine since it started, in seconds; 0.0 where it is not known.

    Source: the first line of /proc/stat, in clock ticks: all but idle and iowait, and guest times, which the first two
    hold.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:  # the line is short; io's files take twice as long
            name, *ticks = os.read(file, 512).partition(b"\n")[0].split()
        finally:
            os.close(file)
        user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") if name == b"cpu" else 0.0


def usable_cpus() -> int:
    """Return how many CPUs this process may really use: its affinity, and its cgroup's quota rounded up."""
    quota = _quota_of(int(monotonic()) // _QUOTA_SECONDS)
    return host_cpus() if quota is None else max(1, min(host_cpus(), math.ceil(quota)))


@lru_cache(maxsize=1)
def _quota_of(moment: int) -> float | None:
    """Return the quota of this process at a moment: to read it takes as long as a pass over 20 small samples."""
    return cpu_quota()


def cpu_quota(membership: str = MEMBERSHIP, mount: str = MOUNT) -> float | None:
    """Return the CPUs of the tightest quota above this process, such as 0.5, or None where there is none.

    Sources: cpu.max of cgroup v2 and cpu.cfs_quota_us of v1.
    """
    quotas = []
    for unified, folders in _groups("cpu", membership, mount):
        names = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for folder in folders:
            words = _read_words(folder, names)
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the group with the tightest limit above this process, in bytes."""

    in_use: int | None
    limit: int | None
    oom_kills: int | None
    """Processes of the innermost group that the kernel's OOM killer has ended so far."""


def group_memory(membership: str = MEMBERSHIP, mount: str = MOUNT) -> Memory:
    """Return what this process's memory cgroups use, allow and count.

    Sources: memory.current, memory.max and memory.events of cgroup v2; memory.usage_in_bytes,
    memory.limit_in_bytes and memory.oom_control of v1.
    """
    in_use = limit = oom_kills = None
    for unified, folders in _groups("memory", membership, mount):
        names = ("memory.current", "memory.max") if unified else ("memory.usage_in_bytes", "memory.limit_in_bytes")
        events = ("memory.events",) if unified else ("memory.oom_control",)
        for folder in folders:
            words = _read_words(folder, names)
            if len(words) == 2 and words[0].isdigit():
                own = int(words[1]) if words[1].isdigit() and int(words[1]) < _NO_LIMIT else None
                if limit is None or (own is not None and own <= limit):
                    in_use, limit = int(words[0]), own
            counted = _read_words(folder, events)
            if "oom_kill" in counted[:-1]:
                oom_kills = int(counted[counted.index("oom_kill") + 1])
    return Memory(in_use, limit, oom_kills)


def _groups(controller: str, membership: str, mount: str) -> list[tuple[bool, list[str]]]:
    """Return (is it cgroup v2, folders from the outermost to the innermost) of each hierarchy with the controller."""
    try:
        with open(membership, encoding="utf-8") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return []
    found = []
    for _, controllers, path in groups:
        if controllers and controller not in controllers.split(","):
            continue
        base = f"{mount}/{controller}" if controllers else mount
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found.append((not controllers, [os.path.join(base, *parts[:depth]) for depth in range(len(parts) + 1)]))
    return found


def _read_words(folder: str, names: tuple[str, ...]) -> list[str]:
    try:
        return [word for name in names for word in Path(folder, name).read_text("ascii").split()]
    except OSError:
        return []


def available_bytes() -> int:
    """Return how many bytes of host memory this process may still take, about.

    Source: MemAvailable of /proc/meminfo, and the limit of the process's memory cgroup.
    """
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass  # as much as there is, then
    limit = group_memory().limit  # what is in use of it may be cache that gives way
    return available if limit is None else min(available, limit)


def keep_freed_samples() -> None:
    """Let malloc keep the samples of a batch that a worker process frees, up to _KEPT, for the next batch.

    A worker holds all samples of a batch until it collates them. glibc gives the top of its heap back to the system
    where more is free there than M_TRIM_THRESHOLD, and maps blocks above M_MMAP_THRESHOLD by themselves (mallopt(3)):
    samples would come in new pages each time, which takes longer than reading a sound. Freeing one large block, never
    written to, raises the second threshold. Both are for the life of the process, which is Penstock's own: in the
    user's they stay where the user's program has them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries may have none
    if mallopt is not None:
        np.empty(_BLOCK, dtype=np.uint8)  # first: a threshold is not learned any more where one was set
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
