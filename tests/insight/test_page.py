"""Sheets as pages and files: no ID disturbs a page, and a file is written as a whole or not at all."""

from __future__ import annotations

import base64
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.errors import InvalidOption
from penstock.insight.sheet import contact_sheet, html_of, write_sheet

BYTES = np.random.default_rng(3).integers(0, 256, (4, 3, 12, 10), dtype=np.uint8)


# --- the page --------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects the tags, their attributes and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


EVIL = ['<script>alert("1")</script>', "\" onload='alert(1)' x=\"", "a&amp;b", "</p></figure><h1>big"]


def test_a_page_holds_its_pictures_labels_and_ids() -> None:
    sheet = contact_sheet([torch.from_numpy(BYTES), EVIL], EVIL, title="<b>title</b>", notes=["<i>note</i>"])
    read = Reader(html_of(sheet))
    sources = [value or "" for name, value in read.attributes if name == "src"]
    assert len(sources) == 4 and read.tags.count("figure") == 4
    for number, source in enumerate(sources):
        kind, _, data = source.partition(",")
        assert kind == "data:image/png;base64"
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        assert np.array_equal(shown, BYTES[number].transpose(1, 2, 0))
    text = "".join(read.text)
    assert all(text.count(evil) == 2 for evil in EVIL) and "<b>title</b>" in text and "<i>note</i>" in text
    assert {"script", "b", "i"}.isdisjoint(read.tags) and read.tags.count("h1") == 1
    assert [value for name, value in read.attributes if name == "alt"] == [f"{evil} 0" for evil in EVIL]
    assert not [name for name, _ in read.attributes if name.startswith("on") or name == "href"]
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[^\"]+", "", html_of(sheet)).replace("</", ""))


def test_a_page_is_readable_in_light_and_dark() -> None:
    page = html_of(contact_sheet(torch.zeros(1, 3, 8, 8)))
    assert "prefers-color-scheme: dark" in page and 'content="light dark"' in page and "default-src 'none'" in page


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_written_over_as_a_whole(tmp_path: Path) -> None:
    sheet = contact_sheet(torch.zeros(1, 3, 8, 8))
    for name in ("a.png", "a.PNG", "a.html", "a.htm"):
        (tmp_path / name).write_text("before")
        (tmp_path / name).chmod(0o640)
        write_sheet(sheet, tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
    (tmp_path / "real.png").write_text("before")
    (tmp_path / "link.png").symlink_to("real.png")
    write_sheet(sheet, tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.htm").read_text().startswith("<!doctype html>")
    assert sorted(os.listdir(tmp_path)) == ["a.PNG", "a.htm", "a.html", "a.png", "link.png", "real.png"]
    for wrong in ("a.jpg", "a", "-", "a.png.gz"):
        with pytest.raises(InvalidOption, match=r"\.png or \.html"):
            write_sheet(sheet, wrong)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = contact_sheet(torch.zeros(1, 3, 8, 8))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(IsADirectoryError):
        write_sheet(sheet, tmp_path / "folder.png")
    with pytest.raises(FileNotFoundError) as missing:
        write_sheet(sheet, tmp_path / "none" / "a.png")
    assert missing.value.filename == str(tmp_path / "none" / "a.png")
    (tmp_path / "a.png").write_text("before")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as no_space:
        write_sheet(sheet, tmp_path / "a.png")
    assert no_space.value.filename == str(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "before" and len(os.listdir(tmp_path)) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("before")
    (tmp_path / "a.png").chmod(0o400)
    with pytest.raises(PermissionError):
        write_sheet(contact_sheet(torch.zeros(1, 3, 8, 8)), tmp_path / "a.png")


def test_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "a.html").symlink_to(os.devnull)
    write_sheet(contact_sheet(None), tmp_path / "a.html")
    assert os.listdir(tmp_path) == ["a.html"] and not os.path.isfile(os.devnull)
