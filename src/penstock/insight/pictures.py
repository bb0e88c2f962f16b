"""Values of samples as pictures: which are some, and the 8-bit pixels that a sheet shows of them.

The mapping of elements to pixels is that of a whole field, so that its pictures can be compared:

- uint8: as they are. bool: 0 and 255.
- floats of 0 to 1: times 255, rounded. Floats of 0 to 255, the greatest being 16 or more, and other integers of 0 to
  255: rounded.
- all others: from the least (black) to the greatest (white) of the field. After a normalisation was undone they are
  clipped to 0 .. 1 instead.
- NaN and infinite elements: magenta.
- Masks, which are integers of shape (height, width): a colour for each value.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

#: What stands for elements that are not finite numbers.
MAGENTA = (255, 0, 255)
_CHANNELS = (1, 3, 4)
_LEAST_SIDE = 4  # of a picture with channels
_LEAST_PLAIN_SIDE = 8  # of one without; smaller matrices are numbers
_SLACK = 1 / 512  # by which rounding may pass the ends of 0 .. 1
_BRIGHT = 16  # from which floats count from 0 to 255
_UNLABELLED = (-100, -1, 255)  # values of masks that stand for no class


@dataclass(frozen=True)
class Normalisation:
    """What was subtracted from, and then divided, the channels of pictures."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def undone(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]] | None:
        """Return pictures before it; None: they are of other numbers than floats, or of another number of channels."""
        given, planes = {len(self.mean), len(self.std)}, [np.atleast_3d(array) for array in arrays]
        if any(array.dtype.kind != "f" or not given <= {1, array.shape[2]} for array in planes):
            return None
        return [array.astype(np.float64) * self.std + self.mean for array in planes]

    def __str__(self) -> str:
        return f"mean {', '.join(f'{one:g}' for one in self.mean)}; std {', '.join(f'{one:g}' for one in self.std)}"


@dataclass(frozen=True)
class Raw:
    """The elements of one picture, as a sample has them."""

    values: NDArray[Any]
    """(height, width, channels) of 1, 3 or 4 channels, or (height, width)."""
    dtype: str
    shape: tuple[int, ...]
    """As the sample has it."""
    frames: int = 1
    """How many pictures the value holds; the first one is here."""


@dataclass(frozen=True)
class Drawn:
    """The pictures of a field, one a sample, in 8 bits."""

    pixels: list[Pixels]
    """Of each picture: (height, width, 3)."""
    notes: list[str]
    """What a user must know of each picture, or ""."""
    about: str
    """Of the field: dtype, shape and the range of its values, and how they are mapped to pixels."""


def raw_of(value: Any) -> Raw | None:
    """Return a value as a picture; None: it is not one.

    A picture is a PIL image or an array of shape (channels, height, width), (height, width, channels) or
    (height, width), with 1, 3 or 4 channels. Of four dimensions, as videos and several crops have them, it is the
    first one: (frames, channels, height, width), (frames, height, width, channels) or (channels, frames, height,
    width).
    """
    if isinstance(value, Image.Image):
        shape = (value.height, value.width)
        if value.mode not in ("1", "L", "RGB", "RGBA", "I", "I;16", "F"):
            value = value.convert("RGBA" if "A" in value.getbands() or "transparency" in value.info else "RGB")
        return Raw(np.asarray(value), f"PIL {value.mode}", shape)
    array = plain_array(value) if isinstance(value, torch.Tensor | np.ndarray) else None
    if array is None or array.dtype.kind not in "biuf" or not array.size or not 2 <= array.ndim <= 4:
        return None
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    firsts = [(array, 1)] if array.ndim < 4 else [(array[0], array.shape[0]), (array[:, 0], array.shape[1])]
    for first, frames in firsts:
        if (found := _channels_last(first)) is not None:
            return Raw(found, dtype, shape, frames)
    return None


def plain_array(value: Any) -> NDArray[Any] | None:
    """Return a tensor or array as a numpy array in host memory; None: numpy has no such array."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.layout != torch.strided or value.is_nested or value.is_complex() or value.is_quantized or value.is_meta:
        return None
    value = value.detach().as_subclass(torch.Tensor).cpu()
    if value.is_floating_point() and value.dtype not in (torch.float16, torch.float32, torch.float64):
        value = value.float()  # bfloat16 and 8-bit floats, which numpy has not
    array: NDArray[Any] = value.resolve_neg().numpy()
    return array


def _channels_last(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return (height, width, channels), or (height, width); None: it is not a picture."""
    if array.ndim == 2:
        return array if min(array.shape) >= _LEAST_PLAIN_SIDE else None
    if array.shape[0] in _CHANNELS and min(array.shape[1:]) >= _LEAST_SIDE:
        return np.moveaxis(array, 0, 2)
    return array if array.shape[2] in _CHANNELS and min(array.shape[:2]) >= _LEAST_SIDE else None


# --- pixels -----------------------------------------------------------------------------------------------------------


