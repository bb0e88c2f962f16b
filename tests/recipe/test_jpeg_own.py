"""The native core's own JPEG decoder against libjpeg, pixel by pixel, with each set of instructions that is here."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from penstock._native import decode_jpeg
from penstock.recipe.installed import decoded_alike
from tests.jpeg_writer import ZIGZAG, Code, flat, segment, steep, write_jpeg
from tests.jpegs import (
    FACTORS,
    PHOTOS,
    SAMPLINGS,
    Box,
    Pixels,
    damaged,
    encode,
    patched,
    photos,
    picture,
    pillow,
    random_boxes,
    save,
)
from tests.native_testing import JpegRowStates, decode_jpeg_by, jpeg_decoders

pytestmark = pytest.mark.native

Coefficients = npt.NDArray[np.int16]

OWN = tuple(name for name in jpeg_decoders() if name != "libjpeg")
#: What a Huffman code of AC coefficients may have.
SYMBOLS = [0, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 16))]


def factors_of(sampling: str) -> list[tuple[int, int]]:
    return [FACTORS[sampling]] if sampling == "grey" else [FACTORS[sampling], (1, 1), (1, 1)]


def by(name: str, data: bytes, box: Box | None = None, states: JpegRowStates | None = None) -> Pixels:
    pixels = decode_jpeg_by(data, name, box, states)
    assert not isinstance(pixels, str), pixels
    return pixels


def check(data: bytes, boxes: list[Box], names: tuple[str, ...] = OWN) -> None:
    """Compare the boxes of a file with libjpeg's pixels, and those with Pillow's."""
    whole = by("libjpeg", data)
    for name in names:
        states = JpegRowStates()
        for number, box in enumerate(boxes):
            x0, y0, x1, y1 = box
            found = by(name, data, box, states if number % 2 else None)
            assert np.array_equal(found, whole[y0:y1, x0:x1]), (name, box)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_size(sampling: str) -> None:
    """From 1x1 on: whole images, of one block and of some, with and without columns to interpolate."""
    sides = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18, 31, 32, 33, 47)
    for width in sides:
        for height in sides:
            data = encode(width, height, sampling, seed=width * height, quality=90)
            reference = pillow(data)
            for name in OWN:
                assert np.array_equal(by(name, data), reference), (name, width, height)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_box_of_a_small_image(sampling: str) -> None:
    """Of a larger one every pair of columns with some rows, and every pair of rows with some columns."""
    rng = random.Random(sampling)
    small = [(x0, y0, x1, y1) for x1 in range(11) for x0 in range(x1) for y1 in range(10) for y0 in range(y1)]
    check(encode(10, 9, sampling), small)
    for width, height in ((3, 5), (35, 19), (19, 37)):
        data = encode(width, height, sampling, seed=width)
        columns = [(x0, x1) for x0 in range(width) for x1 in range(x0 + 1, width + 1)]
        rows = [(y0, y1) for y0 in range(height) for y1 in range(y0 + 1, height + 1)]
        boxes = [(x0, y0, x1, y1) for x0, x1 in columns for y0, y1 in [rng.choice(rows)]]
        boxes += [(x0, y0, x1, y1) for y0, y1 in rows for x0, x1 in [rng.choice(columns)]]
        check(data, boxes)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_qualities(sampling: str) -> None:
    rng = random.Random(sampling)
    for quality in range(1, 101):
        options: dict[str, Any] = ({}, {"optimize": True}, {"restart_marker_blocks": 7})[quality % 3]
        data = encode(150, 45, sampling, seed=quality, quality=quality, **options)
        assert np.array_equal(by("libjpeg", data), pillow(data))
        assert np.array_equal(decode_jpeg(data), pillow(data))
        check(data, [(0, 0, 150, 45), *random_boxes(150, 45, rng, 2)])


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


def quantised_by(data: bytes, table: list[int]) -> bytes:
    """Return the file of jpeg_writer with another table, of 16 bits where a value needs them."""
    wide = max(table) > 255
    values = b"".join(table[i].to_bytes(2 if wide else 1, "big") for i in ZIGZAG)
    return data[:2] + segment(0xDB, bytes((0x10 if wide else 0,)) + values) + data[2 + 69 :]


def extreme_blocks(rng: np.random.Generator, sides: tuple[int, int], size: str, place: str) -> Coefficients:
    """Coefficients that no encoder writes: of every magnitude that a file can hold, dense, sparse, or in few places."""
    shape = (*sides, 8, 8)
    magnitude = np.exp2(rng.uniform(0, {"mild": 9, "wild": 14.99}[size], shape)).astype(np.int64)
    values = magnitude * rng.choice([-1, 1], shape)
    y, x = np.mgrid[0:8, 0:8]
    kept = {"dense": y >= 0, "sparse": rng.random(shape) < 0.1, "corner": (x < 4) & (y < 4), "row": y == 0}
    values = np.where(kept.get(place, (x == 0) & (y == 0)), values, 0)
    values[..., 0, 0] = values[..., 0, 0].clip(-16000, 16000)
    return values.astype(np.int16)


@pytest.mark.parametrize("place", ["dense", "sparse", "corner", "row", "first"])
@pytest.mark.parametrize("size", ["mild", "wild"])
def test_values_out_of_range(size: str, place: str) -> None:
    """Products and sums of more than 16 bits wrap and saturate as in libjpeg's SIMD code, which is what Pillow has."""
    rng = np.random.default_rng(len(place))
    tables = ([1] * 64, [16] * 64, rng.integers(1, 256, 64).tolist(), [255] * 64, rng.integers(1, 65536, 64).tolist())
    codes = flat(range(16)), flat(SYMBOLS)
    for sampling, table in zip(sorted(FACTORS), tables, strict=True):
        (h, v), *_ = factors = factors_of(sampling)
        blocks = [extreme_blocks(rng, (3 * b, 9 * a), size, place) for a, b in factors]
        data = quantised_by(write_jpeg(blocks, (72 * h - 3, 24 * v - 1), factors, [codes] * len(factors)), table)
        assert np.array_equal(by("libjpeg", data), pillow(data))
        check(data, [(0, 0, 72 * h - 3, 24 * v - 1), (5, 9, 41, 15)])


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


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_row_states(sampling: str) -> None:
    """States are those of a first pass, whatever is known; with any of them known, and any forgotten, pixels stay."""
    rng = random.Random(sampling)
    for options in ({}, {"restart_marker_blocks": 5}, {"restart_marker_rows": 1}):
        data = encode(70, 150, sampling, quality=80, **options)
        whole = by("libjpeg", data)
        first = JpegRowStates()
        by("portable", data, None, first)
        rows = len(first.known)
        assert rows == -(-150 // (16 if sampling in ("4:2:0", "4:4:0") else 8)) and None not in first.known
        for name in OWN:
            states = JpegRowStates()
            for x0, y0, x1, y1 in random_boxes(70, 150, rng, 25):
                assert np.array_equal(by(name, data, (x0, y0, x1, y1), states), whole[y0:y1, x0:x1])
                assert all(a in (None, b) for a, b in zip(states.known, first.known, strict=False))
                if len(states.known) > 1:
                    states.forget(rng.randrange(len(states.known)))
        assert np.array_equal(by("portable", data, (3, 140, 60, 150), first), whole[140:, 3:60])


def test_states_save_what_is_above() -> None:
    """With the state of a row known, damage above it is not seen."""
    data = encode(64, 160, "4:4:4", quality=95)
    states = JpegRowStates()
    whole = by("portable", data, None, states)
    at = data.index(b"\xff\xda") + 14
    broken = data[: at + 8] + b"\xff\xd9" + data[at + 10 :]
    assert decode_jpeg_by(broken, "portable", (0, 80, 64, 160)) == "JPEG: left to libjpeg"
    assert np.array_equal(by("portable", broken, (0, 80, 64, 160), states), whole[80:])


def test_what_is_left_to_libjpeg() -> None:
    whole, odd = encode(40, 30, "4:2:0"), patched(encode(40, 30, "4:4:4"), {11: 0x12, 14: 0x11})
    cut, longer = whole[:-200] + b"\xff\xd9", whole[:-2] + b"\x00\x00\xff\xd9"
    for data in (encode(40, 30, "4:2:0", progressive=True), cut, longer, odd):
        assert {decode_jpeg_by(data, name) for name in OWN} == {"JPEG: left to libjpeg"}
        assert np.array_equal(decode_jpeg(data), decode_jpeg_by(data, "libjpeg"))  # pixels, or the same reason


def test_damaged_files() -> None:
    """Decoded whole, a damaged file comes to the same end as by libjpeg alone: the same pixels, or the same reason."""
    rng = random.Random(16)
    bases = [encode(83, 61, s, quality=70, restart_marker_blocks=b) for s in SAMPLINGS for b in (0, 3)]
    seen: Counter[str] = Counter()
    for _ in range(3000):
        data = damaged(rng.choice(bases), rng)
        ours, reference = decode_jpeg(data, None, 1 << 18), decode_jpeg_by(data, "libjpeg")
        if isinstance(ours, str) and ours.startswith("over Pillow's"):
            continue
        if isinstance(reference, str):
            assert isinstance(ours, str) and ours == reference
        else:
            assert not isinstance(ours, str) and np.array_equal(ours, reference)
        seen["refused" if isinstance(reference, str) else "decoded"] += 1
    assert min(seen["refused"], seen["decoded"]) > 200, seen


def test_another_libjpeg_is_noticed() -> None:
    """libjpeg-turbo can be told to leave its SIMD code alone: values out of range come out otherwise then."""
    assert decoded_alike()
    script = "from penstock.recipe.installed import decoded_alike; assert not decoded_alike()"
    without = {**os.environ, "JSIMD_FORCENONE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=without, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no photos beside the project")
def test_photos() -> None:
    rng = random.Random(7)
    for data, image in photos(20):
        if isinstance(decode_jpeg_by(data, "portable", (0, 0, 1, 1)), str):
            assert not isinstance(decode_jpeg(data), str) or image.mode == "CMYK" or image.format != "JPEG"
            continue
        check(data, [(0, 0, *image.size), *random_boxes(*image.size, rng, 3)], OWN[-1:])


def check_states(data: bytes) -> None:
    """Compare the whole with libjpeg; and the way to every row of MCUs, by a skip and from the state before it."""
    whole = decode_jpeg_by(data, "libjpeg")
    assert not isinstance(whole, str)
    height, width = whole.shape[:2]
    states = JpegRowStates()
    assert np.array_equal(decode_jpeg_by(data, "portable", None, states), whole)
    assert states.known[0] == (0, 0, 0, 0)
    rows = -(-height // len(states.known) // 8) * 8
    for row, state in enumerate(states.known):
        assert state is not None
        here = JpegRowStates()
        here.suppose(row, state)
        for known in (None, here):
            found = decode_jpeg_by(data, "portable", (0, row * rows, width, height), known)
            assert np.array_equal(found, whole[row * rows :])


FORMS = ({"optimize": True}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1})


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_forms_of_entropy_coded_data(sampling: str, options: dict[str, Any]) -> None:
    for seed, (width, height) in enumerate([(1, 1), (1, 50), (50, 2), (7, 9), (16, 17), (33, 31), (50, 50)]):
        check_states(encode(width, height, sampling, seed, **options))


@pytest.mark.parametrize("interval", [1, 2, 5, 6, 12, 59, 60, 200])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0", "grey"])
def test_restart_intervals(sampling: str, interval: int) -> None:
    """Of parts of a row, of whole rows, and of more MCUs than there are; rows of 6 or 12 MCUs."""
    data = encode(96, 80, sampling, restart_marker_blocks=interval)
    assert (b"\xff\xd0" in data) == (interval < (30 if sampling == "4:2:0" else 120))
    check_states(data)


def test_noise() -> None:
    """Many pieces of data with many stuffed bytes; blocks that no end-of-block code closes."""
    noise = np.random.default_rng(3).integers(0, 256, (200, 304, 3), dtype=np.uint8)
    for options in ({"quality": 100}, {"quality": 95, "optimize": True, "restart_marker_rows": 2}):
        data = save(Image.fromarray(noise), subsampling="4:2:0", **options)
        assert data.count(b"\xff\x00") > 100
        check_states(data)


def sparse(rng: np.random.Generator, rows: int, columns: int, density: float, most: int) -> npt.NDArray[np.int16]:
    """Blocks whose AC coefficients have all sizes up to that of `most` alike, and their DC coefficients all sizes."""
    shape = (rows, columns, 8, 8)
    sizes = np.exp2(rng.uniform(0, np.log2(most + 1), shape)).astype(np.int64)
    values = (rng.integers(0, sizes, endpoint=True) * rng.choice([-1, 1], shape)).clip(-most, most)
    values[rng.random(shape) > density] = 0
    values[..., 0, 0] = np.exp2(rng.uniform(0, 14, shape[:2])).astype(np.int64) * rng.choice([-1, 1], shape[:2])
    return values.astype(np.int16)


@pytest.mark.parametrize("make", [flat, steep])
@pytest.mark.parametrize("sampling", sorted(FACTORS))
def test_any_code(sampling: str, make: Callable[[Sequence[int]], Code]) -> None:
    """Codes of 1 to 16 bits for any symbol, coefficients of every size and run, blocks of every length."""
    rng = np.random.default_rng(len(sampling))
    (h, v), *_ = factors = factors_of(sampling)
    for density, most, interval in ((0.02, 32767, 0), (0.1, 40, 5), (0.4, 3, 4), (1.0, 1, 1)):
        codes = [(make(rng.permutation(16).tolist()), make(rng.permutation(SYMBOLS).tolist())) for _ in factors]
        blocks = [sparse(rng, 3 * b, 4 * a, density, most) for a, b in factors]
        check_states(write_jpeg(blocks, (32 * h, 24 * v), factors, codes, restart_interval=interval))


def test_bad_codes() -> None:
    """Codes of ones alone, more codes than there are, and DC symbols of more than 15 bits: libjpeg refuses them too."""
    for dc, ac in (
        (Code({1: [0, 1]}), flat([0, 1])),
        (flat(range(16)), Code({8: list(range(255)), 9: [0, 1]})),
        (flat(range(17)), flat([0, 1])),
        (flat(range(16)), Code({1: [0, 1], 2: [2]})),
    ):
        data = write_jpeg([np.zeros((1, 1, 8, 8), np.int16)], (8, 8), [(1, 1)], [(dc, ac)])
        assert decode_jpeg_by(data, "libjpeg") == "libjpeg: corrupt data"
        assert decode_jpeg_by(data, "portable") in ("JPEG: left to libjpeg", "libjpeg: corrupt data")


def test_fill_bytes() -> None:
    """Any marker may have bytes of ones before it (B.1.1.2)."""
    data = encode(40, 30, "4:4:4", restart_marker_blocks=4)
    check_states(data.replace(b"\xff\xd1", b"\xff\xff\xff\xd1").replace(b"\xff\xd9", b"\xff\xff\xd9"))


def test_states_that_cannot_be() -> None:
    """The decoder leaves such a file to libjpeg, or gives other pixels: no state does harm."""
    data = encode(60, 60, "4:2:0")
    stuffed = data.index(b"\xff\x00", data.index(b"\xff\xda")) - (data.index(b"\xff\xda") + 14)
    for bit in (0xFFFF_FFFE, 8 * len(data), 8 * (stuffed + 1)):
        states = JpegRowStates()
        states.suppose(1, (bit, 0, 0, 0))
        assert decode_jpeg_by(data, "portable", (0, 40, 60, 60), states) == "JPEG: left to libjpeg"
    rng = random.Random(1)
    for _ in range(300):
        bit, (a, b, c) = rng.randrange(8 * len(data)), rng.choices(range(-32768, 32768), k=3)
        states = JpegRowStates()
        states.suppose(2, (bit, a, b, c))
        decode_jpeg_by(data, "portable", (0, 50, 60, 60), states)
