"""Known transforms of torchvision that follow each other, run together by the native core on a PIL image.

The result has the elements, strides and type that torchvision's would have, after the same draws from torch's
generator, for torchvision's own code draws them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from penstock import _native
from penstock.recipe import drawing
from penstock.recipe.prefix import picture
from penstock.recipe.reader import Reader
from penstock.recipe.torchvision import Refused, classes, is_v1, margins

#: What a run gives where Python must do its part.
REFUSED = object()


def called(transforms: Sequence[Any], begin: int, value: Any) -> Any:
    """Return what the transforms from one on return in turn; as a loop does, it goes by what the list is by then."""
    while begin < len(transforms):
        value = transforms[begin](value)
        begin += 1
    return value


@dataclass(frozen=True)
class Run:
    """Known transforms that follow each other, on a PIL image."""

    length: int
    """How many transforms."""
    natives: dict[bool, _native.Recipe]
    """What they do, by whether the channels of the result lie side by side."""
    drawing: tuple[Draw | None, ...]
    """For each native operation, what has torchvision draw its parameters; None: it has none."""
    channels: int
    """Of the result."""
    mode: str | None
    """Of the result, a PIL image; None: it is a tensor."""
    keeps_info: bool
    """A PIL image has the info of the one before it, unless something was padded to it."""
    like: Any
    """The tensor that the transforms make of a small image."""
    tail: int
    """How many operations come before the conversion to a tensor."""
    paddings: tuple[tuple[int, int], ...]
    """Rows and columns that each operation adds before it crops."""
    remakes: bool
    """A PIL image is never the one that was given."""
    learned: dict[Any, bool | None] = field(default_factory=dict)
    """How the channels of a tensor lie that was cropped or resized, by what was done to it; as torch had it."""

    def __call__(self, image: Image.Image, transforms: Sequence[Any]) -> Any:
        """Return the result; or REFUSED, and torch's generator is as it was. Raises what the transforms raise.

        transforms: the ones that this was read from.
        """
        width, height = image.size
        sizes = _native.sizes(next(iter(self.natives.values())), width, height)
        if not sizes:
            return REFUSED
        marked = drawing.mark() if any(self.drawing) else None
        key, interleaved = None, None
        try:
            draws = [None if draw is None else draw(*size) for draw, size in zip(self.drawing, sizes, strict=False)]
            key = self._key(sizes, draws)
            interleaved = self._interleaved(key, sizes, draws)
            if interleaved is not None:
                image.load()  # not before: where nothing is done, nothing is read
                # Raises in a Pillow before 11.2, and for an image in several blocks of memory.
                schema, pixels = image.__arrow_c_array__()
                if image.size != (width, height):  # some formats tell only then
                    raise ValueError(image.size)
                out = self._room(interleaved, *sizes[-1])
                native = self.natives[interleaved]
                padded = _native.transform_image(native, schema, pixels, width, height, draws, out)
                if not isinstance(padded, str):
                    return self._result(image, out, interleaved, padded)
        except Exception:  # torchvision itself raises it, where there is anything to raise
            key = None
        if marked is not None:
            drawing.go_back(marked)
        return self._learn(key, image, transforms) if key is not None and interleaved is None else REFUSED

    def _key(self, sizes: Sequence[tuple[int, int]], draws: Sequence[Any]) -> Any:
        """Return what the strides of the result depend on, where tensors are cropped or resized; None: it is known."""
        if self.mode is not None or self.tail == len(draws) or min(map(min, sizes[self.tail :])) < 2:
            return None
        key: list[Any] = []
        for at in range(self.tail, len(draws)):
            drawn = draws[at]
            given = [side + more for side, more in zip(sizes[at], self.paddings[at], strict=True)]
            cropped = drawn[2:] if isinstance(drawn, tuple) else given
            if min(cropped) < 2:
                return None
            key += [_compared(given, cropped), _compared(cropped, sizes[at + 1]), drawn is True]
        done = tuple(key)
        return None if len(self.learned) >= 256 and done not in self.learned else done

    def _interleaved(self, key: Any, sizes: Sequence[tuple[int, int]], draws: Sequence[Any]) -> bool | None:
        """Return whether the channels of the result lie side by side; None where the transforms must be called."""
        if self.mode is not None:
            # An image that nothing is done to is the result itself, with its file and all its attributes.
            untouched = not self.remakes and len(set(sizes)) == 1 and not any(drawn is True for drawn in draws)
            return None if untouched else True
        if key is not None:
            return self.learned.get(key)
        # The strides of sides of one pixel may be any.
        return _interleaved(self.like) if self.tail == len(draws) and min(sizes[-1]) > 1 else None

    def _learn(self, key: Any, image: Image.Image, transforms: Sequence[Any]) -> Any:
        """Call the transforms themselves, and take note of how the result lies."""
        if key in self.learned:
            return REFUSED
        result = called(transforms, 0, image)
        channels, height, width = result.shape
        lies = {(1, width * channels, channels): True, (height * width, width, 1): False}
        self.learned[key] = lies.get(result.stride())
        return result

    def _result(self, image: Image.Image, out: torch.Tensor, interleaved: bool, padded: bool) -> Any:
        if self.mode is not None:
            copied = getattr(image, "_copy_info", image.info.copy)  # lists in it are copied since Pillow 12
            return picture(self.mode, out.numpy(), copied() if self.keeps_info and not padded else {})
        tensor = out.permute(2, 0, 1) if interleaved else out
        return tensor if type(self.like) is torch.Tensor else tensor.as_subclass(type(self.like))

    def _room(self, interleaved: bool, height: int, width: int) -> torch.Tensor:
        """Return the memory of the result, with the native core's order of dimensions."""
        dtype = torch.uint8 if self.mode is not None else self.like.dtype
        shape = (height, width, self.channels) if interleaved else (self.channels, height, width)
        return torch.empty(shape, dtype=dtype, device="cpu")


