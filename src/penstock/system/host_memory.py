"""How much memory of the host this process may still take."""

from __future__ import annotations

import os

from penstock.system.cgroup import memory as group_memory


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
