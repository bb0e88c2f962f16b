"""Transforms that move pixels: resizes, crops, pads and flips.

Crops and flips draw as torchvision's own code does where Python runs them, and from a sample's own numbers where draws
are a function of the sample: in the native core, and in torchvision's methods by what is called in their place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.installed import noise
from penstock.recipe.torchvision import V1, V2, Known, classes, is_int, is_v1, low_high, margins, pair, refuse, run

# --- what a Reader is given -------------------------------------------------------------------------------------------


def _resized_crop(reader: Any, transform: Any) -> None:
    scale, ratio = low_high(transform, "scale"), low_high(transform, "ratio")
    if not (0 <= scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
        refuse(transform, "scale or ratio is not (low, high)", "scale=(low, high), ratio=(low, high)")
    reader.add_operation(
        transform,
        "resize",
        partial(_resized_crop_drawn_by_v1 if is_v1(transform) else _crop_drawn_by_v2, transform),
        op="RandomResizedCrop",
        size=pair(transform, transform.size),
        scale=scale,
        ratio=ratio,
        **sampling_of(transform, pil=reader.is_pil(), raw=reader.is_raw()),
    )


def _resize(reader: Any, transform: Any) -> None:
    given, longest = transform.size, transform.max_size
    sizes = [given] if isinstance(given, int) else [] if given is None else list(given)
    if not all(is_int(n) and n > 0 for n in [*sizes, 1 if longest is None else longest]):
        refuse(transform, f"size={given!r}, max_size={longest!r}", "positive whole numbers")
    if longest is not None and (len(sizes) == 2 or longest <= max(sizes, default=0)):
        refuse(transform, "max_size contradicts size: torchvision raises", "max_size above the shorter edge's size")
    reader.add_operation(
        transform,
        "resize",
        op="Resize",
        size=tuple(sizes) if len(sizes) == 2 else None,
        shorter=sizes[0] if len(sizes) == 1 else 0,
        longest=longest or 0,
        **sampling_of(transform, pil=reader.is_pil(), raw=reader.is_raw()),
    )


def _center_crop(reader: Any, transform: Any) -> None:
    size = pair(transform, transform.size)
    corner = run(transform, type(transform)((4, 4)), reader.dot())
    reader.add_operation(transform, "crop", op="CenterCrop", size=size, fill=reader.fill(corner))


def _random_crop(reader: Any, transform: Any) -> None:
    second = not is_v1(transform)
    padding = transform.padding
    if second and padding is not None:
        left, right, top, bottom = padding  # transforms.v2 keeps them in this order
        padding = [left, top, right, bottom]
    pads = padding is not None or transform.pad_if_needed
    reader.add_operation(
        transform,
        "crop",
        partial(_crop_drawn_by_v2 if second else _crop_drawn_by_v1, transform),
        op="RandomCrop",
        size=pair(transform, transform.size),
        padding=margins(transform, padding) if padding is not None else (0, 0, 0, 0),
        mode=transform.padding_mode if pads else "constant",
        fill=reader.fill(reader.padded(transform) if pads else reader.dot()),
        pad_if_needed=bool(transform.pad_if_needed),
        pad_once=second,
    )
    reader.keeps_info &= second or padding is None  # the first generation pads by 0, too


def _pad(reader: Any, transform: Any) -> None:
    padding, mode = margins(transform, transform.padding), transform.padding_mode
    fill = reader.fill(reader.padded(transform))
    reader.add_operation(transform, "pad", op="Pad", padding=padding, mode=mode, fill=fill)
    reader.keeps_info = False


def _flip(reader: Any, transform: Any) -> None:
    if not isinstance(transform.p, int | float):
        refuse(transform, f"p={transform.p!r} is not a number", "a number")
    horizontal = type(transform) in classes("RandomHorizontalFlip")
    reader.add_operation(
        transform,
        "flip",
        lambda height, width: drawing.flips(transform.p),
        op="RandomFlip",
        horizontal=horizontal,
        p=float(transform.p),
    )


# --- how a transform resizes, and which resizes of the installed Pillow and torch the native core reproduces ----------

# PIL.Image.Resampling, which both generations of transforms accept as integers; Pillow does its box and Hamming itself.
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def interpolation_of(transform: Any) -> str:
    """Return the name of a transform's interpolation, as torchvision has it. Raises Refused."""
    given = transform.interpolation
    name = _FILTERS.get(given) if isinstance(given, int) else getattr(given, "value", given)
    if (isinstance(given, str) and is_v1(transform)) or name not in {*_FILTERS.values(), "nearest-exact"}:
        refuse(transform, f"interpolation={given!r}", "NEAREST, BILINEAR, BICUBIC or LANCZOS of InterpolationMode")
    return str(name)