def _compared(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return for each side whether it is shorter (-1), as long (0), or longer (1) than the other's."""
    return tuple((a > b) - (a < b) for a, b in zip(one, other, strict=True))


def read_run(transforms: Sequence[Any], mode: str) -> Run | None:
    """Return how as many of the first transforms as are known are run together on PIL images of a mode.

    None where that gains nothing: neither a resize nor a tensor is among what they do.
    """
    reader = Reader(mode)
    drawing: list[Draw | None] = []
    length, whole = 0, 0
    tail: int | None = None
    try:
        for transform in transforms:
            reader.add(transform)
            length += 1
            drawing += [_drawing(transform)] * (len(reader.operations) - len(drawing))
            tensor = not isinstance(reader.values[0], Image.Image)
            tail = len(drawing) if tensor and tail is None else tail
            # A crop of a tensor is a part of it, until something makes another one of it.
            if not (tensor and _is_part(transform, whole == length - 1)):
                whole = length
    except Refused:
        pass
    if whole < length:
        return read_run(transforms[:whole], mode)
    tail = len(drawing) if tail is None else tail
    like: Any = reader.values[0]
    operations = reader.operations[: len(drawing)]
    try:
        if isinstance(like, Image.Image):
            if not any("filter" in operation for operation in operations):
                return None
            native, result = reader.finish_picture()
            natives = {True: native}
            channels = len(result)
        else:
            if not like.is_cpu or like.requires_grad:
                return None
            layouts = {_interleaved(like)} if tail == len(operations) else {True, False}
            natives = {each: reader.finish(None, layout="hwc" if each else "chw").native for each in layouts}
            channels, result = int(like.shape[0]), None
    except Refused:
        return None
    return Run(
        length,
        natives,
        tuple(drawing),
        channels,
        result,
        reader.keeps_info,
        like,
        tail,
        tuple(_padding(operation) for operation in operations),
        any(operation["op"] == "RandomResizedCrop" for operation in operations),
    )


def _is_part(transform: Any, whole: bool) -> bool:
    """Return whether what a transform makes of a tensor is a part of a larger one, or may be."""
    kind = type(transform)
    if any(kind in classes(name) for name in ("CenterCrop", "RandomCrop")):
        return True
    return not whole and any(kind in classes(name) for name in ("Identity", "ToPureTensor"))


def _padding(operation: dict[str, Any]) -> tuple[int, int]:
    left, top, right, bottom = operation.get("padding", (0, 0, 0, 0)) if operation["op"] == "RandomCrop" else (0,) * 4
    return top + bottom, left + right


def _interleaved(image: torch.Tensor) -> bool:
    """Return whether the channels of a pixel lie side by side, as Pillow's and NumPy's do."""
    return image.stride(0) == 1


# --- what torchvision draws -------------------------------------------------------------------------------------------

Draw = Callable[[int, int], Any]
"""Has a transform draw its parameters for a picture of (height, width); returns them as the native core takes them."""


def _drawing(transform: Any) -> Draw | None:
    kind = type(transform)
    if kind in classes("RandomResizedCrop") or kind in classes("RandomCrop"):
        if not is_v1(transform):
            return functools.partial(_crop_drawn_by_v2, transform)
        if kind in classes("RandomCrop"):
            return functools.partial(_crop_drawn_by_v1, transform)
        return functools.partial(_resized_crop_drawn_by_v1, transform)
    if kind in classes("RandomHorizontalFlip") or kind in classes("RandomVerticalFlip"):
        return functools.partial(_flip_drawn, transform)
    return None


def _seen(height: int, width: int) -> torch.Tensor:
    """Return something of that size for torchvision to look at."""
    return torch.empty(1, device="cpu").expand(1, height, width)


def _resized_crop_drawn_by_v1(transform: Any, height: int, width: int) -> Any:
    return transform.get_params(_seen(height, width), transform.scale, transform.ratio)


def _crop_drawn_by_v1(transform: Any, height: int, width: int) -> Any:
    wanted_height, wanted_width = transform.size
    if transform.padding is not None:
        left, top, right, bottom = margins(transform, transform.padding)
        height, width = height + top + bottom, width + left + right
    if transform.pad_if_needed:
        width += 2 * max(0, wanted_width - width)
        height += 2 * max(0, wanted_height - height)
    return transform.get_params(_seen(height, width), transform.size)


def _crop_drawn_by_v2(transform: Any, height: int, width: int) -> Any:
    drawn = transform.make_params([_seen(height, width)])
    return drawn["top"], drawn["left"], drawn["height"], drawn["width"]


def _flip_drawn(transform: Any, height: int, width: int) -> bool:
    return drawing.flips(transform.p)
