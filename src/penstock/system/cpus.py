"""How many CPUs this process may really use."""

from __future__ import annotations

import os

from penstock.system.cgroup import cgroup_quota


def host_cpus() -> int:
    """Return how many CPUs this process may run on: its affinity."""
    return len(os.sched_getaffinity(0))


def usable_cpus() -> int:
    """Return how many CPUs this process may really use: its affinity, and its cgroup's quota rounded up."""
    cpus = host_cpus()
    quota = cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))
