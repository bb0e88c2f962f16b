"""Where the shards of a packing come to lie: a folder, or a folder in an object store; and what lies there already.

In a folder files have temporary names until they are whole and synced to the disk; an object appears as a whole, and is
there once the store says so. Any thread may call any method of a place, and a copy in another process too. All of them
raise OSError, StorageError among them, where the place does not do its part.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from penstock.errors import CorruptShards, InvalidOption, MissingObject
from penstock.packing.plan import FILE, FOLDER, is_kept, names, parse, unfinished
from penstock.storage import description
from penstock.storage.description import Split
from penstock.storage.durable import durably, full_disk_named, make_folder, sync_folder
from penstock.storage.objects import ObjectStore

Write = Callable[[BinaryIO], object]
"""Writes a file, which is open for reading too."""


After = Callable[[int, int], None]
"""Called after each sample with the bytes that were added and 1, and now and then with (0, 0); may raise to stop."""


def remove_unfinished(place: Place) -> None:
    """Remove the files of an unfinished packing, the plan last: without it nothing says whose the others are."""
    begin = unfinished(place.split, "")
    kept = [name for name in place.sizes() if name.startswith(begin) and is_kept(name.removeprefix(begin))]
    plan = begin + FILE
    place.remove(name for name in kept if name != plan)
    place.remove(name for name in kept if name == plan)


def check_shards(place: Place, split: Split) -> None:
    """Raise CorruptShards where a shard of a split is missing, has another size or is a link."""
    there = place.sizes()
    for shard in split.shards:
        size = there.get(shard.name)
        if size != shard.bytes:
            found = "is missing" if size is None else "is not a regular file" if size < 0 else f"has {size:,} bytes"
            raise CorruptShards(
                f"{place.path}/{shard.name} {found}, and dataset.json says {shard.bytes:,} bytes: remove the files "
                "of the split, and pack again"
            )


def splits_of(place: Place) -> dict[str, Split]:
    """Return the splits that are finished. Raises CorruptShards."""
    text = place.read(description.FILE)
    return {} if text is None else description.parse(text, f"{place.path}/{description.FILE}")


def check_out(place: Place) -> dict[str, Split]:
    """Return the splits in the place. Raises InvalidOption where it holds anything else."""
    found, others = set[str](), set[str]()
    for name in place.sizes():
        packing = re.match(r"\.(.+)\.packing/", name)
        if packing is None:
            found.add(name)
        else:
            others.add(packing[1])
    splits = splits_of(place) if description.FILE in found else {}
    known = {description.FILE}
    for split in splits.values():
        known |= set(split.files)
    for other in others:
        plan = parse(place.read(unfinished(other)))
        if plan is not None:
            known |= set(names(other, plan))
    if found - known:
        raise InvalidOption(
            f"{place.path} holds {min(found - known)!r}, which Penstock did not write: give an empty folder, or a new "
            "name. Nothing was changed"
        )
    return splits


# --- folders ----------------------------------------------------------------------------------------------------------


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
    """A folder, on a file system that all who write to it share. Names are those of files below it."""

    path: str
    """Absolute, as messages name it."""
    split: str

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def _kept(self) -> str:
        return self._file(FOLDER.format(self.split))

    @property
    def shared(self) -> tuple[str, ...]:
        """Local files that whoever writes here must see once the plan is written."""
        return (self._file(unfinished(self.split)),)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder, and hold its lock. Raises InvalidOption where another process holds it."""
        make_folder(self.path)
        with alone(self.path):
            yield

    def sizes(self) -> dict[str, int]:
        """Return all files with their bytes; those that are not regular files have -1."""
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
        try:
            return Path(self._file(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def claim(self, name: str, data: bytes) -> None:
        """Write the first file of a packing; the folder's lock is held."""
        write(self, name, lambda file: file.write(data))

    @contextmanager
    def draft(self, name: str, attempt: str = "", after: After | None = None) -> Iterator[BinaryIO]:
        """Give an empty file, open for reading and writing, which is synced and renamed in the end.

        It is dropped where the context ends with an error.

        Args:
            name: of the file.
            attempt: where several write it, whose it is.
            after: called with (0, 0) now and then while the file is sent somewhere.
        """
        path = self._file(name)
        if os.path.islink(path):
            raise CorruptShards(f"{path} is a symbolic link, and pack() writes through no link: remove it")
        os.makedirs(self._kept, exist_ok=True)
        with durably(path, os.path.join(self._kept, f"{os.path.basename(name)}{attempt}.partial")) as file:
            yield file

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they are there, and the folder of what is unfinished where it is empty."""
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self._file(name))
        try:
            os.rmdir(self._kept)
        except OSError:  # it is not there, or not empty
            return
        sync_folder(self.path)

    @property
    def disk(self) -> str:
        """A folder of the disk that shards are written to, before they are sent somewhere."""
        return self.path


def _size(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else -1


# --- object stores ----------------------------------------------------------------------------------------------------


#: Bytes of an object that are sent at a time; objects of no more are sent by one request.
_PART = 8 << 20


@dataclass(frozen=True)
class BucketPlace:
    """The objects under a URL. A shard is written to a temporary file of this machine, then sent.

    Nobody can hold an object store for himself: two processes with the same call write the same bytes, and of two with
    different ones the second is refused when it finds the first one's plan.
    """

    path: str
    """The URL."""
    split: str

    @property
    def shared(self) -> tuple[str, ...]:
        return ()  # no local file is shared

    @property
    def disk(self) -> str:
        return tempfile.gettempdir()

    @cached_property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.path)

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sizes(self) -> dict[str, int]:
        return self._store.sizes()

    def read(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except MissingObject:
            return None

    def claim(self, name: str, data: bytes) -> None:
        """Write the first object of a packing, where the store can tell unless another process has done so."""
        if not self._store.put_new(name, data):
            raise InvalidOption(
                f"another process packs into {self.path} now, or has just begun to: wait for it, or give another URL; "
                "the same command continues where that one stops"
            )

    @contextmanager
    def draft(self, name: str, attempt: str = "", after: After | None = None) -> Iterator[BinaryIO]:
        """Give an empty file without a name, which is gone with the process; it is sent in the end."""
        about = "a shard lies there until it is sent, and more than "
        with full_disk_named(self.disk, lambda: _PART, about), tempfile.TemporaryFile() as file:
            yield file
            file.flush()
            self._send(name, file.fileno(), after)

    def _send(self, name: str, descriptor: int, after: After | None = None) -> None:
        size = os.fstat(descriptor).st_size
        if size <= _PART:
            self._store.put(name, os.pread(descriptor, size, 0))
            return

        def parts() -> Iterator[bytes]:
            for begin in range(0, size, _PART):
                if after is not None:
                    after(0, 0)
                yield os.pread(descriptor, _PART, begin)

        self._store.put(name, parts())

    def remove(self, names: Iterable[str]) -> None:
        there = self.sizes()
        self._store.delete([name for name in names if name in there])


Place = FolderPlace | BucketPlace


def write(place: Place, name: str, write: Write, attempt: str = "") -> None:
    """Write a file of a place, as a whole or not at all. attempt: where several write it, whose it is."""
    with place.draft(name, attempt) as file:
        write(file)
