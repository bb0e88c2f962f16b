"""Reads torchvision transforms and makes native recipes of them, or says why not.

A recipe gives what the transform followed by torch's default_collate gives, bit for bit; random parameters
follow torchvision's distributions but are drawn by (seed, epoch, sample, position). No formula of torchvision's is
copied: the table from pixel values to elements and the colours of padding are made by running the transform itself
objects on the 256 values of a pixel.

Penstock does not import torchvision: a program that has one of its transforms has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from PIL import Image
from torch.utils.data import default_collate

import penstock._native as _native
from penstock.errors import InvalidOption
from penstock.recipe import augmentations, conversions, geometry
from penstock.recipe.conversions import Inverse, bytes_of, channels_of, means_itself, plain, ramp_of
from penstock.recipe.originals import HOOKED, hooked
from penstock.recipe.steps import DRAWING, Recipe, Refusal, Step
from penstock.recipe.torchvision import V2, Draw, Known, Refused, changed, classes, flatten, is_v1, refuse, run, shown

TRANSFORMS: dict[str, Known] = {**geometry.TRANSFORMS, **augmentations.TRANSFORMS, **conversions.TRANSFORMS}
"""The transforms that are known, by the names of torchvision's classes of both generations; each has one home."""
#: Those of timm's, which convert.
_OF_TIMM = ("MaybeToTensor", "MaybePILToTensor", "ToTensor")


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
    reader = Reader(mode)
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


