"""Sources of photos whose JPEG decoder goes by an index of its states: the same samples, at less work above a crop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.recipe.prefix import reads_part
from penstock.sources.source import Field, NativeSource
from penstock.storage.jpeg_index import JpegIndexes, Photos, known_of

#: Samples whose names are part of a dataset's key, evenly spread over it.
_NAMED = 64


def indexed(leaves: Sequence[NativeSource], indexes: JpegIndexes) -> list[NativeSource]:
    """Return the leaves of a plan with indexes of their photos, where these save anything."""
    found = list(leaves)
    chosen = list(_chosen(leaves))
    of = [(number, filler, photos) for number, filler, photos in chosen if photos is not None]
    own = [leaf.jpeg_index for leaf in (leaves[number] for number, _, _ in chosen) if leaf.jpeg_index is not None]
    opened = iter(indexes.of([photos for _, _, photos in of], own))
    for number, filler, photos in chosen:
        index = leaves[number].jpeg_index if photos is None else next(opened)
        if index is not None:
            field = leaves[number].fields[0]
            found[number] = replace(leaves[number], fields=(Field(filler.indexed(index), field.spec),))
    return found


def describe_indexes(leaves: Sequence[NativeSource], indexes: JpegIndexes) -> Iterator[str]:
    """Yield what indexes know of the photos of a plan, for explain(). Nothing is made."""
    chosen = list(_chosen(leaves))
    if (known := indexes.describe([photos for _, _, photos in chosen if photos is not None])) is not None:
        yield known
    for leaf in (leaves[number] for number, _, _ in chosen):
        if leaf.jpeg_index is not None:
            yield known_of(leaf.size, leaf.jpeg_index.counts()[0], "packed with them")


def photos_of(size: int, name: Callable[[int], tuple[str, str | None]], packed_bytes: float | None) -> Photos | None:
    """Return what tells a dataset's photos from another's; None: the dataset's own entries are not as they should be.

    Args:
        size: the number of samples.
        name: returns (ID, file) of a sample.
        packed_bytes: of a photo in shards; None: each sample is a file of its own.
    """
    try:
        names = [name(index) for index in range(0, size, max(1, -(-size // _NAMED)))]
    except Exception:  # whoever reads such a sample says what is wrong
        return None
    texts = tuple(f"{sample}\0{os.path.abspath(path or '')}" for sample, path in names)
    return Photos(size, texts, tuple(path for _, path in names if path is not None), packed_bytes)


def _chosen(leaves: Sequence[NativeSource]) -> Iterator[tuple[int, Any, Photos | None]]:
    """Yield the place, the filler and the photos of each leaf that an index may serve; None: it has one of its own."""
    for number, leaf in enumerate(leaves):
        filler, recipe = leaf.fields[0].filler, leaf.recipe
        # Other fillers of images read pixels, or keep them.
        if recipe is not None and hasattr(filler, "indexed") and reads_part(recipe.operations):
            photos = None
            if leaf.jpeg_index is None:
                photos = photos_of(leaf.size, leaf.identify, leaf.packed_bytes)
                if photos is None:
                    continue
            yield number, filler, photos
