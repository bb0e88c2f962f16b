"""How many CPUs this process may really use."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.system.cgroup import cgroup_quota


def host_cpus() -> int:
    """Return how many CPUs this process may run on: its affinity."""
    return len(os.sched_getaffinity(0))


def machine_cpu_seconds(path: str = "/proc/stat") -> float:
    """Return the CPU time of all processes of the machine since it started, in seconds; 0.0 where it is not known.

    Source: the first line of /proc/stat, in clock ticks (the kernel's filesystems/proc.rst): all but idle and iowait,
    and guest times, which the first two hold.
    """
    try:
        name, *ticks = Path(path).read_text("ascii").partition("\n")[0].split()
        user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") if name == "cpu" else 0.0


def usable_cpus() -> int:
    """Return how many CPUs this process may really use: its affinity, and its cgroup's quota rounded up."""
    cpus = host_cpus()
    quota = cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))
