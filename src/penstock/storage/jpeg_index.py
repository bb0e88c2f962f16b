"""Indexes of JPEG decoder states, kept in the user's cache folder: one file a dataset, shared by all processes.

What is kept only saves time: a file that is damaged is written anew, and where none can be kept the index lies in
memory. Nothing that a file says is used before the native core has compared it with the bytes of its photo.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import penstock._native as _native
from penstock.stats import IndexCounts
from penstock.system.cache_folder import MAX_BYTES, folder_of, why_nowhere
from penstock.system.private_folder import delete_unheld, files_in, open_own_file, private_folder
from penstock.system.words import counted

#: The folder of indexes below the cache folder.
KIND = "jpeg-index"

_FILE = re.compile(r"[0-9a-f]{32}\.states")
#: Part of each file's name: to be raised when the native core lays files out otherwise, or means other states by them.
_VERSION = 1
#: The share of the photos' bytes that an index may take.
_SHARE = 0.0046
#: Slots have a multiple of so many bytes: photos that are replaced by others of about their size keep their index.
_ROUNDED = 32
#: The most bytes of an index that lies in memory.
_MEMORY = 128 << 20
#: Photos whose sizes are looked at, about.
_LOOKED_AT = 16
#: The share of a file system that is left to others.
_LEFT = 0.05


@dataclass(frozen=True)
class Photos:
    """What tells the photos of one dataset from another's."""

    size: int
    names: tuple[str, ...]
    """IDs and files of some samples, evenly spread."""
    paths: tuple[str, ...] = field(default=(), compare=False)
    """Their files, where each sample is one file."""
    packed_bytes: float | None = field(default=None, compare=False)
    """Of a photo, about, where the photos are parts of shards."""

    @cached_property
    def mean_bytes(self) -> float:
        """Of a photo, about."""
        if self.packed_bytes is not None:
            return self.packed_bytes
        sizes = []
        for path in self.paths[:: max(1, len(self.paths) // _LOOKED_AT)]:
            with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL in the name
                sizes.append(os.stat(path).st_size)
        return sum(sizes) / max(1, len(sizes))

    def slot_bytes(self, limit: int) -> int:
        """Return what an index keeps of each photo, 0 where that is too little to be of use; limit: bytes of all."""
        least, most = _native.JpegIndex.LEAST_SLOT, _native.JpegIndex.MOST_SLOT
        each = min(self.mean_bytes * _SHARE, limit / max(1, self.size), most)
        slot = int(each) // _ROUNDED * _ROUNDED
        return slot if self.size and slot >= least else 0


_Held = tuple[_native.JpegIndex, str | None]
"""An open index, and why it lies in memory; None: it is kept."""


class JpegIndexes:
    """The indexes of a loader's datasets, kept open from pass to pass. Threads, and forked processes, share them."""

    def __init__(self) -> None:
        self._held: dict[Photos, _Held | None] = {}
        self._own: list[_native.JpegIndex] = []
        self.opened: list[_native.JpegIndex] = []
        """They learn by `refresh` of the photos that other processes have kept states of."""

    def __reduce__(self) -> tuple[Any, ...]:
        return JpegIndexes, ()

    def __deepcopy__(self, memo: object) -> JpegIndexes:
        """Return the indexes themselves: threads share them."""
        return self

    def of(self, datasets: Sequence[Photos], own: Sequence[_native.JpegIndex] = ()) -> list[_native.JpegIndex | None]:
        """Return the index of each dataset, None where one is of no use; those of other datasets are released.

        own: the indexes that other datasets of the loader brought with them, to be counted.
        """
        self._own = list(own)
        self._held = {photos: self._held[photos] if photos in self._held else _opened(photos) for photos in datasets}
        self.opened = [held[0] for held in self._held.values() if held is not None]
        for one in self.opened:
            one.refresh()
        return [None if held is None else held[0] for held in map(self._held.get, datasets)]

    def counts(self) -> IndexCounts | None:
        each = [one.counts() for one in (*(held[0] for held in self._held.values() if held is not None), *self._own)]
        if not each:
            return None
        errors = [os.strerror(one[4]) for one in each if one[4]]
        photos, taken, hits, changed = (sum(one[place] for one in each) for place in range(4))
        return IndexCounts(photos, taken, hits, changed, errors[0] if errors else None)

    def describe(self, datasets: Sequence[Photos]) -> str | None:
        """Return what the open indexes of datasets hold, for explain(); None: nothing."""
        held = [one for one in map(self._held.get, datasets) if one is not None]
        counts = [native.counts() for native, _ in held]
        if not (photos := sum(each[0] for each in counts)):
            return None
        notes = [why for _, why in held if why] + [os.strerror(each[4]) for each in counts if each[4]]
        where = f"not kept in the user's cache folder: {notes[0]}" if notes else "kept in the user's cache folder"
        return known_of(sum(one.size for one in datasets), photos, where)


def known_of(photos: int, known: int, where: str) -> str:
    """Return what is known of so many photos, for explain()."""
    of = counted(photos, "photo")
    return f"of {of} the decoder's states of {known:,} are known, which saves rows above a crop ({where})"


def file_name(photos: Photos, slot: int) -> str:
    named = [_VERSION, photos.size, photos.names, slot]
    return f"{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]}.states"


def _opened(photos: Photos) -> _Held | None:
    """Open the index of a dataset; None: it would be of no use."""
    slot, path = photos.slot_bytes(MAX_BYTES), folder_of(KIND)
    if not slot:
        return None
    why = why_nowhere() if path is None else ""
    if path is not None:
        try:
            with private_folder(path.absolute()) as folder:
                return _in_folder(folder, photos, slot), None
        except (OSError, RuntimeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    in_memory = photos.slot_bytes(_MEMORY)
    return (_native.JpegIndex.in_memory(photos.size, in_memory), why) if in_memory else None


def _in_folder(folder: int, photos: Photos, slot: int, *, again: bool = False) -> _native.JpegIndex:
    """Open a file of the folder as an index. Raises OSError, RuntimeError and ValueError where it cannot be one."""
    name = file_name(photos, slot)
    file = open_own_file(os.O_RDWR | os.O_CREAT, name, folder)
    assert file is not None
    try:
        with contextlib.suppress(OSError):  # of file systems without locks
            os.utime(file)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        _make_room(folder, file, _native.JpegIndex.file_bytes(photos.size, slot))
        # The native core's own descriptor shares the lock.
        return _native.JpegIndex(file, photos.size, slot, True)
    except ValueError:  # it is damaged
        if again:
            raise
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(file)
    return _in_folder(folder, photos, slot, again=True)


def _make_room(folder: int, file: int, size: int) -> None:
    """Delete indexes until an open one may have its size: the least recently used that no process holds.

    Raises OSError where there is no room.
    """
    own = os.fstat(file)
    others = [(name, status) for name, status in files_in(folder, _FILE) if not os.path.samestat(status, own)]
    room = MAX_BYTES - size - sum(status.st_blocks * 512 for _, status in others)
    for name, status in others:
        if room < 0 and delete_unheld(name, folder):
            room += status.st_blocks * 512
    disk = os.fstatvfs(folder)
    left = (disk.f_bavail - disk.f_blocks * _LEFT) * disk.f_frsize
    if room < 0 or size - own.st_blocks * 512 > left:
        raise OSError("the cache folder has no room for it")
