"""A contact sheet as data, and drawn: as a PNG by Pillow, or as one HTML page that refers to nothing outside of it."""

from __future__ import annotations

import base64
import html
import io
import math
import textwrap
from dataclasses import dataclass
from string import Template

from PIL import Image, ImageDraw, ImageFont

from penstock.errors import InvalidOption
from penstock.insight.pictures import Pixels

#: The most pixels of a side of a sample's picture, where nothing else is said.
SIDE = 256
_SMALL = 96  # pixels of a side up to which pictures are enlarged, by a whole factor
_GAP, _LINE, _LETTER = 8, 16, 7  # pixels between cells, of a line's height, and of a letter's width, about
_TITLE = 16  # pixels of the title's font; the others have 12
_LEAST_WIDTHS = (120, 280)  # of a cell, so that its text can be read: beside pictures, of text alone
_LEAST_SHEET = 480  # pixels of a sheet's width
_LINES = 6  # of text below the pictures of a cell
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


@dataclass(frozen=True)
class Sheet:
    """A contact sheet of a batch. All texts are of one line, of printable characters."""

    title: str
    notes: tuple[str, ...]
    """Lines below the title: of the batch, and of each field of pictures."""
    cells: tuple[Cell, ...]
    columns: int
    """Samples in a row."""


