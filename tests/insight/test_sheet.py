"""Contact sheets: each picture is the batch's, pixel for pixel, and no ID disturbs a page."""

from __future__ import annotations

import base64
import io
import os
import re
from collections import namedtuple
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.errors import InvalidOption
from penstock.insight import sheet as sheets
from penstock.insight.pictures import _PALETTE, MAGENTA, Normalisation
from penstock.insight.sheet import Sheet, contact_sheet, html_of, image_of, write_sheet

DRAW = np.random.default_rng(3)
BYTES = DRAW.integers(0, 256, (4, 3, 12, 10), dtype=np.uint8)
Pair = namedtuple("Pair", "image label")


@dataclass
class Record:
    image: Any
    name: Any


def pixels(sheet: Sheet, cell: int = 0, picture: int = 0) -> Any:
    return sheet.cells[cell].pictures[picture].pixels


def last(array: Any) -> Any:
    """Return (..., channels, height, width) as (..., height, width, channels)."""
    return np.moveaxis(np.asarray(array), -3, -1)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (torch.from_numpy(BYTES), last(BYTES)),
        (torch.from_numpy(last(BYTES).copy()), last(BYTES)),
        (torch.from_numpy(BYTES).float() / 255, last(BYTES)),
        (torch.from_numpy(BYTES).double() / 255, last(BYTES)),
        (torch.from_numpy(BYTES).float(), last(BYTES)),
        (torch.from_numpy(BYTES).int(), last(BYTES)),
        (BYTES, last(BYTES)),
        (torch.from_numpy(BYTES[:, :1]), last(BYTES[:, :1].repeat(3, 1))),
        (torch.from_numpy(BYTES[:, 0]), last(BYTES[:, :1].repeat(3, 1))),
        (torch.from_numpy(BYTES[:, 0] > 99), last((BYTES[:, :1] > 99).repeat(3, 1) * 255)),
        (torch.from_numpy(BYTES).to(memory_format=torch.channels_last), last(BYTES)),
        (torch.from_numpy(BYTES).float().div(255).requires_grad_(), last(BYTES)),
    ],
    ids=["uint8", "hwc", "float", "double", "float255", "int", "numpy", "grey", "plane", "bool", "strides", "grad"],
)
def test_pixels_are_those_of_the_batch(images: Any, expected: Any) -> None:
    sheet = contact_sheet([images, torch.arange(4)])
    assert len(sheet.cells) == 4
    for number, cell in enumerate(sheet.cells):
        assert np.array_equal(cell.pictures[0].pixels, expected[number])
        assert cell.id == f"#{number}" and cell.texts == (str(number),)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats(dtype: torch.dtype) -> None:
    images = torch.tensor([0.0, 0.5, 1.0]).to(dtype).repeat(1, 3, 8, 4)
    shown = pixels(contact_sheet([images]))
    assert set(shown.ravel().tolist()) == {0, 128, 255}


