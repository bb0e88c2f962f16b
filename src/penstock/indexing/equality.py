"""Whether two samples or batches are the same in all that a program could see."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image


def same(one: Any, other: Any) -> bool:
    """Return whether two values have the same types, dtypes, shapes, strides and elements, in containers and images."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        return alike and (same_bits(one, other) or _same_numbers(one, other))
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape, one.flags.writeable) != (other.dtype, other.shape, other.flags.writeable):
            return False
        return same(one.tolist(), other.tolist()) if one.dtype == object else one.tobytes() == other.tobytes()
    if isinstance(one, Image.Image):
        return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or one is other or (one != one and other != other))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype and shape have the same bytes."""
    if one.numel() == 0:
        return True
    views = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*views)


def _same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors differ only in the bits of their NaNs, which conversions of torch's change."""
    if not one.is_floating_point() or not torch.equal(one.isnan(), other.isnan()):
        return False
    return same_bits(one[~one.isnan()], other[~other.isnan()])
