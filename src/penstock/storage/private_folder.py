"""Folders that Penstock keeps files in, and that belong to one user alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from pathlib import Path

from penstock.errors import UnsafeCache
from penstock.system.locks import unlock_file


def open_private_folder(path: Path, marker: str, text: bytes) -> int:
    """Return a descriptor of a folder that nobody but this user may write into, and which has the marker file.

    A folder that does not exist is made, with mode 0700; one that is empty gets the marker.

    Args:
        path: of the folder, absolute.
        marker: the name of the marker file.
        text: what the marker file says.

    Raises:
        UnsafeCache: others may write into the folder, it belongs to another user, or it holds other files.
        OSError: the folder cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(descriptor, str(path), marker, text)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_own_file(flags: int, name: str, folder: int) -> int | None:
    """Return a descriptor of a regular file of this user in a folder, None where it does not exist.

    Raises UnsafeCache for anything else of that name.
    """
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnsafeCache(
                f"{name!r} in the cache folder is a symbolic link, which Penstock does not write: remove it", url=name
            ) from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise UnsafeCache(f"{name!r} in the cache folder is no file of this user: remove it", url=name)
    return descriptor


def files_in(folder: int, names: re.Pattern[str]) -> list[tuple[str, os.stat_result]]:
    """Return the regular files in a folder that have such names, with their statuses, the least recently used first."""
    # Threads, and processes that were forked, share the place in the listing of one descriptor.
    listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        listed = os.listdir(listing)
    finally:
        os.close(listing)
    found = []
    for name in filter(names.fullmatch, listed):
        with contextlib.suppress(FileNotFoundError):  # another process deletes too
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found.append((name, status))
    return sorted(found, key=lambda one: one[1].st_mtime_ns)


def has_name(descriptor: int, name: str, folder: int) -> bool:
    """Return whether an open file still has its name in a folder."""
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(descriptor))


def delete_unheld(name: str, folder: int) -> bool:
    """Delete a file of a folder unless a process holds a lock on it; return whether it is gone."""
    descriptor = open_own_file(os.O_RDONLY, name, folder)
    if descriptor is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if has_name(descriptor, name, folder):
            os.unlink(name, dir_fd=folder)
        return True
    except BlockingIOError:
        return False
    finally:
        unlock_file(descriptor)
        os.close(descriptor)


def _check(descriptor: int, path: str, marker: str, text: bytes) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        owner = f"user {status.st_uid}, and this process runs as user {os.geteuid()}"
        raise UnsafeCache(f"the cache folder {path} belongs to {owner}: give another folder", url=path)
    if status.st_mode & 0o022:
        mode = stat.filemode(status.st_mode)
        raise UnsafeCache(
            f"other users can write into the cache folder {path} ({mode}): chmod go-w it, or give another folder",
            url=path,
        )
    file = open_own_file(os.O_RDONLY, marker, descriptor)
    if file is None:
        others = any(name != marker for name in os.listdir(descriptor))
        # Another process that made the folder just now has made the marker before any other file.
        if others and (file := open_own_file(os.O_RDONLY, marker, descriptor)) is None:
            raise UnsafeCache(
                f"the cache folder {path} holds files that Penstock did not write: give an empty or new folder",
                url=path,
            )
        if file is None:
            file = open_own_file(os.O_RDWR | os.O_CREAT, marker, descriptor)
            assert file is not None
            os.write(file, text)
    os.close(file)
