"""Which effects on pictures, and which draws, the native core has as the installed Pillow and torch do.

Both are found out by comparing, once in a process: releases of Pillow and torch have changed before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
    """Return the recipe that does an augmentation alone. Raises ValueError, TypeError or RuntimeError: it is none."""
    operation = {"op": "Augment", "augmentation": augmentation}
    return _native.Recipe(channels, [operation], "uint8", "hwc", None, [])


def noise(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    """Return pixels of noise, the same ones each time: (height, width, channels)."""
    counter = np.arange(height * width * channels, dtype=np.uint64)
    return (counter * 2654435761 >> 13).astype(np.uint8).reshape(height, width, channels)


def reproduced(effect: str) -> bool:
    """Return whether the installed Pillow gives noise the same effect as the native core does.

    effect: by its native name; of "affine", with the filter's after a space.
    """
    return effect in _reproduced()


@cache
def _reproduced() -> frozenset[str]:
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
