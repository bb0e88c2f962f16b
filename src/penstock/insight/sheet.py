"""A contact sheet: the samples of a batch as pictures with their IDs and labels, as a PNG or an HTML page."""

from __future__ import annotations

import base64
import io
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from penstock.errors import InvalidOption
from penstock.insight.fields import Fields, Form, Path, line_of, name_of, taken_apart, text_of
from penstock.insight.pictures import Drawn, Normalisation, Pixels, Raw, drawn, raw_of
from penstock.insight.templates import page_of
from penstock.showing import shown
from penstock.system.output_files import write_whole
from penstock.system.words import counted

#: Samples of a sheet, and the most pixels of a side of a sample's picture, where nothing else is said.
MOST, SIDE = 64, 256
_PAGES = (".html", ".htm")
_SUFFIXES = (".png", *_PAGES)
_SMALL = 96  # pixels of a side up to which pictures are enlarged, by a whole factor
_GAP, _LINE, _LETTER = 8, 16, 7  # pixels between cells, of a line's height, and of a letter's width, about
_TITLE = 16  # pixels of the title's font; the others have 12
_LEAST_WIDTHS = (120, 280)  # of a cell, so that its text can be read: beside pictures, of text alone
_LEAST_SHEET = 480  # pixels of a sheet's width
_LINES = 6  # of text below the ID of a cell
_MOST_PIXELS = 100_000_000  # of a sheet; viewers and Pillow itself refuse much larger ones
_PAPER, _INK, _FAINT, _WARNING = (246, 246, 246), (20, 20, 20), (90, 90, 90), (176, 0, 32)


@dataclass(frozen=True)
class Picture:
    """A picture of a sample."""

    name: str
    """Of its field: "0", "image", "target.mask"; empty where the sample is the picture."""
    pixels: Pixels
    """(height, width, 3) of 8 bits, in the size that the sample has."""
    note: str
    """What a user must know of it, such as elements that are NaN; or ""."""


@dataclass(frozen=True)
class Cell:
    """A sample on a sheet."""

    id: str
    pictures: tuple[Picture, ...]
    texts: tuple[str, ...]
    """Its other fields, a line each, "name: value"; a label of a sample of two fields has no name."""

    def captions(self) -> list[tuple[str, bool]]:
        """Return the lines below the pictures, but for the ID; True: it is a warning."""
        named = len(self.pictures) > 1
        notes = [(f"{one.name}: {one.note}" if named else one.note, True) for one in self.pictures if one.note]
        return [*((text, False) for text in self.texts), *notes]


