"""Small pictures that a transform is shown, to learn what it makes of each pixel value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image


def channels_of(mode: str) -> int:
    """Return how many channels a PIL image of mode 'RGB' or 'L' has."""
    return 3 if mode == "RGB" else 1


def ramp_of(mode: str) -> Image.Image:
    """Return the picture of 1 x 256 pixels whose every channel counts 0 .. 255."""
    values: NDArray[np.uint8] = np.arange(256, dtype=np.uint8)[None, :]
    return Image.fromarray(np.repeat(values[..., None], 3, axis=2) if mode == "RGB" else values)


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