def test_transparent_pixels_lie_over_white() -> None:
    image = np.zeros((1, 8, 8, 4), np.uint8)
    image[0, ..., :] = (100, 0, 200, 64)
    over = [(value * 64 + 255 * 191 + 127) // 255 for value in (100, 0, 200)]
    assert pixels(contact_sheet([torch.from_numpy(image)])).reshape(-1, 3).tolist() == [over] * 64


def test_values_beyond_the_known_ranges_go_from_black_to_white() -> None:
    images = torch.linspace(-2, 3, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    sheet = contact_sheet([images], ids=["a", "b"])
    assert sheet.notes == ("0: float32 (3, 8, 8), values -2 .. 3, from black to white",)
    expected = np.rint((last(images).astype(np.float64) + 2) * 51).astype(np.uint8)
    assert np.array_equal(pixels(sheet, 0), expected[0]) and np.array_equal(pixels(sheet, 1), expected[1])
    assert "all of them black" in contact_sheet([torch.full((1, 3, 8, 8), 7.0)]).notes[0]


@pytest.mark.filterwarnings("error")
def test_nan_and_infinite_elements_are_magenta() -> None:
    images = torch.zeros(2, 3, 8, 8)
    images[0, 1, 2, 3], images[0, 0, 0, 0], images[0, 2, 5, 5] = torch.nan, torch.inf, -torch.inf
    sheet = contact_sheet([images])
    shown = pixels(sheet)
    assert [tuple(shown[at]) for at in ((2, 3), (0, 0), (5, 5))] == [MAGENTA] * 3
    assert (shown.reshape(-1, 3).sum(axis=1) == 510).sum() == 3
    assert "values 0 .. 0; 3 of 384 elements NaN or infinite (magenta)" in sheet.notes[0]
    none = contact_sheet([torch.full((1, 1, 8, 8), torch.nan)])
    assert "64 of 64 elements" in none.notes[0] and (pixels(none) == MAGENTA).all()
    wide = torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64).repeat(1, 1, 8, 4)
    assert pixels(contact_sheet([wide])).shape == (8, 8, 3)


def test_a_normalisation_is_undone() -> None:
    undo = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))
    plain = torch.from_numpy(BYTES).float() / 255
    mean, std = torch.tensor(undo.mean).reshape(3, 1, 1), torch.tensor(undo.std).reshape(3, 1, 1)
    sheet = contact_sheet([(plain - mean) / std], undo=undo)
    assert all(np.array_equal(pixels(sheet, n), last(BYTES)[n]) for n in range(4))
    assert "after a normalisation was undone (mean 0.4, 0.5, 0.6; std 0.2, 0.3, 0.1)" in sheet.notes[0]
    beyond = contact_sheet([((plain * 1.5 - 0.2) - mean) / std], undo=undo)
    assert "clipped to 0 .. 1" in beyond.notes[0]
    expected = np.rint((last(plain * 1.5 - 0.2)[0].astype(np.float64) * 255).clip(0, 255))
    assert np.abs(pixels(beyond).astype(int) - expected).max() <= 1  # float32 and float64 round some apart
    grey = contact_sheet([torch.rand(2, 1, 8, 8)], undo=undo)  # of other channels: nothing is undone
    assert "undone" not in grey.notes[0]
    assert "undone" not in contact_sheet([torch.from_numpy(BYTES)], undo=undo).notes[0]


def test_masks_have_a_colour_for_each_value() -> None:
    mask = torch.zeros(2, 12, 10, dtype=torch.int64)
    mask[0, 2:4], mask[0, 6], mask[1, 3] = 1, 255, 7
    sheet = contact_sheet({"image": torch.from_numpy(BYTES[:2]), "mask": mask})
    shown = pixels(sheet, 0, 1)
    assert sheet.cells[0].pictures[1].name == "mask" and "a colour for each value" in sheet.notes[1]
    assert tuple(shown[0, 0]) == (0, 0, 0) and tuple(shown[6, 1]) == (128, 128, 128)
    assert tuple(shown[3, 9]) == tuple(_PALETTE[1]) and tuple(pixels(sheet, 1, 1)[3, 0]) == tuple(_PALETTE[7])
    assert len({tuple(colour) for colour in _PALETTE.tolist()}) > 200
    bytes_ = contact_sheet({"image": torch.from_numpy(BYTES[:2]), "mask": mask.to(torch.uint8)})
    assert np.array_equal(pixels(bytes_, 0, 1), shown)
    alone = contact_sheet([mask.to(torch.uint8)])  # a grey picture, as far as anybody can see
    assert tuple(pixels(alone)[6, 1]) == (255, 255, 255)


def test_videos_show_their_first_picture() -> None:
    frames = torch.from_numpy(DRAW.integers(0, 256, (2, 5, 3, 8, 8), dtype=np.uint8))
    for value in (frames, frames.permute(0, 1, 3, 4, 2), frames.permute(0, 2, 1, 3, 4)):
        sheet = contact_sheet([value, torch.arange(2)])
        assert np.array_equal(pixels(sheet, 1), last(frames)[1, 0])
        assert "the first picture of each" in sheet.notes[0]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_pil_images_of_every_mode(mode: str) -> None:
    image = Image.new("L", (9, 8), 200).convert(mode) if mode != "I;16" else Image.new(mode, (9, 8), 200)
    sheet = contact_sheet([image, image], listed=True)
    assert pixels(sheet).shape == (8, 9, 3) and len(sheet.cells) == 2
    if mode in ("L", "RGB"):
        assert set(pixels(sheet).ravel().tolist()) == {200}


