"""Contact sheets: each picture is the batch's, pixel for pixel, and no ID disturbs a page."""

from __future__ import annotations

import base64
import io
import os
import re
from collections import namedtuple
from dataclasses import make_dataclass
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
from tests.insight.html_pages import Page

DRAW = np.random.default_rng(3)
BYTES = DRAW.integers(0, 256, (4, 3, 12, 10), dtype=np.uint8)
IMAGES = torch.from_numpy(BYTES)
Pair = namedtuple("Pair", "image label")
Record = make_dataclass("Record", ["image", "name"])


def pixels(sheet: Sheet, cell: int = 0, picture: int = 0) -> Any:
    return sheet.cells[cell].pictures[picture].pixels


def assert_pixels(sheet: Sheet, expected: Any) -> None:
    """Assert that each cell's first picture is this one."""
    assert np.array_equal([pixels(sheet, number) for number in range(len(sheet.cells))], expected)


SMALL = contact_sheet(torch.zeros(1, 3, 8, 8))


def last(array: Any) -> Any:
    """Return (..., channels, height, width) as (..., height, width, channels)."""
    return np.moveaxis(np.asarray(array), -3, -1)


WANTED, GREY = last(BYTES), last(BYTES[:, :1].repeat(3, 1))


SAME = [
    *(IMAGES.to(dtype) for dtype in (torch.uint8, torch.float32, torch.int32)),
    *(IMAGES.to(dtype) / 255 for dtype in (torch.float32, torch.float64)),
    *(BYTES, torch.from_numpy(WANTED.copy()), IMAGES.to(memory_format=torch.channels_last)),
    (IMAGES / 255).requires_grad_(),
]
FLAGS = last((BYTES[:, :1] > 99).repeat(3, 1) * 255)
OTHERS = [(IMAGES[:, :1], GREY), (IMAGES[:, 0], GREY), (IMAGES[:, 0] > 99, FLAGS)]
NAMES = ["uint8", "float255", "int", "float", "double", "numpy", "hwc", "strides", "grad", "grey", "plane", "bool"]


@pytest.mark.parametrize(("images", "expected"), [*((one, WANTED) for one in SAME), *OTHERS], ids=NAMES)
def test_pixels_are_those_of_the_batch(images: Any, expected: Any) -> None:
    sheet = contact_sheet([images, torch.arange(4)])
    assert_pixels(sheet, expected)
    assert [(cell.id, cell.texts) for cell in sheet.cells] == [(f"#{number}", (str(number),)) for number in range(4)]


