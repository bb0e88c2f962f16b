"""Checks of memory: how much there is, what is swapped out, and whether a dataset stays in the page cache."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.insight.check import Check, State
from penstock.system.cgroup import MEMBERSHIP, MOUNT, memory
from penstock.system.words import counted, size_of

MEMINFO = "/proc/meminfo"

#: Less memory than this is too little for torch, workers and batches.
LEAST, FEW = 512 << 20, 2 << 30
#: A process whose machine has swapped out this share of its memory waits for pages.
SWAPPED = 0.1
#: The share of the available memory that files may fill before pages of the dataset push each other out.
FILLED = 0.8


@dataclass(frozen=True)
class HostMemory:
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


def read_memory(meminfo: str = MEMINFO, membership: str = MEMBERSHIP, mount: str = MOUNT) -> HostMemory:
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
    """Check that there is memory for workers and batches."""
    limit = "no cgroup limit" if found.limit is None else f"a cgroup limit of {size_of(found.limit)}"
    words = f"{size_of(found.available)} available of {size_of(found.total)}, {limit}"
    if found.oom_kills:
        words += f"; the kernel has ended {counted(found.oom_kills, 'process', 'processes')} of the group so far"
    if found.available < LEAST:
        change = "End what else takes memory, or raise the limit: workers are killed where memory runs out."
        return Check("memory", State.BAD, words, change)
    if found.oom_kills:
        change = "Raise the limit, or lower num_workers=, prefetch_factor= or batch_size=."
        return Check("memory", State.LOOK, words, change)
    if found.available < FEW:
        return Check("memory", State.LOOK, words, "Start few workers, and keep batches small.")
    return Check("memory", State.OK, words)


def check_swap(found: HostMemory) -> Check:
    """Check that memory is not swapped out."""
    if not found.swap:
        return Check("swap", State.OK, "none")
    words = f"{size_of(found.swapped)} of {size_of(found.swap)} in use"
    if found.swapped > SWAPPED * found.total:
        change = "Use less memory (fewer workers, smaller caches): a page that was swapped out is read from the disk."
        return Check("swap", State.LOOK, words, change)
    return Check("swap", State.OK, words)


def check_page_cache(found: HostMemory, dataset: int, *, exact: bool) -> Check:
    """Check that the dataset's files stay in memory from one epoch to the next.

    Args:
        found: the machine's memory.
        dataset: bytes of all files.
        exact: all files were looked at; else some of them.
    """
    about = "" if exact else "about "
    words = f"the dataset's {about}{size_of(dataset)} and {size_of(found.available)} that the page cache may take"
    if dataset <= found.available * FILLED:
        return Check("page cache", State.OK, f"{words}: it fits, and only the first epoch reads the disk")
    change = (
        "Every epoch reads the disk. Fewer bytes (penstock pack --max-side=), more memory, or cache=FOLDER on a fast "
        "local disk help, where the disk is what holds the loop up."
    )
    return Check("page cache", State.LOOK, f"{words}: it does not fit", change)
