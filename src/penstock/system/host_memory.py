"""The memory of the host: how much of it this process may still take, and what its malloc keeps."""

from __future__ import annotations

import os
from functools import cache

import numpy as np

from penstock.system.cgroup import memory as group_memory

#: Bytes: just less than the largest block whose release malloc takes for a sign.
_BLOCK = 31 << 20


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


@cache
def keep_freed_memory() -> None:
    """Let malloc keep what samples and batches free for those that come next.

    glibc gives the top of its heap back to the system where more is free there than twice the largest block that was
    mapped by itself and freed (mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). That was a batch, and the samples that
    it is made of are as much again: where nothing happens to lie above them, each batch would come in new pages, which
    takes as long as making it. One larger block, never written to, is freed here. Other mallocs take no notice.
    """
    np.empty(_BLOCK, dtype=np.uint8)
