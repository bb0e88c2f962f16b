"""How a transform resizes, and which resizes of the installed Pillow and torch the native core reproduces."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

import penstock._native as _native
from penstock.recipe.installed import noise
from penstock.recipe.torchvision import is_v1, refuse

# PIL.Image.Resampling, which both generations of transforms accept as integers; Pillow does its box and Hamming itself.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def interpolation_of(transform: Any) -> str:
    """Return the name of a transform's interpolation, as torchvision has it. Raises Refused."""
    given = transform.interpolation
    name = FILTERS.get(given) if isinstance(given, int) else getattr(given, "value", given)
    if (isinstance(given, str) and is_v1(transform)) or name not in {*FILTERS.values(), "nearest-exact"}:
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
        arithmetic = "pillow" if reproduced("pillow", name, antialias) else "pillow_12"
    elif raw:
        # torch's own vector code is reproduced, not what it does on other processors.
        if name != "nearest" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
            why = "torch's resize is not reproduced on this processor"
            refuse(transform, why, "the resize before the conversion")
        arithmetic = "torch_u8" if _resizes_bytes(transform, name) else "torch_f32"
    else:
        refuse(transform, "it resizes values that were converted before", "the resize before the conversion")
    if not reproduced(arithmetic, name, antialias):
        what = "Pillow" if pil else "torch"
        why = f"the {name} resize of this {what} is not reproduced natively"
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
def reproduced(arithmetic: str, name: str, antialias: bool) -> bool:
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
            code = next(code for code, known in FILTERS.items() if known == name)
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
