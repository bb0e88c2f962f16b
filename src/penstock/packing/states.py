"""The decoder states of packed photos: a file beside the index, by which loaders pass over the rows above a crop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import penstock._native as _native
from penstock.storage.description import Column, Shard
from penstock.storage.durable import sync_folder
from penstock.storage.index import column_of
from penstock.storage.jpeg_index import Photos

#: Photos of one call of the native core: few enough for Ctrl-C to be seen soon.
_CALL = 64


def write_states(
    path: str, temporary: str, table: _native.FileTable, shards: Sequence[Shard], threads: int
) -> Column | None:
    """Write the decoder states of all photos; the same photos give the same bytes. Raises OSError.

    None: no photo has any, and nothing is written.

    Args:
        path: of the file.
        temporary: another one of the same file system, which is overwritten.
        table: of the photos.
        shards: in which they are.
        threads: at the most.
    """
    size = sum(shard.samples for shard in shards)
    each = sum(shard.bytes for shard in shards) / max(1, size)
    slot = Photos(size, (), packed_bytes=each).slot_bytes(1 << 62)
    if not slot:
        return None
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        index = _native.JpegIndex(descriptor, size, slot, True)
        with ThreadPoolExecutor(threads, "penstock-pack") as pool:
            begins = range(0, size, _CALL)
            done = [pool.submit(index.index_files, table, begin, min(begin + _CALL, size)) for begin in begins]
            try:
                for future in done:
                    future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        known, _, _, _, error = index.counts()
        if error:
            raise OSError(error, os.strerror(error), path)
        os.fsync(descriptor)
        if known:
            os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    if not known:
        os.unlink(temporary)
        return None
    sync_folder(os.path.dirname(path))
    return column_of(path)