def test_short_floats_and_transparent_pixels() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        images = torch.tensor([0.0, 0.5, 1.0]).to(dtype).repeat(1, 3, 8, 4)
        assert set(pixels(contact_sheet([images])).ravel().tolist()) == {0, 128, 255}
    over_white = [(value * 64 + 255 * 191 + 127) // 255 for value in (100, 0, 200)]
    image = torch.tensor([100, 0, 200, 64], dtype=torch.uint8).repeat(1, 8, 8, 1)
    assert pixels(contact_sheet([image])).reshape(-1, 3).tolist() == [over_white] * 64


def test_values_beyond_the_known_ranges_go_from_black_to_white() -> None:
    images = torch.linspace(-2, 3, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    sheet = contact_sheet([images], ids=["a", "b"])
    assert sheet.notes == ("0: float32 (3, 8, 8), values -2 .. 3, from black to white",)
    assert_pixels(sheet, np.rint((last(images).astype(np.float64) + 2) * 51).astype(np.uint8))
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
    plain = IMAGES.float() / 255
    mean, std = torch.tensor(undo.mean).reshape(3, 1, 1), torch.tensor(undo.std).reshape(3, 1, 1)
    sheet = contact_sheet([(plain - mean) / std], undo=undo)
    assert_pixels(sheet, WANTED)
    assert "after a normalisation was undone (mean 0.4, 0.5, 0.6; std 0.2, 0.3, 0.1)" in sheet.notes[0]
    beyond = contact_sheet([((plain * 1.5 - 0.2) - mean) / std], undo=undo)
    assert "clipped to 0 .. 1" in beyond.notes[0]
    expected = np.rint((last(plain * 1.5 - 0.2)[0].astype(np.float64) * 255).clip(0, 255))
    assert np.abs(pixels(beyond).astype(int) - expected).max() <= 1  # float32 and float64 round some apart
    for other in (torch.rand(2, 1, 8, 8), IMAGES):  # of other channels, or no floats: nothing is undone
        assert "undone" not in contact_sheet([other], undo=undo).notes[0]


def test_masks_have_a_colour_for_each_value() -> None:
    mask = torch.zeros(2, 12, 10, dtype=torch.int64)
    mask[0, 2:4], mask[0, 6], mask[1, 3] = 1, 255, 7
    sheet = contact_sheet({"image": IMAGES[:2], "mask": mask})
    shown = pixels(sheet, 0, 1)
    assert sheet.cells[0].pictures[1].name == "mask" and "a colour for each value" in sheet.notes[1]
    found = [tuple(one) for one in (shown[0, 0], shown[6, 1], shown[3, 9], pixels(sheet, 1, 1)[3, 0])]
    assert found == [(0, 0, 0), (128, 128, 128), tuple(_PALETTE[1]), tuple(_PALETTE[7])]
    assert len({tuple(colour) for colour in _PALETTE.tolist()}) > 200
    assert np.array_equal(pixels(contact_sheet({"image": IMAGES[:2], "mask": mask.to(torch.uint8)}), 0, 1), shown)
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
    labels = torch.tensor([1, 0, 1, 1])
    for batch in ([IMAGES, labels], (IMAGES, labels), Pair(IMAGES, labels), {"image": IMAGES, "label": labels}):
        sheet = contact_sheet(batch, list("abcd"), classes=["cat", "dog"])
        found = [(cell.id, cell.texts[0].removeprefix("label: ")) for cell in sheet.cells]
        assert found == [("a", "1 dog"), ("b", "0 cat"), ("c", "1 dog"), ("d", "1 dog")]
        assert_pixels(sheet, WANTED)
    nested = contact_sheet({"views": [IMAGES, IMAGES.flip(0)], "meta": {"name": list("wxyz"), "box": torch.ones(4, 4)}})
    assert [one.name for one in nested.cells[0].pictures] == ["views.0", "views.1"]
    assert np.array_equal(pixels(nested, 0, 1), WANTED[3])
    assert nested.cells[2].texts == ("meta.name: y", "meta.box: [1.0, 1.0, 1.0, 1.0]")
    assert contact_sheet(Record(IMAGES, list("abcd"))).cells[3].texts == ("name: d",)


def test_lists_of_samples_and_lists_of_fields() -> None:
    images = list(IMAGES)
    for listed in True, False:
        sheet = contact_sheet([(image, 3) for image in images], listed=listed)
        assert sheet.cells[1].texts == ("3",)
        assert_pixels(sheet, WANTED)
    targets = [{"boxes": torch.ones(n, 4), "labels": torch.ones(n, dtype=torch.int64)} for n in range(4)]
    detection = contact_sheet((tuple(images), tuple(targets)), list("abcd"))
    assert_pixels(detection, WANTED)
    assert detection.cells[0].texts == ("1.boxes: []", "1.labels: []")
    assert detection.cells[2].texts[1] == "1.labels: [1, 1]"
    two = contact_sheet([IMAGES[:2], torch.arange(2)], ["a", "b"])  # as many fields as samples
    assert [cell.texts for cell in two.cells] == [("0",), ("1",)]
    assert_pixels(contact_sheet(images[:3], listed=True), WANTED[:3])  # as many samples as channels


def test_what_has_no_part_for_each_sample_is_one_text() -> None:
    sheet = contact_sheet({"x": torch.rand(7, 2), "edges": torch.ones(2, 30)}, ["g1", "g2", "g3"])
    assert [cell.id for cell in sheet.cells] == ["the batch"] and sheet.notes == ("of samples g1, g2, g3",)
    assert sheet.cells[0].texts[1] == "edges: float32 (2, 30): 1 .. 1"
    batches: list[Any] = [None, [], torch.zeros(0, 3, 8, 8)]
    assert [contact_sheet(batch).cells[0].texts for batch in batches] == [("None",), ("[]",), ("[]",)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fields_that_are_no_pictures() -> None:
    fields: dict[str, tuple[Any, str]] = {
        "wave": (torch.tensor([-1.0, 3.0]).repeat(2, 500), "float32 (1000,): -1 .. 3"),
        "text": (["one\ntwo", "\x1b[31mred"], "one\\ntwo"),
        "number": (torch.tensor([0.5, 2.0]), "0.5"),
        "flags": (torch.tensor([[True, False], [False, True]]), "[True, False]"),
        "odd": (torch.tensor([[torch.nan] * 20, [1.0] * 20]), "float32 (20,)"),
        "complex": (torch.ones(2, 9, 9, dtype=torch.complex64), "complex64 (9, 9)"),
    }
    ragged = torch.nested.nested_tensor([torch.ones(1, 9), torch.ones(2, 9)])
    whole = {"ragged": ragged, "sparse": torch.eye(9).to_sparse(), "rate": 16_000, "none": None}
    sheet = contact_sheet({**{name: value for name, (value, _) in fields.items()}, **whole}, ["a", "b"])
    assert sheet.cells[0].texts == tuple(f"{name}: {text}" for name, (_, text) in fields.items())
    assert sheet.cells[1].texts[1] == "text: \\x1b[31mred"
    assert sheet.notes[0].startswith("ragged: nested_tensor([")
    assert sheet.notes[1:] == ("sparse: float32 (9, 9)", "rate: 16000", "none: None")


HOT = torch.eye(3)[[2, 0, 1, 1]]


def test_labels() -> None:
    pets = ["cat", "dog", "owl"]
    for labels, classes, texts in (
        (HOT, pets, ["1.00 of 2 owl", "1.00 of 0 cat", *["1.00 of 1 dog"] * 2]),
        (HOT.long(), None, ["[0, 0, 1]"]),  # or three labels
        (HOT * 0.7 + HOT.flip(0) * 0.3, pets, ["0.70 of 2 owl, 0.30 of 1 dog"]),
        (torch.tensor([-1, 7, 0, 1]), pets[:2], ["-1", "7", "0 cat", "1 dog"]),
        (list("wxyz"), None, list("wxyz")),
        (torch.tensor([[1, 1, 0]] * 4), None, ["[1, 1, 0]"]),
    ):
        cells = contact_sheet([IMAGES, labels], classes=classes).cells
        assert [cell.texts[0] for cell in cells][: len(texts)] == texts
    index = contact_sheet({"image": IMAGES, "index": torch.arange(4)}, classes=["cat"] * 4)
    assert index.cells[1].texts == ("index: 1",)  # no label by its name


def test_objects_of_the_users() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    texts = contact_sheet([[Silent(), Silent()], ["x" * 500, "y"]], ["a", "b"]).cells[0].texts
    assert texts[0] == "0: Silent" and len(texts[1]) < 250


def place_of(image: Any, tile: Any) -> tuple[int, int]:
    """Return the row and the column of an image where this picture is."""
    height, width = tile.shape[:2]
    for y, x in np.argwhere((np.asarray(image) == tile[0, 0]).all(axis=2)).tolist():
        if np.array_equal(image[y : y + height, x : x + width], tile):
            return y, x
    raise AssertionError("the picture is not in the image")


def test_each_tile_of_the_png_is_its_picture(tmp_path: Path) -> None:
    write_sheet(contact_sheet([IMAGES, torch.arange(4)], columns=3, title="cats"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as file:
        places = [place_of(np.asarray(file), WANTED[number].repeat(8, 0).repeat(8, 1)) for number in range(4)]
    assert len({y for y, _ in places[:3]}) == 1 and places[0][1] < places[1][1] < places[2][1]
    assert places[3][0] > places[2][0] + 12 * 8 and places[3][1] == places[0][1]  # a second row
    large = contact_sheet([torch.tensor([100, 0], dtype=torch.uint8).repeat(1, 3, 40, 40)])
    place_of(np.asarray(image_of(large, 40)), np.full((40, 80, 3), 50, np.uint8))  # 40 x 20, twice as large
    assert "pictures with more than 40 pixels a side are reduced" in html_of(large, 40)


def test_pngs_of_odd_content(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = [["text only", "日本語 🐈"], {str(n): torch.ones(2) for n in range(30)}, None]
    for batch, ids, title in zip(batches, (["a" * 900, "\udcff"], None, None), ("x" * 900, "", ""), strict=True):
        assert image_of(contact_sheet(batch, ids, title=title)).size[0] < 700
    notes = [" ".join(["word"] * 100), "x" * 900, "日本 " * 99]  # long lines of the head, which are wrapped
    plain, image = image_of(SMALL), image_of(contact_sheet(torch.zeros(1, 3, 8, 8), notes=notes))
    assert image.width == plain.width == 480 and image.height > plain.height + 16 * 3 * len(notes)
    monkeypatch.setattr(sheets, "_MOST_PIXELS", 10_000)
    with pytest.raises(InvalidOption, match="pixels large"):
        image_of(contact_sheet(torch.zeros(2, 1, 100, 100)))


def test_numbers_of_samples_and_columns() -> None:
    for most, columns in ((0, None), (64, -1)):
        with pytest.raises(InvalidOption, match="at least 1"):
            contact_sheet(torch.zeros(1, 3, 8, 8), most=most, columns=columns)
    sheet = contact_sheet(torch.zeros(9, 3, 8, 8), most=5)
    assert len(sheet.cells) == 5 and "the first 5 of 9 samples" in sheet.notes


EVIL = ['<script>alert("1")</script>', "\" onload='alert(1)' x=\"", "a&amp;b", "</p></figure><h1>big"]


def test_a_page_holds_its_pictures_labels_and_ids() -> None:
    page = html_of(contact_sheet([IMAGES, EVIL], EVIL, title="<b>title</b>", notes=["<i>note</i>"]))
    read = Page(page)
    tags = [tag for tag, _ in read.tags]
    attributes = [attribute for _, found in read.tags for attribute in found.items()]
    sources = [(value or "").partition(",") for name, value in attributes if name == "src"]
    assert [kind for kind, _, _ in sources] == ["data:image/png;base64"] * 4 and tags.count("figure") == 4
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for _, _, data in sources]
    assert np.array_equal(shown, WANTED)
    assert all(read.text.count(evil) == 2 for evil in EVIL)
    assert "<b>title</b>" in read.text and "<i>note</i>" in read.text
    assert {"script", "b", "i"}.isdisjoint(tags) and tags.count("h1") == 1
    assert [value for name, value in attributes if name == "alt"] == [f"{evil} 0" for evil in EVIL]
    assert not [name for name, _ in attributes if name.startswith("on") or name == "href"]
    assert "prefers-color-scheme: dark" in page and 'content="light dark"' in page and "default-src 'none'" in page
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[^\"]+", "", page).replace("</", ""))


def test_files_are_written_over_as_a_whole(tmp_path: Path) -> None:
    for name in ("a.png", "a.PNG", "a.html", "a.htm"):
        (tmp_path / name).write_text("before")
        (tmp_path / name).chmod(0o640)
        write_sheet(SMALL, tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
    (tmp_path / "real.png").write_text("before")
    (tmp_path / "link.png").symlink_to("real.png")
    write_sheet(SMALL, tmp_path / "link.png")
    (tmp_path / "null.html").symlink_to(os.devnull)
    write_sheet(contact_sheet(None), tmp_path / "null.html")
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "null.html").is_symlink() and not os.path.isfile(os.devnull)
    assert (tmp_path / "a.htm").read_text().startswith("<!doctype html>")
    assert set(os.listdir(tmp_path)) == {"a.PNG", "a.htm", "a.html", "a.png", "link.png", "null.html", "real.png"}
    for wrong in ("a.jpg", "a", "-", "a.png.gz"):
        with pytest.raises(InvalidOption, match=r"\.png or \.html"):
            write_sheet(SMALL, wrong)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "folder.png").mkdir()
    (tmp_path / "a.png").write_text("before")
    with pytest.raises(IsADirectoryError):
        write_sheet(SMALL, tmp_path / "folder.png")
    with pytest.raises(FileNotFoundError) as missing:
        write_sheet(SMALL, tmp_path / "none" / "a.png")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as no_space:
        write_sheet(SMALL, tmp_path / "a.png")
    names = [missing.value.filename, no_space.value.filename]
    assert names == [str(tmp_path / "none" / "a.png"), str(tmp_path / "a.png")]
    assert (tmp_path / "a.png").read_text() == "before" and len(os.listdir(tmp_path)) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("before")
    (tmp_path / "a.png").chmod(0o400)
    with pytest.raises(PermissionError):
        write_sheet(SMALL, tmp_path / "a.png")


def test_cells_of_a_page_are_as_wide_as_their_names() -> None:
    ids = ["cats/a.jpg", "dogs/" + 30 * "b", 90 * "c", "d"]
    page = html_of(contact_sheet([IMAGES, torch.arange(4)], ids, columns=3))
    assert "repeat(auto-fill, minmax(min(100%, 328px), 1fr))" in page and "calc(3 * (328px" in page
    assert (
        "cats/<wbr>a.jpg</p>" in page and f"dogs/<wbr>{30 * 'b'}</p>" in page and "prefers-color-scheme: dark" in page
    )
    assert "minmax(min(100%, 225px)" in html_of(contact_sheet([IMAGES, torch.arange(4)], ["dogs/" + 30 * "b"] * 4))
    Page(page)
