"""How many CPUs this process may really use."""

from __future__ import annotations

import os

from penstock.system.cgroup import cgroup_quota


def usable_cpus() -> int:
    """Return how many CPUs this process may really use: its affinity, and its cgroup's quota rounded up."""
    cpus = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))
