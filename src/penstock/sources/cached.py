"""Sources whose files a cache keeps: the same samples, from the nearest tier that has their bytes or their pixels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

import numpy as np
from PIL import ImageFile

import penstock._native as _native
from penstock.sources.kept_pixels import KeptPixels, kept_pixels
from penstock.sources.source import Field, NativeSource, Rescued
from penstock.sources.unchanged import all_of
from penstock.storage.tiers import Caches, SampleNames
from penstock.system.words import size_of


@dataclass(frozen=True)
class _Kept:
    """What a cache keeps of one leaf of a plan."""

    number: int
    """The place of the leaf."""
    names: SampleNames
    pixels: KeptPixels | str
    """What is kept of each image in the place of its file; or why its file is, "" where nothing else was asked for."""


def cached(leaves: Sequence[NativeSource], caches: Caches) -> list[NativeSource]:
    """Return the leaves of a plan with their files, or pixels, in caches; those in memory are as they were.

    Raises UnsafeCache, and OSError where a folder cannot be made.
    """
    chosen = list(_chosen(leaves, caches))
    found = list(leaves)
    for kept, cache in zip(chosen, caches.of([kept.names for kept in chosen]), strict=True):
        leaf = leaves[kept.number]
        found[kept.number] = (
            _cached(leaf, cache) if isinstance(kept.pixels, str) else _decoded(leaf, cache, kept.pixels)
        )
    return found


def describe_decoded(leaves: Sequence[NativeSource], caches: Caches) -> list[str]:
    """Return what cache_decoded=True keeps of the leaves of a plan, a line for each that differs. Nothing is made."""
    if not caches.decoded:
        return []
    return list(dict.fromkeys(_words(kept.pixels) for kept in _chosen(leaves, caches)))


def _chosen(leaves: Sequence[NativeSource], caches: Caches) -> Iterator[_Kept]:
    numbers = [number for number, leaf in enumerate(leaves) if leaf.files is not None and leaf.size]
    samples = sum(leaves[number].size for number in numbers)
    for number in numbers:
        leaf = leaves[number]
        names = SampleNames.of(leaf.size, partial(_path, leaf))
        pixels = kept_pixels(leaf.recipe) if caches.decoded else ""
        if isinstance(pixels, KeptPixels):
            of_pixels = replace(names, form=pixels.form)
            why = caches.why_not(of_pixels, pixels.bytes, leaf.size / samples)
            names, pixels = (of_pixels, pixels) if why is None else (names, why)
        yield _Kept(number, names, pixels)


def _words(pixels: KeptPixels | str) -> str:
    if isinstance(pixels, str):
        return f"files as they are: {pixels}"
    return f"pixels as {pixels.after} leaves them, about {size_of(pixels.bytes)} an image"


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


def _decoded(leaf: NativeSource, cache: _native.SampleCache, pixels: KeptPixels) -> NativeSource:
    """Return a leaf of images whose pixels are kept, also of those that Pillow decodes."""
    files, (field,) = leaf.files, leaf.fields
    assert files is not None and isinstance(field.filler, _native.ImageFileFiller)
    filler = field.filler.keeping_pixels(cache, pixels.operations)
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES

    def rescue(position: int) -> Rescued:
        name = files.name(position)
        found = leaf.rescue(position)
        # A program may exchange the files in a dataset's list at any time.
        if (
            isinstance(found, np.ndarray)
            and files.name(position) == name
            and lenient == ImageFile.LOAD_TRUNCATED_IMAGES
        ):
            filler.keep(position, name, np.ascontiguousarray(found))
        return found

    still = all_of(leaf.still, lambda: lenient == ImageFile.LOAD_TRUNCATED_IMAGES)
    return replace(leaf, fields=(Field(filler, field.spec),), rescue=rescue, still=still)


def _file_of(content: bytes) -> BinaryIO:
    """Return an open file with this content, in memory."""
    file = os.fdopen(os.memfd_create("penstock-sample", os.MFD_CLOEXEC), "w+b")
    file.write(content)
    file.seek(0)
    return file
