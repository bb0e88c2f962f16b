"""What `penstock view` shows of anything that a test makes: its page, read again."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tests.commands import attempted
from tests.insight.html_pages import Page

given: Any = None
"""What is viewed: the command's DATASET names it."""


class Once:
    """A loader of one batch."""

    def __init__(self, batch: Any, classes: list[str] | None = None) -> None:
        self.batch, self.classes = batch, classes

    def __iter__(self) -> Iterator[Any]:
        yield self.batch


class Cell(NamedTuple):
    id: str
    pictures: list[Any]
    """Their pixels."""
    names: list[str]
    """Of the pictures."""
    texts: tuple[str, ...]


class Sheet(Page):
    """The page of a sheet."""

    def __init__(self, text: str) -> None:
        self.cells: list[Cell] = []
        self.title, self.notes, self._words = "", list[str](), ""
        super().__init__(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        named = dict(attrs)
        if tag == "figure":
            self.cells.append(Cell("", [], [], ()))
        elif tag == "img":
            kind, _, data = (named["src"] or "").partition(",")
            assert kind == "data:image/png;base64"
            self.cells[-1].pictures.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))))
            self.cells[-1].names.append(named["title"] or "")
        if tag != "wbr":
            self._words = ""

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        self._words += data

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        if tag == "h1":
            self.title = self._words
        elif tag == "p" and not self.cells:
            self.notes.append(self._words)
        elif tag == "p":
            cell = self.cells[-1]
            self.cells[-1] = (
                cell._replace(texts=(*cell.texts, self._words)) if cell.id else cell._replace(id=self._words)
            )

    @property
    def ids(self) -> list[str]:
        return [cell.id for cell in self.cells]

    @property
    def texts(self) -> list[tuple[str, ...]]:
        return [cell.texts for cell in self.cells]


def view(what: Any, file: Path, *options: str) -> None:
    """Run `penstock view` of an object. What the command would say of an error is raised."""
    global given
    given = what
    attempted("view", f"{__name__}:given", "-o", file, *options)


def viewed(what: Any, *options: str) -> Sheet:
    """Return the sheet of an object."""
    with TemporaryDirectory() as folder:
        view(what, Path(folder, "sheet.html"), *options)
        return Sheet(Path(folder, "sheet.html").read_text("utf-8"))


def shown(batch: Any, *options: str, classes: list[str] | None = None) -> Sheet:
    """Return the sheet of a batch."""
    return viewed(Once(batch, classes), *options)
