"""What the native core does as the installed Pillow and torch do: pixels of JPEG files, effects on pictures, draws.

Found out by comparing, once in a process: releases of Pillow and torch have changed before. Pillow and the native core
have a libjpeg each; another release or build may round otherwise, and some releases of libjpeg-turbo go wrong where
rows are skipped or columns left out, as the native core does.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import penstock._native as _native

_FACTORS = (0.0, 0.35, 1.0, 1.8)
_MATRICES = (
    (1.0, 0.0, -7.0, 0.0, 1.0, 3.0),
    (1.0, 0.31, -4.5, 0.0, 1.0, 0.0),
    (0.8, -0.55, 11.3, 0.6, 0.79, -8.9),
    (1.3, 0.01, -70000.0, 0.02, 0.7, 2.0),
)
_WARPS = {"nearest": 0, "bilinear": 2, "bicubic": 3}


def recipe_of(augmentation: dict[str, Any], channels: int = 3) -> _native.Recipe:
    """Return the recipe that only does an augmentation. Raises ValueError, TypeError or RuntimeError: it is none."""
    operation = {"op": "Augment", "augmentation": augmentation}
    return _native.Recipe(channels, [operation], "uint8", "hwc", None, [])


def noise(height: int, width: int) -> NDArray[np.uint8]:
    """Return pixels of noise, the same ones each time: (height, width, 3)."""
    counter = np.arange(height * width * 3, dtype=np.uint64)
    return (counter * 2654435761 >> 13).astype(np.uint8).reshape(height, width, 3)


@cache
def effects_alike() -> frozenset[str]:
    """Return the effects that the installed Pillow gives noise as the native core does.

    By their native names; of "affine", with the filter's after a space.
    """
    height, width = 37, 50
    rough = noise(height, width)
    smooth = (rough >> 3) + np.arange(width, dtype=np.uint8)[None, :, None] * 2 + 30
    pictures = [rough, smooth.astype(np.uint8), np.ascontiguousarray(rough[..., 0])]
    alike: dict[str, bool] = {}
    for effect, described, in_pillow in _examples():
        for pixels in pictures if alike.get(effect, True) else ():
            alike[effect] = _alike(described, in_pillow, pixels)
            if not alike[effect]:
                break
    return frozenset(effect for effect, same in alike.items() if same)


def _alike(described: dict[str, Any], in_pillow: Callable[[Any], Any], pixels: NDArray[np.uint8]) -> bool:
    try:
        native = recipe_of({"kind": "effects", "effects": [described]}, 3 if pixels.ndim == 3 else 1)
        expected = np.asarray(in_pillow(Image.fromarray(pixels)))
        return _native.run_recipe(native, pixels, 0, 0, 0, 0)[0] == expected.tobytes()
    except Exception:  # of a Pillow that lacks something
        return False


def _examples() -> Iterator[tuple[str, dict[str, Any], Callable[[Any], Any]]]:
    """Yield effects, how the native core takes them, and what torchvision asks Pillow for."""
    pil: Any = sys.modules["torchvision.transforms._functional_pil"]
    for effect in ("brightness", "contrast", "saturation", "sharpness"):
        adjust = getattr(pil, f"adjust_{effect}")
        for factor in _FACTORS:
            yield effect, {"effect": effect, "value": factor}, _with(adjust, factor)
    for shift in (0, 41, 200):
        hue = (shift - 256 if shift > 127 else shift) / 255
        hue += 1e-6 if hue > 0 else -1e-6  # on the far side of what it is cut off to
        yield "hue", {"effect": "hue", "value": shift}, _with(pil.adjust_hue, hue)
    for bits in (1, 5, 8):
        yield "posterize", {"effect": "posterize", "value": bits}, _with(pil.posterize, bits)
    for at in (0.0, 77.5, 256.0):
        yield "solarize", {"effect": "solarize", "value": at}, _with(pil.solarize, at)
    for effect in ("invert", "autocontrast", "equalize"):
        yield effect, {"effect": effect}, getattr(pil, effect)
    yield "grayscale", {"effect": "grayscale"}, lambda image: pil.to_grayscale(image, len(image.getbands()))
    for name, code in _WARPS.items():
        for matrix in _MATRICES:
            described = {"effect": "affine", "matrix": matrix, "filter": name, "fill": b"\x07\x07\x07"}
            yield f"affine {name}", described, _with(pil.affine, list(matrix), code, 7)


def _with(function: Callable[..., Any], *arguments: Any) -> Callable[[Any], Any]:
    return lambda image: function(image, *arguments)


@cache
def draws_alike() -> bool:
    """Return whether the native core draws from torch's generator as torch does."""
    ours, torchs = (torch.Generator(device="cpu").manual_seed(20_000) for _ in range(2))
    half = (0.5, 0.5)
    native = recipe_of({"kind": "jitter", "brightness": half, "contrast": half, "saturation": half, "hue": half})
    try:
        for _ in range(100):
            _native.draw_effects(native, 8, 8, ours)
            torch.randperm(4, generator=torchs)
            for _ in range(4):
                torch.empty(1).uniform_(0.0, 1.0, generator=torchs)
    except ValueError:
        return False
    return torch.equal(ours.get_state(), torchs.get_state())