def test_batches_of_every_structure() -> None:
    images, labels = torch.from_numpy(BYTES), torch.tensor([1, 0, 1, 1])
    for batch in ([images, labels], (images, labels), Pair(images, labels), {"image": images, "label": labels}):
        sheet = contact_sheet(batch, list("abcd"), classes=["cat", "dog"])
        assert [cell.id for cell in sheet.cells] == list("abcd")
        assert [cell.texts[0].removeprefix("label: ") for cell in sheet.cells] == ["1 dog", "0 cat", "1 dog", "1 dog"]
        assert all(np.array_equal(pixels(sheet, n), last(BYTES)[n]) for n in range(4))
    nested = contact_sheet({"views": [images, images.flip(0)], "meta": {"name": list("wxyz"), "box": torch.ones(4, 4)}})
    assert [one.name for one in nested.cells[0].pictures] == ["views.0", "views.1"]
    assert np.array_equal(pixels(nested, 0, 1), last(BYTES)[3])
    assert nested.cells[2].texts == ("meta.name: y", "meta.box: [1.0, 1.0, 1.0, 1.0]")
    assert contact_sheet(Record(images, list("abcd"))).cells[3].texts == ("name: d",)


def test_lists_of_samples_and_lists_of_fields() -> None:
    images = list(torch.from_numpy(BYTES))
    for listed in True, False:
        sheet = contact_sheet([(image, 3) for image in images], listed=listed)
        assert len(sheet.cells) == 4 and sheet.cells[1].texts == ("3",)
        assert np.array_equal(pixels(sheet, 2), last(BYTES)[2])
    targets = [{"boxes": torch.ones(n, 4), "labels": torch.ones(n, dtype=torch.int64)} for n in range(4)]
    detection = contact_sheet((tuple(images), tuple(targets)), list("abcd"))
    assert np.array_equal(pixels(detection, 3), last(BYTES)[3])
    assert detection.cells[0].texts == ("1.boxes: []", "1.labels: []")
    assert detection.cells[2].texts[1] == "1.labels: [1, 1]"
    two = contact_sheet([torch.from_numpy(BYTES[:2]), torch.arange(2)], ["a", "b"])  # as many fields as samples
    assert len(two.cells) == 2 and two.cells[1].texts == ("1",)
    three = contact_sheet(images[:3], listed=True)  # as many samples as channels
    assert len(three.cells) == 3 and np.array_equal(pixels(three, 1), last(BYTES)[1])


def test_what_has_no_part_for_each_sample_is_one_text() -> None:
    sheet = contact_sheet({"x": torch.rand(7, 2), "edges": torch.ones(2, 30)}, ["g1", "g2", "g3"])
    assert [cell.id for cell in sheet.cells] == ["the batch"] and sheet.notes == ("of samples g1, g2, g3",)
    assert sheet.cells[0].texts[1] == "edges: float32 (2, 30): 1 .. 1"
    assert contact_sheet(None).cells[0].texts == ("None",)
    assert contact_sheet([]).cells[0].texts == ("[]",)
    assert contact_sheet(torch.zeros(0, 3, 8, 8)).cells[0].texts == ("[]",)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fields_that_are_no_pictures() -> None:
    batch = {
        "wave": torch.tensor([-1.0, 3.0]).repeat(2, 500),
        "text": ["one\ntwo", "\x1b[31mred"],
        "number": torch.tensor([0.5, 2.0]),
        "flags": torch.tensor([[True, False], [False, True]]),
        "odd": torch.tensor([[torch.nan] * 20, [1.0] * 20]),
        "complex": torch.ones(2, 9, 9, dtype=torch.complex64),
        "ragged": torch.nested.nested_tensor([torch.ones(1, 9), torch.ones(2, 9)]),
        "sparse": torch.eye(9).to_sparse(),
        "rate": 16_000,
        "none": None,
    }
    sheet = contact_sheet(batch, ["a", "b"])
    assert sheet.cells[0].texts == (
        "wave: float32 (1000,): -1 .. 3",
        "text: one\\ntwo",
        "number: 0.5",
        "flags: [True, False]",
        "odd: float32 (20,)",
        "complex: complex64 (9, 9)",
    )
    assert sheet.cells[1].texts[1] == "text: \\x1b[31mred"
    assert sheet.notes[0].startswith("ragged: nested_tensor([")
    assert sheet.notes[1:] == ("sparse: float32 (9, 9)", "rate: 16000", "none: None")


