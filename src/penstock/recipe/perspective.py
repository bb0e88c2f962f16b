"""RandomPerspective where Python draws: torch solves for the coefficients, and the native core moves the pixels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.torchvision import is_v1


def drawn_by(transform: Any, look: dict[str, Any]) -> Callable[[int, int], _native.Effects]:
    """Return what draws the effects of a RandomPerspective. look: filter and fill, as the native core takes them."""
    return partial(_drawn, transform, look)


def _drawn(transform: Any, look: dict[str, Any], height: int, width: int) -> _native.Effects:
    with drawing.of_next_operation():
        done = bool(torch.rand(1) < transform.p)
        matrix = _coefficients(transform, height, width) if done else None
    effects = [] if matrix is None else [{"effect": "perspective", "matrix": matrix, **look}]
    return _native.effects_of(effects, height, width)


def _coefficients(transform: Any, height: int, width: int) -> list[float]:
    if is_v1(transform):
        corners = transform.get_params(width, height, transform.distortion_scale)
        solve: Any = sys.modules["torchvision.transforms.functional"]._get_perspective_coeffs
        return solve(*corners)  # type: ignore[no-any-return]
    image = torch.empty(1, device="cpu").expand(1, height, width)
    return transform.make_params([image])["coefficients"]  # type: ignore[no-any-return]