@cache
def magnitudes_alike(share: float, bins: int) -> bool:
    """Return whether torch.linspace has the native core's numbers from 0 to shares of the sides of pictures."""
    for side in range(1, 700, 3):
        found = [_native.linear_magnitude(share, side, bins, number) for number in range(bins)]
        if found != torch.linspace(0.0, share * side, bins).tolist():
            return False
    return True


# --- JPEG -------------------------------------------------------------------------------------------------------------

#: Sides of the images, in pixels: not whole numbers of blocks, and rows enough that most of them can be skipped.
_WIDTH, _HEIGHT = 51, 73
#: Boxes (x0, y0, x1, y1): all; columns that begin and end beside the edges of blocks of 8 and 16; and deep rows, from
#: rows on that need the rows above them for interpolation.
_BOXES = ((0, 0, _WIDTH, _HEIGHT), (15, 17, 33, 48), (16, 47, 48, 49), (_WIDTH - 3, _HEIGHT - 2, _WIDTH, _HEIGHT))


@cache
def decoded_alike() -> bool:
    """Return whether small images of all kinds that the native core takes have the pixels that Pillow gives them.

    Found out once in a process, in some milliseconds. False too where Pillow cannot write or read JPEG.
    """
    try:
        return all(_pixels_alike(data) for data in jpeg_files())
    except Exception:  # of a Pillow without JPEG
        return False


@cache
def operator_decodes_alike(operator: Any) -> bool:
    """Return whether an operator that decodes JPEG files for torchvision gives these images the native core's pixels.

    torchvision has its own libjpeg.
    """
    try:
        for data in jpeg_files():
            found, theirs = _native.decode_jpeg(data), operator(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3)
            if isinstance(found, str) or not np.array_equal(found, theirs.permute(1, 2, 0).numpy()):
                return False
    except Exception:  # of a Pillow without JPEG
        return False
    return True


def turn_of(
    segments: bytes, decode: Callable[[bytes], Any], turns: Iterable[Callable[[Any], Any]]
) -> Callable[[Any], Any] | None:
    """Return which of some turns a library does to an image whose file has these segments; None: it is unclear.

    The library is shown a tiny image with these segments.

    decode: has the library decode a file; returns an array or a tensor, None where it cannot.
    """
    tiny = _tiny_file()
    upright, seen = decode(tiny), decode(tiny[:2] + segments + tiny[2:])
    for turn in turns:
        turned = turn(upright)
        if seen is not None and turned.shape == seen.shape and bool((turned == seen).all()):
            return turn
    return None


@cache
def _tiny_file() -> bytes:
    """Return a JPEG file of grey pixels that look another way however they are turned."""
    pixels = np.array(((0, 100, 200), (50, 150, 250)), dtype=np.uint8)
    return _encoded(Image.fromarray(pixels), quality=100)


def _pixels_alike(data: bytes) -> bool:
    # Without convert("RGB"), which may leave an image encoded where this has been found out.
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    expected = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    for x0, y0, x1, y1 in _BOXES:
        box = (x0, y0, min(x1, expected.shape[1]), min(y1, expected.shape[0]))
        if box[0] >= box[2] or box[1] >= box[3]:
            continue
        found = _native.decode_jpeg(data, box)
        if isinstance(found, str) or not np.array_equal(found, expected[box[1] : box[3], box[0] : box[2]]):
            return False
    return True


def jpeg_files() -> Iterator[bytes]:
    """Yield JPEG files: each sampling of the chroma, grey, progressive, with restart markers, out of range."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH].astype(np.uint32)
    waves = np.stack([(x * x + 3 * y) >> 2, (x * 5 ^ y * 3), (x * y) >> 4], axis=2)
    noise = (x * 2654435761 + y * 2246822519) >> 13  # of a hash: hard edges everywhere
    colours = Image.fromarray(((waves + (noise[..., None] & 63)) & 255).astype(np.uint8))
    for subsampling in (0, 1, 2):  # 4:4:4, 4:2:2, 4:2:0
        yield _encoded(colours, subsampling=subsampling, quality=90)
    # Coefficients that no encoder writes: quantisation by 255. libjpeg's code with and without vectors differs there.
    yield re.sub(rb"(\xff\xdb\0\x43.).{64}", rb"\1" + b"\xff" * 64, _encoded(colours, quality=98), flags=re.DOTALL)
    yield _encoded(colours, subsampling=2, quality=60, progressive=True)
    yield _encoded(colours, subsampling=2, quality=30, restart_marker_rows=1)
    yield _encoded(colours.convert("L"), quality=80)
    yield _turned(_encoded(colours, subsampling=1, quality=90))


def _encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def _turned(data: bytes) -> bytes:
    """Return a file of sampling 4:2:2 as one of 4:4:0, which Pillow does not write.

    Both have as many blocks, in the same order, where width and height are exchanged; what they show does not matter.
    """
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    height, width, components = data[frame + 5 : frame + 7], data[frame + 7 : frame + 9], data[frame + 10 :]
    assert components[1] == 0x21, "two blocks side by side"
    turned = components[:1] + b"\x12" + components[2:]
    return data[: frame + 5] + width + height + data[frame + 9 : frame + 10] + turned
