"""The operations of a recipe on decoded pictures, on their device: close to what native/image does on the host.

Resizes are torch's, in float32 and rounded at their end: Pillow rounds between its two passes as well, so that values
differ by 1 here and there. All else is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from penstock.device.stores import send
from penstock.recipe.recipe import Recipe

#: Bytes of float32 pictures that are resized at once.
_ROOM = 64 << 20
#: torch's antialiased resize runs out of a GPU's shared memory where it reduces too much at once; beyond this scale a
#: picture is averaged down first.
_STEEP = 16
#: Pillow's weights of red, green and blue, of 65536.
_GREY = (19595, 38470, 7471)


def obstacle(recipe: Recipe) -> str | None:
    """Return why a recipe's operations cannot be done on a device, or None."""
    if recipe.fills is None:
        return "its values are converted in a way that a device cannot take over"
    for operation in recipe.operations:
        if operation["op"] not in _OPERATIONS:
            return f"no device does {operation.get('name', operation['op'])} as torchvision does"
        kind = operation.get("filter", "bilinear")
        if kind not in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            return f"torch has no {kind} resize"
    return None


class DecodedImages:
    """Pictures at one point of their recipe.

    They lie apart until they are all of one shape: `whole` then holds them, (samples, channels, height, width), and
    `each` is its rows. After a resize they are float32, and are rounded before the next operation that needs pixels.

    Args:
        each: pictures, uint8 (channels, height, width).
        axis_indices: of the same device and stream.
    """

    def __init__(self, each: Sequence[torch.Tensor], axis_indices: AxisIndices) -> None:
        self.each = list(each)
        self.whole: torch.Tensor | None = None
        self._axis_indices = axis_indices
        self._fills: Sequence[bytes] = ()

    def run(self, recipe: Recipe, drawn: Sequence[Sequence[Any]]) -> list[torch.Tensor]:
        """Do a recipe's operations with what was drawn for each picture, and return the results, uint8."""
        assert recipe.fills is not None
        self._fills = recipe.fills
        for number, operation in enumerate(recipe.operations):
            _OPERATIONS[operation["op"]](self, operation, [parameters[number] for parameters in drawn])
        self._together()
        self._round()
        self._map(lambda picture: picture.to(torch.uint8))
        return self.each

    # --- operations -------------------------------------------------------------------------------------------------

    def random_resized_crop(self, operation: dict[str, Any], drawn: list[Any]) -> None:
        self._set([_cut(picture, *box) for picture, box in zip(self.each, drawn, strict=True)])
        self._resize([operation["size"]] * len(self.each), operation)

    def resize(self, operation: dict[str, Any], _: list[Any]) -> None:
        self._resize([resized(operation, *picture.shape[1:]) for picture in self.each], operation)

    def center_crop(self, operation: dict[str, Any], _: list[Any]) -> None:
        height, width = operation["size"]

        def centre(picture: torch.Tensor) -> torch.Tensor:
            lacking = [max(0, height - picture.shape[-2]), max(0, width - picture.shape[-1])]
            (above, left), (below, right) = ([n // 2 for n in lacking], [(n + 1) // 2 for n in lacking])
            picture = self._padded(picture, (left, above, right, below), "constant", self._fills[operation["fill"]])
            top, left = (round((there - to) / 2) for there, to in zip(picture.shape[-2:], (height, width), strict=True))
            return _cut(picture, top, left, height, width)

        self._map(centre)

    def random_crop(self, operation: dict[str, Any], drawn: list[Any]) -> None:
        fill, mode, given = self._fills[operation["fill"]], operation["mode"], tuple(operation["padding"])
        height, width = operation["size"]

        def pad(picture: torch.Tensor) -> torch.Tensor:
            margins = given
            if not operation["pad_once"]:
                picture, margins = self._padded(picture, given, mode, fill), (0, 0, 0, 0)
            if operation["pad_if_needed"]:
                left, top, right, bottom = margins
                across = max(0, width - picture.shape[-1] - left - right)
                down = max(0, height - picture.shape[-2] - top - bottom)
                margins = (left + across, top + down, right + across, bottom + down)
            return self._padded(picture, margins, mode, fill)

        self._map(pad)
        self._set([_cut(picture, *box) for picture, box in zip(self.each, drawn, strict=True)])

    def pad(self, operation: dict[str, Any], _: list[Any]) -> None:
        margins, mode, fill = tuple(operation["padding"]), operation["mode"], self._fills[operation["fill"]]
        self._map(lambda picture: self._padded(picture, margins, mode, fill))

    def flip(self, operation: dict[str, Any], drawn: list[Any]) -> None:
        if not any(drawn):
            return
        axis = -1 if operation["horizontal"] else -2
        self._together()
        if self.whole is None:
            self._set([picture.flip(axis) if do else picture for picture, do in zip(self.each, drawn, strict=True)])
        else:
            chosen = send(np.array(drawn, dtype=bool), self.whole.device).view(-1, 1, 1, 1)
            self._set_whole(torch.where(chosen, self.whole.flip(axis), self.whole))

    def grayscale(self, operation: dict[str, Any], _: list[Any]) -> None:
        self._round()

        def grey(picture: torch.Tensor) -> torch.Tensor:
            if picture.shape[-3] == 3:
                red, green, blue = picture.to(torch.int32).unbind(-3)
                sums = red * _GREY[0] + green * _GREY[1] + blue * _GREY[2] + 0x8000
                picture = (sums >> 16).to(torch.uint8).unsqueeze(-3)
            return picture.expand(*picture.shape[:-3], operation["channels"], *picture.shape[-2:])

        self._map(grey)

    # --- their parts ------------------------------------------------------------------------------------------------

    def _set(self, each: list[torch.Tensor]) -> None:
        self.each, self.whole = each, None

    def _set_whole(self, whole: torch.Tensor) -> None:
        self.each, self.whole = list(whole.unbind()), whole

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace each picture, or all at once."""
        if self.whole is not None:
            self._set_whole(function(self.whole))
        else:
            self._set([function(picture) for picture in self.each])

    def _together(self) -> None:
        """Put the pictures together, if they are of one shape and dtype."""
        if self.whole is None and len({(picture.shape, picture.dtype) for picture in self.each}) == 1:
            self._set_whole(torch.stack(self.each))

    def _round(self) -> None:
        self._map(lambda picture: picture.round().clamp(0, 255) if picture.is_floating_point() else picture)

    def _resize(self, sizes: list[tuple[int, int]], operation: dict[str, Any]) -> None:
        if operation["filter"].startswith("nearest"):
            kind = "pillow" if operation["arithmetic"].startswith("pillow") else operation["filter"]
            self._set([self._nearest(picture, size, kind) for picture, size in zip(self.each, sizes, strict=True)])
            return
        self._round()
        alike: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, (picture, size) in enumerate(zip(self.each, sizes, strict=True)):
            if tuple(picture.shape[1:]) != tuple(size):
                alike[(tuple(picture.shape), picture.dtype, tuple(size))].append(number)
        each = list(self.each)
        for (shape, _, size), numbers in alike.items():
            at_once = max(1, _ROOM // (4 * shape[0] * shape[1] * shape[2]))
            for begin in range(0, len(numbers), at_once):
                some = numbers[begin : begin + at_once]
                together = self.each[some[0]][None] if len(some) == 1 else torch.stack([self.each[n] for n in some])
                for number, picture in zip(some, _scaled(together, size, operation).unbind(), strict=True):
                    each[number] = picture
        if alike:
            self._set([picture.to(torch.float32) for picture in each])

    def _nearest(self, picture: torch.Tensor, size: tuple[int, int], kind: str) -> torch.Tensor:
        for axis, to in zip((-2, -1), size, strict=True):
            if picture.shape[axis] != to:
                picture = picture.index_select(axis, self._axis_indices.nearest(picture.shape[axis], to, kind))
        return picture

    def _padded(self, picture: torch.Tensor, margins: tuple[int, ...], mode: str, fill: bytes) -> torch.Tensor:
        left, top, right, bottom = margins
        if not any(margins):
            return picture
        height, width = picture.shape[-2:]
        if mode == "constant":
            padded = picture.new_empty((*picture.shape[:-2], top + height + bottom, left + width + right))
            for channel, value in zip(padded.unbind(-3), fill, strict=True):
                channel.fill_(value)
            padded[..., top : top + height, left : left + width] = picture
            return padded
        for axis, before, size, after in ((-2, top, height, bottom), (-1, left, width, right)):
            if before or after:
                picture = picture.index_select(axis, self._axis_indices.padding(size, before, after, mode))
        return picture


_Operation = Callable[[DecodedImages, dict[str, Any], list[Any]], None]
_OPERATIONS: dict[str, _Operation] = {
    "RandomResizedCrop": DecodedImages.random_resized_crop,
    "Resize": DecodedImages.resize,
    "CenterCrop": DecodedImages.center_crop,
    "RandomCrop": DecodedImages.random_crop,
    "Pad": DecodedImages.pad,
    "RandomFlip": DecodedImages.flip,
    "Grayscale": DecodedImages.grayscale,
}


class AxisIndices:
    """Which row or column of a picture each one of a padded or resized picture shows: indices on a device.

    They are kept, and used on one stream at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[Any, ...], torch.Tensor] = {}

    def padding(self, size: int, before: int, after: int, mode: Any) -> torch.Tensor:
        """Return the indices for numpy's padding of this mode."""
        return self._kept((size, before, after, mode), lambda: np.pad(np.arange(size), (before, after), mode=mode))

    def nearest(self, size: int, to: int, kind: str) -> torch.Tensor:
        """Return the indices for a resize, as native/image/resize_tables.cc: 'pillow', 'nearest' or 'nearest-exact'."""

        def indices() -> NDArray[np.int64]:
            if kind == "pillow":  # its Geometry.c adds the step output by output, roundings and all
                steps = np.full(to, size / to)
                steps[0] /= 2
                found = np.cumsum(steps)
            else:
                half = np.float32(0.5 if kind == "nearest-exact" else 0)
                found = (np.arange(to, dtype=np.float32) + half) * (np.float32(size) / np.float32(to))
            return np.minimum(found.astype(np.int64), size - 1)

        return self._kept((size, to, kind), indices)

    def _kept(self, key: tuple[Any, ...], make: Callable[[], NDArray[np.int64]]) -> torch.Tensor:
        if key not in self._known:
            if len(self._known) >= 256:  # pictures of many sizes
                self._known.clear()
            self._known[key] = send(make(), self._device)
        return self._known[key]


def resized(operation: dict[str, Any], height: int, width: int) -> tuple[int, int]:
    """Return (height, width) that a Resize gives a picture."""
    if operation["size"] is not None:
        to: tuple[int, int] = operation["size"]
        return to
    short, long = sorted((height, width))
    if operation["shorter"]:
        new_short, new_long = operation["shorter"], int(operation["shorter"] * long / short)
        if operation["longest"] and new_long > operation["longest"]:
            new_short, new_long = int(operation["longest"] * new_short / new_long), operation["longest"]
    else:
        new_short, new_long = int(operation["longest"] * short / long), operation["longest"]
    return (new_long, new_short) if width <= height else (new_short, new_long)


def _scaled(pictures: torch.Tensor, size: tuple[int, int], operation: dict[str, Any]) -> torch.Tensor:
    """Return pictures of this size, float32, not rounded."""
    # Without a gap in memory: a window of larger pictures, or interleaved ones, would be copied again otherwise.
    values = pictures.to(torch.float32, memory_format=torch.contiguous_format)
    if operation["antialias"]:
        there = values.shape[-2:]
        enough = tuple(
            -(-n // max(1, 2 * n // (_STEEP * to))) if n > _STEEP * to else n for n, to in zip(there, size, strict=True)
        )
        if enough != tuple(there):
            values = interpolate(values, enough, mode="area")
    return interpolate(values, size, mode=operation["filter"], align_corners=False, antialias=operation["antialias"])


def _cut(picture: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    return picture[..., top : top + height, left : left + width]
