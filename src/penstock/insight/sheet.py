"""A contact sheet: the samples of a batch as pictures with their IDs and labels, as a PNG or an HTML page."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from penstock.errors import InvalidOption
from penstock.insight.pictures import Normalisation, Pixels, about_of, drawn, numpy_of, raw_of
from penstock.insight.templates import page_of
from penstock.showing import shown
from penstock.system.output_files import write_whole
from penstock.system.words import counted

#: The keys that lead to a field: positions in tuples and lists, keys of mappings, names of attributes.
Path = tuple[Any, ...]
Fields = dict[Path, Any]

#: Samples of a sheet, and the most pixels of a side of a sample's picture, where nothing else is said.
MOST, SIDE = 64, 256
#: Names of fields that are labels.
LABELS = ("label", "labels", "target", "targets", "class", "cls", "y", "category")
_PAGES = (".html", ".htm")
_SUFFIXES = (".png", *_PAGES)
_DEEPEST = 8  # containers within containers
_LONGEST, _WHOLE = 200, 8  # characters of a text; elements of an array that are shown, not summed up


class Picture(NamedTuple):
    """A picture of a sample."""

    name: str
    """Of its field: "0", "image", "target.mask"; empty where the sample is the picture."""
    pixels: Pixels
    """(height, width, 3), in the size that the sample has."""


class Cell(NamedTuple):
    """A sample on a sheet."""

    id: str
    pictures: tuple[Picture, ...]
    texts: tuple[str, ...]
    """Its other fields, a line each, "name: value"; a label of a sample of two fields has no name."""


class Sheet(NamedTuple):
    """A contact sheet of a batch. All texts are of one line, of printable characters."""

    title: str
    notes: tuple[str, ...]
    """Lines below the title: of the batch, and of each field of pictures."""
    cells: tuple[Cell, ...]
    columns: int
    """Samples in a row."""


def contact_sheet(
    batch: Any,
    ids: Sequence[str] | None = None,
    *,
    listed: bool = False,
    classes: Sequence[str] | None = None,
    undo: Normalisation | None = None,
    most: int = MOST,
    columns: int | None = None,
    title: str = "",
) -> Sheet:
    """Return the contact sheet of a batch.

    Args:
        batch: of any structure: tensors, arrays and PIL images in tuples, lists, mappings, named tuples, dataclasses.
        ids: the ID of each sample; None: their positions in the batch, and as many as the batch shows.
        listed: the batch is a list of samples, which were not put together.
        classes: names of the classes by label.
        undo: the normalisation that was applied to pictures of floats.
        most: samples of the sheet at most, from the first on.
        columns: samples in a row; None: about as many as rows.
        title: the first line.

    Raises:
        InvalidOption: most or columns is below 1.
    """
    if min(most, 1 if columns is None else columns) < 1:
        raise InvalidOption(f"most={most}, columns={columns}: a sheet has at least 1")
    count = None if ids is None else len(ids)
    samples, whole = ([flat(one) for one in batch], {}) if listed else taken_apart(batch, count)
    names, lines = list(ids or ()), list[str]()
    if not samples:  # nothing in the batch has a part for each sample
        samples, whole, names = [whole], {}, ["the batch"]
    elif len(names) != len(samples):
        names = [f"#{number}" for number in range(len(samples))]
    if ids is not None and len(ids) != len(samples):
        lines.append(f"of samples {', '.join(ids)}")
    if len(samples) > most:
        lines.append(f"the first {most:,} of {counted(len(samples), 'sample')}")
    pictures, about = _pictures(samples[:most], undo)
    lines += about
    lines += [f"{_name_of(path) or 'batch'}: {text_of(value)}" for path, value in whole.items()]
    cells = []
    for id_, fields, own in zip(names, samples, pictures, strict=False):
        texts = [_line_of(path, value, fields, classes or ()) for path, value in fields.items() if path not in own]
        cells.append(Cell(shown(str(id_)), tuple(own.values()), tuple(texts)))
    columns = min(len(cells), columns or math.ceil(math.sqrt(len(cells))))
    return Sheet(shown(title) or "a batch", tuple(map(shown, lines)), tuple(cells), columns)


# --- fields -----------------------------------------------------------------------------------------------------------


def taken_apart(batch: Any, number: int | None = None) -> tuple[list[Fields], Fields]:
    """Return the fields of each sample of a batch, and those that belong to no sample.

    Arrays, and lists and tuples of one value a sample, are cut along their first dimension; a list of whole samples, as
    some collate functions return it, is one too.

    number: of the samples; None: the first dimension of most arrays.
    """
    if number is None and isinstance(batch, list) and all(type(one) is tuple or isinstance(one, dict) for one in batch):
        number = len(batch)
    elif number is None:
        lengths = Counter(len(leaf) for leaf in flat(batch).values() if _is_array(leaf))
        number = lengths.most_common(1)[0][0] if lengths else 0
    if not number:
        return [], flat(batch)
    samples: list[Fields] = [{} for _ in range(number)]
    whole: Fields = {}

    def of_columns(one: Any) -> bool:
        return _length(one) == number and (_is_array(one) or len({type(inner) for inner in one}) == 1)

    def cut(value: Any, path: Path) -> None:
        # A list of columns, which may be just as many as the samples, is a structure and no column itself.
        if _length(value) == number and (_is_array(value) or not all(map(of_columns, value))):
            for fields, one in zip(samples, value, strict=True):
                fields |= flat(one, path)
        elif parts := _parts(value, path):
            for key, part in parts:
                cut(part, (*path, key))
        else:
            whole[path] = value

    cut(batch, ())
    return (samples if any(samples) else []), whole


def flat(value: Any, path: Path = ()) -> Fields:
    """Return the leaves of a structure by their paths; the value itself, at the empty path, where it is one."""
    parts = _parts(value, path)
    return {inner: leaf for key, part in parts for inner, leaf in flat(part, (*path, key)).items()} or {path: value}


def _parts(value: Any, path: Path) -> Iterable[tuple[Any, Any]]:
    """Return what a container holds, by key; nothing for all else, and for one too deep."""
    if len(path) >= _DEEPEST:
        return ()
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return list(vars(value).items())
    return ()


def _length(value: Any) -> int | None:
    """Return how many values an array, a list or a tuple holds; None: it is something else."""
    listed = isinstance(value, list | tuple) and not hasattr(value, "_fields")
    return len(value) if listed or _is_array(value) else None


def _is_array(value: Any) -> bool:
    array = numpy_of(value)
    return array is not None and array.ndim > 0


# --- texts -----------------------------------------------------------------------------------------------------------


def _name_of(path: Path) -> str:
    return ".".join(map(str, path))


def _line_of(path: Path, value: Any, fields: Fields, classes: Sequence[str]) -> str:
    """Return a field of a sample as a line, "name: value"; a label, as the second of two fields, has no name."""
    second = path == (1,) and {one[0] for one in fields if one} == {0, 1}
    label = second or (path and str(path[-1]).lower() in LABELS)
    text = text_of(value, classes if label else ())
    return text if second or not path else f"{shown(_name_of(path))}: {text}"


def text_of(value: Any, classes: Sequence[str] = ()) -> str:
    """Return a value in one line: an array of many elements is its dtype, shape and range.

    classes: of a label, which is the number of a class or a vector of a weight a class.
    """
    try:
        text = shown(_text(value, classes))
    except Exception:  # of a class of the user's, whose __repr__ may raise anything
        text = type(value).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _text(value: Any, classes: Sequence[str]) -> str:
    array = numpy_of(value)
    if array is not None and array.ndim:
        return _array_text(array, about_of(value), classes)
    if array is not None:
        value = array.item()
    if isinstance(value, torch.Tensor) and not value.is_nested:  # sparse, quantized
        return about_of(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(classes):
        return f"{value} {classes[value]}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else " ".join(repr(value).split())


def _array_text(array: NDArray[Any], about: str, classes: Sequence[str]) -> str:
    numbers = array.dtype.kind in "biuf"
    if numbers and classes and array.shape == (len(classes),):
        likely = np.argsort(-array.astype(np.float64), kind="stable")[:2].tolist()
        return ", ".join(f"{array[one]:.2f} of {one} {classes[one]}" for one in likely if array[one])
    if array.size <= _WHOLE:
        rounded = np.round(array.astype(np.float64), 4) if array.dtype.kind == "f" else array
        return " ".join(str(rounded.tolist()).split())
    finite = array[np.isfinite(array)] if numbers else array[:0]
    return f"{about}: {finite.min():.4g} .. {finite.max():.4g}" if finite.size else about


def _pictures(samples: Sequence[Fields], undo: Normalisation | None) -> tuple[list[dict[Path, Picture]], list[str]]:
    """Return the pictures of each sample by their paths, and a line for each field of pictures."""
    raws = [{path: raw for path, value in fields.items() if (raw := raw_of(value)) is not None} for fields in samples]
    pictures: list[dict[Path, Picture]] = [{} for _ in samples]
    lines = []
    for path in dict.fromkeys(path for found in raws for path in found):
        having = [number for number, found in enumerate(raws) if path in found]
        arrays, abouts = zip(*(raws[number][path] for number in having), strict=True)
        beside = all(len(raws[number]) > 1 for number in having)
        pixels, how = drawn(arrays, undo, beside=beside)
        about = abouts[0] if len(set(abouts)) == 1 else f"{abouts[0]} and other shapes"
        lines.append(f"{_name_of(path) or 'picture'}: {about}, {how}")
        for number, own in zip(having, pixels, strict=True):
            pictures[number][path] = Picture(_name_of(path), own)
    return pictures, lines


# --- files -----------------------------------------------------------------------------------------------------------

_SMALL = 96  # pixels of a side up to which pictures are enlarged, by a whole factor
_GAP, _LINE, _LETTER = 8, 16, 7  # pixels between cells, of a line's height, and of a letter's width, about
_LEAST_WIDTHS = (120, 280)  # of a cell, so that its text can be read: beside pictures, of text only
_WIDEST = 320  # pixels of a cell on a page that its ID may take
_LEAST_SHEET = 480  # pixels of a sheet's width
_LINES = 6  # of text below the ID of a cell
_MOST_PIXELS = 100_000_000  # of a sheet; viewers and Pillow itself refuse much larger ones
_PAPER, _INK, _FAINT = (246, 246, 246), (20, 20, 20), (90, 90, 90)


def write_sheet(sheet: Sheet, path: str | os.PathLike[str], side: int = SIDE) -> None:
    """Write a sheet to a file, over what it holds: a PNG, or a page where the name ends in .html or .htm.

    Args:
        sheet: of `contact_sheet`.
        path: the file.
        side: the most pixels of a side of a sample's picture; larger pictures are reduced.

    Raises:
        InvalidOption: the name has another end, or the PNG would be too large to be viewed.
        OSError: the file cannot be written; what was there is as it was.
    """
    check_suffix(path)
    page = os.fspath(path).lower().endswith(_PAGES)
    write_whole(path, _page(sheet, side).encode("utf-8", "backslashreplace") if page else _png(_image(sheet, side)))


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise InvalidOption for a file that is neither a PNG nor a page by its name."""
    if not os.fspath(path).lower().endswith(_SUFFIXES):
        raise InvalidOption(f"{os.fspath(path)}: a sheet is a .png or .html file; give a name that ends so")


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _tiles(sheet: Sheet, side: int) -> tuple[list[list[Image.Image]], int, list[str]]:
    """Return the pictures of each cell, at most `side` pixels a side, how far to enlarge them, and the notes."""
    tiles = [[Image.fromarray(one.pixels) for one in cell.pictures] for cell in sheet.cells]
    longest = max((max(one.size) for row in tiles for one in row), default=_SMALL)
    for one in (one for row in tiles for one in row):
        one.thumbnail((side, side), Image.Resampling.BOX)  # reduced by averaging
    reduced = [f"pictures with more than {side} pixels a side are reduced"] if longest > side else []
    return tiles, max(1, _SMALL // min(longest, side)), [*sheet.notes, *reduced]


def _page(sheet: Sheet, side: int) -> str:
    tiles, zoom, notes = _tiles(sheet, side)
    cells, width = [], _LEAST_WIDTHS[not all(tiles)]
    for cell, row in zip(sheet.cells, tiles, strict=True):
        parts = cell.id.split("/")  # a line may end behind a folder's name, and within none that fits into it
        name = _LETTER * (1 + max(map(len, parts)))
        width = max(width, min(name, _WIDEST), sum(zoom * tile.width + _GAP for tile in row))
        pictures = [
            (f"{cell.id} {one.name}".strip(), base64.b64encode(_png(tile)).decode(), *(zoom * n for n in tile.size))
            for one, tile in zip(cell.pictures, row, strict=True)
        ]
        cells.append((cell, parts, pictures))
    sizes = {"columns": sheet.columns, "width": width + _GAP}
    return page_of("sheet.html", title=sheet.title, notes=notes, cells=cells, **sizes)


def _image(sheet: Sheet, side: int) -> Image.Image:
    """Return a sheet as an image. Raises InvalidOption: it is too large to be viewed."""
    tiles, zoom, notes = _tiles(sheet, side)
    tall = zoom * max((one.height for row in tiles for one in row), default=0)
    lines = 1 + min(_LINES, max(len(cell.texts) for cell in sheet.cells))
    wide = max(sum(zoom * one.width + _GAP for one in row) - _GAP for row in tiles)
    wide, high = max(wide, _LEAST_WIDTHS[not all(tiles)]), tall + 2 + _LINE * lines
    width = max(_LEAST_SHEET, _GAP + sheet.columns * (wide + _GAP))
    head = [line for note in notes for line in textwrap.wrap(note, (width - 2 * _GAP) // _LETTER)]
    top = 2 * _GAP + _LINE * (len(head) + 1)
    size = width, top + math.ceil(len(sheet.cells) / sheet.columns) * (high + _GAP)
    if math.prod(size) > _MOST_PIXELS:
        raise InvalidOption(f"the sheet would be {size[0]:,} x {size[1]:,} pixels large: show fewer samples")
    font = ImageFont.load_default(12)
    image = Image.new("RGB", size, _PAPER)
    for number, line in enumerate([sheet.title, *head]):
        ImageDraw.Draw(image).text((_GAP, _GAP + number * _LINE), line, _FAINT if number else _INK, font)
    for number, (cell, row) in enumerate(zip(sheet.cells, tiles, strict=True)):
        own = Image.new("RGB", (wide, high), _PAPER)  # which cuts off longer lines
        x = 0
        for tile in row:
            own.paste(tile.resize((zoom * tile.width, zoom * tile.height), Image.Resampling.NEAREST), (x, 0))
            x += zoom * tile.width + _GAP
        draw = ImageDraw.Draw(own)
        right = font.getlength(cell.id) > wide  # of an ID, which may be a path, the end is shown
        draw.text((wide if right else 0, tall + 2), cell.id, _INK, font, anchor="ra" if right else "la")
        for place, text in enumerate(cell.texts[:_LINES], 1):
            draw.text((0, tall + 2 + place * _LINE), text, _FAINT, font)
        row_number, column = divmod(number, sheet.columns)
        image.paste(own, (_GAP + column * (wide + _GAP), top + row_number * (high + _GAP)))
    return image
