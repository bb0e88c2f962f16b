"""The native resize against Pillow and torch, pixel by pixel."""

from __future__ import annotations

import os
import platform
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
import pytest
import torch
from PIL import Image

from tests.native_testing import resize, resize_needed
from tests.waiting import run_in_threads

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]

pytestmark = pytest.mark.native

# Pillow 13 reduces vertically first where that saves most; the ones before it are horizontal first.
PILLOW = "pillow" if int(PIL.__version__.split(".")[0]) >= 13 else "pillow_12"
FILTERS = {name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos")}
# (height, width) -> (height, width): up and down, one axis, single pixels, extreme ratios, both orders of Pillow 13.
SIZES = [
    ((250, 250), (224, 224)), ((160, 180), (224, 224)), ((375, 500), (224, 298)), ((300, 200), (224, 224)),
    ((31, 47), (31, 20)), ((31, 47), (64, 47)), ((47, 31), (20, 31)), ((9, 9), (9, 9)),
    ((1, 1), (1, 1)), ((1, 1), (7, 5)), ((1, 40), (3, 9)), ((40, 1), (9, 3)), ((5, 3), (1, 1)), ((2, 2), (3, 1)),
    ((3, 700), (50, 11)), ((700, 3), (11, 50)), ((600, 13), (2, 13)), ((13, 600), (13, 2)), ((64, 64), (8, 8)),
    ((33, 33), (32, 32)), ((17, 10), (16, 100)), ((100, 101), (33, 34)), ((4, 5), (130, 140)), ((901, 9), (90, 4)),
]  # fmt: skip

CAPABILITY = torch.backends.cpu.get_cpu_capability()
TORCH_IS_AVX2 = platform.machine() in ("x86_64", "AMD64") and CAPABILITY in ("AVX2", "AVX512")
needs_avx2_torch = pytest.mark.skipif(not TORCH_IS_AVX2, reason="torch's AVX2 kernels are the reference")


def generator(*key: object) -> np.random.Generator:
    """The same draws for the same key, in any process."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def picture(rng: np.random.Generator, height: int, width: int, channels: int) -> Pixels:
    """Noise, black and white, a flat colour or a random walk; (height, width) when channels is 1."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    kind = rng.integers(0, 4)
    if kind == 0:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind == 1:
        return (rng.integers(0, 2, shape) * 255).astype(np.uint8)
    if kind == 2:
        return np.full(shape, rng.integers(0, 256), np.uint8)
    return np.clip(np.cumsum(rng.integers(-9, 10, shape), axis=1) + 128, 0, 255).astype(np.uint8)


def by_pillow(image: Pixels, size: tuple[int, int], name: str) -> Pixels:
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), FILTERS[name]))


def by_torch(
    image: Pixels, size: tuple[int, int], mode: str, *, antialias: bool = False, channels_last: bool
) -> Pixels:
    tensor = torch.from_numpy(image.reshape(*image.shape[:2], -1)).permute(2, 0, 1)[None]
    tensor = tensor.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    corners = False if mode in ("bilinear", "bicubic") else None
    out = torch.nn.functional.interpolate(tensor, size, None, mode, corners, antialias=antialias)
    return out[0].permute(1, 2, 0).numpy().reshape(*size, *image.shape[2:])


