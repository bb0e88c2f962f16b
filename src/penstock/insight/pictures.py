"""Values of samples as pictures: which are some, and the 8-bit pixels that a sheet shows of them.

Elements become pixels by one rule for all pictures of a field, so that they can be compared; docs/view.md has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
#: What is shown for elements that are not finite numbers.
MAGENTA = (255, 0, 255)

_CHANNELS, _LEAST_SIDE, _LEAST_PLAIN_SIDE = (1, 3, 4), 4, 8  # smaller matrices without channels are numbers
_SLACK = 1 / 512  # by which rounding may pass the ends of 0 .. 1
_BRIGHT = 16  # from which floats count from 0 to 255
#: The colours of a mask's values: 0 is black, 255 grey, neighbours are far from each other, and no two are equal.
_PALETTE: Pixels = (np.arange(256)[:, None] * (89, 151, 211) % 256).astype(np.uint8)
_PALETTE[[128, 255]] = _PALETTE[[255, 128]]


class Normalisation(NamedTuple):
    """What was subtracted from, and then divided, the channels of pictures."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        return f"mean {', '.join(f'{one:g}' for one in self.mean)}; std {', '.join(f'{one:g}' for one in self.std)}"


def about_of(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def numpy_of(value: Any) -> NDArray[Any] | None:
    """Return an array or a number of an array in host memory; None: it is neither, or numpy has no such array."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if not isinstance(value, torch.Tensor):
        return None
    try:
        short = value.is_floating_point() and value.dtype not in (torch.float16, torch.float32, torch.float64)
        array: NDArray[Any] = (value.float() if short else value).numpy(force=True)  # numpy has no bfloat16
    except (TypeError, RuntimeError):  # sparse, quantized, nested
        return None
    return array


def raw_of(value: Any) -> tuple[NDArray[Any], str] | None:
    """Return a picture's elements, (height, width) or (height, width, channels), its dtype and shape; None: it is none.

    Of four dimensions, as videos have them, it is the first picture.
    """
    if isinstance(value, Image.Image):
        about = f"PIL {value.mode} ({value.height}, {value.width})"
        if value.mode not in ("1", "L", "I", "I;16", "F"):
            value = value.convert("RGBA" if value.has_transparency_data else "RGB")
        return np.asarray(value), about
    array = numpy_of(value)
    if array is None or array.dtype.kind not in "biuf" or not array.size or not 2 <= array.ndim <= 4:
        return None
    for one in [array] if array.ndim < 4 else [array[0], array[:, 0]]:
        about = about_of(value) + ("" if array.ndim < 4 else ", the first picture of each")
        if one.ndim == 2 and min(one.shape) >= _LEAST_PLAIN_SIDE:
            return one, about
        for last in [np.moveaxis(one, 0, 2), one] if one.ndim == 3 else []:
            if last.shape[2] in _CHANNELS and min(last.shape[:2]) >= _LEAST_SIDE:
                return last, about
    return None


def drawn(arrays: Sequence[NDArray[Any]], undo: Normalisation | None, *, beside: bool) -> tuple[list[Pixels], str]:
    """Return the pictures of a field, and how their elements were mapped to pixels.

    beside: each sample has another picture too, so that a plane of uint8 is a mask.
    """
    kinds = {one.dtype.kind for one in arrays}
    planes = all(one.ndim == 2 and (beside or one.dtype != np.uint8) for one in arrays)
    if planes and kinds <= {"i", "u"} and all(one.min() >= -100 and one.max() < 256 for one in arrays):
        return [_PALETTE[np.where(one < 0, 255, one)] for one in arrays], "a colour for each value"
    floats = [np.atleast_3d(one).astype(np.float64) * (255 if one.dtype.kind == "b" else 1) for one in arrays]
    channels, undone = {1, *(one.shape[2] for one in floats)}, ""
    if undo is not None and kinds == {"f"} and {len(undo.mean), len(undo.std)} <= channels and len(channels) <= 2:
        floats = [one * undo.std + undo.mean for one in floats]
        undone = f" after a normalisation was undone ({undo})"
    every = np.concatenate([one.ravel() for one in floats])
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    black, white, how = _range(low, high, whole=kinds <= set("biu"), undone=bool(undone))
    ends = [0.0 if abs(a) < 1e-6 * abs(b) else a for a, b in ((low, high), (high, low))]  # where rounding missed it
    about = f"values {ends[0]:.4g} .. {ends[1]:.4g}{undone}{how}"
    if finite.size < every.size:
        about += f"; {every.size - finite.size:,} of {every.size:,} elements NaN or infinite (magenta)"
    return [_levels(one, black, white) for one in floats], about


def _range(low: float, high: float, *, whole: bool, undone: bool) -> tuple[float, float, str]:
    """Return which values are black and white, and how the field's line says it."""
    if not whole and low >= -_SLACK and high <= 1 + _SLACK:
        return 0.0, 1.0, ""
    if low >= (0 if whole else -_SLACK) and (whole or high >= _BRIGHT) and high <= 255 + (0 if whole else 0.5):
        return 0.0, 255.0, ""
    if undone:
        return 0.0, 1.0, ", clipped to 0 .. 1"
    return (low, low + 1.0, ", all of them black") if low == high else (low, high, ", from black to white")


def _levels(values: NDArray[Any], black: float, white: float) -> Pixels:
    """Return (height, width, 3) of grey, RGB or RGBA values, whose transparent pixels are laid over white."""
    with np.errstate(invalid="ignore", over="ignore"):
        levels = np.nan_to_num(np.rint((values - black) * (255 / (white - black)))).clip(0, 255).astype(np.uint8)
    if levels.shape[2] == 4:
        alpha = levels[..., 3:].astype(np.uint16)
        levels = ((levels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    pixels = np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else np.ascontiguousarray(levels)
    pixels[~np.isfinite(values).all(axis=2)] = MAGENTA
    return pixels
