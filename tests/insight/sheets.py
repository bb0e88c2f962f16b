"""What `penstock view` shows of anything that a test makes: its page, read again."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tests.commands import attempted, named
from tests.insight.html_pages import Page


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


class Sheet:
    """A sheet's page, which is well-formed."""

    def __init__(self, text: str) -> None:
        self.text, self.tags = text, Page(text).tags
        head, *figures = text.partition("<header>")[2].split("<figure>")
        (self.title,), self.notes = _texts("h1", head), _texts("p", head)
        self.cells = []
        for figure in figures:
            data = re.findall('src="data:image/png;base64,([^"]+)"', figure)
            pictures = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in data]
            names = [html.unescape(one) for one in re.findall('title="([^"]*)"', figure)]
            (id_,) = _texts("p class=.id.", figure)
            self.cells.append(Cell(id_, pictures, names, tuple(_texts("p", figure))))
        self.ids, self.texts = [cell.id for cell in self.cells], [cell.texts for cell in self.cells]


def _texts(tag: str, page: str) -> list[str]:
    return [html.unescape(one.replace("<wbr>", "")) for one in re.findall(f"<{tag}>(.*?)</", page, re.DOTALL)]


def view(what: Any, file: Path, *options: str) -> None:
    """Run `penstock view` of an object. What the command would say of an error is raised."""
    attempted("view", named(what), "-o", file, *options)


def viewed(what: Any, *options: str) -> Sheet:
    """Return the sheet of an object."""
    with TemporaryDirectory() as folder:
        view(what, Path(folder, "sheet.html"), *options)
        return Sheet(Path(folder, "sheet.html").read_text("utf-8"))


def shown(batch: Any, *options: str, classes: list[str] | None = None) -> Sheet:
    """Return the sheet of a batch."""
    return viewed(Once(batch, classes), *options)
