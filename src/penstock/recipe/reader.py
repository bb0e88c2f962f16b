"""Reads torchvision transforms and makes native recipes of them, or says why not.

A recipe gives what the transform followed by torch's default_collate gives, bit for bit; random parameters
follow torchvision's distributions but are drawn by (seed, epoch, sample, position). No formula of torchvision's is
copied: the table from pixel values to elements and the colours of padding are made by running the very transform
objects on the 256 values of a pixel.

Penstock does not import torchvision: a program that has one of its transforms has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch.utils.data import default_collate

import penstock._native as _native
from penstock.recipe.augmentations import DESCRIPTIONS, describe, describe_erasing
from penstock.recipe.choosing import drawn_by
from penstock.recipe.inverse import Inverse
from penstock.recipe.originals import HOOKED, hooked
from penstock.recipe.presets import PRESETS, steps_of
from penstock.recipe.ramp import bytes_of, channels_of, means_itself, plain, ramp_of, shape_of
from penstock.recipe.recipe import DRAWING, Recipe, blurs
from penstock.recipe.resampling import sampling_of
from penstock.recipe.steps import Refusal, Step
from penstock.recipe.timm_transforms import HANDLERS as TIMM
from penstock.recipe.timm_transforms import timm_classes
from penstock.recipe.torchvision import (
    V2,
    Refused,
    changed,
    classes,
    flatten,
    is_int,
    is_v1,
    low_high,
    margins,
    pair,
    refuse,
    run,
    shown,
)


def read(transform: object, *, mode: str, size: tuple[int, int] | None = None, raw: bool = False) -> Recipe | Refusal:
    """Return the native recipe of a torchvision transform, or why there is none.

    Args:
        transform: a transform of torchvision.transforms or torchvision.transforms.v2, or a Compose of them.
        mode: of the PIL image that the transform would be given, 'RGB' or 'L'.
        size: (height, width), where all images have the same.
        raw: leave the conversion of the pixels to the consumer of the result, where nothing is lost by that.

    Raises:
        ValueError: another mode.
    """
    reader = Reader(mode, foreseen=True)
    if transform is None:
        why = "PIL images cannot be collated into a batch"
        return Refusal("transform=None", why, "a transform that ends in a tensor")
    if hooked():
        return HOOKED
    try:
        for step in flatten(transform):
            reader.add(step)
        return reader.finish(size, raw=raw)
    except Refused as refused:
        return refused.refusal


class Reader:
    """Follows one pipeline from the PIL image to its end."""

    def __init__(self, mode: str, *, drawn_by_python: bool = False, foreseen: bool = False) -> None:
        if mode not in ("RGB", "L"):
            raise ValueError(f"mode {mode!r}: recipes start from images of mode 'RGB' or 'L'")
        self.source_channels = channels_of(mode)
        self.drawn_by_python, self.foreseen = drawn_by_python, foreseen
        self.operations: list[dict[str, Any]] = []
        self.steps: list[Step] = []
        self.values: list[Any] = [ramp_of(mode)]
        """What the pipeline so far makes of each pixel value (first) and of the colour of each padding (the rest)."""
        self.fill_pixels: list[bytes] = []
        self.pointwise_names: list[str] = []
        self.erases = False  # RandomErasing may have been done: only conversions can follow
        self.keeps_info = True  # Pillow hands the image's info on, unless something is padded to it

    def add(self, transform: Any) -> None:
        handler = handlers().get(type(transform))
        if handler is None:
            raise Refused(unknown(transform))
        if (why := changed(transform)) is not None:
            refuse(transform, why, "the class as it is")
        handler(self, transform)

    def add_to_picture(self, transform: Any) -> None:
        """Add a step that makes a PIL image of a PIL image."""
        if handlers().get(type(transform)) is Reader.pointwise:
            refuse(transform, "it takes a sample's image, not a batch's row", "transforms that are all native")
        self.add(transform)

    def finish_picture(self) -> tuple[_native.Recipe, str]:
        """Return the recipe of the pixels of the picture, interleaved, and its mode."""
        colours = [(pixel, bytes_of(value)) for pixel, value in zip(self.fill_pixels, self.values[1:], strict=True)]
        native = _native.Recipe(self.source_channels, self.operations, "uint8", "hwc", None, colours)
        return native, self.values[0].mode

    def finish(self, size: tuple[int, int] | None, layout: str = "chw", raw: bool = False) -> Recipe:
        ramp = self.values[0]
        if not isinstance(ramp, torch.Tensor):
            why = "the pipeline ends in a PIL image, which cannot be collated into a batch"
            raise Refused(Refusal("transform", why, "ToTensor(), or another conversion to a tensor, at its end"))
        batch = default_collate([ramp, ramp])
        if type(batch) is not torch.Tensor or ramp.requires_grad:
            why = f"its results collate to {type(batch).__name__}, not to a plain tensor without gradient"
            raise Refused(Refusal("transform", why, "a pipeline that ends in a plain tensor"))
        table, values = self._unconverted() if raw else (None, self.values)
        name, sent = (str(tensor.dtype).removeprefix("torch.") for tensor in (ramp, values[0]))
        elements = [bytes_of(value) for value in values]
        try:
            native = _native.Recipe(
                self.source_channels,
                self.operations,
                sent,
                layout,
                None if means_itself(values[0]) else elements[0],
                list(zip(self.fill_pixels, elements[1:], strict=True)),
            )
        except ValueError as error:
            raise Refused(Refusal("transform", str(error), "another one")) from error
        if table is not None:
            self.steps.append(Step(f"send    uint8, 1 byte in place of {name}'s {ramp.element_size()}", "native"))
        if self.pointwise_names:
            how = "bytes as they are" if self._raw() else f"one table of 256 {name} a channel"
            what = f"convert {', '.join(self.pointwise_names)}: {how}"
            self.steps.append(Step(what, "native" if table is None else "device"))
        height, width = size or (0, 0)
        shape = _native.output_spec(native, width, height)[0]
        pixels = means_itself(values[0])
        fills = tuple(pixel or element for pixel, element in zip(self.fill_pixels, elements[1:], strict=True))
        steps, operations = tuple(self.steps), tuple(self.operations)
        return Recipe(
            native,
            values[0].dtype,
            shape,
            steps,
            table,
            operations,
            fills if pixels else None,
            self._leading(),
            tuple(self.fill_pixels),
            blurs(operations),
        )

    def _leading(self) -> int:
        """Return how many operations come before the first one that draws, or that pads with converted values."""

        def ends(operation: dict[str, Any]) -> bool:
            return operation["op"] in DRAWING or ("fill" in operation and not self.fill_pixels[operation["fill"]])

        count = next((number for number, one in enumerate(self.operations) if ends(one)), len(self.operations))
        while count and self.operations[count - 1]["op"] == "Pad":
            count -= 1
        return count

    def _unconverted(self) -> tuple[torch.Tensor | None, list[Any]]:
        """Return what pixel values become, and all values before that; no table where values would be lost."""
        table = plain(self.values[0]).reshape(-1, 256)
        try:
            inverse = Inverse(table)
            return table, [inverse(value) for value in self.values]
        except ValueError:
            return None, self.values

    # ---- what the picture is at this point ----

    def is_pil(self) -> bool:
        return isinstance(self.values[0], Image.Image)

    def size(self) -> tuple[int, int, int] | None:
        """Return (channels, height, width) of the picture at this point; None: it depends on the image's size."""
        fills = [(b"", b"")] * len(self.fill_pixels)
        so_far = _native.Recipe(self.source_channels, self.operations, "uint8", "chw", None, fills)
        return _native.output_spec(so_far, 0, 0)[0]

    def _raw(self) -> bool:  # still 8-bit, each value meaning itself
        return self.is_pil() or means_itself(self.values[0])

    def _channels(self) -> int:
        ramp = self.values[0]
        return channels_of(ramp.mode) if self.is_pil() else int(ramp.shape[0])

    # ---- transforms that act on each value by itself ----

    def pointwise(self, transform: Any) -> None:
        statistics = [getattr(transform, name) for name in ("mean", "std") if hasattr(transform, name)]
        if any(run(transform, torch.as_tensor, numbers).ndim > 1 for numbers in statistics):
            refuse(transform, "mean or std is not one number a channel", "a sequence of numbers")
        if isinstance(getattr(transform, "dtype", None), dict) and self.is_pil():
            refuse(transform, "a dtype for each type of input, which may be any of Pillow's", "ToImage before it")
        values = [run(transform, transform, value) for value in self.values]
        for before, after in zip(self.values, values, strict=True):
            same = isinstance(after, Image.Image) and isinstance(before, Image.Image) and after.mode == before.mode
            if not same and not (isinstance(after, torch.Tensor) and tuple(after.shape) == shape_of(before)):
                refuse(transform, "it changes the number of channels", "as many numbers as the image has channels")
        self.values = values
        self.pointwise_names.append(shown(transform))

    # ---- transforms that move pixels ----

    def random_resized_crop(self, transform: Any) -> None:
        scale, ratio = low_high(transform, "scale"), low_high(transform, "ratio")
        if not (0 <= scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
            refuse(transform, "scale or ratio is not (low, high)", "scale=(low, high), ratio=(low, high)")
        size = pair(transform, transform.size)
        sampling = sampling_of(transform, pil=self.is_pil(), raw=self._raw())
        self.add_operation(transform, "resize", op="RandomResizedCrop", size=size, scale=scale, ratio=ratio, **sampling)

    def resize(self, transform: Any) -> None:
        given, longest = transform.size, transform.max_size
        sizes = [given] if isinstance(given, int) else [] if given is None else list(given)
        if not all(is_int(n) and n > 0 for n in [*sizes, 1 if longest is None else longest]):
            refuse(transform, f"size={given!r}, max_size={longest!r}", "positive whole numbers")
        if longest is not None and (len(sizes) == 2 or longest <= max(sizes, default=0)):
            refuse(transform, "max_size contradicts size, torchvision raises", "max_size above the shorter edge's size")
        size = tuple(sizes) if len(sizes) == 2 else None
        shorter = sizes[0] if len(sizes) == 1 else 0
        sampling = sampling_of(transform, pil=self.is_pil(), raw=self._raw())
        self.add_operation(
            transform, "resize", op="Resize", size=size, shorter=shorter, longest=longest or 0, **sampling
        )

    def center_crop(self, transform: Any) -> None:
        size = pair(transform, transform.size)
        corner = run(transform, type(transform)((4, 4)), self.dot())
        self.add_operation(transform, "crop", op="CenterCrop", size=size, fill=self._fill(corner))

    def random_crop(self, transform: Any) -> None:
        second = not is_v1(transform)
        padding = transform.padding
        if second and padding is not None:
            left, right, top, bottom = padding  # transforms.v2 keeps them in this order
            padding = [left, top, right, bottom]
        pads = padding is not None or transform.pad_if_needed
        self.add_operation(
            transform,
            "crop",
            op="RandomCrop",
            size=pair(transform, transform.size),
            padding=margins(transform, padding) if padding is not None else (0, 0, 0, 0),
            mode=transform.padding_mode if pads else "constant",
            fill=self._fill(self._padded(transform) if pads else self.dot()),
            pad_if_needed=bool(transform.pad_if_needed),
            pad_once=second,
        )
        self.keeps_info &= second or padding is None  # the first generation pads by 0, too

    def pad(self, transform: Any) -> None:
        padding, mode = margins(transform, transform.padding), transform.padding_mode
        fill = self._fill(self._padded(transform))
        self.add_operation(transform, "pad", op="Pad", padding=padding, mode=mode, fill=fill)
        self.keeps_info = False

    def flip(self, transform: Any) -> None:
        if not isinstance(transform.p, int | float):
            refuse(transform, f"p={transform.p!r} is not a number", "a number")
        horizontal = type(transform) in classes("RandomHorizontalFlip")
        self.add_operation(transform, "flip", op="RandomFlip", horizontal=horizontal, p=float(transform.p))

    def grayscale(self, transform: Any) -> None:
        wanted = transform.num_output_channels
        if self._channels() == 1 and (wanted == 1 or not self.is_pil()):
            self.pointwise(transform)
            return
        if not self.is_pil() or wanted not in (1, 3):
            refuse(transform, "only Pillow's grey is reproduced", "Grayscale before the conversion to a tensor")
        self.add_operation(transform, "grey", op="Grayscale", channels=wanted)
        # From here on a value of the grey picture means itself; paddings so far are in the picture.
        mode = "L" if wanted == 1 else "RGB"
        self.keeps_info &= wanted == 1
        self.values = [ramp_of(mode), *(Image.new(mode, (1, 1)) for _ in self.values[1:])]

    # ---- transforms that change colours, too ----

    def augment(self, transform: Any) -> None:
        description = describe(transform, self)
        drawn = drawn_by(transform, description, self._channels()) if self.drawn_by_python else None
        own = {} if drawn is None else {"drawn_by": drawn}
        name = type(transform).__name__
        self.add_operation(transform, "augment", op="Augment", name=name, augmentation=description, **own)

    def random_erasing(self, transform: Any) -> None:
        described, erased = describe_erasing(transform, self.dot())
        self.add_operation(transform, "erase", op="RandomErasing", fill=self._fill(erased), **described)
        self.erases = True

    def preset(self, transform: Any) -> None:
        """Add what the preprocessing of torchvision's weights does, transform by transform."""
        for step in steps_of(transform):
            if self.is_pil() or type(step) not in classes("PILToTensor"):
                self.add(step)

    def add_operation(self, transform: Any, verb: str, **operation: Any) -> None:
        """Add what a transform does to pixels, as the native core takes it. Raises Refused."""
        if self.erases and operation["op"] != "RandomErasing":
            refuse(transform, "it comes after RandomErasing", "RandomErasing as the last step but for conversions")
        try:
            _native.Recipe(self.source_channels, [operation], "uint8", "chw", None, [(b"", b"")] * len(self.values))
        except (ValueError, TypeError, RuntimeError) as error:
            refuse(transform, str(error), "other parameters")
        self.operations.append(operation)
        self.steps.append(Step(f"{verb:<7} {shown(transform)}", "native"))

    # ---- the colour of padding ----

    def dot(self) -> Any:
        """Return a picture of 2 x 2 pixels as the pipeline has it at this point."""
        ramp = self.values[0]
        return Image.new(ramp.mode, (2, 2)) if self.is_pil() else ramp[..., :1].repeat(1, 2, 2)

    def _padded(self, transform: Any) -> Any:
        fill, mode = transform.fill, transform.padding_mode
        if isinstance(fill, dict) and any(isinstance(kind, type) and issubclass(kind, Image.Image) for kind in fill):
            refuse(transform, "a fill for types of PIL images", "a fill for 'others'")
        if not self.is_pil() and mode != "constant" and not (self._raw() or self.values[0].is_floating_point()):
            refuse(transform, f"padding_mode={mode!r} of whole numbers", "the padding before the conversion")
        if is_v1(transform):
            functional = sys.modules["torchvision.transforms.functional"]
            return run(transform, lambda dot: functional.pad(dot, [1, 1, 1, 1], fill, mode), self.dot())
        (padder,) = classes("Pad", V2)
        return run(transform, padder(1, fill, mode), self.dot())

    def _fill(self, picture: Any) -> int:
        """Add the upper left pixel as a colour of padding and return its number."""
        corner = picture.crop((0, 0, 1, 1)) if self.is_pil() else picture[..., :1, :1].clone()
        self.values.append(corner)
        self.fill_pixels.append(bytes_of(corner) if self._raw() else b"")
        return len(self.fill_pixels) - 1


_Handler = Callable[[Reader, Any], None]
_CONVERSIONS = ("ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToDtype", "ConvertImageDtype")
_HANDLERS: dict[str, _Handler] = {
    "RandomResizedCrop": Reader.random_resized_crop,
    "Resize": Reader.resize,
    "CenterCrop": Reader.center_crop,
    "RandomCrop": Reader.random_crop,
    "Pad": Reader.pad,
    "RandomHorizontalFlip": Reader.flip,
    "RandomVerticalFlip": Reader.flip,
    "Grayscale": Reader.grayscale,
    "RandomErasing": Reader.random_erasing,
    **dict.fromkeys(DESCRIPTIONS, Reader.augment),
    **dict.fromkeys(PRESETS, Reader.preset),
    **dict.fromkeys((*_CONVERSIONS, "Normalize", "Identity"), Reader.pointwise),
}


def handlers() -> dict[type, _Handler]:
    """Return what reads each class of transform that is known and imported."""
    own = {kind: handler for name, handler in _HANDLERS.items() for kind in classes(name)}
    return own | {kind: handler for name, handler in TIMM.items() for kind in timm_classes(name)}


def unknown(transform: object) -> Refusal:
    """Return why a transform of another class is left to Python."""
    name = type(transform).__name__
    if type(transform) in classes("Compose"):
        why = changed(transform) or "its transforms are no list of them"
        return Refusal(name, why, "the class as it is")
    for base in type(transform).__mro__[1:]:
        if base in handlers() or base in classes("Compose"):
            return Refusal(name, f"a subclass of {base.__name__} may do otherwise", f"{base.__name__} itself")
    known = ", ".join(_HANDLERS)
    remedy = f"torchvision's {known}, on their own or in a Compose"
    return Refusal(name, "the native core does not know it", remedy)
