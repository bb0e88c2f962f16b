"""How many CPUs this process may really use."""

from __future__ import annotations

import os

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
    cpus = host_cpus()
    quota = cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))
