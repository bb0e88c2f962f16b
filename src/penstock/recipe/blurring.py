"""GaussianBlur: torch computes the weights of each sample, and the native core the sums.

Where native threads draw, what they will draw is a function of the sample: the weights are made before they need them.
The native core adds the products as torch's convolution does. Whether it does is found out by comparing, once in a
process for each size of pictures and of weights.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from PIL import Image

import penstock._native as _native
from penstock.recipe import drawing
from penstock.recipe.effects import noise, recipe_of
from penstock.recipe.torchvision import is_int, is_v1, low_high, refuse

_MOST_SIZES = 64
#: By what the sums may depend on: whether the native core's are torch's.
_alike: dict[Any, bool] = {}


def describe_gaussian(transform: Any, reader: Any) -> dict[str, Any]:
    """Return a GaussianBlur as the native core takes it. Raises Refused."""
    size, second = transform.kernel_size, not is_v1(transform)
    if len(size) != 2 or not all(is_int(one) and one > 0 and one % 2 for one in size):
        refuse(transform, f"kernel_size={size!r}", "two odd numbers")
    if not reader.drawn_by_python:
        _look_at_sums(transform, reader, size[1], size[0], second)
    return describe_blur(low_high(transform, "sigma"), size[1], size[0], second=second)


def _look_at_sums(transform: Any, reader: Any, rows: int, columns: int, second: bool) -> None:
    """Refuse a blur unless all pictures have a size for which the native core is known to add as torch does."""
    if not reader.foreseen:
        refuse(transform, "torch computes its weights for each sample", "transforms that are all native")
    found = reader.size()
    if found is None:
        refuse(transform, "pictures of many sizes, for which torch may add in many ways", "it after a crop or resize")
    if not blurs_alike(rows, columns, second, found):
        refuse(transform, "torch blurs pictures of this size in another way", "another one")


def describe_blur(sigma: tuple[float, float], height: int, width: int, *, second: bool) -> dict[str, Any]:
    """Return a blur by height x width weights as the native core takes it. second: the weights are transforms.v2's."""
    return {"kind": "blur", "sigma": sigma, "height": height, "width": width, "second": second}


def draw_effects(recipe: _native.Recipe, channels: int, height: int, width: int) -> _native.Effects:
    """Return what the next operation, a recipe's only augmentation, does to a picture of this size.

    Raises:
        ValueError: the native core does not blur pictures of this size as torch does.
    """
    drawn = drawing.effects(recipe, height, width)
    give_weights(drawn, channels, height, width)
    return drawn


def give_weights(drawn: _native.Effects, channels: int, height: int, width: int) -> None:
    """Give the blurs among effects on a picture their weights.

    Raises:
        ValueError: the native core does not blur pictures of this size as torch does.
    """
    for number, rows, columns, sigma, second in drawn.blurs():
        if not blurs_alike(rows, columns, second, (channels, height, width)):
            raise ValueError("torch blurs pictures of this size in another way")
        drawn.give_weights(number, _weights(rows, columns, sigma, second))


def foresee(recipe: _native.Recipe, first: int, seed: int, epoch: int, samples: Any, positions: Any) -> None:
    """Give the blurs that a recipe will draw for samples their weights.

    first: how many operations of each sample draw before the recipe's. samples, positions: int64 arrays.
    """
    for rows, columns, sigma, second in _native.foreseen_blurs(recipe, seed, epoch, samples, positions, first):
        _native.keep_blur_weights(_weights(rows, columns, sigma, second), sigma, second)


def blurs_alike(rows: int, columns: int, second: bool, size: tuple[int, int, int]) -> bool:
    """Return whether the native core blurs pictures of a size as torch does, by rows x columns weights.

    second: the weights are transforms.v2's. size: (channels, height, width).
    """
    key = (rows, columns, second, *size, *_settings())
    if key not in _alike:
        channels, height, width = size
        if len(_alike) >= _MOST_SIZES or rows // 2 >= height or columns // 2 >= width:
            return False
        _alike[key] = _blurs_alike(rows, columns, second, channels, height, width)
    return _alike[key]


def _settings() -> tuple[Any, ...]:
    """Return what of torch's settings decides how a convolution is computed."""
    precision = getattr(getattr(torch.backends.mkldnn, "conv", None), "fp32_precision", None)
    mkldnn = torch._C._get_mkldnn_enabled()
    autocast = torch.is_autocast_enabled("cpu")
    return mkldnn, autocast, torch.get_float32_matmul_precision(), precision, torch.get_num_threads()


def _weights(rows: int, columns: int, sigma: float, second: bool) -> Any:
    module = "torchvision.transforms.v2.functional._misc" if second else "torchvision.transforms._functional_tensor"
    make: Any = sys.modules[module]._get_gaussian_kernel2d
    weights = make([columns, rows], [sigma, sigma], dtype=torch.float32, device=torch.device("cpu"))
    return weights.contiguous().numpy()


def _blurs_alike(rows: int, columns: int, second: bool, channels: int, height: int, width: int) -> bool:
    pixels = noise(height, width, channels)
    image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
    functional: Any = sys.modules[f"torchvision.transforms.{'v2.' if second else ''}functional"]
    native = recipe_of(describe_blur((1.5, 1.5), rows, columns, second=second), channels)
    drawn = _native.draw_effects(native, height, width, torch.Generator(device="cpu").manual_seed(0))
    ((number, _, _, sigma, _),) = drawn.blurs()
    drawn.give_weights(number, _weights(rows, columns, sigma, second))
    out = torch.empty((height, width, channels), dtype=torch.uint8, device="cpu")
    image.load()
    if isinstance(_native.transform_image(native, *image.__arrow_c_array__(), width, height, [drawn], out), str):
        return False
    expected = functional.gaussian_blur(image, [columns, rows], [sigma, sigma])
    return bool(np.array_equal(np.asarray(expected).reshape(height, width, channels), out.numpy()))
