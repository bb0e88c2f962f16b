"""Checks of limits: space for batches in /dev/shm, open files, and locked memory."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from penstock.executors.workers.shm_space import FOLDER, HELD, REMEDY
from penstock.insight.check import Check, State
from penstock.system.words import counted, size_of

#: A process with this many files opens the datasets, sockets and shared tensors of a usual job; with FEW_FILES none.
ENOUGH_FILES, FEW_FILES = 1024, 512
INFINIBAND = "/sys/class/infiniband"


@dataclass(frozen=True)
class Planned:
    """Batches of worker processes that are in flight or in use at a time."""

    workers: int
    prefetch_factor: int
    batch_bytes: int
    known: bool = True
    """False: the numbers are those of a usual job, not of a loader."""

    @property
    def batches(self) -> int:
        """How many."""
        return self.workers * self.prefetch_factor + HELD

    @property
    def bytes(self) -> int:
        """How many bytes they have."""
        return self.batches * self.batch_bytes


#: 64 images of 3 x 224 x 224 float32.
USUAL_BATCH = 64 * 3 * 224 * 224 * 4


def usual_plan(cpus: float) -> Planned:
    """Return what a usual job plans: a worker for each CPU, torch's prefetch_factor, batches of 64 images."""
    return Planned(max(1, int(cpus)), 2, USUAL_BATCH, known=False)


def read_shared_memory(folder: str = FOLDER) -> tuple[int, int] | None:
    """Return (all bytes, free bytes) of /dev/shm; None: there is no such folder."""
    try:
        found = os.statvfs(folder)
    except FileNotFoundError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def check_shared_memory(space: tuple[int, int] | None, planned: Planned) -> Check:
    """Check that batches of worker processes fit into /dev/shm, where they come torch's way."""
    if space is None:
        words = f"there is no {FOLDER}: worker processes cannot hand torch's tensors over"
        return Check(FOLDER, State.BAD, words, f"Mount a tmpfs at {FOLDER}, or read with worker_method='thread'.")
    size, free = space
    whose = "" if planned.known else "a usual job of "
    workers = counted(planned.workers, "worker process", "worker processes")
    words = (
        f"{size_of(free)} free of {size_of(size)}; {whose}{workers} with "
        f"prefetch_factor={planned.prefetch_factor} and batches of {size_of(planned.batch_bytes)} may have "
        f"{size_of(planned.bytes)} there"
    )
    if planned.bytes <= free:
        return Check(FOLDER, State.OK, words)
    return Check(FOLDER, State.BAD if planned.known else State.LOOK, words, REMEDY)


def read_open_files() -> tuple[int, int]:
    """Return the (soft, hard) limit of open files; -1 stands for none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _or_none(soft), _or_none(hard)


def check_open_files(soft: int, hard: int) -> Check:
    """Check `ulimit -n`: each tensor that a worker process hands over takes a file descriptor."""
    words = f"ulimit -n is {_limit(soft)}, and may be raised to {_limit(hard)}"
    if soft < 0 or soft >= ENOUGH_FILES:
        return Check("open files", State.OK, words)
    wanted = ENOUGH_FILES * 64 if hard < 0 else max(soft, min(hard, ENOUGH_FILES * 64))
    change = f"ulimit -n {wanted} before the job" if wanted > soft else "Have the hard limit raised (limits.conf)"
    if wanted < ENOUGH_FILES and wanted > soft:
        change += ", and have the hard limit raised (limits.conf)"
    return Check(
        "open files",
        State.BAD if soft < FEW_FILES else State.LOOK,
        words,
        f"{change}: a tensor of a worker process takes a file each, and 'Too many open files' ends the pass.",
    )


def read_locked_memory(infiniband: str = INFINIBAND) -> tuple[int, bool]:
    """Return (the soft limit of locked memory in bytes, -1 for none; the machine has RDMA network cards)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return _or_none(soft), os.path.isdir(infiniband) and bool(os.listdir(infiniband))


def check_locked_memory(soft: int, rdma: bool) -> Check:
    """Check `ulimit -l`: RDMA locks its buffers under it; CUDA's page-locked memory does not count."""
    shown = "unlimited" if soft < 0 else size_of(soft)
    words = f"ulimit -l is {shown}; CUDA's page-locked memory does not count"
    if soft >= 0 and rdma:
        change = "ulimit -l unlimited before the job: the network cards of this machine (RDMA) lock their buffers."
        return Check("locked memory", State.LOOK, words, change)
    return Check("locked memory", State.OK, words)


def _or_none(limit: int) -> int:
    return -1 if limit == resource.RLIM_INFINITY else limit


def _limit(limit: int) -> str:
    return "unlimited" if limit < 0 else f"{limit:,}"
