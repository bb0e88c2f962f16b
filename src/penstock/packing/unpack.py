"""`penstock unpack` and `penstock verify`: shards become files again, and are compared with their checksums."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

import penstock._native as _native
from penstock import errors
from penstock.errors import CorruptShards, InvalidOption, OutsideRoot, SampleError
from penstock.sources.shards import Shards
from penstock.storage.durable import full_disk_named, write_all
from penstock.storage.index import crc32c_of, open_regular
from penstock.storage.remote_shards import splits_of
from penstock.system.urls import is_url, local_folder


def unpack(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the files of packed samples to a folder, under the names that they had; return how many.

    All names are looked at before the first file is written, and each file is compared with its CRC-32C before it is.
    The members with labels, which are for WebDataset, are left out.

    Args:
        path: the folder of the shards.
        folder: a folder that does not exist yet, or is empty.
        split: the name of the split.
        on_progress: called with the number of samples that are done, and of all.

    Raises:
        InvalidOption: the folder holds something.
        OutsideRoot: a name leads out of the folder.
        CorruptShards: two members cannot both be files in one folder.
        SampleError: a sample cannot be read or is damaged.
        OutOfSpace: the disk is full.
    """
    dataset = Shards(path, split)
    _check_names(dataset)
    target = os.path.abspath(local_folder(folder, "folder"))
    os.makedirs(target, exist_ok=True)
    if os.listdir(target):
        raise InvalidOption(f"{target} holds files: give an empty folder, or a new name. Nothing was written")
    written = 0
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    made: set[str] = set()
    try:
        for position in range(len(dataset)):
            for name, data in dataset.read_bytes(position).items():
                _write(root, target, name, data, made, dataset)
                written += 1
            if on_progress is not None:
                on_progress(position + 1, len(dataset))
    finally:
        os.close(root)
    return written


def _check_names(dataset: Shards) -> None:
    """Raise OutsideRoot and CorruptShards where the names of the members cannot be those of files in one folder."""
    files: set[str] = set()
    folders: set[str] = set()
    for name in dataset.member_names():
        if _native.first_bad_name(os.fsencode(name) + b"\0") is not None:
            raise OutsideRoot(
                f"member {name!r} of {dataset.root} is refused: its name leads out of the folder that it is unpacked "
                "to. Make the shards again, from a source that you trust",
                sample_id=name,
                path=dataset.root,
            )
        path = os.path.normpath(name)  # "a//b" is "a/b"
        if path in files:
            raise _conflict(f"holds two members {name!r}", dataset)
        files.add(path)
        while (path := os.path.dirname(path)) and path not in folders:
            folders.add(path)
    if both := files & folders:
        raise _conflict(f"holds a member {min(both)!r} and others below a folder of that name", dataset)


def _write(root: int, target: str, name: str, data: bytes, made: set[str], dataset: Shards) -> None:
    """Write one file beneath a folder that this process made; names were checked, and no link can lie on the way."""
    parent = os.path.dirname(name)
    if parent not in made:
        os.makedirs(os.path.join(target, parent), exist_ok=True)
        made.add(parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o666, dir_fd=root)
    try:
        with full_disk_named(target, lambda: len(data), "for this file "):
            write_all(descriptor, data)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=root)
        raise
    finally:
        os.close(descriptor)


def _conflict(what: str, dataset: Shards) -> Exception:
    return CorruptShards(
        f"{dataset.root} {what}, which cannot both be files of one folder. Nothing was written. Make the shards again, "
        "with other names"
    )


def verify(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    decode: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Exception]:
    """Compare everything that has a checksum with it, and yield what is wrong.

    Args:
        path: the folder of the shards.
        split: the name of the split.
        decode: each sample is decoded too.
        on_progress: called with the number of samples that are done, and of all.

    Raises:
        CorruptShards: the shards cannot be opened at all.
    """
    largest = max((shard.bytes for one in splits_of(os.fspath(path)).values() for shard in one.shards), default=1)
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as cache:  # that of passes may hold what the store lost
        dataset = Shards(path, split, window=1, cache_folder=cache, cache_limit=2 * largest)
        yield from _faults(dataset, decode, on_progress)


def _faults(dataset: Shards, decode: bool, on_progress: Callable[[int, int], None] | None) -> Iterator[Exception]:
    remote = is_url(dataset.root)  # files of a store are compared with their checksums when they come
    for column in () if remote else dataset.description.columns:
        file = os.path.join(dataset.root, column.name)
        if not os.path.exists(file) or _crc32c(file) != column.crc32c:
            yield CorruptShards(
                f"{file} is damaged: its CRC-32C is not the one in dataset.json. Pack the dataset again"
            )
            return
    for number, shard in enumerate(() if remote else dataset.files.shards):
        if _crc32c(dataset.files.path(number)) != shard.crc32c:
            yield CorruptShards(
                f"{dataset.files.path(number)} is damaged: its CRC-32C is not the one in dataset.json. Copy it again"
            )
    rows, lost = dataset.index.column("shard"), set[int]()
    for position in np.argsort(rows, kind="stable").tolist():
        try:
            if rows[position] not in lost:
                dataset.read(position) if decode else dataset.read_bytes(position)
        except (SampleError, CorruptShards) as error:
            yield error
        except (errors.MissingObject, errors.ChangedObject, errors.CorruptDownload) as error:
            lost.add(rows[position])
            yield error
        if on_progress is not None:
            on_progress(position + 1, len(dataset))


def _crc32c(path: str) -> int:
    with open_regular(path) as file:
        return crc32c_of(file, 0, os.fstat(file.fileno()).st_size)
