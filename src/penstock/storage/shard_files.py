"""The shards of a dataset as local files: which file is shard k, and the bytes of a sample in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import penstock._native as _native
from penstock.errors import ChecksumMismatch, CorruptSample, CorruptShards, MissingSample, UnreadableSample
from penstock.storage.description import Shard


class ShardFiles:
    """Shards in one local folder.

    Attributes:
        folder: where they lie.
        shards: what dataset.json says of each.
    """

    def __init__(self, folder: str, shards: Sequence[Shard]) -> None:
        self.folder = folder
        self.shards = tuple(shards)

    def path(self, shard: int) -> str:
        """Return the local file of a shard."""
        return os.path.join(self.folder, self.shards[shard].name)

    def place(self, shard: int) -> str:
        """Return where a shard lies, for messages."""
        return self.path(shard)

    def check(self) -> None:
        """Raise CorruptShards where a shard is missing, of another length, or no regular file."""
        with os.scandir(self.folder) as entries:
            found = {entry.name: entry for entry in entries}
        for number, shard in enumerate(self.shards):
            entry = found.get(shard.name)
            if entry is None:
                raise CorruptShards(f"{self.path(number)} is missing: copy the whole folder again")
            if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
                raise CorruptShards(
                    f"{self.path(number)} is a symbolic link or no regular file, and no shard is read through links: "
                    f""
                    "put the file in its place"
                )
            if (size := entry.stat(follow_symlinks=False).st_size) != shard.bytes:
                raise CorruptShards(
                    f"{self.path(number)} has {size:,} bytes, and dataset.json says {shard.bytes:,}: it is cut off, or "
                    "another file. Copy it again"
                )

    def read(self, shard: int, member: Any, name: str, *, verify: bool) -> bytes:
        """Return the bytes of a member, a row of index.MEMBER; name: of the member, for messages.

        Raises MissingSample, UnreadableSample, CorruptSample and, of the checksum, ChecksumMismatch.
        """
        if shard >= len(self.shards):
            raise CorruptShards(f"the index speaks of shard {shard:,}, and there are {len(self.shards):,}")
        path, (offset, length, expected, _) = self.path(shard), member.item()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise self._unreadable(error, name, path) from error
        try:
            self._check_extent(os.fstat(descriptor).st_size, shard, offset, length, name)
            data = os.pread(descriptor, length, offset)
            while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise self._unreadable(error, name, path) from error
        finally:
            os.close(descriptor)
        if verify and (found := _native.crc32c(data)) != expected:
            raise ChecksumMismatch(
                f"sample {name!r} in shard {path} is damaged: its CRC-32C is {found:#010x}, and the index says "
                f"{expected:#010x}. Copy the shard again, or pack the dataset again; `penstock verify` lists all "
                f"damage",
                sample_id=name,
                path=path,
            )
        return data

    def _check_extent(self, size: int, shard: int, offset: int, length: int, name: str) -> None:
        path, expected = self.path(shard), self.shards[shard].bytes
        if size != expected:
            why = (
                f"the shard has {size:,} bytes now, and dataset.json says {expected:,}: it is cut off, or another file"
            )
        elif offset > size or length > size - offset:
            why = (
                f"the index places it at bytes {offset:,} to {offset + length:,} of {size:,}: it is of another dataset"
            )
        else:
            return
        message = f"sample {name!r} in shard {path} cannot be read: {why}. Copy the shard again"
        raise CorruptSample(message, sample_id=name, path=path)

    def _unreadable(self, error: OSError, name: str, path: str) -> UnreadableSample | MissingSample:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        why = "it is a symbolic link" if error.errno == errno.ELOOP else os.strerror(error.errno or errno.EIO)
        message = (
            f"sample {name!r} cannot be read from shard {path}: {why}. Put the shard back, or leave the sample out"
        )
        kind: Any = MissingSample if missing else UnreadableSample
        made: UnreadableSample | MissingSample = kind(message, sample_id=name, path=path)
        made.errno = error.errno
        return made
