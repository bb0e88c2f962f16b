"""Files that are whole or not there: written under a temporary name, synced to the disk, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from penstock.errors import OutOfSpace
from penstock.system.words import size_of

#: What a write says where the disk, or the user's share of it, is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


def sync_folder(folder: str) -> None:
    """Write the names of a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders
            error.filename = folder
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: str) -> None:
    """Make a folder, and those above it, as far as they are missing; their names are on the disk then. Raises OSError."""
    above = os.path.dirname(folder)
    if not os.path.isdir(above):
        make_folder(above)
    os.makedirs(folder, exist_ok=True)
    with suppress(PermissionError):  # a folder that may be entered but not read cannot be synced
        sync_folder(above)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of some bytes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        if offset is None:
            written = os.write(descriptor, rest)
        else:
            written = os.pwrite(descriptor, rest, offset)
            offset += written
        rest = rest[written:]


@contextmanager
def durably(path: str, temporary: str) -> Iterator[BinaryIO]:
    """Give an empty file under a temporary name of the same file system; it is synced and renamed to `path` in the end.

    What lies under the temporary name is overwritten, and removed where the context ends with an error. Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o666), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # a write or sync by a descriptor does not say of which file
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def free_bytes(folder: str) -> int:
    """Return how many bytes this user may still write to the file system of a folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def out_of_space(folder: str, needed: int, *, about: str = "") -> OutOfSpace:
    """Return the error of a disk on which `needed` bytes are yet to be written; about: said of that number."""
    free = free_bytes(folder)
    missing = max(1, needed - free)
    return OutOfSpace(
        f"the disk of {folder} is full: {about}{needed:,} bytes ({size_of(needed)}) are yet to be written, {free:,} "
        f"are free, so {missing:,} more are needed. Free them, or give another folder, and run the same again: "
        "finished shards are kept",
        missing=missing,
    )
