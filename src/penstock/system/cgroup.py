"""What the cgroups of this process allow and count: CPUs and memory, of cgroup v2 and v1.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A value that is not there is None.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

MEMBERSHIP = "/proc/self/cgroup"
MOUNT = "/sys/fs/cgroup"

_NO_LIMIT = 1 << 62  # cgroup v1 writes "no limit" as the largest number of whole pages


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the group with the tightest limit above this process, in bytes."""

    in_use: int | None
    limit: int | None
    oom_kills: int | None
    """Processes of the innermost group that the kernel's OOM killer has ended so far."""


def cgroup_quota(membership: str = MEMBERSHIP, mount: str = MOUNT) -> int | None:
    """Return the CPUs of the tightest quota above this process, rounded up, or None where there is none."""
    exact = exact_quota(membership, mount)
    return None if exact is None else math.ceil(exact)


def exact_quota(membership: str = MEMBERSHIP, mount: str = MOUNT) -> float | None:
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


def memory(membership: str = MEMBERSHIP, mount: str = MOUNT) -> Memory:
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
