"""A tier of cache= in a folder, of a faster disk or /dev/shm: processes of one user share it, and it outlives them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import penstock._native as _native
from penstock.errors import StorageError
from penstock.storage.durable import FULL
from penstock.storage.memory_tier import LEFT_OF_MEMORY
from penstock.storage.private_folder import open_own_file, open_private_folder
from penstock.system.limits import available_bytes
from penstock.system.words import counted

_MARKER = "penstock-cache"
_MARKED = b"Penstock keeps the bytes of samples here. No loader needs them: the folder may be deleted at any time.\n"
#: The share of a file system that a tier leaves to others where no limit is given.
_LEFT = 0.05


@dataclass(frozen=True)
class FolderTier:
    """See tiers.Tier."""

    folder: Path
    """Absolute."""
    limit: int | None
    """In bytes; None: what is free, but for a small part."""
    outlives: bool = field(default=True, init=False)

    @property
    def name(self) -> str:
        return str(self.folder)

    def open(self, key: str, samples: int, share: float) -> _native.CacheTier:
        try:
            folder = open_private_folder(self.folder, _MARKER, _MARKED)
            try:
                return self._opened(folder, key, samples)
            finally:
                os.close(folder)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return _native.CacheTier.in_memory(samples, 0, error.errno)

    def _opened(self, folder: int, key: str, samples: int) -> _native.CacheTier:
        index, data = (_own_file(f"{key}.{kind}", folder) for kind in ("index", "data"))
        try:
            taken = os.fstat(data).st_blocks * 512
            limit = taken + self._free(folder) if self.limit is None else self.limit
            return _native.CacheTier(index, data, samples, limit)
        except ValueError as error:
            raise StorageError(
                f"{self.folder / f'{key}.index'} is damaged: it does not have {counted(samples, 'entry', 'entries')}. "
                f"Delete the cache folder {self.folder}, which is filled anew"
            ) from error
        finally:
            os.close(index)
            os.close(data)

    def _free(self, folder: Path | int) -> int:
        """Return how many bytes a tier may take in a folder where no limit is given."""
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize - int(status.f_blocks * status.f_frsize * _LEFT)
        if _in_memory(folder):
            free = min(free, int(available_bytes() * (1 - LEFT_OF_MEMORY)))
        return max(0, free)


def _own_file(name: str, folder: int) -> int:
    descriptor = open_own_file(os.O_RDWR | os.O_CREAT, name, folder)
    assert descriptor is not None
    return descriptor


def _in_memory(folder: Path | int) -> bool:
    """Return whether a folder lies in memory, as /dev/shm does. Source: proc_pid_mountinfo(5)."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            mounts = [line.split() for line in lines]
    except OSError:
        return False
    return any(mount[2] == number and "-" in mount and mount[mount.index("-") + 1] == "tmpfs" for mount in mounts)
