"""Transforms that change each value of a picture by itself, and those that torchvision's weights name.

What a transform makes of each value is learned from a small picture that it is shown, which has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from penstock.errors import InvalidOption
from penstock.recipe.torchvision import V1, Known, classes, refuse, run, shown

# --- small pictures ---------------------------------------------------------------------------------------------------


def channels_of(mode: str) -> int:
    """Return how many channels a PIL image of mode 'RGB' or 'L' has."""
    return 3 if mode == "RGB" else 1


def ramp_of(mode: str) -> Image.Image:
    """Return the picture of 1 x 256 pixels whose every channel counts 0 .. 255."""
    values: NDArray[np.uint8] = np.arange(256, dtype=np.uint8)[None, :]
    return Image.fromarray(np.repeat(values[..., None], 3, axis=2) if mode == "RGB" else values)


def tensor_ramp(kind: type, interleaved: bool) -> torch.Tensor:
    """Return the same picture of three channels as a tensor of a class, whose channels lie side by side or apart."""
    values = torch.arange(256, dtype=torch.uint8, device="cpu")
    ramp = values[None, :, None].repeat(1, 1, 3).permute(2, 0, 1) if interleaved else values[None, None].repeat(3, 1, 1)
    return ramp.as_subclass(kind)


def shape_of(picture: Any) -> tuple[int, ...]:
    """Return (channels, height, width) of a PIL image, or the shape of a tensor."""
    if isinstance(picture, Image.Image):
        return (channels_of(picture.mode), picture.height, picture.width)
    return tuple(picture.shape)


def bytes_of(picture: Any) -> bytes:
    """Return the elements of a picture, channel by channel."""
    if isinstance(picture, Image.Image):
        return np.ascontiguousarray(np.moveaxis(np.atleast_3d(np.asarray(picture)), 2, 0)).tobytes()
    return plain(picture).reshape(-1).view(torch.uint8).numpy().tobytes()


def plain(picture: torch.Tensor) -> torch.Tensor:
    """Return a tensor as one of no subclass, without gradient, contiguous."""
    return picture.detach().as_subclass(torch.Tensor).contiguous()


def means_itself(ramp: torch.Tensor) -> bool:
    """Return whether a ramp still holds the pixel values that it began with."""
    return ramp.dtype == torch.uint8 and bool((ramp == torch.arange(256, dtype=torch.uint8)).all())


# --- conversions ------------------------------------------------------------------------------------------------------


def pointwise(reader: Any, transform: Any) -> None:
    """Add a transform that makes an element of each value: what it makes of all of them is looked up."""
    statistics = [getattr(transform, name) for name in ("mean", "std") if hasattr(transform, name)]
    if any(run(transform, torch.as_tensor, numbers).ndim > 1 for numbers in statistics):
        refuse(transform, "mean or std does not have one number for each channel", "a sequence of numbers")
    if isinstance(getattr(transform, "dtype", None), dict) and reader.is_pil():
        refuse(transform, "its dtype= depends on the type of the input", "ToImage before it")
    values = [run(transform, transform, value) for value in reader.values]
    for before, after in zip(reader.values, values, strict=True):
        same = isinstance(after, Image.Image) and isinstance(before, Image.Image) and after.mode == before.mode
        if not same and not (isinstance(after, torch.Tensor) and tuple(after.shape) == shape_of(before)):
            refuse(transform, "it changes the number of channels", "as many numbers as the image has channels")
    reader.values = values
    reader.pointwise_names.append(shown(transform))


def _grayscale(reader: Any, transform: Any) -> None:
    wanted = transform.num_output_channels
    if reader.channels() == 1 and (wanted == 1 or not reader.is_pil()):
        pointwise(reader, transform)
        return
    if not reader.is_pil() or wanted not in (1, 3):
        refuse(transform, "the native core makes only Pillow's grey", "Grayscale before the conversion to a tensor")
    reader.add_operation(transform, "grey", op="Grayscale", channels=wanted)
    # From here on a value of the grey picture means itself; paddings so far are in the picture.
    mode = "L" if wanted == 1 else "RGB"
    reader.keeps_info &= wanted == 1
    reader.values = [ramp_of(mode), *(Image.new(mode, (1, 1)) for _ in reader.values[1:])]


# --- the inverse of a conversion, from its elements back to the pixels, bit for bit -----------------------------------

#: By an element's size in bytes: the integer dtype that holds its bits.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Inverse:
    """Finds the pixel value of which a table makes each element. Any number of threads may call it.

    table: what each pixel value becomes: (channels, 256) of a floating-point dtype of 2, 4 or 8 bytes, on the CPU.
    Raises ValueError: another dtype, or two pixel values become one element.
    """

    def __init__(self, table: torch.Tensor) -> None:
        if not table.is_floating_point() or table.element_size() not in _BITS:
            raise ValueError(f"no pixel values are known for a table of {table.dtype}")
        self._dtype = table.dtype
        self._sorted, order = _bits(table).sort(dim=1)
        if (self._sorted[:, 1:] == self._sorted[:, :-1]).any():
            raise ValueError("two pixel values become the same element")
        self._pixels = order.to(torch.uint8)

    def __call__(self, elements: torch.Tensor) -> torch.Tensor:
        """Return the pixels of elements of shape (channels, ...): uint8 of that shape.

        Raises ValueError: another dtype or number of channels, or an element that the table does not make.
        """
        channels = len(self._sorted)
        if elements.dtype != self._dtype or elements.ndim < 2 or len(elements) != channels:
            shape = tuple(elements.shape)
            raise ValueError(f"{elements.dtype} of shape {shape}, not {self._dtype} of {channels} channels")
        bits = _bits(elements).reshape(channels, -1)
        places = torch.searchsorted(self._sorted, bits).clamp_(max=255)
        if not torch.equal(self._sorted.gather(1, places), bits):
            raise ValueError("no pixel value becomes this element")
        return self._pixels.gather(1, places).reshape(elements.shape)


def _bits(elements: torch.Tensor) -> torch.Tensor:
    plain = elements.detach().as_subclass(torch.Tensor)
    return plain.contiguous().view(_BITS[plain.element_size()])


def refuse_pixels(batch: Any) -> None:
    """Raise InvalidOption for a batch that is uint8 after its conversion, which the device would convert once more."""
    first = batch[0] if isinstance(batch, list) else batch
    if isinstance(first, torch.Tensor) and first.dtype == torch.uint8:
        raise InvalidOption(
            "the dataset's transform now gives pixels another conversion than the one that the device got when "
            "this pass began; begin a new pass after such a change, or give device=None"
        )


# --- the preprocessing of torchvision's weights -----------------------------------------------------------------------

PRESETS = ("ImageClassification", "SemanticSegmentation", "ObjectDetection")
"""The names of the classes in torchvision.transforms._presets."""


def _preset(reader: Any, transform: Any) -> None:
    """Add what the preprocessing of torchvision's weights does, transform by transform."""
    for name, arguments in _steps_of(transform):
        kind: Any = next(iter(classes(name, V1)), None)
        if kind is None:
            refuse(transform, f"{V1}.{name} was replaced", "the unmodified class")
        if reader.is_pil() or name != "PILToTensor":
            reader.add(run(transform, lambda make: make(), partial(kind, **arguments)))


def _steps_of(preset: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and arguments of the first generation's transforms that a preset is."""
    given = vars(preset)
    if given.get("resize_size") is not None:
        yield "Resize", {"size": preset.resize_size} | {name: given[name] for name in ("interpolation", "antialias")}
    if "crop_size" in given:
        yield "CenterCrop", {"size": preset.crop_size}
    yield "PILToTensor", {}
    yield "ConvertImageDtype", {"dtype": torch.float32}
    if "mean" in given:
        yield "Normalize", {"mean": preset.mean, "std": preset.std}


_POINTWISE = ("PILToTensor", "ToImage", "ToPureTensor", "ToDtype", "ConvertImageDtype", "Normalize", "Identity")
TRANSFORMS = {
    "Grayscale": Known(_grayscale, joint=True),
    "ToTensor": Known(pointwise),
    **dict.fromkeys(_POINTWISE, Known(pointwise, joint=True)),
    **dict.fromkeys(PRESETS, Known(_preset)),
}
