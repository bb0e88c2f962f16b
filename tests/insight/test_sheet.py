"""Contact sheets: each picture is the batch's, pixel for pixel, and no ID disturbs a page."""

from __future__ import annotations

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
from penstock.insight.sheet import contact_sheet, write_sheet
from penstock.insight.view import sheet_of
from tests.data import Made
from tests.insight.sheets import Once, Sheet, shown, view, viewed

DRAW = np.random.default_rng(3)
BYTES = DRAW.integers(0, 256, (4, 3, 12, 10), dtype=np.uint8)
IMAGES = torch.from_numpy(BYTES)
MAGENTA = (255, 0, 255)
Pair = namedtuple("Pair", "image label")
Record = make_dataclass("Record", ["image", "name"])


def assert_pixels(batch: Any, expected: Any, *options: str) -> str:
    """Assert that each cell's first picture is this one, and return what the sheet says of the pictures."""
    sheet = shown(batch, *options)
    assert np.array_equal([cell.pictures[0] for cell in sheet.cells], expected)
    return sheet.notes[0]


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
    assert_pixels([images, torch.arange(4)], expected)


def test_short_floats_and_transparent_pixels() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        images = torch.tensor([0.0, 0.5, 1.0]).to(dtype).repeat(1, 3, 8, 4)
        assert set(shown([images]).cells[0].pictures[0].ravel().tolist()) == {0, 128, 255}
    over_white = [(value * 64 + 255 * 191 + 127) // 255 for value in (100, 0, 200)]
    image = torch.tensor([100, 0, 200, 64], dtype=torch.uint8).repeat(1, 8, 8, 1)
    assert_pixels([image], np.full((1, 8, 8, 3), over_white))


def test_values_beyond_the_known_ranges_go_from_black_to_white() -> None:
    images = torch.linspace(-2, 3, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    said = assert_pixels([images], np.rint((last(images).astype(np.float64) + 2) * 51).astype(np.uint8))
    assert said == "0: float32 (3, 8, 8), values -2 .. 3, from black to white"
    assert "all of them black" in shown([torch.full((1, 3, 8, 8), 7.0)]).notes[0]


@pytest.mark.filterwarnings("error")
def test_nan_and_infinite_elements_are_magenta() -> None:
    images = torch.zeros(2, 3, 8, 8)
    images[0, 1, 2, 3], images[0, 0, 0, 0], images[0, 2, 5, 5] = torch.nan, torch.inf, -torch.inf
    expected = np.zeros((2, 8, 8, 3), np.uint8)
    expected[0, [2, 0, 5], [3, 0, 5]] = MAGENTA
    assert "values 0 .. 0; 3 of 384 elements NaN or infinite (magenta)" in assert_pixels([images], expected)
    none = assert_pixels([torch.full((1, 1, 8, 8), torch.nan)], np.full((1, 8, 8, 3), MAGENTA))
    assert "64 of 64 elements" in none
    wide = torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64).repeat(1, 1, 8, 4)
    assert shown([wide]).cells[0].pictures[0].shape == (8, 8, 3)


def test_a_given_normalisation_is_undone() -> None:
    undo = ["--mean=0.4,0.5,0.6", "--std=0.2,0.3,0.1"]
    mean, std = torch.tensor([0.4, 0.5, 0.6]).reshape(3, 1, 1), torch.tensor([0.2, 0.3, 0.1]).reshape(3, 1, 1)
    plain = IMAGES.float() / 255
    said = assert_pixels([(plain - mean) / std], WANTED, *undo)
    assert "after a normalisation was undone (mean 0.4, 0.5, 0.6; std 0.2, 0.3, 0.1)" in said
    beyond = shown([((plain * 1.5 - 0.2) - mean) / std], *undo)
    assert "clipped to 0 .. 1" in beyond.notes[0]
    expected = np.rint((last(plain * 1.5 - 0.2)[0].astype(np.float64) * 255).clip(0, 255))
    assert np.abs(beyond.cells[0].pictures[0].astype(int) - expected).max() <= 1  # float32 and float64 round some apart
    for other in (torch.rand(2, 1, 8, 8), IMAGES):  # of other channels, or no floats
        with pytest.raises(InvalidOption, match="the batch has no picture of floats with such channels"):
            shown([other], *undo)


def test_masks_have_a_colour_for_each_value() -> None:
    mask = torch.zeros(2, 12, 10, dtype=torch.int64)
    mask[0, 2:4], mask[0, 6], mask[1, 3] = 1, 255, 7
    sheet = shown({"image": IMAGES[:2], "mask": mask})
    masks = [cell.pictures[1] for cell in sheet.cells]
    assert sheet.cells[0].names[1].endswith(" mask") and "a colour for each value" in sheet.notes[1]
    colours = [tuple(one) for one in (masks[0][0, 0], masks[0][6, 1], masks[0][3, 9], masks[1][3, 0])]
    assert colours[:2] == [(0, 0, 0), (128, 128, 128)] and len(set(colours)) == 4
    every = torch.arange(256).reshape(1, 16, 16)
    palette = shown({"image": IMAGES[:1], "mask": every}).cells[0].pictures[1].reshape(-1, 3)
    assert len({tuple(colour) for colour in palette.tolist()}) == 256
    assert [tuple(palette[value]) for value in (0, 255, 1, 7)] == colours
    small = shown({"image": IMAGES[:2], "mask": mask.to(torch.uint8)}).cells[0].pictures[1]
    assert np.array_equal(small, masks[0])
    alone = shown([mask.to(torch.uint8)])  # a grey picture, as far as anybody can see
    assert tuple(alone.cells[0].pictures[0][6, 1]) == (255, 255, 255)


def test_videos_show_their_first_picture() -> None:
    frames = torch.from_numpy(DRAW.integers(0, 256, (2, 5, 3, 8, 8), dtype=np.uint8))
    for value in (frames, frames.permute(0, 1, 3, 4, 2), frames.permute(0, 2, 1, 3, 4)):
        assert "the first picture of each" in assert_pixels([value, torch.arange(2)], last(frames)[:, 0])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_pil_images_of_every_mode(mode: str) -> None:
    image = Image.new("L", (9, 8), 200).convert(mode) if mode != "I;16" else Image.new(mode, (9, 8), 200)
    pictures = [cell.pictures[0] for cell in viewed([image, image]).cells]
    assert [one.shape for one in pictures] == [(8, 9, 3)] * 2
    if mode in ("L", "RGB"):
        assert set(pictures[0].ravel().tolist()) == {200}


def test_batches_of_every_structure() -> None:
    labels, classes = torch.tensor([1, 0, 1, 1]), ["cat", "dog"]
    for batch in ([IMAGES, labels], (IMAGES, labels), Pair(IMAGES, labels), {"image": IMAGES, "label": labels}):
        sheet = shown(batch, classes=classes)
        assert [text.removeprefix("label: ") for (text,) in sheet.texts] == ["1 dog", "0 cat", "1 dog", "1 dog"]
        assert_pixels(batch, WANTED)
    nested = shown({"views": [IMAGES, IMAGES.flip(0)], "meta": {"name": list("wxyz"), "box": torch.ones(4, 4)}})
    assert nested.cells[0].names == ["#0 views.0", "#0 views.1"]
    assert np.array_equal(nested.cells[0].pictures[1], WANTED[3])
    assert nested.texts[2] == ("meta.name: y", "meta.box: [1.0, 1.0, 1.0, 1.0]")
    assert shown(Record(IMAGES, list("abcd"))).texts[3] == ("name: d",)


def test_lists_of_samples_and_lists_of_fields() -> None:
    images = list(IMAGES)
    samples = [(image, 3) for image in images]
    for sheet in (viewed(samples), shown(samples)):
        assert sheet.texts == [("3",)] * 4
        assert np.array_equal([cell.pictures[0] for cell in sheet.cells], WANTED)
    targets = [{"boxes": torch.ones(n, 4), "labels": torch.ones(n, dtype=torch.int64)} for n in range(4)]
    pairs: Any = list(zip(images, targets, strict=True))
    loader = torch.utils.data.DataLoader(pairs, 4, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))
    detection = viewed(loader)
    assert np.array_equal([cell.pictures[0] for cell in detection.cells], WANTED)
    assert detection.texts[0] == ("1.boxes: []", "1.labels: []") and detection.texts[2][1] == "1.labels: [1, 1]"
    assert shown([IMAGES[:2], torch.arange(2)]).texts == [("0",), ("1",)]  # as many fields as samples
    assert len(viewed(images[:3]).cells) == 3  # as many samples as channels


