"""A folder that is packed to: temporary names, fsync and rename; and who packs into it now."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import CorruptShards, InvalidOption
from penstock.packing import plan as planning
from penstock.packing.place import After, Write, is_kept, unfinished
from penstock.storage.description import Split
from penstock.storage.durable import free_bytes, out_of_space, sync_folder, write_durably
from penstock.storage.shard_files import ShardFiles


@contextmanager
def alone(folder: str) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process. Raises InvalidOption where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidOption(
                f"another process packs into {folder} now: wait for it, or give another folder"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@dataclass(frozen=True)
class FolderPlace:
    """A folder, on a file system that all who write to it share; see place.Place."""

    path: str
    """Absolute."""
    split: str

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def _kept(self) -> str:
        """The folder of what is unfinished."""
        return self._file(planning.FOLDER.format(self.split))

    @property
    def shared(self) -> tuple[str, ...]:
        """Local files that whoever writes here must see once the plan is written."""
        return (self._file(unfinished(self.split)),)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder, and hold its lock. Raises InvalidOption where another process holds it."""
        os.makedirs(self.path, exist_ok=True)
        with alone(self.path):
            yield

    def sizes(self) -> dict[str, int]:
        """Return all files with their bytes; those that are no regular files have -1."""
        found: dict[str, int] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if re.fullmatch(r"\..+\.packing", entry.name) and entry.is_dir(follow_symlinks=False):
                    with os.scandir(entry.path) as kept:
                        found |= {f"{entry.name}/{one.name}": _size(one) for one in kept}
                else:
                    found[entry.name] = _size(entry)
        return found

    def read(self, name: str) -> bytes | None:
        """Return a file, None where there is none."""
        try:
            return Path(self._file(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, write: Write, attempt: str = "") -> None:
        """Write a file under a temporary name of its own, sync it and rename it."""
        path = self._file(name)
        if os.path.islink(path):
            raise CorruptShards(f"{path} is a symbolic link, which is not written through: remove it")
        os.makedirs(self._kept, exist_ok=True)
        write_durably(path, os.path.join(self._kept, f"{os.path.basename(name)}{attempt}.partial"), write)

    def claim(self, name: str, write: Write) -> None:
        """Write the first file of a packing; the folder's lock is held."""
        self.write(name, write)

    @contextmanager
    def draft(self, name: str, attempt: str, after: After) -> Iterator[int]:
        """Give the descriptor of an empty file, which is synced and renamed in the end."""
        temporary = os.path.join(self._kept, f"{name}{attempt}.partial")
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                yield descriptor
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, self._file(name))
            sync_folder(self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they are there."""
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self._file(name))

    def remove_unfinished(self) -> None:
        """Remove the files of the unfinished packing, the plan last."""
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._kept), key=lambda name: name == planning.FILE):
                if is_kept(name):
                    os.unlink(os.path.join(self._kept, name))
            os.rmdir(self._kept)
            sync_folder(self.path)

    def check(self, split: Split) -> None:
        """Raise CorruptShards where a shard of a split is missing, of another size, or a link."""
        ShardFiles(self.path, split.shards).check()

    def check_space(self, needed: int) -> None:
        """Raise OutOfSpace where the disk has no space for so many bytes."""
        if needed > free_bytes(self.path):
            raise out_of_space(self.path, needed)

    def full(self, needed: int, *, about: str = "") -> Exception:
        """Return the error of a full disk; about: said of the number of bytes that are yet to be written."""
        return out_of_space(self.path, needed, about=about)


def _size(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else -1