def sampling_of(transform: Any, *, pil: bool, raw: bool) -> dict[str, Any]:
    """Return how a transform of known class resizes, as the native core takes it. Raises Refused.

    pil: the picture is a PIL image. raw: its values are still pixels.
    """
    name = interpolation_of(transform)
    antialias = bool(transform.antialias) and name in ("bilinear", "bicubic")
    if pil:
        # Pillow has one nearest; torchvision gives it for both names. Its passes' order depends on its version.
        name, antialias = ("nearest" if name == "nearest-exact" else name), True
        arithmetic = "pillow" if _reproduced("pillow", name, antialias) else "pillow_12"
    elif raw:
        # torch's own vector code is reproduced, not what it does on other processors.
        if name != "nearest" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
            why = "the native core does not reproduce torch's resize on this processor"
            refuse(transform, why, "the resize before the conversion")
        arithmetic = "torch_u8" if _resizes_bytes(transform, name) else "torch_f32"
    else:
        refuse(transform, "it resizes values that were converted before", "the resize before the conversion")
    if not _reproduced(arithmetic, name, antialias):
        what = "Pillow" if pil else "torch"
        why = f"the native core does not reproduce the {name} resize of this {what}"
        refuse(transform, why, "bilinear or bicubic resizes before the conversion to a tensor")
    return {"filter": name, "arithmetic": arithmetic, "antialias": antialias}


def _resizes_bytes(transform: Any, name: str) -> bool:
    """Return whether torchvision resizes uint8 tensors as such, rather than through float32, on this machine."""
    if name not in ("bilinear", "bicubic") or is_v1(transform):
        return False
    geometry = sys.modules["torchvision.transforms.v2.functional._geometry"]
    decide = getattr(geometry, "_do_native_uint8_resize_on_cpu", None)
    if decide is None:
        refuse(transform, "this torchvision resizes differently", "the resize before the conversion")
    return bool(decide(geometry.InterpolationMode(name)))


@cache
def _reproduced(arithmetic: str, name: str, antialias: bool) -> bool:
    """Return whether the installed Pillow or torch resizes noise as the native core does: they have changed before."""
    pixels = noise(70, 90)
    sampling = {"filter": name, "arithmetic": arithmetic, "antialias": antialias}
    # Up, down, mixed, and on both sides of the rules by which Pillow 13 chooses which pass comes first.
    for size in ((50, 50), (50, 49), (90, 80), (50, 100), (30, 40), (40, 85), (20, 120), (100, 11)):
        operation = {"op": "Resize", "size": size, "shorter": 0, "longest": 0, **sampling}
        try:
            native = _native.Recipe(3, [operation], "uint8", "hwc", None, [])
        except ValueError:
            return False
        if arithmetic.startswith("pillow"):
            code = next(code for code, known in _FILTERS.items() if known == name)
            expected = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling(code)))
        else:
            planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
            corners = False if name in ("bilinear", "bicubic") else None
            resized = interpolate(planes, size, mode=name, align_corners=corners, antialias=antialias)
            apart = interpolate(planes.contiguous(), size, mode=name, align_corners=corners, antialias=antialias)
            if not torch.equal(resized, apart):
                return False
            expected = resized[0].permute(1, 2, 0).numpy()
        if _native.run_recipe(native, pixels, 0, 0, 0, 0)[0] != expected.tobytes():
            return False
    return True


# --- what torchvision draws where Python runs it ----------------------------------------------------------------------


def tensor_of(height: int, width: int, channels: int = 1) -> torch.Tensor:
    """Return a tensor of that size for torchvision to look at, of one element's memory."""
    return torch.empty(1, device="cpu").expand(channels, height, width)


def _resized_crop_drawn_by_v1(transform: Any, height: int, width: int) -> Any:
    return transform.get_params(tensor_of(height, width), transform.scale, transform.ratio)