def test_what_has_no_part_for_each_sample_is_one_text() -> None:
    graph = {"x": torch.rand(7, 2), "edges": torch.ones(2, 30)}
    loader: Any = torch.utils.data.DataLoader(Made(size=3), 3, collate_fn=lambda samples: graph)
    sheet = viewed(loader)
    assert (sheet.ids, sheet.notes) == (["the batch"], ["of samples 0, 1, 2"])
    assert sheet.texts[0][1] == "edges: float32 (2, 30): 1 .. 1"
    batches: list[Any] = [None, [], torch.zeros(0, 3, 8, 8)]
    assert [shown(batch).texts for batch in batches] == [[("None",)], [("[]",)], [("[]",)]]


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
    sheet = shown({**{name: value for name, (value, _) in fields.items()}, **whole})
    assert sheet.texts[0] == tuple(f"{name}: {text}" for name, (_, text) in fields.items())
    assert sheet.texts[1][1] == "text: \\x1b[31mred"
    assert sheet.notes[0].startswith("ragged: nested_tensor([")
    assert sheet.notes[1:] == ["sparse: float32 (9, 9)", "rate: 16000", "none: None"]


HOT, PETS = torch.eye(3)[[2, 0, 1, 1]], ["cat", "dog", "owl"]


@pytest.mark.parametrize(
    ("labels", "classes", "texts"),
    [
        (HOT, PETS, ["1.00 of 2 owl", "1.00 of 0 cat", *["1.00 of 1 dog"] * 2]),
        (HOT.long(), None, ["[0, 0, 1]"]),  # or three labels
        (HOT * 0.7 + HOT.flip(0) * 0.3, PETS, ["0.70 of 2 owl, 0.30 of 1 dog"]),
        (torch.tensor([-1, 7, 0, 1]), PETS[:2], ["-1", "7", "0 cat", "1 dog"]),
        (list("wxyz"), None, list("wxyz")),
        (torch.tensor([[1, 1, 0]] * 4), None, ["[1, 1, 0]"]),
    ],
)
def test_labels(labels: Any, classes: Any, texts: list[str]) -> None:
    assert [text for (text,) in shown([IMAGES, labels], classes=classes).texts][: len(texts)] == texts


