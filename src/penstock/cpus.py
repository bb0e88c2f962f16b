"""How many CPUs this process may really use."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Return how many CPUs this process may really use: its affinity, and its cgroup's quota rounded up."""
    cpus = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))


def cgroup_quota(membership: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> int | None:
    """Return the CPUs of the tightest quota above this process, rounded up, or None where there is none.

    Sources: cpu.max of cgroup v2 and cpu.cfs_quota_us of v1 (Linux, Documentation/admin-guide/cgroup-v2.rst).
    """
    quotas = []
    try:
        with open(membership, encoding="utf-8") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return None
    for _, controllers, path in groups:
        names: tuple[str, ...]
        if controllers == "":
            base, names = mount, ("cpu.max",)
        elif "cpu" in controllers.split(","):
            base, names = f"{mount}/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            words = _read_words(os.path.join(base, *parts[:depth]), names)
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                quotas.append(-(-int(words[0]) // int(words[1])))
    return min(quotas, default=None)


def _read_words(folder: str, names: tuple[str, ...]) -> list[str]:
    words: list[str] = []
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="ascii") as file:
                words += file.read().split()
        except OSError:
            return []
    return words
