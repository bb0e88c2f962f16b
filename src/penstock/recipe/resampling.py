"""Which resizes of the installed Pillow and torch the native core reproduces, byte for byte."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from penstock import _native

# PIL.Image.Resampling, which both generations of transforms accept as plain integers.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


@cache
def reproduced(arithmetic: str, name: str, antialias: bool) -> bool:
    """Return whether the installed Pillow or torch resizes noise as the native core does: they have changed before."""
    height, width = 70, 90
    counter = np.arange(height * width * 3, dtype=np.uint64)
    noise = (counter * 2654435761 >> 13).astype(np.uint8).reshape(height, width, 3)
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
            expected = np.asarray(Image.fromarray(noise).resize(size[::-1], Image.Resampling(code)))
        else:
            planes = torch.from_numpy(noise).permute(2, 0, 1)[None]
            corners = False if name in ("bilinear", "bicubic") else None
            resized = interpolate(planes, size, mode=name, align_corners=corners, antialias=antialias)
            expected = resized[0].permute(1, 2, 0).numpy()
        if _native.run_recipe(native, noise, 0, 0, 0, 0)[0] != expected.tobytes():
            return False
    return True
