"""Checks of CPUs, of the thread pools that compete for them, and of how Python starts workers and shares its lock."""

from __future__ import annotations

import multiprocessing
import os
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from threadpoolctl import threadpool_info

from penstock.insight.check import Check, State
from penstock.system.cgroup import MEMBERSHIP, MOUNT, exact_quota, throttled_share
from penstock.system.words import counted

#: A quota that stops the process in this share of its periods, or more, costs time.
THROTTLED = 0.05


@dataclass(frozen=True)
class Processors:
    """CPUs of the machine, and what of them this process may use."""

    online: int
    affinity: int
    quota: float | None = None
    """CPUs of the cgroup's quota; None: there is none."""
    throttled: float | None = None
    """The share of periods in which that quota stopped the process's group, 0 to 1."""

    @property
    def usable(self) -> float:
        """CPUs that may really be used at a time."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)


def read_processors(membership: str = MEMBERSHIP, mount: str = MOUNT) -> Processors:
    """Return the CPUs of this process."""
    quota, throttled = exact_quota(membership, mount), throttled_share(membership, mount)
    return Processors(os.cpu_count() or 1, len(os.sched_getaffinity(0)), quota, throttled)


def check_processors(found: Processors) -> Check:
    """Check that the process may use the machine's CPUs."""
    quota = "no quota" if found.quota is None else f"a cgroup quota of {counted_cpus(found.quota)}"
    stopped = ""
    if found.quota is not None and found.throttled is not None:
        stopped = f", which stopped the process in {found.throttled:.0%} of its periods"
    words = (
        f"{counted_cpus(found.usable)} usable: the machine has {found.online:,}, the affinity mask allows "
        f"{found.affinity:,}, {quota}{stopped}"
    )
    if found.quota is not None and found.quota < found.affinity:
        change = (
            "Raise the quota (docker run --cpus=, resources.limits.cpu of Kubernetes), and start no more workers than "
            f"it has CPUs ({max(1, int(found.quota))}): threads beyond it are stopped for the rest of each period."
        )
        return Check("CPUs", State.BAD if found.quota < 1 else State.LOOK, words, change)
    if found.affinity < found.online:
        change = (
            "Widen the affinity mask, if that was not wanted: taskset, docker run --cpuset-cpus=, --cpus-per-task= of "
            "Slurm."
        )
        return Check("CPUs", State.LOOK, words, change)
    if found.affinity == 1:
        return Check("CPUs", State.LOOK, words, "Give the job more CPUs: loading and training share this one.")
    return Check("CPUs", State.OK, words)


def counted_cpus(number: float) -> str:
    """Return a number of CPUs: "4 CPUs", "0.5 CPU"."""
    return f"{number:,.3g} CPU{'' if number <= 1 else 's'}"


@dataclass(frozen=True)
class Pool:
    """A pool of threads that a library has loaded into this process."""

    library: str
    threads: int


def read_pools() -> list[Pool]:
    """Return the OpenMP and BLAS pools of this process."""
    found: list[dict[str, Any]] = threadpool_info()
    names = [str(one.get("internal_api") or one.get("user_api")) for one in found]
    return [Pool(name, int(one["num_threads"])) for name, one in zip(names, found, strict=True)]


def check_openmp(pools: list[Pool], usable: float, variable: str | None) -> Check:
    """Check that no pool has more threads than there are usable CPUs.

    variable: what OMP_NUM_THREADS says.
    """
    shown = ", ".join(f"{pool.library} {pool.threads:,}" for pool in pools) or "no pool is loaded"
    words = f"threads: {shown}; OMP_NUM_THREADS is {variable or 'not set'}"
    limit = max(1, round(usable))
    if any(pool.threads > limit for pool in pools):
        change = f"Set OMP_NUM_THREADS={limit}: more threads than the {counted_cpus(usable)} wait for each other."
        return Check("OpenMP threads", State.LOOK, words, change)
    return Check("OpenMP threads", State.OK, words)


def read_opencv() -> int | None:
    """Return the threads of OpenCV's pool, 0 where it is installed and not imported, None where it is not installed."""
    module = sys.modules.get("cv2")
    if module is not None:
        return int(module.getNumThreads())
    return None if find_spec("cv2") is None else 0


def check_opencv(threads: int | None, start_method: str) -> Check:
    """Check that OpenCV's pool does not meet forked worker processes.

    threads: as read_opencv() returns them.
    """
    if threads is None:
        return Check("OpenCV threads", State.OK, "OpenCV is not installed")
    if threads == 0:
        return Check("OpenCV threads", State.OK, "OpenCV is installed; nothing has imported it here")
    words = f"OpenCV is imported, with a pool of {counted(threads, 'thread')}; workers start by {start_method}"
    if threads == 1:
        return Check("OpenCV threads", State.OK, words)
    change = (
        "Call cv2.setNumThreads(0) where cv2 is imported: each worker has a pool of that size, and a pool that was "
        "used before a fork may hang in the child."
    )
    return Check("OpenCV threads", State.LOOK, words, change)


def read_start_method() -> str:
    """Return how multiprocessing starts processes here; nothing is fixed by the question."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def check_start_method(method: str) -> Check:
    """Check how worker processes start."""
    if method == "fork":
        return Check("start method", State.OK, "worker processes start by fork: at once, and share what is loaded")
    change = (
        "persistent_workers=True starts them once and not in each epoch; so does worker_method='thread' without "
        "processes."
    )
    words = f"worker processes start by {method}: each starts an interpreter, imports torch and unpickles the dataset"
    return Check("start method", State.LOOK, words, change)


def read_gil() -> tuple[bool, bool]:
    """Return (the interpreter was built without a GIL, the GIL is on)."""
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    enabled = getattr(sys, "_is_gil_enabled", None)
    return free_threaded, True if enabled is None else bool(enabled())


def check_gil(free_threaded: bool, enabled: bool) -> Check:
    """Check whether Python's threads run at a time."""
    version = ".".join(map(str, sys.version_info[:3]))
    if not free_threaded:
        words = f"on, as in every usual build (Python {version}): one thread at a time runs Python code"
        return Check("GIL", State.OK, words)
    if enabled:
        change = "Find the extension module that needs it (python -X gil=0 shows what fails), or update that package."
        return Check("GIL", State.LOOK, f"on, though Python {version} is free-threaded: a module turned it on", change)
    return Check("GIL", State.OK, f"off (Python {version}, free-threaded): threads run Python code at a time")
