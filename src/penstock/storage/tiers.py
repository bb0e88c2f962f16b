"""cache=: tiers that keep the bytes of samples nearer than their files, in memory or in folders of faster disks.

A tier is filled by the samples that are read first, and evicts nothing: every epoch reads each sample once, so that a
fixed share of them is the best that can be kept. Processes of one user share the tiers of a folder, which outlive them;
a tier in memory belongs to one process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import penstock._native as _native
from penstock.errors import InvalidOption
from penstock.stats import TierCounts
from penstock.storage.durable import FULL
from penstock.system.limits import available_bytes
from penstock.system.private_folder import open_own_file, private_folder
from penstock.system.urls import local_folder
from penstock.system.warn_user import warn_user
from penstock.system.words import bytes_in, size_of

CacheOption = str | int | os.PathLike[str] | Sequence[Any] | None

#: Files whose sizes and times are part of a dataset's key, evenly spread over it.
_LOOKED_AT = 64
#: The share of memory that tiers leave to others.
_LEFT_OF_MEMORY = 0.2
#: The share of a file system that a tier leaves to others where no limit is given.
_LEFT = 0.05


@dataclass(frozen=True)
class MemoryTier:
    """A tier in the memory of this process, which its forked children share."""

    limit: int
    """Bytes that it may take."""
    name: str = field(default="memory", init=False)
    """The tier, as messages and stats() name it."""
    outlives: bool = field(default=False, init=False)
    """Whether it outlives the process, and other processes share it."""

    def open(self, key: str, samples: int, share: float) -> _native.CacheTier:
        """Open the part of a dataset, by which the native core gets and puts samples, and which closes itself.

        share: of the tier's memory, that the dataset gets.
        """
        limit = min(self.limit, int(available_bytes() * (1 - _LEFT_OF_MEMORY)))
        return _native.CacheTier.in_memory(samples, int(limit * share))


@dataclass(frozen=True)
class FolderTier:
    """A tier in a folder: processes of one user share it, and it outlives them."""

    folder: Path
    """Absolute."""
    limit: int | None
    """In bytes; None: what is free, but for a small part."""
    outlives: bool = field(default=True, init=False)

    @property
    def name(self) -> str:
        return str(self.folder)

    def open(self, key: str, samples: int, share: float) -> _native.CacheTier:
        """As of a MemoryTier. On a disk that is full it keeps nothing, and its counts name the error.

        Raises UnsafeCache, OSError.
        """
        try:
            with private_folder(self.folder) as folder:
                try:
                    return self._opened(folder, key, samples)
                except ValueError:  # the index is damaged: a new one is filled
                    for kind in ("index", "data"):
                        (self.folder / f"{key}.{kind}").unlink(missing_ok=True)
                    return self._opened(folder, key, samples)
        except OSError as error:
            if error.errno is None:
                raise
            if error.errno not in FULL:
                why = f"cache={self.name!r} is not a folder that can be written ({error.strerror}): give another one"
                raise OSError(error.errno, why, error.filename) from error
            return _native.CacheTier.in_memory(samples, 0, error.errno)

    def _opened(self, folder: int, key: str, samples: int) -> _native.CacheTier:
        index, data = (open_own_file(os.O_RDWR | os.O_CREAT, f"{key}.{kind}", folder) for kind in ("index", "data"))
        assert index is not None and data is not None
        try:
            taken = os.fstat(data).st_blocks * 512
            limit = taken + self._free(folder) if self.limit is None else self.limit
            return _native.CacheTier(index, data, samples, limit)
        finally:
            os.close(index)
            os.close(data)

    def _free(self, folder: int) -> int:
        """Return how many bytes a tier may take in a folder where no limit is given."""
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize - int(status.f_blocks * status.f_frsize * _LEFT)
        if _in_memory(folder):
            free = min(free, int(available_bytes() * (1 - _LEFT_OF_MEMORY)))
        return max(0, free)


Tier = MemoryTier | FolderTier
"""Where samples are kept; a line of `_tier` makes it of what the user gives."""


@dataclass(frozen=True)
class SampleNames:
    """What tells one dataset's files from another's, and from what they were."""

    size: int
    paths: tuple[str, ...]
    """The absolute paths of up to 64 files, evenly spread."""
    form: str = ""
    """What is kept in the place of the files' bytes, and all that it depends on; "": the bytes."""

    @classmethod
    def of(cls, size: int, path: Any) -> SampleNames:
        """Return those of a dataset of so many samples, of which path(i) returns the file."""
        chosen = range(0, size, max(1, -(-size // _LOOKED_AT)))
        return cls(size, tuple(os.path.abspath(path(index)) for index in chosen))

    def key(self) -> str:
        """Return a hash over the form and the paths, sizes and times of change of the files: 32 hexadecimal digits."""
        named = [1, self.size, self.paths, self._facts, *([self.form] if self.form else [])]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]

    @cached_property
    def _facts(self) -> list[tuple[int, int]]:
        return list(map(_facts, self.paths))


class Caches:
    """The caches of a loader's datasets, kept from pass to pass.

    tiers: the nearest first. decoded: pixels are kept in the place of files, where it pays.
    """

    def __init__(self, tiers: tuple[Tier, ...], decoded: bool = False) -> None:
        self.tiers = tiers
        self.decoded = decoded
        self._held: dict[str, tuple[_native.SampleCache, list[_native.CacheTier]]] = {}
        self._formed: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Caches, (self.tiers, self.decoded)

    def __deepcopy__(self, memo: object) -> Caches:
        """Return the caches themselves: threads share them."""
        return self

    def of(self, datasets: Sequence[SampleNames]) -> list[_native.SampleCache]:
        """Return the cache of each dataset; those of other datasets are released.

        A tier whose disk is full keeps nothing, which is warned of. Raises UnsafeCache, and OSError where a folder
        cannot be made for another reason.
        """
        keys = [names.key() for names in datasets]
        samples = sum(names.size for names in datasets)
        held = {key: self._held[key] for key in keys if key in self._held}
        self._held = held  # memory of others is free before more is taken
        full: dict[str, str] = {}
        for key, names in zip(keys, datasets, strict=True):
            if key not in held:
                tiers = [tier.open(key, names.size, names.size / max(1, samples)) for tier in self.tiers]
                held[key] = _native.SampleCache(tiers), tiers
                errors = [one.counts()[5] for one in tiers]
                full |= {tier.name: os.strerror(error) for tier, error in zip(self.tiers, errors, strict=True) if error}
        for name, why in full.items():
            warn_user(
                f"the cache {name} cannot be written ({why}), so nothing more is kept there: free space, or give "
                "another cache=",
                through=("contextlib",),
            )
        self._formed = {key for key, names in zip(keys, datasets, strict=True) if names.form}
        return [held[key][0] for key in keys]

    def in_folders(self) -> Caches | None:
        """Return the caches without those in memory, None where no tier is left."""
        tiers = tuple(tier for tier in self.tiers if tier.outlives)
        return Caches(tiers, self.decoded) if tiers else None

    def counts(self) -> dict[str, TierCounts]:
        """Return what each tier keeps, by its name: "memory", or the folder."""
        found = {}
        for number, tier in enumerate(self.tiers):
            each = {key: tiers[number].counts() for key, (_, tiers) in self._held.items()}
            kept, taken, limit, hits, dropped = (sum(one[place] for one in each.values()) for place in range(5))
            decoded = sum(one[0] for key, one in each.items() if key in self._formed)
            errors = [os.strerror(one[5]) for one in each.values() if one[5]]
            found[tier.name] = TierCounts(kept, taken, limit, hits, dropped, decoded, errors[0] if errors else None)
        return found

    def describe(self) -> str:
        """Return the tiers, and what is in them by now, as one line."""
        counts, texts = self.counts(), []
        for tier in self.tiers:
            found = counts[tier.name]
            limit = found.limit or tier.limit  # the given one, where nothing is known of it yet
            most = "what is free" if limit is None else size_of(limit)
            text = f"{tier.name}, up to {most}: {found.samples:,} samples ({size_of(found.bytes)}), {found.hits:,} hits"
            if found.dropped:
                text += f", {found.dropped:,} dropped as damaged or changed"
            texts.append(text if found.error is None else f"{text}, no more after an error ({found.error})")
        return "; ".join(texts)


def caches_of(option: CacheOption, decoded: bool = False) -> Caches | None:
    """Return the caches of the arguments cache= and cache_decoded=, None for cache=None. Raises InvalidOption."""
    if not isinstance(decoded, bool):
        raise InvalidOption(f"cache_decoded={decoded!r}: it must be True or False")
    if option is None:
        if decoded:
            raise InvalidOption("cache_decoded=True says what a cache keeps: give cache=, which says where")
        return None
    several = isinstance(option, list) or (isinstance(option, tuple) and not _is_limited(option))
    tiers = tuple(_tier(one) for one in option) if several else (_tier(option),)  # type: ignore[union-attr]
    if not tiers:
        raise InvalidOption("cache=[]: the list is empty; name a tier, or give None")
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise InvalidOption(f"cache={option!r}: it names a tier twice")
    return Caches(tiers, decoded)


def _is_limited(option: tuple[Any, ...]) -> bool:
    return len(option) == 2 and _size(option[0]) is None and _size(option[1]) is not None


def _size(option: Any) -> int | None:
    if isinstance(option, bool) or not isinstance(option, str | int):
        return None
    try:
        return bytes_in(option)
    except ValueError:
        return None


def _tier(option: Any) -> Tier:
    limit = None
    if isinstance(option, tuple) and _is_limited(option):
        option, limit = option[0], _size(option[1])
    size = _size(option)
    if size is not None and limit is None:
        if size <= 0:
            raise InvalidOption(f"cache={option!r}: a tier in memory takes at least one byte")
        return MemoryTier(size)
    named = isinstance(option, str | os.PathLike) and os.fsdecode(option)
    if not named or (named[0].isdigit() and os.sep not in named):  # such as "8 gigs"
        raise InvalidOption(
            f"cache={option!r}: a tier is an amount of memory ('8GiB'), a folder ('/dev/shm/penstock', './cache'), or "
            "a folder with its limit (('/nvme/penstock', '500GiB'))"
        )
    return FolderTier(Path(local_folder(option, "cache")).absolute(), limit)


def _facts(path: str) -> tuple[int, int]:
    """Return a file's size and time of change, (-1, -1) of one that is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _in_memory(folder: int) -> bool:
    """Return whether a folder lies in memory, as /dev/shm does. Source: proc_pid_mountinfo(5)."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            mounts = [line.split() for line in lines]
    except OSError:
        return False
    return any(mount[2] == number and "-" in mount and mount[mount.index("-") + 1] == "tmpfs" for mount in mounts)
