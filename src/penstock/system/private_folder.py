"""Folders that Penstock keeps files in, and that belong to one user only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import UnsafeCache
from penstock.system.locks import unlock_file


@contextlib.contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """Open a folder that nobody but this user may write into, and give its descriptor, which is closed in the end.

    It, and folders above it, are made with mode 0700 where they are missing. Raises UnsafeCache where others may write
    into it, or it, or a symbolic link of its name, belongs to another user; OSError where it cannot be made.
    """
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir(mode=0o700)
    link = path.lstat()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status, why = os.fstat(descriptor), None
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        why = f"the cache folder {path} is a symbolic link of user {link.st_uid}"
    elif status.st_uid != os.geteuid():
        why = f"the cache folder {path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
    elif status.st_mode & 0o022:
        why = f"other users can write into the cache folder {path} ({stat.filemode(status.st_mode)})"
    try:
        if why is not None:
            raise UnsafeCache(f"{why}: give another folder", url=str(path))
        yield descriptor
    finally:
        os.close(descriptor)


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
        raise UnsafeCache(f"{name!r} in the cache folder is not a file of this user: remove it", url=name)
    return descriptor


def files_in(folder: int, names: re.Pattern[str]) -> list[tuple[str, os.stat_result]]:
    """Return the regular files in a folder that have such names, with their statuses, the least recently used first."""
    # Listing the descriptor itself would share one place in the listing between threads, and forked processes.
    listed = os.listdir(f"/proc/self/fd/{folder}")
    found = []
    for name in filter(names.fullmatch, listed):
        with contextlib.suppress(FileNotFoundError):  # another process deletes too
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found.append((name, status))
    return sorted(found, key=lambda one: one[1].st_mtime_ns)


def has_name(descriptor: int, name: str, folder: int) -> bool:
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
