"""RandomErasing as the native core takes it: with one value a channel, as the last step but for conversions."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from penstock.recipe import effects
from penstock.recipe.torchvision import is_v1, low_high, refuse, run


def describe_erasing(transform: Any, dot: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the operation of a RandomErasing, and a picture whose upper left pixel it has erased. Raises Refused.

    dot: a picture as the pipeline has it before.
    """
    if not isinstance(dot, torch.Tensor):
        refuse(transform, "the native core erases parts of tensors alone", "it after the conversion to a tensor")
    if not effects.draws_alike():
        refuse(transform, "this torch draws in another way", "another torch")
    given = transform.value
    if given is None or isinstance(given, str):
        refuse(transform, "it draws a number for each pixel", "value= a number, or one a channel")
    if not isinstance(transform.p, int | float):
        refuse(transform, f"p={transform.p!r} is not a number", "a number")
    values = torch.tensor([float(one) for one in (given if isinstance(given, list | tuple) else [given])])
    if len(values) not in (1, len(dot)):
        refuse(transform, f"value={given!r} for {len(dot)} channels", "one value, or one a channel")
    functional: Any = sys.modules[f"torchvision.transforms.{'' if is_v1(transform) else 'v2.'}functional"]
    erased = run(transform, lambda picture: functional.erase(picture, 0, 0, 1, 1, values[:, None, None]), dot)
    if type(erased) is not type(dot):
        refuse(transform, f"it makes a {type(erased).__name__} of a {type(dot).__name__}", "a plain tensor")
    scale, ratio = low_high(transform, "scale"), low_high(transform, "ratio")
    log_ratio = run(transform, torch.log, torch.tensor(ratio)).tolist()
    # Both generations compare p with a tensor of float32.
    return {"p": float(np.float32(transform.p)), "scale": scale, "log_ratio": log_ratio}, erased