def test_a_field_is_a_label_by_its_name() -> None:
    assert shown({"image": IMAGES, "index": torch.arange(4)}, classes=["cat"] * 4).texts[1] == ("index: 1",)


def test_objects_of_the_users() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    (texts, _) = viewed([(Silent(), "x" * 500), (Silent(), "y")]).texts
    assert texts[0] == "0: Silent" and len(texts[1]) < 250


def test_from_python(tmp_path: Path) -> None:
    dataset = Made(lambda index: (IMAGES[index], index), 4)
    sheet = sheet_of(dataset, 1, batch_size=3)
    assert ([cell.id for cell in sheet.cells], sheet.title) == (
        ["3"],
        "Made: batch 1 of a penstock.DataLoader, 1 sample",
    )
    sheet = contact_sheet([IMAGES, torch.arange(4)], list("abcd"), columns=3, title="cats")
    assert [(cell.id, *cell.texts) for cell in sheet.cells] == [("a", "0"), ("b", "1"), ("c", "2"), ("d", "3")]
    assert (sheet.title, sheet.columns) == ("cats", 3)
    write_sheet(sheet, tmp_path / "a.html")
    assert Sheet((tmp_path / "a.html").read_text()).title == "cats"
    for wrong in ("a.jpg", "a", "-", "a.png.gz"):
        with pytest.raises(InvalidOption, match=r"\.png or \.html"):
            write_sheet(sheet, wrong)
    for most, columns in ((0, None), (64, -1)):
        with pytest.raises(InvalidOption, match="at least 1"):
            contact_sheet(IMAGES, most=most, columns=columns)
    with pytest.raises(InvalidOption, match="counted from 0"):
        sheet_of(dataset, -1)


# --- files ------------------------------------------------------------------------------------------------------------


def image_of(what: Any, folder: Path, *options: str) -> Any:
    view(what, folder / "sheet.png", *options)
    with Image.open(folder / "sheet.png") as file:
        return np.asarray(file)


def place_of(image: Any, tile: Any) -> tuple[int, int]:
    """Return the row and the column of an image where this picture is."""
    height, width = tile.shape[:2]
    for y, x in np.argwhere((np.asarray(image) == tile[0, 0]).all(axis=2)).tolist():
        if np.array_equal(image[y : y + height, x : x + width], tile):
            return y, x
    raise AssertionError("the picture is not in the image")


def test_each_tile_of_the_png_is_its_picture(tmp_path: Path) -> None:
    image = image_of(Once([IMAGES, torch.arange(4)]), tmp_path, "--columns", "3")
    places = [place_of(image, WANTED[number].repeat(8, 0).repeat(8, 1)) for number in range(4)]
    assert len({y for y, _ in places[:3]}) == 1 and places[0][1] < places[1][1] < places[2][1]
    assert places[3][0] > places[2][0] + 12 * 8 and places[3][1] == places[0][1]  # a second row
    large = [torch.tensor([100, 0], dtype=torch.uint8).repeat(1, 3, 40, 40)]
    place_of(image_of(Once(large), tmp_path, "--side", "40"), np.full((40, 80, 3), 50, np.uint8))  # 40 x 20, enlarged
    assert "pictures with more than 40 pixels a side are reduced" in shown(large, "--side", "40").notes


