"""Arrays kept in the user's cache folder between starts: one uncompressed .npz an entry, which anyone may delete.

What is kept only saves time, or makes possible what else is refused: an entry that is damaged or cannot be written is
as good as none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.system.locks import lock_file, unlock_file

#: The most files and bytes that one folder keeps; the oldest used go first.
MAX_FILES = 64
MAX_BYTES = 1 << 30

_STALE_TEMPORARY_S = 3600  # a writer that died left it, or a lock that nobody has waited for since
_PATIENCE_S = 300.0


def folder_of(kind: str) -> Path | None:
    """Return the folder of one kind of entries, which may not exist yet; None when the user has no home folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative path is ignored
        try:
            base = os.path.join(Path.home(), ".cache")
        except RuntimeError:
            return None
    return Path(base, "penstock", kind)


def entry(kind: str, key: bytes) -> Path | None:
    """Return the file of one entry, which may not exist yet."""
    folder = folder_of(kind)
    return None if folder is None else folder / f"{hashlib.sha256(key).hexdigest()[:32]}.npz"


def load(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of an entry, None without one. The zip format verifies the checksum of each."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # a damaged file makes numpy and zipfile raise errors of many kinds
        return None


def used(path: Path) -> None:
    """Note that an entry was of use: the newest used is the last to go."""
    with contextlib.suppress(OSError):
        os.utime(path)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, so that of several processes one makes what the others then find.

    Who waits for longer than a few minutes, or finds no locks, goes on without.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".lock").open("wb")
    except OSError:
        yield
        return
    with file:
        with contextlib.suppress(OSError):
            lock_file(file.fileno(), file.name, fcntl.LOCK_EX, _PATIENCE_S, required=True)
        try:
            yield
        finally:  # who has waited finds the entry; who comes later finds it without waiting
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            unlock_file(file.fileno())


def store(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an entry in one step, so that a reader sees all of it or none, and drop the oldest ones."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _prune(path)
    except OSError:
        pass


def _prune(keep: Path) -> None:
    files = []
    for path in keep.parent.iterdir():
        try:
            status = path.stat()
        except FileNotFoundError:  # another process prunes too
            continue
        if path.suffix in (".tmp", ".lock") and status.st_mtime < time.time() - _STALE_TEMPORARY_S:
            path.unlink(missing_ok=True)
        elif path.suffix == ".npz":
            files.append((path != keep, -status.st_mtime_ns, status.st_size, path))
    held = 0
    for position, (_, _, size, path) in enumerate(sorted(files)):
        held += size
        if path != keep and (position >= MAX_FILES or held > MAX_BYTES):
            path.unlink(missing_ok=True)
