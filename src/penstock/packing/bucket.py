"""A folder in an object store that is packed to: an object appears as a whole, and is there once the store says so."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

from penstock.errors import CorruptShards, InvalidOption, MissingObject, PenstockError
from penstock.packing import plan as planning
from penstock.packing.place import After, Write, is_kept, unfinished
from penstock.storage.description import Split
from penstock.storage.durable import FULL, out_of_space
from penstock.storage.objects import ObjectStore

#: Bytes of an object that are sent at a time; objects of no more are sent by one request.
_PART = 8 << 20


@dataclass(frozen=True)
class BucketPlace:
    """The objects under a URL; see place.Place. A shard is written to a temporary file of this machine, then sent.

    Nobody can hold an object store for himself: two processes with the same call write the same bytes, and of two with
    different ones the second is refused when it finds the first one's plan.
    """

    path: str
    """The URL."""
    split: str

    @property
    def shared(self) -> tuple[str, ...]:
        """Return nothing: no local file is shared."""
        return ()

    @cached_property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def sizes(self) -> dict[str, int]:
        """Return all objects with their bytes."""
        return self._store.sizes()

    def read(self, name: str) -> bytes | None:
        """Return an object, None where there is none."""
        try:
            return self._store.read(name)
        except MissingObject:
            return None

    def write(self, name: str, write: Write, attempt: str = "") -> None:
        """Write an object."""
        with self._temporary() as file:
            write(file)
            file.flush()
            self._send(name, file.fileno(), _nothing)

    def claim(self, name: str, write: Write) -> None:
        """Write the first object of a packing, where the store can tell unless another process has done so."""
        with self._temporary() as file:
            write(file)
            file.seek(0)
            if not self._store.put_new(name, file.read()):
                raise InvalidOption(
                    f"another process packs into {self.path} now, or has just begun to: wait for it, or give another "
                    "URL; the same command goes on where that one stops"
                )

    @contextmanager
    def draft(self, name: str, attempt: str, after: After) -> Iterator[int]:
        """Give the descriptor of an empty temporary file, which is sent in the end."""
        with self._temporary() as file:
            yield file.fileno()
            self._send(name, file.fileno(), after)

    @contextmanager
    def _temporary(self) -> Iterator[BinaryIO]:
        """Give a file without a name, which is gone with the process."""
        try:
            with tempfile.TemporaryFile() as file:
                yield file
        except OSError as error:
            if error.errno not in FULL or isinstance(error, PenstockError):
                raise
            about = "a shard lies there until it is sent, and more than "
            raise out_of_space(tempfile.gettempdir(), _PART, about=about) from error

    def _send(self, name: str, descriptor: int, after: After) -> None:
        size = os.fstat(descriptor).st_size
        if size <= _PART:
            self._store.put(name, os.pread(descriptor, size, 0))
            return

        def parts() -> Iterator[bytes]:
            for begin in range(0, size, _PART):
                after(0, 0)
                yield os.pread(descriptor, _PART, begin)

        self._store.put(name, parts())

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, as far as they are there."""
        there = self.sizes()
        self._store.delete([name for name in names if name in there])

    def remove_unfinished(self) -> None:
        """Remove the objects of the unfinished packing, the plan last."""
        begin = unfinished(self.split, "")
        kept = [name for name in self.sizes() if name.startswith(begin) and is_kept(name.removeprefix(begin))]
        plan = begin + planning.FILE
        self._store.delete([name for name in kept if name != plan])
        self._store.delete([plan] if plan in kept else [])

    def check(self, split: Split) -> None:
        """Raise CorruptShards where a shard of a split is missing or has another size."""
        there = self.sizes()
        for shard in split.shards:
            size = there.get(shard.name)
            if size != shard.bytes:
                found = "is missing" if size is None else f"has {size:,} bytes"
                raise CorruptShards(
                    f"{self._store.url_of(shard.name)} {found}, and dataset.json says {shard.bytes:,} bytes: remove "
                    "the split's objects, and pack again"
                )

    def check_space(self, needed: int) -> None:
        """Do nothing: a store says that it is full when it is written to."""

    def full(self, needed: int, *, about: str = "") -> Exception:
        """Return the error of a full disk: the one of temporary files."""
        return out_of_space(tempfile.gettempdir(), needed, about=about)


def _nothing(added: int, samples: int = 1) -> None:
    pass
