"""A contact sheet: the samples of a batch as pictures with their IDs and labels, as a PNG or an HTML page."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidOption
from penstock.insight.drawing import SIDE, Cell, Picture, Sheet, image_of, page_of
from penstock.insight.fields import Fields, Form, Path, line_of, name_of, taken_apart, text_of
from penstock.insight.files import write_whole
from penstock.insight.pictures import Drawn, Normalisation, Raw, drawn, raw_of
from penstock.showing import shown
from penstock.system.words import counted

#: Samples of a sheet.
MOST = 64
_PAGES = (".html", ".htm")
_SUFFIXES = (".png", *_PAGES)


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
    if os.fspath(path).lower().endswith(_PAGES):
        data = page_of(sheet, side).encode("utf-8", "backslashreplace")
    else:
        file = io.BytesIO()
        image_of(sheet, side).save(file, "PNG")
        data = file.getvalue()
    write_whole(path, data)


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise InvalidOption for a file that is neither a PNG nor a page by its name."""
    if not os.fspath(path).lower().endswith(_SUFFIXES):
        raise InvalidOption(f"{os.fspath(path)}: a sheet is a .png or .html file; give a name that ends so")


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