def test_labels() -> None:
    images = torch.from_numpy(BYTES)

    def texts(labels: Any, classes: list[str] | None = None) -> list[str]:
        return [cell.texts[0] for cell in contact_sheet([images, labels], classes=classes).cells]

    hot = torch.eye(3)[[2, 0, 1, 1]]
    assert texts(hot, ["cat", "dog", "owl"]) == ["1.00 of 2 owl", "1.00 of 0 cat", *["1.00 of 1 dog"] * 2]
    assert texts(hot.long())[0] == "[0, 0, 1]"  # or three labels
    assert texts(hot * 0.7 + hot.flip(0) * 0.3, ["cat", "dog", "owl"])[0] == "0.70 of 2 owl, 0.30 of 1 dog"
    assert texts(torch.tensor([-1, 7, 0, 1]), ["cat", "dog"]) == ["-1", "7", "0 cat", "1 dog"]
    assert texts(list("wxyz")) == list("wxyz")
    assert texts(torch.tensor([[1, 1, 0]] * 4))[0] == "[1, 1, 0]"
    index = contact_sheet({"image": images, "index": torch.arange(4)}, classes=["cat"] * 4)
    assert index.cells[1].texts == ("index: 1",)  # no label by its name


def test_objects_of_the_users() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    sheet = contact_sheet([[Silent(), Silent()], ["x" * 500, "y"]], ["a", "b"])
    assert sheet.cells[0].texts[0] == "0: Silent" and len(sheet.cells[0].texts[1]) < 250


def place_of(image: Any, tile: Any) -> tuple[int, int]:
    """Return the row and the column of an image where this picture is."""
    height, width = tile.shape[:2]
    for y, x in np.argwhere((np.asarray(image) == tile[0, 0]).all(axis=2)).tolist():
        if np.array_equal(image[y : y + height, x : x + width], tile):
            return y, x
    raise AssertionError("the picture is not in the image")


def test_each_tile_of_the_png_is_its_picture(tmp_path: Path) -> None:
    sheet = contact_sheet([torch.from_numpy(BYTES), torch.arange(4)], columns=3, title="cats")
    write_sheet(sheet, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as file:
        image = np.asarray(file)
    places = [place_of(image, last(BYTES)[number].repeat(8, 0).repeat(8, 1)) for number in range(4)]
    assert len({y for y, _ in places[:3]}) == 1 and places[0][1] < places[1][1] < places[2][1]
    assert places[3][0] > places[2][0] + 12 * 8 and places[3][1] == places[0][1]  # a second row


def test_large_pictures_are_reduced() -> None:
    picture = np.zeros((1, 3, 40, 80), np.uint8)
    picture[..., ::2] = 100
    sheet = contact_sheet([torch.from_numpy(picture)])
    place_of(np.asarray(image_of(sheet, 40)), np.full((40, 80, 3), 50, np.uint8))  # 40 x 20, twice as large
    assert "pictures with more than 40 pixels a side are reduced" in html_of(sheet, 40)


def test_pngs_of_odd_content(monkeypatch: pytest.MonkeyPatch) -> None:
    for sheet in (
        contact_sheet(["text only", "日本語 🐈"], ["a" * 900, "\udcff"], title="x" * 900),
        contact_sheet({str(n): torch.ones(2) for n in range(30)}),
        contact_sheet(None),
    ):
        assert image_of(sheet).size[0] < 700
    monkeypatch.setattr(sheets, "_MOST_PIXELS", 10_000)
    with pytest.raises(InvalidOption, match="pixels large"):
        image_of(contact_sheet(torch.zeros(2, 1, 100, 100)))


def test_long_lines_of_the_head_are_wrapped() -> None:
    plain = image_of(contact_sheet(torch.zeros(1, 3, 8, 8)))
    notes = [" ".join(["word"] * 100), "x" * 900, "日本 " * 99]
    image = image_of(contact_sheet(torch.zeros(1, 3, 8, 8), notes=notes))
    assert image.width == plain.width == 480 and image.height > plain.height + 16 * 3 * len(notes)


def test_wrong_numbers() -> None:
    cases: list[dict[str, Any]] = [{"most": 0}, {"columns": -1}]
    for wrong in cases:
        with pytest.raises(InvalidOption, match="at least 1"):
            contact_sheet(torch.zeros(1, 3, 8, 8), **wrong)
    sheet = contact_sheet(torch.zeros(9, 3, 8, 8), most=5)
    assert len(sheet.cells) == 5 and "the first 5 of 9 samples" in sheet.notes


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
    page = html_of(sheet)
    read = Reader(page)
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
    assert "prefers-color-scheme: dark" in page and 'content="light dark"' in page and "default-src 'none'" in page
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[^\"]+", "", page).replace("</", ""))


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
