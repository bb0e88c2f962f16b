"""Pictures for tests of transforms."""

from __future__ import annotations

import numpy as np
from PIL import Image


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return an image of waves and noise, with an info."""
    channels = 3 if mode == "RGB" else 1
    random = np.random.default_rng([height, width, channels, seed])
    waves = 90 + 80 * np.sin(np.arange(width)[None, :, None] / 7 + np.arange(channels))
    pixels = (waves + random.integers(-60, 60, (height, width, channels))).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels if mode == "RGB" else pixels[..., 0])
    image.info = {"comment": b"of the file"}
    return image