class Views:
    """A transform that makes several views of an image, as SimCLR and DINO need them.

    Called with an image it returns a list with the result of each of its transforms. Where the native core knows all of
    them, each image is decoded once for all its views, and only the part that they need.

    Args:
        transforms: called with the image, in turn; a transform may be listed several times.

    Raises:
        InvalidOption: there is no transform.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        if not isinstance(transforms, Iterable):
            raise TypeError(f"Views takes a list, one transform a view: Views([{type(transforms).__name__}(...), ...])")
        self.transforms = list(transforms)
        if not self.transforms:
            raise InvalidOption("Views([]) makes no view: give it at least one transform")

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]

    def __repr__(self) -> str:
        lines = "".join(f"\n{transform},".replace("\n", "\n    ") for transform in self.transforms)
        return f"Views([{lines}\n])"


class Reader:
    """Follows one pipeline from the PIL image to its end; with `ramp`, from a tensor (conversions.tensor_ramp)."""

    def __init__(self, mode: str, *, drawn_by_python: bool = False, ramp: torch.Tensor | None = None) -> None:
        if mode not in ("RGB", "L"):
            raise ValueError(f"mode {mode!r}: recipes start from images of mode 'RGB' or 'L'")
        self.source_channels = channels_of(mode)
        self.drawn_by_python = drawn_by_python
        self.operations: list[dict[str, Any]] = []
        self.draws: list[Draw | None] = []
        """For each operation, what has torchvision draw its parameters; None: it has none."""
        self.steps: list[Step] = []
        self.values: list[Any] = [ramp_of(mode) if ramp is None else ramp]
        """What the pipeline so far makes of each pixel value (first) and of the colour of each padding (the rest)."""
        self.fill_pixels: list[bytes] = []
        self.pointwise_names: list[str] = []
        self.erases = False  # RandomErasing may have been done: only conversions can follow
        self.keeps_info = True  # Pillow hands the image's info on, unless something is padded to it

    def add(self, transform: Any) -> None:
        known = self.known(transform)
        if known is None:
            raise Refused(unknown(transform))
        if (why := changed(transform)) is not None:
            refuse(transform, why, "the unmodified class")
        known.add(self, transform)

    def known(self, transform: Any) -> Known | None:
        return known_transforms().get(type(transform))

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
            why = f"its results collate to {type(batch).__name__}, not to a plain tensor without a gradient"
            raise Refused(Refusal("transform", why, "a pipeline that ends in a plain tensor"))
        table: torch.Tensor | None = None
        values = self.values
        if raw:  # what pixel values become, and all values before that; no table where values would be lost
            with suppress(ValueError):
                inverse = Inverse(made := plain(ramp).reshape(-1, 256))
                table, values = made, [inverse(value) for value in values]
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
            raise Refused(Refusal("transform", str(error), "another transform")) from error
        if table is not None:
            self.steps.append(Step(f"send    uint8, 1 byte in place of {name}'s {ramp.element_size()}", "native"))
        if self.pointwise_names:
            how = "bytes unchanged" if self.is_raw() else f"one table of 256 {name} a channel"
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
        )

    def _leading(self) -> int:
        """Return how many operations come before the first one that draws, or that pads with converted values."""

        def ends(operation: dict[str, Any]) -> bool:
            return operation["op"] in DRAWING or ("fill" in operation and not self.fill_pixels[operation["fill"]])

        count = next((number for number, one in enumerate(self.operations) if ends(one)), len(self.operations))
        while count and self.operations[count - 1]["op"] == "Pad":
            count -= 1
        return count

    # ---- what the picture is at this point ----

    def is_pil(self) -> bool:
        return isinstance(self.values[0], Image.Image)

    def is_raw(self) -> bool:  # still 8-bit, each value meaning itself
        return self.is_pil() or means_itself(self.values[0])

    def channels(self) -> int:
        ramp = self.values[0]
        return channels_of(ramp.mode) if self.is_pil() else int(ramp.shape[0])

    def add_operation(self, transform: Any, verb: str, draw: Draw | None = None, /, **operation: Any) -> None:
        """Add what a transform does to pixels, as the native core takes it. Raises Refused.

        draw: has torchvision draw it where Python runs it.
        """
        if self.erases and operation["op"] != "RandomErasing":
            refuse(transform, "it comes after RandomErasing", "RandomErasing as the last step before conversions")
        try:
            _native.Recipe(self.source_channels, [operation], "uint8", "chw", None, [(b"", b"")] * len(self.values))
        except (ValueError, TypeError, RuntimeError) as error:
            refuse(transform, str(error), "other parameters")
        self.operations.append(operation)
        self.draws.append(draw)
        self.steps.append(Step(f"{verb:<7} {shown(transform)}", "native"))

    # ---- the colour of padding ----

    def dot(self) -> Any:
        """Return a picture of 2 x 2 pixels as the pipeline has it at this point."""
        ramp = self.values[0]
        return Image.new(ramp.mode, (2, 2)) if self.is_pil() else ramp[..., :1].repeat(1, 2, 2)

    def padded(self, transform: Any) -> Any:
        fill, mode = transform.fill, transform.padding_mode
        if isinstance(fill, dict) and any(isinstance(kind, type) and issubclass(kind, Image.Image) for kind in fill):
            refuse(transform, "a fill for types of PIL images", "a fill for 'others'")
        if not self.is_pil() and mode != "constant" and not (self.is_raw() or self.values[0].is_floating_point()):
            refuse(transform, f"padding_mode={mode!r} of whole numbers", "the padding before the conversion")
        if is_v1(transform):
            functional = sys.modules["torchvision.transforms.functional"]
            return run(transform, lambda dot: functional.pad(dot, [1, 1, 1, 1], fill, mode), self.dot())
        (padder,) = classes("Pad", V2)
        return run(transform, padder(1, fill, mode), self.dot())

    def fill(self, picture: Any) -> int:
        """Add the upper left pixel as a colour of padding and return its number."""
        corner = picture.crop((0, 0, 1, 1)) if self.is_pil() else picture[..., :1, :1].clone()
        self.values.append(corner)
        self.fill_pixels.append(bytes_of(corner) if self.is_raw() else b"")
        return len(self.fill_pixels) - 1


def known_transforms() -> dict[type, Known]:
    """Return what is known of each class of transform that is imported."""
    timm = {kind: Known(conversions.pointwise) for name in _OF_TIMM for kind in classes(name, "timm.data.transforms")}
    return timm | {kind: known for name, known in TRANSFORMS.items() for kind in classes(name)}


def _held_by(transform: object) -> Iterable[tuple[str, Any]]:
    own = getattr(transform, "__dict__", {})
    return {**own, **own.get("_modules", {})}.items()


def unknown(transform: object) -> Refusal:
    """Return why a transform of another class is left to Python."""
    name = type(transform).__name__
    if type(transform) in classes("Compose"):
        why = changed(transform) or "its transforms are not a list"
        return Refusal(name, why, "the unmodified class")
    for base in type(transform).__mro__[1:]:
        if base in known_transforms() or base in classes("Compose"):
            return Refusal(name, f"a subclass of {base.__name__} may behave differently", f"{base.__name__} itself")
    held = next((key for key, one in _held_by(transform) if type(one) in classes("Compose")), None)
    if held is not None and not type(transform).__module__.startswith("torchvision."):
        only = f"return self.{held}(image)"
        return Refusal(name, f"its call does other things than {only}", f"a __call__ that is only `{only}`")
    return Refusal(name, "Penstock has no native form of it", f"a transform of docs/images.md instead of {name}")
