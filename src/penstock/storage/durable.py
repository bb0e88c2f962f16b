"""Files that are whole or not there: written under a temporary name, synced to the disk, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from penstock.errors import OutOfSpace, PenstockError
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
    """Make a folder, and those above it, where they are missing; their names are on the disk then. Raises OSError."""
    above = os.path.dirname(folder)
    if not os.path.isdir(above):
        make_folder(above)
    os.makedirs(folder, exist_ok=True)
    with suppress(PermissionError):  # a folder that may be entered but not read cannot be synced
        sync_folder(above)


def write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all of some bytes, at an offset or where the file stands. Raises OSError."""
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


def out_of_space(folder: str, needed: int, *, about: str = "", code: int = errno.ENOSPC) -> OutOfSpace:
    """Return the error of a disk on which `needed` bytes are yet to be written.

    about: said of that number. code: the errno, EDQUOT where the quota of this user is used up.
    """
    free = free_bytes(folder)
    missing = max(1, needed - free)
    limit = "this user's quota on the disk" if code == errno.EDQUOT else "the disk"
    lacking = f", so {missing:,} more are needed" if needed > free else f" on the disk ({os.strerror(code)})"
    error = OutOfSpace(
        f"{limit} of {folder} is full: {about}{needed:,} bytes ({size_of(needed)}) are yet to be written, {free:,} "
        f"are free{lacking}. Free that space, or give another folder, and pack again: finished shards are kept",
        missing=missing,
    )
    error.errno = code
    return error


@contextmanager
def full_disk_named(folder: str, needed: Callable[[], int], about: str = "") -> Iterator[None]:
    """Raise OutOfSpace for the error of a full disk, or of a quota. needed, about: of `out_of_space`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, PenstockError):
            raise
        raise out_of_space(folder, needed(), about=about, code=error.errno) from error
