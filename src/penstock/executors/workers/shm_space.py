"""Whether /dev/shm has space for the batches of worker processes that come torch's way: in new files of shared memory.

torch makes a file in /dev/shm for each tensor of a batch, and where that is full a worker fails: "No space left on
device", or a bus error. Containers often have 64 MiB of it. Batches in blocks of SharedBuffers need none.

Processes: everything here runs in the parent, in the thread that calls next().
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from penstock.system.warn_user import warn_user
from penstock.system.words import counted, size_of

FOLDER = "/dev/shm"
#: Batches that a loop may hold beside those in flight: the one in use, and the one before it.
HELD = 2
#: How deep batches are looked into.
_DEPTH = 8
#: What to do where that space is too small.
REMEDY = (
    f"Give {FOLDER} more space (docker run --shm-size=..., or --ipc=host), lower num_workers=, prefetch_factor= or "
    "batch_size=, or read with worker_method='thread', which needs none."
)
#: What torch's error says where a file could not be given its size.
_FAILED = "shared memory(shm)"


class ShmSpace:
    """Compares the batches of one loader with the space that /dev/shm had when a pass began; warns once."""

    def __init__(self) -> None:
        self._free: int | None = None
        self._looks = True  # no batch has come yet
        self._message = ""

    def begin(self) -> None:
        """Take note of the space as a pass begins."""
        if self._looks:
            self._free = free_bytes()

    def look(self, batch: Any, workers: int, prefetch_factor: int, *, pinned: bool) -> None:
        """Look at the first batch that comes: warn() warns where as many as are made at a time do not fit.

        Args:
            batch: of the loader.
            workers, prefetch_factor: of the loader too.
            pinned: the batch was copied from files of /dev/shm to page-locked memory.
        """
        if not self._looks:
            return
        self._looks = False
        count = workers * prefetch_factor + HELD
        with contextlib.suppress(Exception):  # a mapping of the user's may raise anything
            size = sum(_storages(batch).values())
            if self._free is None or size * count <= self._free:
                return
            size = size if pinned else bytes_in_files(batch)
            if size * count <= self._free:
                return
            self._message = (
                f"{counted(workers, 'worker process needs', 'worker processes need')} {size_of(size * count)} in "
                f"{FOLDER}, which had {size_of(self._free)} free when the pass began: a batch takes {size_of(size)} "
                f"there, and {count} of them are in flight or in use at a time. Where it is full, a worker fails with "
                f"'No space left on device' or a bus error. {REMEDY}"
            )

    def warn(self) -> None:
        """Warn, once, where look() has found too little space."""
        if self._message:
            message, self._message = self._message, ""
            warn_user(message)


def note_space(error: Exception) -> None:
    """Add a note to torch's error of a full /dev/shm: its space, and what to do."""
    if isinstance(error, RuntimeError) and _FAILED in str(error):
        free = free_bytes()
        if free is not None:
            error.add_note(f"{FOLDER} has {size_of(free)} free. {REMEDY}")


def free_bytes() -> int | None:
    """Return the bytes that are free in /dev/shm; None: there is no such folder."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def bytes_in_files(batch: Any) -> int:
    """Return the bytes of a batch's tensors that lie in files of /dev/shm."""
    storages = _storages(batch)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            spans = [_span(line) for line in maps if f" {FOLDER}/" in line]
    except OSError:
        return 0
    return sum(size for address, size in storages.items() if any(begin <= address < end for begin, end in spans))


def _span(line: str) -> tuple[int, int]:
    begin, _, end = line.split(" ", 1)[0].partition("-")
    return int(begin, 16), int(end, 16)


def _storages(batch: Any) -> dict[int, int]:
    """Return the bytes of each storage of a batch's tensors, by its address."""
    found = {}
    for tensor in _tensors(batch, _DEPTH):
        if tensor.layout is torch.strided and tensor.is_cpu:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def _tensors(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth and isinstance(batch, (list, tuple, Mapping)):
        parts: Iterable[Any] = batch.values() if isinstance(batch, Mapping) else batch
        for part in parts:
            yield from _tensors(part, depth - 1)
