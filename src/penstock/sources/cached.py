"""Sources whose files a cache keeps: the same samples, from the nearest tier that has their bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO

import penstock._native as _native
from penstock.sources.source import Field, NativeSource, Rescued
from penstock.storage.tiers import Caches, SampleNames


def cached(leaves: Sequence[NativeSource], caches: Caches) -> list[NativeSource]:
    """Return the leaves of a plan with their files in caches; those in memory are as they were.

    Raises UnsafeCache, and OSError where a folder cannot be made.
    """
    numbers = [number for number, leaf in enumerate(leaves) if leaf.files is not None and leaf.size]
    names = [SampleNames.of(leaves[number].size, partial(_path, leaves[number])) for number in numbers]
    found = list(leaves)
    for number, cache in zip(numbers, caches.of(names), strict=True):
        found[number] = _cached(leaves[number], cache)
    return found


def _path(leaf: NativeSource, position: int) -> str:
    path = leaf.identify(position)[1]
    assert path is not None
    return path


def _cached(leaf: NativeSource, cache: _native.SampleCache) -> NativeSource:
    files = leaf.files
    assert files is not None
    fields = tuple(Field(field.filler.cached(cache) or field.filler, field.spec) for field in leaf.fields)

    def rescue(position: int) -> Rescued:
        kept = cache.find(position, files.name(position))
        return leaf.rescue(position) if kept is None else files.read(_file_of(kept), position)

    return replace(leaf, fields=fields, rescue=rescue)


def _file_of(content: bytes) -> BinaryIO:
    """Return an open file with this content, in memory."""
    file = os.fdopen(os.memfd_create("penstock-sample", os.MFD_CLOEXEC), "w+b")
    file.write(content)
    file.seek(0)
    return file
