"""A contact sheet as data: samples with their pictures and texts. `drawing` makes a PNG of it, `page` an HTML page."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.insight.pictures import Pixels


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

    def captions(self, cell: Cell) -> list[tuple[str, bool]]:
        """Return the lines below the pictures of a cell, but for the ID; True: it is a warning."""
        named = len(cell.pictures) > 1
        notes = [(f"{one.name}: {one.note}" if named else one.note, True) for one in cell.pictures if one.note]
        return [*((text, False) for text in cell.texts), *notes]
