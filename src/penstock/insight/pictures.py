"""Values of samples as pictures: which are some, and the 8-bit pixels that a sheet shows of them.

Elements become pixels by one rule for all pictures of a field, so that they can be compared; docs/view.md has it.
"""

from __future__ import annotations

import colorsys
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

#: What stands for elements that are not finite numbers.
MAGENTA = (255, 0, 255)
_CHANNELS, _LEAST_SIDE, _LEAST_PLAIN_SIDE = (1, 3, 4), 4, 8  # smaller matrices without channels are numbers
_SLACK = 1 / 512  # by which rounding may pass the ends of 0 .. 1
_BRIGHT = 16  # from which floats count from 0 to 255


class Normalisation(NamedTuple):
    """What was subtracted from, and then divided, the channels of pictures."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        return f"mean {', '.join(f'{one:g}' for one in self.mean)}; std {', '.join(f'{one:g}' for one in self.std)}"


def dtype_of(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


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


class Raw(NamedTuple):
    """The elements of one picture, as a sample has them."""

    values: NDArray[Any]
    """(height, width, channels) of 1, 3 or 4 channels, or (height, width)."""
    about: str
    """Its dtype and shape."""


def raw_of(value: Any) -> Raw | None:
    """Return a value as a picture; None: it is not one. Of four dimensions, as videos have them, it is the first."""
    if isinstance(value, Image.Image):
        about = f"PIL {value.mode} ({value.height}, {value.width})"
        if value.mode not in ("1", "L", "I", "I;16", "F"):
            value = value.convert("RGBA" if value.has_transparency_data else "RGB")
        return Raw(np.asarray(value), about)
    array = numpy_of(value)
    if array is None or array.dtype.kind not in "biuf" or not array.size or not 2 <= array.ndim <= 4:
        return None
    about = f"{dtype_of(value)} {tuple(value.shape)}"
    for first in [array] if array.ndim < 4 else [array[0], array[:, 0]]:
        if (found := _channels_last(first)) is not None:
            return Raw(found, about if array.ndim < 4 else f"{about}, the first picture of each")
    return None


def _channels_last(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return (height, width, channels), or (height, width); None: it is not a picture."""
    if array.ndim == 2:
        return array if min(array.shape) >= _LEAST_PLAIN_SIDE else None
    if array.shape[0] in _CHANNELS and min(array.shape[1:]) >= _LEAST_SIDE:
        return np.moveaxis(array, 0, 2)
    return array if array.shape[2] in _CHANNELS and min(array.shape[:2]) >= _LEAST_SIDE else None


def drawn(arrays: list[NDArray[Any]], undo: Normalisation | None, *, beside: bool) -> tuple[list[Pixels], str]:
    """Return the pictures of a field, and how their elements were mapped to pixels.

    beside: each sample has another picture too, so that a plane of uint8 is a mask.
    """
    kinds = {one.dtype.kind for one in arrays}
    every = np.concatenate([one.ravel() for one in arrays])
    planes = all(one.ndim == 2 and (beside or one.dtype != np.uint8) for one in arrays)
    if planes and kinds <= {"i", "u"} and every.min() >= -100 and every.max() < 256:
        return [_PALETTE[np.where(one < 0, 255, one)] for one in arrays], "a colour for each value"
    floats = [(one * np.uint8(255) if one.dtype.kind == "b" else one).astype(np.float64) for one in arrays]
    channels, undone = {1, *(np.atleast_3d(one).shape[2] for one in arrays)}, ""
    if undo is not None and kinds == {"f"} and {len(undo.mean), len(undo.std)} <= channels and len(channels) <= 2:
        floats = [np.atleast_3d(one) * undo.std + undo.mean for one in floats]
        undone = f" after a normalisation was undone ({undo})"
    every = np.concatenate([one.ravel() for one in floats])
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    black, white, how = _range(low, high, whole=kinds <= set("biu"), undone=bool(undone))
    ends = [0.0 if abs(a) < 1e-6 * abs(b) else a for a, b in ((low, high), (high, low))]  # where rounding missed it
    about = f"values {ends[0]:.4g} .. {ends[1]:.4g}{undone}{how}"
    if finite.size < every.size:
        about += f"; {every.size - finite.size:,} of {every.size:,} elements NaN or infinite (magenta)"
    pixels = []
    for one in floats:
        with np.errstate(invalid="ignore", over="ignore"):
            levels = np.rint((one - black) * (255 / (white - black)))
        own = _rgb(np.nan_to_num(levels).clip(0, 255).astype(np.uint8))
        own[~np.isfinite(np.atleast_3d(one)).all(axis=2)] = MAGENTA
        pixels.append(own)
    return pixels, about


def _range(low: float, high: float, *, whole: bool, undone: bool) -> tuple[float, float, str]:
    """Return which values are black and white, and how the field's line says it."""
    if whole and low >= 0 and high <= 255:
        return 0.0, 255.0, ""
    if not whole and low >= -_SLACK and high <= 1 + _SLACK:
        return 0.0, 1.0, ""
    if not whole and low >= -_SLACK and _BRIGHT <= high <= 255 + 255 * _SLACK:
        return 0.0, 255.0, ""
    if undone:
        return 0.0, 1.0, ", clipped to 0 .. 1"
    return (low, low + 1.0, ", all of them black") if low == high else (low, high, ", from black to white")


def _rgb(array: Pixels) -> Pixels:
    """Return (height, width, 3) of grey, RGB or RGBA, whose transparent pixels are laid over white."""
    if array.ndim == 2 or array.shape[2] == 1:
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)
    if array.shape[2] == 3:
        return np.ascontiguousarray(array)
    alpha = array[..., 3:].astype(np.uint16)
    return ((array[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def _colours() -> Pixels:
    """Return the colours of a mask's values: 0 is black, 255 (and below 0) grey, neighbours far from each other."""
    golden = 0.618033988749895
    bright = [colorsys.hsv_to_rgb(value * golden % 1, 0.75, 1.0 if value % 2 else 0.75) for value in range(1, 255)]
    colours: Pixels = np.rint(255 * np.array([(0, 0, 0), *bright, (0.5, 0.5, 0.5)])).astype(np.uint8)
    return colours


_PALETTE = _colours()
