"""The native entropy decoder of JPEG files against libjpeg's: the same coefficients wherever it gives any."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.jpeg_writer import Code, flat, segment, steep, write_jpeg
from tests.jpegs import SAMPLINGS, encode, patched, save
from tests.native_testing import (
    jpeg_coefficients,
    jpeg_coefficients_by_libjpeg,
    jpeg_row_states,
    load_row_state,
    store_row_state,
)

Arrays = list[npt.NDArray[np.int16]]

pytestmark = pytest.mark.native

PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "data" / "photos"
SIDES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 50)
FACTORS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2), "4:4:0": (1, 2), "grey": (1, 1)}


def same(ours: Arrays | None, reference: Arrays | None) -> bool:
    if ours is None or reference is None:
        return False
    return len(ours) == len(reference) and all(map(np.array_equal, ours, reference))


def check(data: bytes) -> Arrays:
    """Compare with libjpeg; and each way to every row of MCUs with the whole."""
    reference = jpeg_coefficients_by_libjpeg(data)
    assert reference is not None
    assert same(jpeg_coefficients(data), reference)
    assert same(jpeg_coefficients(data, run=3), reference)
    states = jpeg_row_states(data)
    assert states is not None and states[0] == (0, 0, 0, 0)
    for row, state in enumerate(states):
        below = [blocks[len(blocks) // len(states) * row :] for blocks in reference]
        assert same(jpeg_coefficients(data, first_row=row), below)
        assert same(jpeg_coefficients(data, first_row=row, state=state), below)
        assert jpeg_row_states(data, row) == jpeg_row_states(data, row, state) == states[row:]
        assert load_row_state(store_row_state(state)) == state
    return reference


@pytest.mark.parametrize(
    "options", [{}, {"optimize": True}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}], ids=str
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sizes(sampling: str, options: dict[str, Any]) -> None:
    for seed, (width, height) in enumerate(itertools.product(SIDES, SIDES)):
        if seed % 3 == 0 or min(width, height) < 3:
            check(encode(width, height, sampling, seed, **options))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_qualities(sampling: str) -> None:
    for quality in range(1, 101):
        check(encode(67, 41, sampling, seed=quality, quality=quality, optimize=quality % 2 == 0))


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
    """Blocks whose AC coefficients have all sizes up to that of `most` alike."""
    shape = (rows, columns, 8, 8)
    sizes = np.exp2(rng.uniform(0, np.log2(most + 1), shape)).astype(np.int64)
    values = (rng.integers(0, sizes, endpoint=True) * rng.choice([-1, 1], shape)).clip(-most, most)
    values[rng.random(shape) > density] = 0
    values[..., 0, 0] = rng.integers(-16383, 16384, shape[:2])
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
        decoded = check(data)
        assert same(decoded, blocks)


def test_bad_codes() -> None:
    """Codes of ones alone, more codes than there are, and DC symbols of more than 15 bits: libjpeg refuses them too."""
    for dc, ac in (
        (Code({1: [0, 1]}), flat([0, 1])),
        (flat(range(16)), Code({8: list(range(255)), 9: [0, 1]})),
        (flat(range(17)), flat([0, 1])),
        (flat(range(16)), Code({1: [0, 1], 2: [2]})),
    ):
        data = write_jpeg([np.zeros((1, 1, 8, 8), np.int16)], (8, 8), [(1, 1)], [(dc, ac)])
        assert jpeg_coefficients_by_libjpeg(data) is None
        assert jpeg_coefficients(data) is None


def test_what_is_left_to_libjpeg() -> None:
    """Files that libjpeg decodes without a warning, and whose form is not that of one plain sequential scan."""
    data = encode(40, 30, "4:2:0")
    for other in (
        encode(40, 30, "4:2:0", progressive=True),
        data[:-2] + segment(0xFE, b"a comment behind the scan") + data[-2:],
        patched(data, {11: 0x41}),  # 4:1:1
    ):
        assert jpeg_coefficients(other) is None
    assert jpeg_coefficients_by_libjpeg(data[:-2] + segment(0xFE, b"comment") + data[-2:]) is not None


def test_fill_bytes() -> None:
    """Any marker may have bytes of ones before it (B.1.1.2)."""
    data = encode(40, 30, "4:4:4", restart_marker_blocks=4)
    check(data.replace(b"\xff\xd1", b"\xff\xff\xff\xd1").replace(b"\xff\xd9", b"\xff\xff\xd9"))


def test_states_that_cannot_be() -> None:
    data = encode(60, 60, "4:2:0")
    states = jpeg_row_states(data)
    assert states is not None
    stuffed = data.index(b"\xff\x00", data.index(b"\xff\xda")) - (data.index(b"\xff\xda") + 14)
    for bit in (0xFFFF_FFFF, 8 * len(data), 8 * (stuffed + 1)):
        assert jpeg_coefficients(data, first_row=1, state=(bit, 0, 0, 0)) is None
    for row in (-1, 4):
        assert jpeg_coefficients(data, first_row=row, state=states[1]) is None
    rng = random.Random(1)
    for _ in range(300):  # no state is the right one by chance; none does harm
        bit, (a, b, c) = rng.randrange(8 * len(data)), rng.choices(range(-32768, 32768), k=3)
        jpeg_coefficients(data, first_row=2, state=(bit, a, b, c))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the file cut off, with bits flipped, or with bytes left out or put in, behind its header."""
    out = bytearray(data)
    first = data.index(b"\xff\xda") + 4
    at = rng.randrange(first, len(out))
    kind = rng.randrange(5)
    if kind == 0:
        for _ in range(rng.randint(1, 3)):
            out[rng.randrange(first, len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del out[at:]
    elif kind == 2:
        del out[at:-2]
    elif kind == 3:
        out[at:at] = rng.choice((b"\xff\x00", b"\xff\xd0", b"\xff\xff", b"\xff", b"\x00", b"\xff\xd9"))
    else:
        del out[at : at + rng.randint(1, 4)]
    return bytes(out)


def test_damaged_data() -> None:
    """Ours decodes only what libjpeg decodes without a warning, and then to the same coefficients."""
    rng = random.Random(16)
    bases = [encode(45, 37, s, quality=60, restart_marker_blocks=b) for s in SAMPLINGS for b in (0, 2)]
    seen: Counter[str] = Counter()
    for _ in range(6000):
        data = damaged(rng.choice(bases), rng)
        ours = jpeg_coefficients(data)
        reference = jpeg_coefficients_by_libjpeg(data)
        assert ours is None or same(ours, reference)
        seen[f"{'no ' if ours is None else ''}ours, {'no ' if reference is None else ''}libjpeg"] += 1
    assert seen["ours, libjpeg"] > 300 and seen["no ours, no libjpeg"] > 1000, seen


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no photos beside the project")
def test_photos() -> None:
    files = sorted(path for path in PHOTOS.rglob("*") if path.is_file())[::16]
    assert files
    for path in files:
        data = path.read_bytes()
        reference = jpeg_coefficients_by_libjpeg(data)
        states = jpeg_row_states(data)
        assert states is not None and reference is not None
        row = len(states) // 2
        assert same(jpeg_coefficients(data), reference)
        below = [blocks[len(blocks) // len(states) * row :] for blocks in reference]
        assert same(jpeg_coefficients(data, first_row=row, state=states[row]), below)
