"""The folder that whole shards of object stores are kept in: shared by the processes of a user, without a daemon.

Each shard is one file. A process that reads a shard holds a shared lock (flock) on the open file, and who fetches it an
exclusive lock on the unfinished file, which bears its final name once it is whole, verified and written through. Locks
end with the process that holds them: a crash leaves files, and nothing that stops anybody.

The folder belongs only to its user (mode 0700). Files are opened relative to the open folder and without following
symbolic links. Only files with names of the form that `CachedShard.file` gives are ever deleted; the least recently
used shard that nobody holds goes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import InvalidOption, OutOfSpace
from penstock.storage.durable import FULL, free_bytes
from penstock.system.cache_folder import folder_of, why_nowhere
from penstock.system.locks import HeldFile as HeldFile, lock_file, unlock_file
from penstock.system.private_folder import delete_unheld, files_in, has_name, open_own_file, private_folder
from penstock.system.urls import local_folder
from penstock.system.words import size_of

#: Bytes of shards that a folder keeps where nothing else is given.
DEFAULT_LIMIT = 64 << 30

_LOCK = "penstock-shards"
_FILE = re.compile(r"[A-Za-z0-9._-]{1,80}-[0-9a-f]{32}\.(shard|part)")
#: How long one process may hold the lock of the folder, which is held while space is made.
_FOLDER_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class CachedShard:
    """A shard of an object store, as the cache knows it."""

    url: str
    size: int
    """In bytes."""
    checksum: int
    """CRC-32C of the object."""
    exact: bool = True
    """The file has this size. False: it has about so many bytes."""

    @property
    def file(self) -> str:
        key = f"{self.url}\n{self.size}\n{self.checksum}".encode()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.url.rpartition("/")[2])[-80:] or "_"
        return f"{name}-{hashlib.sha256(key).hexdigest()[:32]}"


class NoRoom(Exception):
    """There is no space for a shard now: all others are in use."""


class CacheFolder:
    """A folder of shards, bounded in bytes. Threads and processes may use it at once.

    Args:
        folder: made where it does not exist; None: `shards` in the user's cache folder.
        limit: bytes that all shards in it may take.

    Raises:
        UnsafeCache: others may write into the folder, or it belongs to another user.
        InvalidOption: there is no cache folder of the user.
        OSError: the folder cannot be made, or its file system has no locks.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int = DEFAULT_LIMIT) -> None:
        path = folder_of("shards") if folder is None else Path(local_folder(folder, "cache_folder"))
        if path is None:
            raise InvalidOption(f"shards and row groups are kept in a folder, and {why_nowhere()}: give cache_folder=")
        self.path = path.absolute()
        self.limit = limit
        opened = contextlib.ExitStack()
        self._folder = opened.enter_context(private_folder(self.path))
        weakref.finalize(self, opened.close)

    # --- shards -----------------------------------------------------------------------------------------------------

    def hold(self, shard: CachedShard) -> HeldFile | None:
        """Return the file of a shard, locked against being deleted; None: the shard is not here."""
        name = f"{shard.file}.shard"
        while True:
            descriptor = open_own_file(os.O_RDONLY, name, self._folder)
            if descriptor is None:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # it is being given its name, or deleted: a matter of moments
                os.close(descriptor)
                time.sleep(0.001)
        held = HeldFile(descriptor)
        wrong = shard.exact and os.fstat(descriptor).st_size != shard.size
        if wrong or not has_name(descriptor, name, self._folder):
            held.close()
            return None
        with contextlib.suppress(OSError):
            os.utime(descriptor)
        return held

    def open(self, shard: CachedShard, *, beyond: bool) -> tuple[HeldFile | None, HeldFile | None]:
        """Return the whole shard, or its unfinished file, which has its size on the disk, open for writing and locked.

        Neither: somebody else fetches it now. Shards that nobody holds are deleted for it, the least recently used
        first.

        Args:
            beyond: it is needed at once: where everything else is held, the limit is exceeded.

        Raises:
            NoRoom: the limit, or the disk, does not allow it now; never where it is needed at once.
            OutOfSpace: the disk is full.
            OSError: the file system has no locks.
        """
        held = self.hold(shard)
        part = self._part(shard) if held is None else None
        if part is None:
            return held, None
        try:
            held = self.hold(shard)
            if held is None:
                with self._locked():
                    self._reserve(part, shard.size, beyond=beyond)
                return None, part
        except BaseException:
            self.discard(shard, part)
            raise
        self.discard(shard, part)  # the shard was finished between the two
        return held, None

    def _part(self, shard: CachedShard) -> HeldFile | None:
        """Return the unfinished file of a shard, locked; None: somebody else has it."""
        name = f"{shard.file}.part"
        descriptor = open_own_file(os.O_RDWR | os.O_CREAT, name, self._folder)
        assert descriptor is not None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            said = f"shards cannot be locked here ({error.strerror}): give another cache_folder="
            raise OSError(error.errno, said, str(self.path)) from error
        held = HeldFile(descriptor)
        if not has_name(descriptor, name, self._folder):  # it was finished, or deleted, meanwhile
            held.close()
            return None
        return held

    def is_coming(self, shard: CachedShard) -> bool:
        part = self._part(shard)
        if part is not None:
            self.discard(shard, part)
        return part is None

    def finish(self, shard: CachedShard, part: HeldFile, *, durable: bool = True) -> HeldFile | None:
        """Give a whole shard its final name, and return it as `hold` does; the unfinished file is closed.

        durable: it is on the disk then; else nobody may look for it after the machine has started anew.
        """
        if durable:
            os.fsync(part.descriptor)
        # Whoever counts the bytes in the folder sees one of the names, and nobody deletes it between the two locks.
        with self._locked():
            os.rename(f"{shard.file}.part", f"{shard.file}.shard", src_dir_fd=self._folder, dst_dir_fd=self._folder)
            part.close()
            held = self.hold(shard)
        if durable:
            os.fsync(self._folder)
        return held

    def discard(self, shard: CachedShard, held: HeldFile, ending: str = "part") -> None:
        """Delete the file of a shard, unfinished or, by the ending "shard", damaged, which the caller holds."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{shard.file}.{ending}", dir_fd=self._folder)
        held.close()

    # --- space ------------------------------------------------------------------------------------------------------

    def _reserve(self, part: HeldFile, size: int, *, beyond: bool) -> None:
        while (missing := size - os.fstat(part.descriptor).st_size) > 0:
            if self.held_bytes() + missing > self.limit:
                if self._delete_oldest(part):
                    continue
                if not beyond:
                    raise NoRoom
            try:
                os.posix_fallocate(part.descriptor, 0, size)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                os.ftruncate(part.descriptor, size - missing)
                # What is missing on the disk is not known to the byte: shards go one by one.
                if self._delete_oldest(part):
                    continue
                if not beyond:
                    raise NoRoom from None
                lacks = max(0, missing - free_bytes(str(self.path))) or missing
                raise OutOfSpace(
                    f"the disk of the cache folder {self.path} is full: a shard of {size_of(size)} is needed now, and "
                    f"{size_of(lacks)} more are missing; all other shards in the folder are in use. Free space, or "
                    "give a cache_folder= on another disk",
                    missing=lacks,
                ) from error

    def held_bytes(self) -> int:
        """Return the bytes that shards, finished and not, take in the folder."""
        return sum(status.st_size for _, status in files_in(self._folder, _FILE))

    def _delete_oldest(self, part: HeldFile) -> bool:
        """Delete the least recently used shard that nobody holds; return whether there was one."""
        own = os.fstat(part.descriptor)
        others = (name for name, status in files_in(self._folder, _FILE) if not os.path.samestat(status, own))
        return any(delete_unheld(name, self._folder) for name in others)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder: one process at a time makes space."""
        marker = open_own_file(os.O_RDWR | os.O_CREAT, _LOCK, self._folder)
        assert marker is not None
        try:
            lock_file(marker, str(self.path), fcntl.LOCK_EX, _FOLDER_LOCK_SECONDS, required=True)
            yield
        finally:
            unlock_file(marker)
            os.close(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheFolder, (str(self.path), self.limit)
