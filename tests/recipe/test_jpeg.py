"""The native JPEG decoder, and each set of instructions of its own code, against Pillow, pixel by pixel."""

from __future__ import annotations

import io
import itertools
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms

import penstock
from penstock._native import certify_jpeg, decode_jpeg
from tests.jpeg_writer import segment
from tests.jpegs import (
    PHOTOS,
    SAMPLINGS,
    Box,
    damaged,
    encode,
    extreme,
    frame,
    patched,
    photos,
    picture,
    pillow,
    random_boxes,
    save,
)
from tests.native_testing import decode_jpeg_by
from tests.recipe.jpeg_decoders import DECODERS, OWN, check, decoded
from tests.waiting import run_in_threads

GOOD = encode(40, 30, "4:2:0")
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"progressive": True}, {"restart_marker_blocks": 3})
SIZES = [
    (1, 1), (2, 3), (5, 4), (8, 8), (9, 17), (16, 15), (17, 33), (18, 34), (31, 50), (34, 18), (35, 47), (66, 70),
    (97, 40),
]  # fmt: skip


def all_edges(width: int, height: int, rng: random.Random) -> Iterator[Box]:
    """Every first column and every first row, at several lengths; the other direction at random."""
    yield 0, 0, width, height
    for x0 in range(width):
        for x1 in sorted({x0 + 1, min(x0 + 9, width), width}):
            y0 = rng.randrange(height)
            yield x0, y0, x1, rng.randint(y0 + 1, height)
    for y0 in range(height):
        for y1 in sorted({y0 + 1, min(y0 + 9, height), height}):
            x0 = rng.randrange(width)
            yield x0, y0, rng.randint(x0 + 1, width), y1


@pytest.mark.parametrize("variant", VARIANTS, ids=("baseline", "progressive", "restarts"))
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_box_equals_pillow(sampling: str, variant: dict[str, Any]) -> None:
    rng, names = random.Random(sampling), DECODERS if variant != {"progressive": True} else DECODERS[:1]
    for number, (width, height) in enumerate(SIZES):
        data = encode(width, height, sampling, seed=number, **variant)
        check(data, list(all_edges(width, height, rng)), names)
    small = [(x0, y0, x1, y1) for x1 in range(11) for x0 in range(x1) for y1 in range(10) for y0 in range(y1)]
    check(encode(10, 9, sampling, **variant), small, names)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_size(sampling: str) -> None:
    """From 1x1 on: whole images, of one block and of some, with and without columns to interpolate."""
    for width, height in itertools.product((1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18, 31, 32, 33, 47), repeat=2):
        check(encode(width, height, sampling, seed=width * height, quality=90), [(0, 0, width, height)])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_qualities(sampling: str) -> None:
    rng = random.Random(sampling)
    for quality in range(1, 101):
        options: dict[str, Any] = ({}, {"optimize": True}, {"restart_marker_blocks": 7})[quality % 3]
        data = encode(150, 45, sampling, seed=quality, quality=quality, **options)
        check(data, [(0, 0, 150, 45), *random_boxes(150, 45, rng, 2)], ("libjpeg", *DECODERS))


