"""A contact sheet as one picture, drawn by Pillow."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from penstock.errors import InvalidOption
from penstock.insight.cells import Cell, Picture, Sheet
from penstock.insight.pictures import Pixels

#: The most pixels of a side of a sample's picture, where nothing else is said.
SIDE = 256
_SMALL = 96  # pixels up to which the pictures of a sheet are enlarged, by a whole factor
_GAP = 8  # between pictures, cells and the edge
_LEAST_WIDTHS = (120, 280)  # of a cell, so that its text can be read: beside pictures, of text alone
_LEAST_SHEET = 480  # pixels of a sheet's width
_LINES = 6  # of text below the pictures of a cell
_MOST_PIXELS = 100_000_000  # of a sheet; viewers and Pillow itself refuse much larger ones
_SIZES = (16, 12)  # of the font: of the title, of all else
_PAPER, _INK, _FAINT, _WARNING = (246, 246, 246), (20, 20, 20), (90, 90, 90), (176, 0, 32)

Box = tuple[int, int, int, int]
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def reduced(pixels: Pixels, side: int) -> Image.Image:
    """Return a picture of at most that many pixels a side: as it is, or reduced by averaging."""
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if longest <= side:
        return image
    width, height = (max(1, round(length * side / longest)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BOX)


def reduction(sheet: Sheet, side: int) -> tuple[str, ...]:
    """Return the line that says that pictures are reduced; none where none is."""
    larger = any(max(one.pixels.shape[:2]) > side for cell in sheet.cells for one in cell.pictures)
    return (f"pictures with more than {side} pixels a side are reduced",) if larger else ()


@dataclass(frozen=True)
class Layout:
    """Where the pictures of a sheet lie in its image."""

    size: tuple[int, int]
    """Of the image: width, height."""
    zoom: int
    """How many pixels of the image a pixel of a picture takes along each side; 1 for reduced pictures."""
    boxes: tuple[tuple[Box, ...], ...]
    """Of each cell, of each of its pictures: left, top, right, bottom."""
    corners: tuple[tuple[int, int], ...]
    """Of each cell: left, and the top of its text."""
    cell_width: int
    header: tuple[str, ...]
    """The lines below the title."""


def layout_of(sheet: Sheet, side: int = SIDE) -> Layout:
    """Return where everything of a sheet lies. Raises InvalidOption for an image that is too large to be viewed."""
    sizes = [[reduced_size(one, side) for one in cell.pictures] for cell in sheet.cells]
    longest = max((max(size) for cell in sizes for size in cell), default=_SMALL)
    zoom = max(1, _SMALL // longest)
    sizes = [[(width * zoom, height * zoom) for width, height in cell] for cell in sizes]
    widths = [sum(width for width, _ in cell) + _GAP * max(0, len(cell) - 1) for cell in sizes]
    cell_width = max(_LEAST_WIDTHS[not all(sizes)], *widths)
    whole_width = max(_LEAST_SHEET, _GAP + sheet.columns * (cell_width + _GAP))
    notes = (*sheet.notes, *reduction(sheet, side))
    header = tuple(line for note in notes for line in _wrapped(note, whole_width - 2 * _GAP, _font(_SIZES[1])))
    top = _GAP + _title_height() + _line_height() * len(header) + _GAP
    boxes: list[tuple[Box, ...]] = []
    corners: list[tuple[int, int]] = []
    for first in range(0, len(sheet.cells), sheet.columns):
        row = range(first, min(first + sheet.columns, len(sheet.cells)))
        tallest = max((height for number in row for _, height in sizes[number]), default=0)
        for number in row:
            left = corner = _GAP + (number - first) * (cell_width + _GAP)
            own = []
            for width, height in sizes[number]:
                own.append((left, top, left + width, top + height))
                left += width + _GAP
            boxes.append(tuple(own))
            corners.append((corner, top + tallest + 2))
        top += tallest + 2 + _line_height() * max(len(_lines(sheet, sheet.cells[number])) for number in row) + _GAP
    size = (whole_width, top)
    if size[0] * size[1] > _MOST_PIXELS:
        raise InvalidOption(
            f"the sheet would be {size[0]:,} x {size[1]:,} pixels large: show fewer samples, or smaller pictures"
        )
    return Layout(size, zoom, tuple(boxes), tuple(corners), cell_width, header)


def image_of(sheet: Sheet, side: int = SIDE) -> Image.Image:
    """Return a sheet as an image. side: the most pixels of a side of a picture; larger pictures are reduced.

    Raises InvalidOption for an image that is too large to be viewed.
    """
    layout = layout_of(sheet, side)
    image = Image.new("RGB", layout.size, _PAPER)
    for cell, boxes in zip(sheet.cells, layout.boxes, strict=True):
        for picture, box in zip(cell.pictures, boxes, strict=True):
            shown = reduced(picture.pixels, side)
            image.paste(shown.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.NEAREST), box[:2])
    draw = ImageDraw.Draw(image)
    inside = layout.size[0] - 2 * _GAP
    _write(draw, (_GAP, _GAP), sheet.title, inside, _INK, _SIZES[0])
    for number, line in enumerate(layout.header):
        _write(draw, (_GAP, _GAP + _title_height() + number * _line_height()), line, inside, _FAINT)
    for cell, (left, top) in zip(sheet.cells, layout.corners, strict=True):
        for number, (line, colour) in enumerate(_lines(sheet, cell)):
            _write(draw, (left, top + number * _line_height()), line, layout.cell_width, colour, tail=number == 0)
    return image


def reduced_size(picture: Picture, side: int) -> tuple[int, int]:
    """Return (width, height) of a picture as `reduced` returns it."""
    height, width = picture.pixels.shape[:2]
    longest = max(height, width)
    if longest <= side:
        return width, height
    return max(1, round(width * side / longest)), max(1, round(height * side / longest))


def _lines(sheet: Sheet, cell: Cell) -> list[tuple[str, tuple[int, int, int]]]:
    """Return the lines of text of a cell, with their colours."""
    lines = [(line, _WARNING if warns else _FAINT) for line, warns in sheet.captions(cell)]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], (f"and {len(lines) - _LINES + 1} more lines", _FAINT)]
    return [(cell.id, _INK), *lines]


def _write(
    draw: ImageDraw.ImageDraw,
    at: tuple[int, int],
    text: str,
    width: int,
    colour: tuple[int, int, int],
    size: int = _SIZES[1],
    *,
    tail: bool = False,
) -> None:
    """Write one line, as much of it as fits; tail: its end is kept, as of a path, not its beginning."""
    font = _font(size)
    try:
        draw.text(at, _fitting(text, width, font, tail=tail), colour, font)
    except UnicodeError:  # the font of a Pillow without FreeType
        draw.text(at, _fitting(ascii(text)[1:-1], width, font, tail=tail), colour, font)


def _wrapped(text: str, width: int, font: _Font) -> list[str]:
    """Return a text in lines of at most that many pixels, broken between words."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _width(longer, font) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _width(text: str, font: _Font) -> float:
    try:
        return font.getlength(text)
    except UnicodeError:  # the font of a Pillow without FreeType
        return font.getlength(ascii(text))


def _fitting(text: str, width: int, font: _Font, *, tail: bool) -> str:
    """Return as much of a text as fits into that many pixels."""
    if font.getlength(text) <= width:
        return text
    fits, over = 0, len(text)
    while over - fits > 1:
        middle = (fits + over) // 2
        part = f"...{text[-middle:]}" if tail else f"{text[:middle]}..."
        if font.getlength(part) <= width:
            fits = middle
        else:
            over = middle
    kept = text[len(text) - fits :] if tail else text[:fits]
    return f"...{kept}" if tail else f"{kept}..."


def _font(size: int) -> _Font:
    try:
        return ImageFont.load_default(size)
    except ImportError:  # a Pillow without FreeType has one small font
        return ImageFont.load_default()


def _line_height() -> int:
    return _SIZES[1] + 4


def _title_height() -> int:
    return _SIZES[0] + 6
