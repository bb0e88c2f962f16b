"""The user's cache folder, and arrays kept in it between starts: one uncompressed .npz an entry.

What is kept may be deleted. It only saves time, or makes possible what else is refused: an entry that is damaged, is
not this user's or cannot be written is as good as none.
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

from penstock.errors import InvalidOption
from penstock.system.locks import HeldFile, lock_file
from penstock.system.private_folder import open_own_file, private_folder
from penstock.system.urls import local_folder

#: The most files and bytes that one folder keeps; the oldest used go first.
MAX_FILES = 64
MAX_BYTES = 1 << 30

_STALE_TEMPORARY_S = 3600  # a writer that died left it, or a lock that nobody has waited for since
_PATIENCE_S = 300.0


# --- which folder ----------------------------------------------------------------------------------------------------

_NO_CACHE, _CACHE_DIR = "PENSTOCK_NO_CACHE", "PENSTOCK_CACHE_DIR"
_UNSET: Any = object()


class _Chosen:
    """What the program chose by `cache_folder`."""

    path: Path | None = _UNSET


def cache_folder(path: str | os.PathLike[str] | None) -> None:
    """Set the folder in which Penstock keeps files between runs, or switch it off.

    The call holds for this process and for the processes that it forks, from then on, and precedes the environment
    variables PENSTOCK_NO_CACHE and PENSTOCK_CACHE_DIR. A dataset and a loader ask for the folder when they are made
    and when a pass begins, so call it first. See docs/cache.md.

    Args:
        path: the folder, which is made where it does not exist, for this user only; None: no file is kept.

    Raises:
        InvalidOption: path is not the path of a folder of this machine.
    """
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"cache_folder({path!r}): give the path of a folder, or None to keep no files")
    _Chosen.path = None if path is None else Path(os.path.abspath(local_folder(path, "cache_folder")))


def folder_of(kind: str) -> Path | None:
    """Return the folder of one kind of entries, which may not exist yet; None: none is kept (`why_nowhere`)."""
    if _Chosen.path is not _UNSET:
        return None if _Chosen.path is None else _Chosen.path / kind
    if _switched_off():
        return None
    if named := os.environ.get(_CACHE_DIR, ""):
        return Path(os.path.abspath(os.path.expanduser(named)), kind)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative path is ignored
        try:
            base = os.path.join(Path.home(), ".cache")
        except RuntimeError:
            return None
    return Path(base, "penstock", kind)


def why_nowhere() -> str:
    """Return why there is no cache folder, where `folder_of` returns None."""
    if _Chosen.path is None:
        return "penstock.cache_folder(None) has switched the cache folder off"
    return f"{_NO_CACHE} has switched the cache folder off" if _switched_off() else "the user has no home folder"


def _switched_off() -> bool:
    return os.environ.get(_NO_CACHE, "").lower() not in ("", "0", "false", "no", "off")


# --- entries ---------------------------------------------------------------------------------------------------------


def entry(kind: str, key: bytes) -> Path | None:
    """Return the file of one entry, which may not exist yet."""
    folder = folder_of(kind)
    return None if folder is None else folder / f"{hashlib.sha256(key).hexdigest()[:32]}.npz"


def load(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of an entry, None without one. The zip format verifies the checksum of each."""
    try:
        if (descriptor := _opened(os.O_RDONLY, path)) is None:
            return None
        with os.fdopen(descriptor, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # a damaged file makes numpy and zipfile raise errors of many kinds
        return None


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, so that of several processes one makes what the others then find.

    A process that waits for longer than a few minutes, or finds no locks, continues without.
    """
    lock = path.with_suffix(".lock")
    try:
        descriptor = _opened(os.O_RDWR | os.O_CREAT, lock)
    except OSError:
        yield
        return
    assert descriptor is not None
    with contextlib.closing(HeldFile(descriptor)):
        with contextlib.suppress(OSError):
            lock_file(descriptor, str(lock), fcntl.LOCK_EX, _PATIENCE_S, required=True)
        try:
            yield
        finally:  # who has waited finds the entry; who comes later finds it without waiting
            with contextlib.suppress(OSError):
                os.unlink(lock)


def store(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an entry in one step, so that a reader sees all of it or none, and drop the oldest ones."""
    try:
        with private_folder(path.parent):
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


def _opened(flags: int, path: Path) -> int | None:
    """Return a descriptor of a file of this user, None where there is none. Raises OSError, UnsafeCache."""
    with private_folder(path.parent) as folder:
        return open_own_file(flags, path.name, folder)


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