def test_tables_of_the_user() -> None:
    """Quantisation by other tables for luma and chroma than libjpeg's own, as mozjpeg and guetzli write them."""
    rng = np.random.default_rng(5)
    image = Image.fromarray(picture(203, 151))
    for number in range(10):
        tables = [rng.integers(1, (3, 30, 256)[number % 3], 64).tolist() for _ in range(2)]
        data = save(image, qtables=tables, subsampling=number % 3)
        check(data, [(0, 0, 203, 151), *random_boxes(203, 151, random.Random(number), 3)])


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_files_of_opencv(sampling: str) -> None:
    cv2 = pytest.importorskip("cv2")
    chosen = {"4:4:4": "444", "4:2:2": "422", "4:2:0": "420"}[sampling]
    sampled = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{chosen}")]
    for quality in (20, 75, 95):
        more = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, quality % 2]
        more += [cv2.IMWRITE_JPEG_RST_INTERVAL, quality // 20]
        done, encoded = cv2.imencode(".jpg", picture(131, 83, quality), [*sampled, *more])
        assert done
        check(encoded.tobytes(), [(0, 0, 131, 83), *random_boxes(131, 83, random.Random(quality), 4)])


def test_files_of_imagemagick(tmp_path: Path) -> None:
    convert = shutil.which("magick") or shutil.which("convert")
    if convert is None:
        pytest.skip("ImageMagick is not installed")
    Image.fromarray(picture(131, 83)).save(tmp_path / "in.png")
    for quality, sampling in ((40, "2x2"), (80, "2x1"), (92, "1x1"), (85, "1x2")):
        out = tmp_path / f"{sampling}.jpg"
        command = [convert, "in.png", "-quality", str(quality), "-sampling-factor", sampling, out.name]
        if subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode != 0:
            pytest.skip("this ImageMagick does not convert")
        check(out.read_bytes(), [(0, 0, 131, 83), *random_boxes(131, 83, random.Random(quality), 4)])


def test_every_colour() -> None:
    """Every pair of Cb and Cr, each with up to 64 Y: a block a pair, which the highest quality keeps."""
    blue, red = (np.repeat(np.repeat(v, 8, axis=0), 8, axis=1) for v in np.mgrid[0:256, 0:256])
    y = np.random.default_rng(1).integers(0, 256, blue.shape)
    ycc = np.stack([y, blue, red], axis=2).astype(np.uint8)
    data = save(Image.fromarray(ycc, "YCbCr"), quality=100, subsampling=0)
    with Image.open(io.BytesIO(data)) as image:
        image.draft("YCbCr", image.size)
        assert np.array_equal(np.asarray(image)[..., 1:], ycc[..., 1:])
    check(data, [(0, 0, *ycc.shape[1::-1])])


def grey_scans(sides: list[tuple[int, int]]) -> tuple[bytes, list[bytes]]:
    """The tables (shared) and the entropy-coded data of one grey JPEG a component."""
    tables, scans = b"", []
    for seed, (width, height) in enumerate(sides):
        data = encode(width, height, "grey", seed)
        at, scan = data.index(b"\xff\xdb"), data.index(b"\xff\xda")
        start = frame(data)
        tables = data[at:start] + data[start + 13 : scan]
        scans.append(data[scan + 10 : -2])
    return tables, scans


@pytest.mark.parametrize("factor", [1, 2])
def test_one_scan_a_component(factor: int) -> None:
    """Baseline, but not interleaved: libjpeg holds the coefficients of the whole image."""
    small = (64 // factor, 48 // factor)
    tables, scans = grey_scans([(64, 48), small, small])
    head = bytes((8, 0, 48, 0, 64, 3, 1, factor << 4 | factor, 0, 2, 0x11, 0, 3, 0x11, 0))
    data = b"\xff\xd8" + tables + segment(0xC0, head)
    for component, scan in enumerate(scans, start=1):
        data += segment(0xDA, bytes((1, component, 0, 0, 63, 0))) + scan
    check(data + b"\xff\xd9", list(all_edges(64, 48, random.Random(1))), ("product",))

    again = segment(0xDA, bytes((1, 1, 0, 0, 63, 0))) + scans[0]
    assert decode_jpeg(data + again * 600 + b"\xff\xd9") == "JPEG: too many scans"


def test_colour_markers() -> None:
    """JFIF and Adobe markers, alone and in conflict, choose the colour space as they do for Pillow."""
    jfif = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    plain, rgb = encode(40, 30, "4:4:4"), encode(40, 30, "rgb")
    for data in (plain, rgb):
        body = data[2:]
        for ids in (b"\x01\x02\x03", b"RGB", b"\x00\x01\x02"):
            scan = body.index(b"\xff\xda")
            start = frame(body)
            renamed = bytearray(body)
            for i in range(3):
                renamed[start + 10 + 3 * i] = renamed[scan + 5 + 2 * i] = ids[i]
            for transform in (None, 0, 1):
                adobe = b"" if transform is None else segment(0xEE, b"Adobe\0d\0\0\0\0" + bytes((transform,)))
                for first in (b"", jfif):
                    tail = bytes(renamed[renamed.index(b"\xff\xdb") :])
                    check(b"\xff\xd8" + first + adobe + tail, [(0, 0, 40, 30), (7, 9, 21, 28)])


def test_several_pictures_trailing_bytes_and_a_thumbnail() -> None:
    file = io.BytesIO()
    first, second = (Image.fromarray(picture(48, 40, seed)) for seed in (1, 2))
    first.save(file, "MPO", save_all=True, append_images=[second])
    assert Image.open(io.BytesIO(file.getvalue())).format == "MPO"
    exif = encode(48, 40, "4:2:0", exif=b"Exif\0\0" + encode(16, 16, "4:2:0"))
    for data in (file.getvalue(), encode(48, 40, "4:2:0") + b"\0" * 1000, exif):
        check(data, [(0, 0, 48, 40), (9, 9, 30, 30)])
    assert decode_jpeg(exif[:-400]) == "JPEG: no end of image marker"


PROGRESSIVE = encode(40, 30, "4:2:0", progressive=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a JPEG"),
        (b"\xff\xd8", "not a JPEG"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "not a JPEG"),
        (GOOD[:300], "JPEG: ends in its header"),
        (GOOD[:-2], "JPEG: no end of image marker"),
        (GOOD[:-200], "JPEG: no end of image marker"),
        (GOOD[:-200] + b"\xff\xd9", "libjpeg: corrupt data"),
        (save(Image.new("CMYK", (20, 20))), "JPEG: CMYK or another number of components"),
        (patched(GOOD, {11: 0x41}), "JPEG: unusual sampling"),
        (patched(encode(40, 30, "grey"), {11: 0x22}), "JPEG: unusual sampling"),
        (patched(GOOD, {1: 0xC3}), "JPEG: lossless, hierarchical or arithmetic coding"),
        (patched(GOOD, {1: 0xC9}), "JPEG: lossless, hierarchical or arithmetic coding"),
        (patched(GOOD, {5: 0, 6: 0}), "libjpeg: corrupt data"),
        (PROGRESSIVE[: PROGRESSIVE.rindex(b"\xff\xda")] + b"\xff\xd9", "JPEG: incomplete progressive"),
        (b"\xff\xd8\xff\xd9" + bytes(9), "JPEG: unexpected marker"),
        (encode(40, 30, "grey").replace(b"\xff\xdb", b"\xff\xe5"), "libjpeg: corrupt data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_left_to_pillow(data: bytes, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    decoded("product", GOOD)  # whose tables must not serve the next image
    assert decode_jpeg(data) == reason
    assert capfd.readouterr() == ("", "")


JFIF, ADOBE, ICC, RESOURCES = b"JFIF\0\1\1", b"Adobe\0d", b"ICC_PROFILE\0\1\1", b"Photoshop 3.0\08BIM\4\4\0\0"
DAMAGED_METADATA = [
    (marker, whole[:length])
    for marker, whole in ((0xE0, JFIF), (0xEE, ADOBE), (0xE2, ICC), (0xED, RESOURCES))
    for length in range(4, len(whole) + 1)
]


@pytest.mark.parametrize(("marker", "payload"), DAMAGED_METADATA)
def test_metadata_that_pillow_refuses(marker: int, payload: bytes) -> None:
    data = encode(48, 40, "4:2:0")
    data = data[:2] + segment(marker, payload) + data[2:]
    try:
        reference = pillow(data)
    except OSError:
        assert decode_jpeg(data) == certify_jpeg(data) == "JPEG: metadata that are cut off"
    else:
        assert np.array_equal(decoded("product", data), reference)


HEADERS = encode(48, 40, "4:2:0")
BEHIND_THE_SCAN = {
    "scan": HEADERS[HEADERS.index(b"\xff\xda") : HEADERS.index(b"\xff\xda") + 14],
    "scan and data": HEADERS[HEADERS.index(b"\xff\xda") : -2],
    "frame": HEADERS[frame(HEADERS) : HEADERS.index(b"\xff\xda")],
    "start of image": b"\xff\xd8",
    "reserved marker": b"\xff\x02",
    "huffman table": segment(0xC4, b"abc"),
    "comment": segment(0xFE, b"abc"),
    "restart": b"\xff\xd0",
    "bytes": b"abc",
    "stuffed": b"\xff\0\xff\xff",
}


@pytest.mark.parametrize("behind", BEHIND_THE_SCAN)
@pytest.mark.parametrize("sampling", ["4:2:0", "grey"])
def test_what_follows_the_scan(behind: str, sampling: str, tmp_path: Path) -> None:
    """Also of a box far above it: what Pillow refuses is left to Pillow."""
    data = encode(48, 40, sampling)[:-2] + BEHIND_THE_SCAN[behind] + b"\xff\xd9"
    box, found = (3, 5, 20, 9), decode_jpeg(data, (3, 5, 20, 9))
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "0.jpg").write_bytes(data)
    recipe = transforms.Compose([transforms.CenterCrop(8), transforms.PILToTensor()])
    loader = penstock.DataLoader(penstock.ImageFolder(tmp_path, recipe))
    try:
        reference = pillow(data)
    except OSError:
        assert isinstance(found, str)
        with pytest.raises(penstock.SampleError, match="broken data stream"):
            next(iter(loader))
    else:
        assert isinstance(found, str) or np.array_equal(found, reference[box[1] : box[3], box[0] : box[2]])
        ((images, _),) = loader
        assert np.array_equal(images[0].permute(1, 2, 0), reference[16:24, 20:28])


def test_twelve_bits_are_left_to_pillow() -> None:
    assert isinstance(decode_jpeg(patched(GOOD, {4: 12})), str)


OUTSIDE = [(0, 0, 0, 5), (0, 0, 5, 0), (-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 41, 5), (0, 0, 5, 31), (9, 0, 5, 5)]


@pytest.mark.parametrize("box", OUTSIDE)
def test_box_outside(box: Box) -> None:
    assert decode_jpeg(GOOD, box) == "box outside the image"


def test_bombs() -> None:
    data = GOOD
    assert not isinstance(decode_jpeg(data, None, 1200), str)
    assert decode_jpeg(data, None, 1199) == "over Pillow's MAX_IMAGE_PIXELS"
    huge = {5: 0xFF, 6: 0, 7: 0xFF, 8: 0}
    for progressive, reason in ((False, "libjpeg: corrupt data"), (True, "out of memory")):
        bomb = patched(encode(40, 30, "4:2:0", progressive=progressive), huge)
        assert decode_jpeg(bomb, None, 89_478_485) == "over Pillow's MAX_IMAGE_PIXELS"
        assert decode_jpeg(bomb, (0, 0, 9, 9), 0) == reason


def test_threads() -> None:
    data = [encode(90, 70, sampling, progressive=bool(i % 2)) for i, sampling in enumerate(SAMPLINGS)]
    reference = [pillow(each) for each in data]

    def work(start: int) -> None:
        for k in range(start, start + 60):
            i = k % len(data)
            decode_jpeg(data[i][: 100 + k * 7])  # mostly refused
            assert np.array_equal(decoded("product", data[i], (3, 5, 80, 66)), reference[i][5:66, 3:80]), k

    run_in_threads(4, work)


def test_damaged_files() -> None:
    """A damaged file is refused or gives Pillow's pixels; decoded whole, it ends as by libjpeg alone."""
    bases = [encode(83, 61, s, quality=70, **v) for s in SAMPLINGS for v in VARIANTS]
    rng = random.Random(20)
    # libjpeg's SIMD code saturates coefficients that no encoder writes, and its C code wraps them: a build without SIMD
    # differs there from Pillow's wheels, on damaged files only.
    alike = np.array_equal(decoded("product", extreme()), pillow(extreme()))
    seen: Counter[str] = Counter()
    for _ in range(6000):
        data = damaged(rng.choice(bases), rng)
        whole, by_libjpeg = decode_jpeg(data, None, 1 << 18), decode_jpeg_by(data, "libjpeg")
        if not (isinstance(whole, str) and whole.startswith("over Pillow's")):
            assert np.array_equal(whole, by_libjpeg)  # pixels, or the same reason
        x0, y0, x1, y1 = box = (rng.randrange(20), rng.randrange(20), rng.randint(21, 50), rng.randint(21, 50))
        part = decode_jpeg(data, box, 1 << 18)
        if isinstance(part, str):
            assert isinstance(whole, str) or part == "box outside the image"
            seen["refused"] += 1
            continue
        reference = pillow(data)
        if alike:
            assert np.array_equal(part, reference[y0:y1, x0:x1])
            assert isinstance(whole, str) or np.array_equal(whole, reference)
        seen["equal"] += 1
    assert seen["equal"] > 500 and seen["refused"] > 500, seen


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no photos beside the project")
def test_photos() -> None:
    rng = random.Random(5)
    for data, image in photos(20):
        own = not isinstance(decode_jpeg_by(data, "portable", (0, 0, 1, 1)), str)
        if isinstance(decode_jpeg(data), str):
            assert not own and (image.mode == "CMYK" or image.format != "JPEG")
            continue
        boxes = [(0, 0, *image.size), *random_boxes(*image.size, rng, 3)]
        check(data, boxes, ("product", OWN[-1]) if own else ("product",))
