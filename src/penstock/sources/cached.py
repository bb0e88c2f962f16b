"""What caches and indexes do for the leaves of a plan: the same samples, at less reading, decoding, or both.

A cache keeps the bytes of files, or with cache_decoded=True the pixels that the first steps of a recipe make, up to the
first one that draws or that converts pixels: the steps after them find the same pixels as without a cache. They are
kept where they have a size that the recipe sets. An index holds the states of a JPEG decoder, which then does less work
above a crop.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, ImageFile

import penstock._native as _native
from penstock.recipe.steps import Recipe
from penstock.sources.native_source import Field, NativeSource, ReadInPython
from penstock.storage.jpeg_index import JpegIndexes, Photos, known_of
from penstock.storage.tiers import Caches, SampleNames

#: Part of each form: to be raised when the native core makes other pixels of the same file, or lays them out otherwise.
_VERSION = 1
#: Samples whose names are part of a dataset's key, evenly spread over it.
_NAMED = 64


class _Kept(NamedTuple):
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
        leaf, pixels = leaves[kept.number], kept.pixels
        found[kept.number] = _cached(leaf, cache) if isinstance(pixels, str) else _decoded(leaf, cache, pixels)
    return found


def describe_decoded(leaves: Sequence[NativeSource], caches: Caches) -> list[str]:
    """Return what cache_decoded=True keeps of the leaves of a plan, a line for each that differs. Nothing is made."""
    if not caches.decoded:
        return []
    each = [kept.pixels for kept in _chosen(leaves, caches)]
    words = (
        f"files unchanged: {one}" if isinstance(one, str) else f"pixels as {one.after} leaves them" for one in each
    )
    return list(dict.fromkeys(words))


def _chosen(leaves: Sequence[NativeSource], caches: Caches) -> Iterator[_Kept]:
    numbers = [number for number, leaf in enumerate(leaves) if leaf.files is not None and leaf.size]
    for number in numbers:
        leaf = leaves[number]
        names = SampleNames.of(leaf.size, lambda position, leaf=leaf: leaf.identify(position)[1])
        pixels = kept_pixels(leaf.recipe) if caches.decoded else ""
        if isinstance(pixels, KeptPixels):
            names = replace(names, form=pixels.form)
        yield _Kept(number, names, pixels)


def _cached(leaf: NativeSource, cache: _native.SampleCache) -> NativeSource:
    files = leaf.files
    assert files is not None
    fields = tuple(Field(field.filler.cached(cache) or field.filler, field.spec) for field in leaf.fields)

    def read_in_python(position: int) -> ReadInPython:
        kept = cache.find(position, files.name(position))
        return leaf.read_in_python(position) if kept is None else leaf.read_in_python(position, io.BytesIO(kept))

    return replace(leaf, fields=fields, read_in_python=read_in_python)


def _decoded(leaf: NativeSource, cache: _native.SampleCache, pixels: KeptPixels) -> NativeSource:
    """Return a leaf of images whose pixels are kept, also of those that Pillow decodes."""
    files, (field,) = leaf.files, leaf.fields
    assert files is not None and isinstance(field.filler, _native.ImageFileFiller)
    filler = field.filler.keeping_pixels(cache, pixels.operations)
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES

    def read_in_python(position: int) -> ReadInPython:
        name = files.name(position)
        found = leaf.read_in_python(position)
        # A program may exchange the files in a dataset's list at any time.
        same = files.name(position) == name and lenient == ImageFile.LOAD_TRUNCATED_IMAGES
        if same and isinstance(found, np.ndarray):
            filler.keep(position, name, np.ascontiguousarray(found))
        return found

    return replace(leaf, fields=(Field(filler, field.spec),), read_in_python=read_in_python)


# --- the pixels that are kept -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptPixels:
    """What a cache keeps of each image."""

    operations: int
    """How many operations of the recipe have been done to it."""
    after: str
    """The last of these, for explain()."""
    form: str
    """All that the pixels depend on but the file: the operations, and how files are decoded."""


def kept_pixels(recipe: Recipe | None) -> KeptPixels | str:
    """Return which pixels of its images a cache keeps for a recipe, or why it keeps their files.

    recipe: None where the samples are not images.
    """
    if recipe is None:
        return "the samples are not images"
    operations = recipe.operations[: recipe.leading]
    if not any(one["op"] in ("CenterCrop", "Resize") for one in operations):
        return "no step before the first draw or conversion sets the size of the images, which take more as pixels"
    named = [{**one, "fill": recipe.leading_fills[one["fill"]].hex()} if "fill" in one else one for one in operations]
    depends = {
        "version": _VERSION,
        "operations": named,
        "pillow": PIL.__version__,
        "truncated": bool(ImageFile.LOAD_TRUNCATED_IMAGES),
        "most": Image.MAX_IMAGE_PIXELS,
    }
    return KeptPixels(len(operations), operations[-1]["op"], json.dumps(depends, sort_keys=True))


# --- indexes of decoder states ----------------------------------------------------------------------------------------


def indexed(leaves: Sequence[NativeSource], indexes: JpegIndexes) -> list[NativeSource]:
    """Return the leaves of a plan with indexes of their photos, where these save anything."""
    found, chosen = list(leaves), list(_indexable(leaves))
    own = [one for _, _, one, _ in chosen if one is not None]
    opened = iter(indexes.of([photos for *_, photos in chosen if photos is not None], own))
    for number, filler, brought, photos in chosen:
        index = brought if photos is None else next(opened)
        if index is not None:
            first, *others = leaves[number].fields
            found[number] = replace(leaves[number], fields=(Field(filler.indexed(index), first.spec), *others))
    return found


def describe_indexes(leaves: Sequence[NativeSource], indexes: JpegIndexes) -> Iterator[str]:
    """Yield what indexes know of the photos of a plan, for explain(). Nothing is made."""
    chosen = list(_indexable(leaves))
    if (known := indexes.describe([photos for *_, photos in chosen if photos is not None])) is not None:
        yield known
    for number, _, brought, _ in chosen:
        if brought is not None:
            yield known_of(leaves[number].size, brought.counts()[0], "packed with them")


def photos_of(size: int, name: Callable[[int], tuple[str, str | None]], packed_bytes: float | None) -> Photos | None:
    """Return what tells a dataset's photos from another's; None: the dataset's own entries are not as they should be.

    Args:
        name: returns (ID, file) of a sample.
        packed_bytes: of a photo in shards; None: each sample is one file.
    """
    try:
        names = [name(index) for index in range(0, size, max(1, -(-size // _NAMED)))]
    except Exception:  # whoever reads such a sample says what is wrong
        return None
    texts = tuple(f"{sample}\0{os.path.abspath(path or '')}" for sample, path in names)
    return Photos(size, texts, tuple(path for _, path in names if path is not None), packed_bytes)


def _indexable(leaves: Sequence[NativeSource]) -> Iterator[tuple[int, Any, _native.JpegIndex | None, Photos | None]]:
    """Yield the place, the filler, its index, and else the photos of each leaf that an index may serve."""
    for number, leaf in enumerate(leaves):
        filler = leaf.fields[0].filler
        # Other fillers of images read pixels, or keep them.
        if leaf.images is None or leaf.recipe is None or not hasattr(filler, "indexed"):
            continue
        if not leaf.recipe.crops:
            continue
        brought = leaf.images.jpeg_index
        photos = None if brought is not None else photos_of(leaf.size, leaf.identify, leaf.images.packed_bytes)
        if brought is not None or photos is not None:
            yield number, filler, brought, photos