def _crop_drawn_by_v1(transform: Any, height: int, width: int) -> Any:
    wanted_height, wanted_width = transform.size
    if transform.padding is not None:
        left, top, right, bottom = margins(transform, transform.padding)
        height, width = height + top + bottom, width + left + right
    if transform.pad_if_needed:
        width += 2 * max(0, wanted_width - width)
        height += 2 * max(0, wanted_height - height)
    return transform.get_params(tensor_of(height, width), transform.size)


def _crop_drawn_by_v2(transform: Any, height: int, width: int) -> Any:
    drawn = transform.make_params([tensor_of(height, width)])
    return drawn["top"], drawn["left"], drawn["height"], drawn["width"]


# --- what is drawn for a keyed sample, instead of by torchvision's methods --------------------------------------------


def _keyed_resized_crop_of_v1(draws: _native.SampleDraws, original: Any, img: Any, scale: Any, ratio: Any) -> Any:
    _, height, width = original.__globals__["F"].get_dimensions(img)
    return _drawn(draws.resized_crop, *scale, *ratio, height, width) or original(img, scale, ratio)


def _drawn(draw: Callable[..., Any], *given: Any) -> Any:
    """Return (top, left, height, width), None for what a recipe would refuse."""
    try:
        return draw(*given)
    except TypeError:
        return None


def _keyed_crop_of_v1(draws: _native.SampleDraws, original: Any, img: Any, output_size: Any) -> Any:
    _, height, width = original.__globals__["F"].get_dimensions(img)
    return _drawn(draws.crop, *output_size, height, width) or original(img, output_size)


def _keyed_resized_crop_of_v2(draws: _native.SampleDraws, original: Any, self: Any, flat_inputs: list[Any]) -> Any:
    height, width = original.__globals__["query_size"](flat_inputs)
    drawn = _drawn(draws.resized_crop, *self.scale, *self.ratio, height, width)
    if drawn is None:
        return original(self, flat_inputs)
    return dict(zip(("top", "left", "height", "width"), drawn, strict=True))


def _keyed_crop_of_v2(draws: _native.SampleDraws, original: Any, self: Any, flat_inputs: list[Any]) -> Any:
    count = draws.count
    made = drawing.of_operation(draws, original, self, flat_inputs)  # all but the place is torchvision's
    draws.count = count
    height, width = original.__globals__["query_size"](flat_inputs)
    left, top, right, bottom = made["padding"]
    drawn = _drawn(draws.crop, *self.size, height + top + bottom, width + left + right)
    return made if drawn is None else made | {"top": drawn[0], "left": drawn[1]}


def _keyed_flip_of_v1(function: str) -> Callable[..., Any]:
    def flip(draws: _native.SampleDraws, original: Any, self: Any, img: Any) -> Any:
        if not isinstance(self.p, int | float):
            return original(self, img)
        return getattr(original.__globals__["F"], function)(img) if draws.flip(float(self.p)) else img

    return flip


_KEYED_RESIZED_CROP: dict[tuple[str, str], Callable[..., Any]] = {
    (V1, "get_params"): _keyed_resized_crop_of_v1,
    (V2, "get_params"): _keyed_resized_crop_of_v1,
    (V2, "make_params"): _keyed_resized_crop_of_v2,
}
_KEYED_CROP: dict[tuple[str, str], Callable[..., Any]] = {
    (V1, "get_params"): _keyed_crop_of_v1,
    (V2, "get_params"): _keyed_crop_of_v1,
    (V2, "make_params"): _keyed_crop_of_v2,
}
TRANSFORMS = {
    "RandomResizedCrop": Known(_resized_crop, joint=True, keyed=_KEYED_RESIZED_CROP),
    "Resize": Known(_resize, joint=True),
    "CenterCrop": Known(_center_crop, joint=True),
    "RandomCrop": Known(_random_crop, joint=True, keyed=_KEYED_CROP),
    "Pad": Known(_pad, joint=True),
    "RandomHorizontalFlip": Known(_flip, joint=True, keyed={(V1, "forward"): _keyed_flip_of_v1("hflip")}),
    "RandomVerticalFlip": Known(_flip, joint=True, keyed={(V1, "forward"): _keyed_flip_of_v1("vflip")}),
}
