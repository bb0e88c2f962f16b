"""Augmentations that Python draws: RandomChoice of both generations and RandomOrder of the first, mostly.

RandomChoice of torchvision.transforms draws from Python's random, that of transforms.v2 by torch.multinomial. For a
sample of a loader with a seed, and in the native core, one number of torch's generator chooses (drawing.py).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.blurring import give_weights
from penstock.recipe.effects import recipe_of
from penstock.recipe.torchvision import is_v1, refuse

Augmentation = dict[str, Any]


def describe_choice(transform: Any, parts: Sequence[Augmentation]) -> Augmentation:
    """Return a RandomChoice of some augmentations as the native core takes it. Raises Refused."""
    shares = drawing.shares(transform.p, len(parts))
    if shares is None:
        refuse(transform, f"p={transform.p!r}", "None, or a number for each transform that is not negative")
    return {"kind": "chosen", "shares": shares, "parts": list(parts)}


def drawn_by(transform: Any, described: Augmentation, channels: int) -> Callable[[int, int], _native.Effects] | None:
    """Return what draws a transform's effects where it draws from a generator of its own; None: from torch's alone."""
    parts = described.get("parts", ())
    if "look" in described:
        return partial(_perspective, transform, described["look"])
    if described["kind"] == "chosen":
        singles = [recipe_of(part) for part in parts]
        choose = _chosen_by_python if is_v1(transform) else _chosen_by_torch
        return partial(_drawn, recipe_of(described), channels, lambda: singles[choose(transform)])
    if described["kind"] == "shuffled" and is_v1(transform):
        return partial(_drawn, recipe_of(described), channels, lambda: _in_order(parts))
    return None


def _drawn(
    keyed: _native.Recipe, channels: int, choose: Callable[[], _native.Recipe], height: int, width: int
) -> _native.Effects:
    recipe = keyed if drawing.is_keyed() else choose()
    drawn = drawing.effects(recipe, height, width)
    give_weights(drawn, channels, height, width)
    return drawn


def _chosen_by_python(transform: Any) -> int:
    return random.choices(range(len(transform.transforms)), weights=transform.p)[0]


def _chosen_by_torch(transform: Any) -> int:
    return int(torch.multinomial(torch.tensor(transform.p), 1))


def _in_order(parts: Sequence[Augmentation]) -> _native.Recipe:
    order = list(range(len(parts)))
    random.shuffle(order)
    return recipe_of({"kind": "all", "parts": [parts[number] for number in order]})


def _perspective(transform: Any, look: dict[str, Any], height: int, width: int) -> _native.Effects:
    """Return the effects of a RandomPerspective, whose coefficients torch solves for, by its filter and fill."""
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
