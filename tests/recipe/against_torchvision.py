"""Transforms that are run natively, against the same transforms by torchvision (or timm)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import penstock._native as _native
from penstock.hooks import calls
from penstock.recipe import compose_hook
from penstock.recipe.originals import look_again
from penstock.recipe.reader import read
from penstock.recipe.steps import Recipe, Refusal
from tests.same import assert_same, seeded_outcome

GENERATIONS = pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
MODES = pytest.mark.parametrize("mode", ["RGB", "L"])
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def picture(width: int = 30, height: int = 24, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return an image of waves and noise, with an info."""
    channels = {"L": 1, "RGBA": 4}.get(mode, 3)
    random = np.random.default_rng([height, width, channels, seed])
    waves = 90 + 80 * np.sin(np.arange(width)[None, :, None] / 7 + np.arange(channels))
    pixels = (waves + random.integers(-60, 60, (height, width, channels))).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    image.info = {"comment": b"of the file"}
    return image.quantize(16) if mode == "P" else image


def natively(transform: Any, *inputs: Any) -> Any:
    """Return what a transform gives where a dataset of the user's calls it in our workers."""
    with calls.natively():
        return transform(*inputs)


def assert_as_torchvision(transform: Any, given: Any, seeds: Iterable[int] = (5,)) -> None:
    """Compare what a transform gives or raises natively with torchvision's, and all generators after it.

    Args:
        given: an image, or a function that makes the inputs of a call.
    """
    inputs = given if callable(given) else lambda: (given,)
    for seed in seeds:
        found, after = seeded_outcome(partial(natively, transform, *inputs()), seed)
        wanted, wanted_after = seeded_outcome(partial(transform, *inputs()), seed)
        assert_same(found, wanted)
        assert after == wanted_after, f"the generators after seed {seed}"


def runs(compose: Any, *, of_samples: bool = False) -> list[tuple[int, int]]:
    """Return (where, how many) of the native runs of a Compose so far."""
    entry = compose_hook._entries.get(id(compose))
    known = {} if entry is None or entry.known is None else entry.known._runs
    return [(key[0], run.length) for key, run in known.items() if run is not None and key[3] is not of_samples]


def first_run(compose: Any) -> int:
    """Return how many of the first transforms of a Compose were run together, natively."""
    return max((length for begin, length in runs(compose) if begin == 0), default=0)


def recipe_of(transform: Any, mode: str = "RGB") -> Recipe:
    """Return the recipe of a transform that the native core knows from end to end."""
    look_again()
    found = read(transform, mode=mode)
    assert isinstance(found, Recipe), found
    return found


def refusal_of(transform: Any, mode: str = "RGB") -> Refusal:
    """Return why a transform is left to Python."""
    look_again()
    found = read(transform, mode=mode)
    assert isinstance(found, Refusal), found
    return found


def of_sample(recipe: Recipe, image: Image.Image, seed: int, epoch: int, sample: int, position: int) -> torch.Tensor:
    """Return what the native core makes of an image as that sample."""
    content, shape = _native.run_recipe(recipe.native, np.array(image), seed, epoch, sample, position)
    return torch.frombuffer(bytearray(content), dtype=recipe.dtype).reshape(shape)