@dataclass(frozen=True)
class Sheet:
    """A contact sheet of a batch. All texts are of one line, of printable characters."""

    title: str
    notes: tuple[str, ...]
    """Lines below the title: of the batch, and of each field of pictures."""
    cells: tuple[Cell, ...]
    columns: int
    """Samples in a row."""

    def head(self, side: int) -> list[str]:
        """Return the lines below the title where pictures have at most `side` pixels a side."""
        larger = any(max(one.pixels.shape[:2]) > side for cell in self.cells for one in cell.pictures)
        return [*self.notes, *([f"pictures with more than {side} pixels a side are reduced"] if larger else [])]

    def pictures(self, side: int) -> tuple[list[list[Image.Image]], int]:
        """Return the pictures of each cell, reduced by averaging, and the whole number that they are enlarged by."""
        images = [[Image.fromarray(one.pixels) for one in cell.pictures] for cell in self.cells]
        for image in (image for row in images for image in row):
            image.thumbnail((side, side), Image.Resampling.BOX)
        longest = max((max(image.size) for row in images for image in row), default=_SMALL)
        return images, max(1, _SMALL // longest)


def contact_sheet(
    batch: Any,
    ids: Sequence[str] | None = None,
    *,
    form: Form = Form.BATCH,
    classes: Sequence[str] | None = None,
    undo: Normalisation | None = None,
    most: int = MOST,
    columns: int | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Sheet:
    """Return the contact sheet of a batch.

    Args:
        batch: of any structure: tensors, arrays and PIL images in tuples, lists, mappings, named tuples, dataclasses.
        ids: the ID of each sample; None: their positions in the batch, and as many as the batch shows.
        form: of the batch: samples put together, a list of samples, or something of a loader without a batch size.
        classes: names of the classes by label.
        undo: the normalisation that was applied to pictures of floats.
        most: samples of the sheet at most, from the first on.
        columns: samples in a row; None: about as many as rows.
        title: the first line.
        notes: lines below it.

    Raises:
        InvalidOption: most or columns is below 1.
    """
    for name, number in (("most", most), ("columns", columns)):
        if number is not None and number < 1:
            raise InvalidOption(f"{name}={number}: a sheet has at least 1")
    samples, whole = taken_apart(batch, form, None if ids is None else len(ids))
    names, lines = list(ids or ()), list(notes)
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
    lines += [f"{name_of(path) or 'batch'}: {text_of(value)}" for path, value in whole.items()]
    cells = []
    for id_, fields, own in zip(names, samples, pictures, strict=False):
        texts = [line_of(path, value, list(fields), classes or ()) for path, value in fields.items() if path not in own]
        cells.append(Cell(shown(str(id_)), tuple(own.values()), tuple(texts)))
    columns = min(len(cells), columns or math.ceil(math.sqrt(len(cells))))
    return Sheet(shown(title) or "a batch", tuple(map(shown, lines)), tuple(cells), columns)


def _pictures(samples: Sequence[Fields], undo: Normalisation | None) -> tuple[list[dict[Path, Picture]], list[str]]:
    """Return the pictures of each sample by their paths, and a line for each field of pictures."""
    raws = [{path: raw for path, value in fields.items() if (raw := raw_of(value)) is not None} for fields in samples]
    pictures: list[dict[Path, Picture]] = [{} for _ in samples]
    about = []
    for path in dict.fromkeys(path for found in raws for path in found):
        having = [number for number, found in enumerate(raws) if path in found]
        result = _drawn(path, [raws[number] for number in having], undo)
        about.append(f"{name_of(path) or 'picture'}: {result.about}")
        for number, pixels, note in zip(having, result.pixels, result.notes, strict=True):
            pictures[number][path] = Picture(name_of(path), pixels, note)
    return pictures, about


def _drawn(path: Path, samples: Sequence[dict[Path, Raw]], undo: Normalisation | None) -> Drawn:
    """Return the pictures of a field; planes of uint8 beside another picture of their size are masks."""

    def beside(found: dict[Path, Raw]) -> bool:
        values = found[path].values
        others = [raw.values for other, raw in found.items() if other != path]
        return values.ndim == 2 and any(one.ndim == 3 and one.shape[:2] == values.shape for one in others)

    return drawn([found[path] for found in samples], undo, mask=all(map(beside, samples)))


# --- files -----------------------------------------------------------------------------------------------------------


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
    write_whole(path, html_of(sheet, side).encode("utf-8", "backslashreplace") if page else _png(image_of(sheet, side)))


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise InvalidOption for a file that is neither a PNG nor a page by its name."""
    if not os.fspath(path).lower().endswith(_SUFFIXES):
        raise InvalidOption(f"{os.fspath(path)}: a sheet is a .png or .html file; give a name that ends so")


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def html_of(sheet: Sheet, side: int = SIDE) -> str:
    """Return a sheet as an HTML page. side: the most pixels of a side of a picture; larger pictures are reduced."""
    images, zoom = sheet.pictures(side)
    cells = []
    for cell, row in zip(sheet.cells, images, strict=True):
        drawn_ = [
            (f"{cell.id} {one.name}".strip(), base64.b64encode(_png(image)).decode(), *(zoom * n for n in image.size))
            for one, image in zip(cell.pictures, row, strict=True)
        ]
        cells.append((cell, drawn_, cell.captions()))
    return page_of("sheet.html", title=sheet.title, columns=sheet.columns, notes=sheet.head(side), cells=cells)


def image_of(sheet: Sheet, side: int = SIDE) -> Image.Image:
    """Return a sheet as an image. side: the most pixels of a side of a picture; larger pictures are reduced.

    Raises InvalidOption for an image that is too large to be viewed.
    """
    small, zoom = sheet.pictures(side)
    pictures = [
        [one.resize((one.width * zoom, one.height * zoom), Image.Resampling.NEAREST) for one in row] for row in small
    ]
    texts = [_lines(cell) for cell in sheet.cells]
    tallest = max((one.height for row in pictures for one in row), default=0)
    wide = max(_LEAST_WIDTHS[not all(pictures)], *(sum(one.width + _GAP for one in row) - _GAP for row in pictures))
    high = tallest + 2 + _LINE * max(map(len, texts), default=0)
    width = max(_LEAST_SHEET, _GAP + sheet.columns * (wide + _GAP))
    inside = width - 2 * _GAP
    head = [line for note in sheet.head(side) for line in textwrap.wrap(note, inside // _LETTER)]
    top = 2 * _GAP + _TITLE + 6 + _LINE * len(head)
    height = top + math.ceil(len(sheet.cells) / sheet.columns) * (high + _GAP)
    if width * height > _MOST_PIXELS:
        raise InvalidOption(
            f"the sheet would be {width:,} x {height:,} pixels large: show fewer samples, or smaller pictures"
        )
    image = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(image)
    _write(draw, (_GAP, _GAP), sheet.title, inside, _INK, _TITLE)
    for number, line in enumerate(head):
        _write(draw, (_GAP, _GAP + _TITLE + 6 + number * _LINE), line, inside, _FAINT)
    for number, (row, lines) in enumerate(zip(pictures, texts, strict=True)):
        left, y = _GAP + number % sheet.columns * (wide + _GAP), top + number // sheet.columns * (high + _GAP)
        x = left
        for picture in row:
            image.paste(picture, (x, y))
            x += picture.width + _GAP
        for place, (line, colour) in enumerate(lines):
            _write(draw, (left, y + tallest + 2 + place * _LINE), line, wide, colour, tail=place == 0)
    return image


def _lines(cell: Cell) -> list[tuple[str, tuple[int, int, int]]]:
    """Return the lines of text of a cell, with their colours."""
    lines = [(line, _WARNING if warns else _FAINT) for line, warns in cell.captions()]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], (f"and {len(lines) - _LINES + 1} more lines", _FAINT)]
    return [(cell.id, _INK), *lines]


def _write(
    draw: ImageDraw.ImageDraw,
    at: tuple[int, int],
    text: str,
    width: int,
    colour: tuple[int, int, int],
    size: int = 12,
    *,
    tail: bool = False,
) -> None:
    """Write one line, as much of it as fits; tail: its end is kept, as of a path, not its beginning."""
    font, fitting = ImageFont.load_default(size), text
    while font.getlength(fitting) > width:
        text = text[1:] if tail else text[:-1]
        fitting = f"...{text}" if tail else f"{text}..."
    draw.text(at, fitting, colour, font)
