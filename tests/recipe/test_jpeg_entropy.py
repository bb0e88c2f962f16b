"""The entropy decoder of the native core: any form of code and data, seen by the pixels, which are libjpeg's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.jpeg_writer import Code, flat, steep, write_jpeg
from tests.jpegs import FACTORS, SAMPLINGS, encode, save
from tests.native_testing import JpegRowStates, decode_jpeg_by

pytestmark = pytest.mark.native


def check(data: bytes) -> None:
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


@pytest.mark.parametrize(
    "options", [{"optimize": True}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}], ids=str
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_forms(sampling: str, options: dict[str, Any]) -> None:
    for seed, (width, height) in enumerate([(1, 1), (1, 50), (50, 2), (7, 9), (16, 17), (33, 31), (50, 50)]):
        check(encode(width, height, sampling, seed, **options))


@pytest.mark.parametrize("interval", [1, 2, 5, 6, 12, 59, 60, 200])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0", "grey"])
def test_restart_intervals(sampling: str, interval: int) -> None:
    """Of parts of a row, of whole rows, and of more MCUs than there are; rows of 6 or 12 MCUs."""
    data = encode(96, 80, sampling, restart_marker_blocks=interval)
    assert (b"\xff\xd0" in data) == (interval < (30 if sampling == "4:2:0" else 120))
    check(data)


def test_noise() -> None:
    """Many pieces of data with many stuffed bytes; blocks that no end-of-block code closes."""
    noise = np.random.default_rng(3).integers(0, 256, (200, 304, 3), dtype=np.uint8)
    for options in ({"quality": 100}, {"quality": 95, "optimize": True, "restart_marker_rows": 2}):
        data = save(Image.fromarray(noise), subsampling="4:2:0", **options)
        assert data.count(b"\xff\x00") > 100
        check(data)


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
    symbols = [0, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 16))]
    h, v = FACTORS[sampling]
    factors = [(h, v)] if sampling == "grey" else [(h, v), (1, 1), (1, 1)]
    for number, density in enumerate((0.02, 0.1, 0.4, 1.0)):
        codes = [(make(rng.permutation(16).tolist()), make(rng.permutation(symbols).tolist())) for _ in factors]
        most = (32767, 40, 3, 1)[number]
        blocks = [sparse(rng, 3 * b, 4 * a, density, most) for a, b in factors]
        data = write_jpeg(blocks, (32 * h, 24 * v), factors, codes, restart_interval=(0, 5, 4, 1)[number])
        check(data)


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
    check(data.replace(b"\xff\xd1", b"\xff\xff\xff\xd1").replace(b"\xff\xd9", b"\xff\xff\xd9"))


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
