"""The native core's own JPEG decoder against libjpeg, pixel by pixel, with each set of instructions that is here."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from penstock._native import decode_jpeg
from tests.jpeg_writer import ZIGZAG, Code, flat, segment, steep, write_jpeg
from tests.jpegs import FACTORS, SAMPLINGS, encode, patched, pillow, random_boxes, save
from tests.native_testing import JpegRowStates, decode_jpeg_by
from tests.recipe.jpeg_decoders import OWN, check, decoded as by

pytestmark = pytest.mark.native

Coefficients = npt.NDArray[np.int16]

#: What a Huffman code of AC coefficients may have.
SYMBOLS = [0, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 16))]


def factors_of(sampling: str) -> list[tuple[int, int]]:
    return [FACTORS[sampling]] if sampling == "grey" else [FACTORS[sampling], (1, 1), (1, 1)]


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