def reduced(picture: Picture, side: int) -> Image.Image:
    """Return a picture of at most that many pixels a side: as it is, or reduced by averaging."""
    image = Image.fromarray(picture.pixels)
    longest = max(image.size)
    if longest <= side:
        return image
    width, height = (max(1, round(length * side / longest)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BOX)


def _notes(sheet: Sheet, side: int) -> list[str]:
    """Return the lines below the title; one says that pictures are reduced, where some are."""
    larger = any(max(one.pixels.shape[:2]) > side for cell in sheet.cells for one in cell.pictures)
    return [*sheet.notes, *([f"pictures with more than {side} pixels a side are reduced"] if larger else [])]


def _captions(cell: Cell) -> list[tuple[str, bool]]:
    """Return the lines below the pictures of a cell, but for the ID; True: it is a warning."""
    named = len(cell.pictures) > 1
    notes = [(f"{one.name}: {one.note}" if named else one.note, True) for one in cell.pictures if one.note]
    return [*((text, False) for text in cell.texts), *notes]


# --- as a PNG --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where the cells of a sheet lie in its image: in a grid of equal cells."""

    size: tuple[int, int]
    """Of the image: width, height."""
    top: int
    """Of the first row."""
    cell: tuple[int, int]
    """Width and height of a cell."""
    pictures: tuple[tuple[Image.Image, ...], ...]
    """Of each cell, as large as they are drawn."""
    tallest: int
    """Of the pictures."""
    header: tuple[str, ...]
    """The lines below the title."""
    columns: int

    def corner(self, number: int) -> tuple[int, int]:
        """Return the left and the top of a cell."""
        row, column = divmod(number, self.columns)
        return _GAP + column * (self.cell[0] + _GAP), self.top + row * (self.cell[1] + _GAP)


def layout_of(sheet: Sheet, side: int = SIDE) -> Layout:
    """Return where everything of a sheet lies. Raises InvalidOption for an image that is too large to be viewed."""
    small = [[reduced(one, side) for one in cell.pictures] for cell in sheet.cells]
    zoom = max(1, _SMALL // max((max(image.size) for images in small for image in images), default=_SMALL))
    pictures = tuple(
        tuple(one.resize((one.width * zoom, one.height * zoom), Image.Resampling.NEAREST) for one in images)
        for images in small
    )
    widths = [sum(one.width + _GAP for one in images) - _GAP for images in pictures]
    tallest = max((one.height for images in pictures for one in images), default=0)
    lines = max((len(_lines(cell)) for cell in sheet.cells), default=0)
    cell = (max(_LEAST_WIDTHS[not all(pictures)], *widths), tallest + 2 + _LINE * lines)
    width = max(_LEAST_SHEET, _GAP + sheet.columns * (cell[0] + _GAP))
    header = [line for note in _notes(sheet, side) for line in textwrap.wrap(note, (width - 2 * _GAP) // _LETTER)]
    top = 2 * _GAP + _TITLE + 6 + _LINE * len(header)
    height = top + math.ceil(len(sheet.cells) / sheet.columns) * (cell[1] + _GAP)
    if width * height > _MOST_PIXELS:
        raise InvalidOption(
            f"the sheet would be {width:,} x {height:,} pixels large: show fewer samples, or smaller pictures"
        )
    return Layout((width, height), top, cell, pictures, tallest, tuple(header), sheet.columns)


def image_of(sheet: Sheet, side: int = SIDE) -> Image.Image:
    """Return a sheet as an image. side: the most pixels of a side of a picture; larger pictures are reduced.

    Raises InvalidOption for an image that is too large to be viewed.
    """
    layout = layout_of(sheet, side)
    image = Image.new("RGB", layout.size, _PAPER)
    draw = ImageDraw.Draw(image)
    inside = layout.size[0] - 2 * _GAP
    _write(draw, (_GAP, _GAP), sheet.title, inside, _INK, _TITLE)
    for number, line in enumerate(layout.header):
        _write(draw, (_GAP, _GAP + _TITLE + 6 + number * _LINE), line, inside, _FAINT)
    for number, (cell, pictures) in enumerate(zip(sheet.cells, layout.pictures, strict=True)):
        left, top = layout.corner(number)
        at = left
        for picture in pictures:
            image.paste(picture, (at, top))
            at += picture.width + _GAP
        top += layout.tallest + 2
        for place, (line, colour) in enumerate(_lines(cell)):
            _write(draw, (left, top + place * _LINE), line, layout.cell[0], colour, tail=place == 0)
    return image


def _lines(cell: Cell) -> list[tuple[str, tuple[int, int, int]]]:
    """Return the lines of text of a cell, with their colours."""
    lines = [(line, _WARNING if warns else _FAINT) for line, warns in _captions(cell)]
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
    font = ImageFont.load_default(size)
    kept, fitting = len(text), text
    while font.getlength(fitting) > width:
        kept = min(kept - 1, int(kept * width / font.getlength(fitting)))
        fitting = f"...{text[len(text) - kept :]}" if tail else f"{text[:kept]}..."
    draw.text(at, fitting, colour, font)


# --- as a page -------------------------------------------------------------------------------------------------------

#: Texts are escaped, and the page's own policy lets a browser load nothing and run no script, whatever an ID holds.
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1b1b; --faint: #5c5c5c; --paper: #f6f6f6; --card: #fff; --warn: #b00020 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --faint: #a8a8a8; --paper: #161616; --card: #222; --warn: #ff8a80 }
}
body { margin: 1rem; background: var(--paper); color: var(--ink); font: 13px/1.4 system-ui, sans-serif }
h1 { font-size: 1.2rem; margin: 0 0 .3rem; overflow-wrap: anywhere }
header p { margin: 0; color: var(--faint); overflow-wrap: anywhere }
main { display: grid; gap: .6rem; margin-top: 1rem; grid-template-columns: repeat($columns, max-content) }
figure { margin: 0; padding: .5rem; background: var(--card); border-radius: 4px }
figure img { image-rendering: pixelated; margin-right: .4rem; vertical-align: top }
figcaption { width: 0; min-width: max(100%, 12rem); overflow-wrap: anywhere }
figcaption p { margin: 0; color: var(--faint) }
figcaption p.id { color: var(--ink); font-weight: 600 }
figcaption p.warning { color: var(--warn) }
</style>
</head>
<body>
<header>
<h1>$title</h1>
$notes
</header>
<main>
$figures
</main>
</body>
</html>
""")


def page_of(sheet: Sheet, side: int = SIDE) -> str:
    """Return a sheet as an HTML page. side: the most pixels of a side of a picture; larger pictures are reduced."""
    return _PAGE.substitute(
        title=html.escape(sheet.title),
        columns=sheet.columns,
        notes="\n".join(f"<p>{html.escape(note)}</p>" for note in _notes(sheet, side)),
        figures="\n".join(_figure(cell, side) for cell in sheet.cells),
    )


def _figure(cell: Cell, side: int) -> str:
    pictures = "".join(_image(cell, picture, side) for picture in cell.pictures)
    lines = [f'<p class="id">{html.escape(cell.id)}</p>']
    for text, warns in _captions(cell):
        kind = ' class="warning"' if warns else ""
        lines.append(f"<p{kind}>{html.escape(text)}</p>")
    return f"<figure>{pictures}<figcaption>{''.join(lines)}</figcaption></figure>"


def _image(cell: Cell, picture: Picture, side: int) -> str:
    shown, file = reduced(picture, side), io.BytesIO()
    shown.save(file, "PNG")
    zoom = max(1, _SMALL // max(shown.size))
    name = html.escape(f"{cell.id} {picture.name}".strip())
    return (
        f'<img src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode("ascii")}" alt="{name}" '
        f'title="{name}" width="{shown.width * zoom}" height="{shown.height * zoom}">'
    )
