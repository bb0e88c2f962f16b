"""The scan of an image folder, kept in the user's cache folder between starts.

One file a tree: an uncompressed .npz with the names and with a stamp (mtime, ctime, inode, device) of each folder.
A later start uses it while every folder has its stamp, which takes one stat() a folder and no listing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.system import cache_folder

# A folder that was changed this shortly before the scan, or since, could change once more without a new mtime: time
# stamps have a granularity, 2 s at most (FAT; 1 s on ext3, a timer tick on ext4 and XFS). Such a scan is not kept, as
# git does not trust an index entry as young as the index ("racy git").
RACY_NS = 2_000_000_000

#: The folder of scans below the cache folder.
KIND = "scans"

_VERSION = 1
#: Listing waits for the disk or the network more than for the CPU.
_THREADS = min(32, (os.cpu_count() or 1) + 4)


@dataclass(frozen=True, slots=True)
class Scan:
    """The files of an image folder, in torchvision's order."""

    paths: _native.PathTable
    """The files, relative to the root folder."""
    classes: list[str]
    """Names of the class folders, sorted."""
    counts: NDArray[np.int64]
    """Files of each class, shape (classes,): the files are in the order of the classes."""


def scan(root: str, extensions: tuple[str, ...]) -> Scan:
    """Return the files of an image folder: from the cache where nothing changed, else by listing the tree.

    Extensions are lower case with the dot. Raises OSError with the folder that cannot be read. A cache that is
    damaged or cannot be written is as good as none.
    """
    raw_root = os.fsencode(root)
    key = _key(root, extensions)
    entry = cache_folder.entry(KIND, key)
    if entry is None:
        return _listed(raw_root, key, extensions, None)
    if (known := _load(entry, key, raw_root)) is not None:
        return known
    with cache_folder.alone(entry):  # of the ranks of a node one lists the tree, and the others read what it found
        return _load(entry, key, raw_root) or _listed(raw_root, key, extensions, entry)


def _listed(raw_root: bytes, key: bytes, extensions: tuple[str, ...], entry: Path | None) -> Scan:
    """Return the files of a tree by listing it, and keep them in an entry."""
    paths, classes, counts, folders, stamps, started_ns = _native.scan_image_folder(
        raw_root, list(extensions), _THREADS
    )
    arrays: dict[str, NDArray[Any]] = {
        "version": np.array([_VERSION], np.int64),
        "key": np.frombuffer(key, np.uint8),
        "classes": np.frombuffer(classes, np.uint8),
        "counts": np.frombuffer(counts, np.int64),
        "folders": np.frombuffer(folders, np.uint8),
        "stamps": np.frombuffer(stamps, np.int64).reshape(-1, 4),
    }
    if entry is not None and int(arrays["stamps"][:, 0].max()) < started_ns - RACY_NS:
        arrays["names"] = np.frombuffer(paths.names(), np.uint8)
        cache_folder.store(entry, arrays)
    return Scan(paths, _split(classes), np.frombuffer(counts, np.int64))


def _key(root: str, extensions: tuple[str, ...]) -> bytes:
    return b"\0".join(map(os.fsencode, (os.path.realpath(root), *extensions)))


def _split(names: bytes) -> list[str]:
    return [os.fsdecode(name) for name in names.split(b"\0")[:-1]]


def _load(entry: Path, key: bytes, root: bytes) -> Scan | None:
    """Return the kept scan, or None when there is none, it is damaged, or a folder changed."""
    arrays = cache_folder.load(entry)
    if arrays is None or not _is_well_formed(arrays, key):
        return None
    classes = _split(arrays["classes"].tobytes())
    counts: NDArray[np.int64] = arrays["counts"]
    names = arrays["names"]
    if len(counts) != len(classes) or (counts < 0).any() or int(counts.sum()) != np.count_nonzero(names == 0):
        return None
    if not _native.folders_unchanged(root, arrays["folders"], arrays["stamps"], _THREADS):
        return None
    cache_folder.used(entry)
    return Scan(_native.PathTable(root, names), classes, counts)


#: By name: the dtype and the number of dimensions of each array of an entry.
_ARRAYS = dict.fromkeys(("key", "names", "classes", "folders"), ("uint8", 1))
_ARRAYS |= {"version": ("int64", 1), "counts": ("int64", 1), "stamps": ("int64", 2)}


def _is_well_formed(arrays: dict[str, NDArray[Any]], key: bytes) -> bool:
    return bool(
        {name: (array.dtype.name, array.ndim) for name, array in arrays.items()} == _ARRAYS
        and arrays["names"][-1:].tolist() in ([], [0])  # a NUL after the last name
        and arrays["version"].tolist() == [_VERSION]
        and arrays["key"].tobytes() == key
        and arrays["stamps"].shape[1] == 4
        and arrays["stamps"].flags.c_contiguous
    )
