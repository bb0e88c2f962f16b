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
from torch.nn.functional import interpolate, pad

from penstock.device.stores import send
from penstock.recipe.recipe import Recipe

#: Bytes of float32 pictures that are resized at once.
_ROOM = 64 << 20
#: torch's antialiased resize runs out of a GPU's shared memory where it reduces too much at once; beyond this scale a
#: picture is averaged down first.
_STEEP = 16


def obstacle(recipe: Recipe) -> str | None:
    """Return why a recipe's operations cannot be done on a device, or None."""
    if recipe.fills is None:
        return "its values are converted in a way that a device cannot take over"
    for operation in recipe.operations:
        if operation["op"] not in _OPERATIONS:
            return f"no device does {operation.get('name', operation['op'])} as torchvision does"
        kind = operation.get("filter", "bilinear")
        if kind not in ("bilinear", "bicubic"):
            return f"no device does a {kind} resize"
        # A CenterCrop of a small picture pads it with black.
        fill = any(recipe.fills[operation["fill"]]) if operation["op"] == "CenterCrop" else False
        if fill or operation.get("pad_if_needed") or any(operation.get("padding", ())):
            return "no device pads"
    return None


class DecodedImages:
    """Pictures at one point of their recipe.

    They lie apart until they are all of one shape: `whole` then holds them, (samples, channels, height, width), and
    `each` is its rows. After a resize they are float32, and are rounded before the next operation that needs pixels.

    Args:
        each: pictures, uint8 (channels, height, width).
    """

    def __init__(self, each: Sequence[torch.Tensor]) -> None:
        self.each = list(each)
        self.whole: torch.Tensor | None = None

    def run(self, recipe: Recipe, drawn: Sequence[Sequence[Any]]) -> list[torch.Tensor]:
        """Do a recipe's operations with what was drawn for each picture, and return the results, uint8."""
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
            if any(lacking):
                picture = pad(picture, [left, right, above, below])
            top, left = (round((there - to) / 2) for there, to in zip(picture.shape[-2:], (height, width), strict=True))
            return _cut(picture, top, left, height, width)

        self._map(centre)

    def random_crop(self, _: dict[str, Any], drawn: list[Any]) -> None:
        self._set([_cut(picture, *box) for picture, box in zip(self.each, drawn, strict=True)])

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


_Operation = Callable[[DecodedImages, dict[str, Any], list[Any]], None]
_OPERATIONS: dict[str, _Operation] = {
    "RandomResizedCrop": DecodedImages.random_resized_crop,
    "Resize": DecodedImages.resize,
    "CenterCrop": DecodedImages.center_crop,
    "RandomCrop": DecodedImages.random_crop,
    "RandomFlip": DecodedImages.flip,
}


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