def sizes_drawn(rng: np.random.Generator, count: int, most: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Sizes of which every second one is small, and some keep an axis."""
    for i in range(count):
        high = 40 if i % 2 else most
        height, width, new_height, new_width = (int(n) for n in rng.integers(1, high, 4))
        keep = i % 16
        yield (height, width), (height if keep == 3 else new_height, width if keep == 7 else new_width)


def window_drawn(rng: np.random.Generator, size: tuple[int, int]) -> Box:
    y0, x0 = (int(rng.integers(0, n)) for n in size)
    return x0, y0, int(rng.integers(x0 + 1, size[1] + 1)), int(rng.integers(y0 + 1, size[0] + 1))


class Way(NamedTuple):
    """A filter, whose arithmetic is reproduced, and whether it is antialiased."""

    name: str
    arithmetic: str
    antialias: bool = True

    def reference(self, image: Pixels, size: tuple[int, int], *, channels_last: bool) -> Pixels | None:
        """Return the pixels that are to be reproduced; None: torch itself may fail."""
        if self.arithmetic == PILLOW:
            return by_pillow(image, size, self.name)
        if size == (1, 1) and self.name in ("bilinear", "bicubic"):
            return None
        return by_torch(image, size, self.name, antialias=self.antialias, channels_last=channels_last)


WAYS = [
    *(pytest.param(Way(name, PILLOW), id=f"Pillow, {name}") for name in FILTERS),
    *(
        pytest.param(Way(name, arithmetic, antialias), marks=needs_avx2_torch, id=f"{arithmetic}, {name}, {antialias}")
        for name, arithmetic, antialias in (
            *((name, "torch_u8", antialias) for name in ("bilinear", "bicubic") for antialias in (True, False)),
            *((name, kind, False) for name in ("nearest", "nearest-exact") for kind in ("torch_u8", "torch_f32")),
        )
    ),
]


@pytest.mark.parametrize("simd", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_whole_images(way: Way, simd: bool) -> None:
    rng = generator("whole", way, simd)
    for i, (full, size) in enumerate([*SIZES, *SIZES, *sizes_drawn(rng, 200, 320)]):
        image = picture(rng, *full, 3 if i % 2 else 1)
        got = resize(image, size, way.name, way.arithmetic, way.antialias, simd=simd)
        want = way.reference(image, size, channels_last=i % 3 == 0)
        if got is None:  # a tall image: the releases of Pillow 12 differ
            assert want is None or (way.arithmetic == "pillow_12" and full[0] > 100 * full[1])
            continue
        np.testing.assert_array_equal(got, want, str((full, size, way)))


@pytest.mark.parametrize("simd", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_window_of_a_part(way: Way, simd: bool) -> None:
    """A window needs only the part that resize_needed names, wherever in memory that part lies.

    The precision of torch's weights comes from the largest weight of all outputs, wanted or not.
    """
    rng = generator("window", way, simd)
    for i, (full, size) in enumerate(sizes_drawn(rng, 150, 200)):
        image = picture(rng, *full, 3 if i % 4 else 1)
        window = window_drawn(rng, size)
        needed = resize_needed(full, size, way.name, way.arithmetic, way.antialias, window)
        want = way.reference(image, size, channels_last=True)
        if needed == (0, 0, 0, 0) and (want is None or way.arithmetic == "pillow_12"):
            continue
        part = image[needed[1] : needed[3], needed[0] : needed[2]]
        if i % 3 == 0:
            part = part.copy()  # nothing around it: AddressSanitizer sees a read outside
        elif i % 3 == 1:
            part = part[::-1].copy()[::-1]  # rows upwards
        place = (needed[0], needed[1], full[1], full[0])
        got = resize(part, size, way.name, way.arithmetic, way.antialias, window, place, simd)
        assert want is not None
        wanted = want[window[1] : window[3], window[0] : window[2]]
        np.testing.assert_array_equal(got, wanted, str((full, size, way, window)))


def test_needed_is_no_larger_than_the_taps() -> None:
    assert resize_needed((100, 100), (50, 50), "bilinear", PILLOW, True, (0, 0, 50, 50)) == (0, 0, 100, 100)
    assert resize_needed((100, 100), (50, 50), "bilinear", PILLOW, True, (10, 20, 11, 21)) == (19, 39, 23, 43)
    assert resize_needed((100, 100), (50, 50), "nearest", PILLOW, True, (10, 20, 11, 21)) == (21, 41, 22, 42)
    assert resize_needed((100, 50), (50, 50), "bilinear", PILLOW, True, (10, 20, 11, 21)) == (10, 39, 11, 43)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_float_sums_are_left_to_python(mode: str, antialias: bool) -> None:
    """Their roundings depend on how torch's compiler vectorised the loop."""
    assert resize(np.zeros((8, 8, 3), np.uint8), (4, 4), mode, "torch_f32", antialias) is None
    assert resize_needed((8, 8), (4, 4), mode, "torch_f32", antialias, (0, 0, 4, 4)) == (0, 0, 0, 0)


def test_what_is_refused() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    assert resize(image, (4, 4), "nearest-exact", PILLOW) is None
    assert resize(image, (4, 4), "lanczos", "torch_u8") is None
    assert resize(image, (0, 4), "bilinear", PILLOW) is None
    assert resize(image, (4, -1), "bilinear", PILLOW) is None
    assert resize(image, (1 << 21, 1), "nearest", PILLOW, True, (0, 0, 1, 1)) is None
    wide = np.zeros((1, 1 << 20), np.uint8)
    assert resize(wide, (1, (1 << 20) - 1), "lanczos", PILLOW, True, (0, 0, 1, 1)) is not None
    for window in ((0, 0, 5, 4), (-1, 0, 4, 4), (2, 0, 2, 4), (0, 3, 4, 2)):
        assert resize(image, (4, 4), "bilinear", PILLOW, True, window) is None
    # A part that is not where it says, or that lacks what the window needs.
    for part in ((0, 0, 7, 8), (-1, 0, 9, 9), (1, 0, 8, 8), (0, 0, 16, 8), (0, 0, 1 << 30, 8)):
        assert resize(image, (4, 4), "bilinear", PILLOW, True, None, part) is None
    assert resize(np.zeros((8, 8, 4), np.uint8), (4, 4), "bilinear", PILLOW) is None
    assert resize(np.zeros((0, 8, 3), np.uint8), (4, 4), "bilinear", PILLOW) is None
    for name, arithmetic in (("cubic", PILLOW), ("bilinear", "torch")):
        with pytest.raises(ValueError, match="unknown name"):
            resize(image, (4, 4), name, arithmetic)


def test_many_threads() -> None:
    """Each thread has its own tables and scratch."""
    rng = generator("threads")
    work = []
    for full, size in sizes_drawn(rng, 40, 100):
        image = picture(rng, *full, 3)
        work.append((image, size, by_pillow(image, size, "bilinear")))

    def run(number: int) -> None:
        for image, size, want in work[7 * number :] + work[: 7 * number]:
            np.testing.assert_array_equal(resize(image, size, "bilinear", PILLOW), want, str(size))

    run_in_threads(min(4, os.cpu_count() or 1) + 1, run)