def drawn(raws: Sequence[Raw], undo: Normalisation | None = None, *, mask: bool = False) -> Drawn:
    """Return the pictures of a field in 8 bits, of at least one sample. The module says how elements become pixels.

    undo: a normalisation of floats, undone first where it has as many channels. mask: uint8 of shape (height, width)
    are masks; of wider integers this is seen from the values.
    """
    first = raws[0]
    arrays = [raw.values for raw in raws]
    about = f"{first.dtype} {first.shape if len({raw.shape for raw in raws}) == 1 else 'of several shapes'}"
    if first.frames > 1:
        about += f", the first of {first.frames} pictures"
    if _are_masks(arrays, mask):
        return Drawn([_coloured(array) for array in arrays], [""] * len(raws), f"{about}, a colour for each value")
    if all(array.dtype in (np.uint8, np.bool_) for array in arrays):
        pixels = [_rgb(array * np.uint8(255) if array.dtype == np.bool_ else array) for array in arrays]
        return Drawn(pixels, [""] * len(arrays), about)
    before = None if undo is None else undo.undone(arrays)
    return _scaled(arrays, about, "") if before is None else _scaled(before, about, str(undo))


def _scaled(arrays: list[NDArray[Any]], about: str, undone: str) -> Drawn:
    """Return pictures whose elements are mapped to pixels by the range of all of them."""
    finite = [np.isfinite(array) for array in arrays]
    kept = [array[ok] for array, ok in zip(arrays, finite, strict=True)]
    low = min((float(one.min()) for one in kept if one.size), default=0.0)
    high = max((float(one.max()) for one in kept if one.size), default=0.0)
    black, white, how = _range(low, high, all(array.dtype.kind in "biu" for array in arrays), undone)
    pixels, notes = [], []
    for array, ok, own in zip(arrays, finite, kept, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            levels = np.rint((array.astype(np.float64) - black) * (255 / (white - black)))
        eight_bit = _rgb(np.nan_to_num(levels).clip(0, 255).astype(np.uint8))
        eight_bit[~(ok if ok.ndim == 2 else ok.all(axis=2))] = MAGENTA
        pixels.append(eight_bit)
        notes.append(_note(own, array.size, black, white))
    ends = [0.0 if abs(a) < 1e-6 * abs(b) else a for a, b in ((low, high), (high, low))]  # where rounding missed it
    values = f"values {ends[0]:.4g} .. {ends[1]:.4g}" if any(one.size for one in kept) else "no finite value"
    return Drawn(pixels, notes, f"{about}, {values}{how}")


def _range(low: float, high: float, whole: bool, undone: str) -> tuple[float, float, str]:
    """Return which values are black and white, and how the field's line says it."""
    how = f" after a normalisation was undone ({undone})" if undone else ""
    if whole and low >= 0 and high <= 255:
        return 0.0, 255.0, how
    if not whole and low >= -_SLACK and high <= 1 + _SLACK:
        return 0.0, 1.0, how
    if not whole and low >= -_SLACK and _BRIGHT <= high <= 255 + 255 * _SLACK:
        return 0.0, 255.0, how
    if undone:
        return 0.0, 1.0, f"{how}, clipped to 0 .. 1"
    return (low, low + 1.0, ", all of them black") if low == high else (low, high, ", from black to white")


def _note(finite: NDArray[Any], size: int, black: float, white: float) -> str:
    """Return what must be said of one picture: elements that are not finite, or beyond what is shown."""
    notes = []
    if missing := size - finite.size:
        notes.append(f"{missing:,} of {size:,} elements NaN or infinite (magenta)")
    slack = (white - black) * _SLACK
    if finite.size and (finite.min() < black - slack or finite.max() > white + slack):
        notes.append(f"clipped: {float(finite.min()):.4g} .. {float(finite.max()):.4g}")
    return "; ".join(notes)


def _rgb(array: Pixels) -> Pixels:
    """Return (height, width, 3) of grey, RGB or RGBA, whose transparent pixels are laid over white."""
    if array.ndim == 2 or array.shape[2] == 1:
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)
    if array.shape[2] == 3:
        return np.ascontiguousarray(array)
    alpha = array[..., 3:].astype(np.uint16)
    over = (array[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return over.astype(np.uint8)


# --- masks ------------------------------------------------------------------------------------------------------------


def _are_masks(arrays: list[NDArray[Any]], mask: bool) -> bool:
    """Return whether these arrays are masks: class numbers, a plane of integers."""
    planes = all(array.ndim == 2 or array.shape[2] == 1 for array in arrays)
    if not planes or any(array.dtype.kind not in "iu" for array in arrays):
        return False
    if any(array.dtype == np.uint8 for array in arrays):
        return mask
    return all(array.max() < 256 and np.isin(array[array < 0], _UNLABELLED).all() for array in arrays)


def colour_of(value: int) -> tuple[int, int, int]:
    """Return the colour of a value of a mask: 0 is black, -100, -1 and 255 are grey, all others bright."""
    if value == 0:
        return 0, 0, 0
    if value in _UNLABELLED:
        return 128, 128, 128
    hue = (value * 0.618033988749895) % 1  # neighbours lie far from each other: the golden ratio
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.75, 1.0 if value % 2 else 0.75)
    return round(red * 255), round(green * 255), round(blue * 255)


def _coloured(array: NDArray[Any]) -> Pixels:
    plane = array.reshape(array.shape[:2])
    values, places = np.unique(plane, return_inverse=True)
    palette = np.array([colour_of(int(value)) for value in values], np.uint8)
    return palette[places.reshape(plane.shape)]