def test_pngs_of_odd_content(tmp_path: Path) -> None:
    plain = image_of(Once(torch.zeros(1, 3, 8, 8)), tmp_path)
    assert plain.shape[1] == 480
    for batch in (["text only", "日本語 🐈"], {str(n): torch.ones(2) for n in range(30)}, None):
        assert image_of(Once(batch), tmp_path).shape[1] < 700
    whole = dict.fromkeys("abc", "日本 " * 60)  # long lines of the head, which are wrapped
    assert image_of(Once({"image": IMAGES, "meta": whole}), tmp_path).shape[0] > plain.shape[0] + 16 * 3 * len(whole)
    with pytest.raises(InvalidOption, match="pixels large"):
        view(Once(torch.zeros(2, 1, 1000, 60_000)), tmp_path / "sheet.png", "--side", "60000")


def test_numbers_of_samples() -> None:
    sheet = shown(torch.zeros(9, 3, 8, 8), "--max", "5")
    assert len(sheet.cells) == 5 and "the first 5 of 9 samples" in sheet.notes


EVIL = ['<script>alert("1")</script>', "\" onload='alert(1)' x=\"", "a&amp;b", "</p></figure><h1>big"]


class Evil(Made):
    """Samples whose IDs are none of a good citizen."""

    list_IDs = EVIL

    def __init__(self) -> None:
        super().__init__(lambda index: (IMAGES[index], EVIL[index]), 4)


def test_a_page_holds_its_pictures_labels_and_ids() -> None:
    kind = type("<b>title</b>", (Evil,), {})
    sheet = viewed(kind())
    tags = [tag for tag, _ in sheet.tags]
    attributes = [attribute for _, found in sheet.tags for attribute in found.items()]
    assert tags.count("figure") == 4 and np.array_equal([cell.pictures[0] for cell in sheet.cells], WANTED)
    assert (sheet.ids, sheet.texts) == (EVIL, [(one,) for one in EVIL])
    assert "<b>title</b>" in sheet.title and {"script", "b", "i"}.isdisjoint(tags) and tags.count("h1") == 1
    assert [value for name, value in attributes if name == "alt"] == [f"{evil} 0" for evil in EVIL]
    assert not [name for name, _ in attributes if name.startswith("on") or name == "href"]
    page = sheet.text
    assert "prefers-color-scheme: dark" in page and 'content="light dark"' in page and "default-src 'none'" in page
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[^\"]+", "", page).replace("</", ""))


def test_files_are_written_over_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Once(torch.zeros(1, 3, 8, 8))
    for name in ("a.png", "a.PNG", "a.html", "a.htm"):
        (tmp_path / name).write_text("before")
        (tmp_path / name).chmod(0o640)
        view(small, tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
    (tmp_path / "real.png").write_text("before")
    (tmp_path / "link.png").symlink_to("real.png")
    (tmp_path / "null.html").symlink_to(os.devnull)
    for name in ("link.png", "null.html"):
        view(small, tmp_path / name)
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG") and not os.path.isfile(os.devnull)
    assert (tmp_path / "a.htm").read_text().startswith("<!doctype html>")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        view(small, tmp_path / "a.png")
    assert caught.value.filename == str(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert set(os.listdir(tmp_path)) == {"a.PNG", "a.htm", "a.html", "a.png", "link.png", "null.html", "real.png"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("before")
    (tmp_path / "a.png").chmod(0o400)
    with pytest.raises(PermissionError):
        view(Once(None), tmp_path / "a.png")


def test_cells_of_a_page_are_as_wide_as_their_names() -> None:
    def page_of(ids: list[str], *options: str) -> str:
        dataset: Any = Made(lambda index: (IMAGES[index], index), 4)
        dataset.list_IDs = ids
        return viewed(dataset, *options).text

    page = page_of(["cats/a.jpg", "dogs/" + 30 * "b", 90 * "c", "d"], "--columns", "3")
    assert "repeat(auto-fill, minmax(min(100%, 328px), 1fr))" in page and "calc(3 * (328px" in page
    assert "cats/<wbr>a.jpg</p>" in page and f"dogs/<wbr>{30 * 'b'}</p>" in page
    assert "minmax(min(100%, 225px)" in page_of(["dogs/" + 30 * "b"] * 4)
