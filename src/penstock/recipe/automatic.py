"""AutoAugment, RandAugment and TrivialAugmentWide: the operations that they choose from, and with what magnitudes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.recipe import installed
from penstock.recipe.augmentations import add, look_of, require
from penstock.recipe.drawing import of_operation
from penstock.recipe.torchvision import AUTOMATIC, V2, Known, is_int, is_v1, refuse, run

#: The share of a side by which the automatic augmentations move a picture at most.
_MOST_SHIFT = 150.0 / 331.0
#: By operation: the effect that the installed Pillow must have as the native core does.
_OPERATIONS = {
    "Identity": None,
    "ShearX": None,
    "ShearY": None,
    "TranslateX": None,
    "TranslateY": None,
    "Rotate": None,
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
}


def _space(transform: Any, bins: int, height: int, width: int) -> dict[str, tuple[list[float], bool]]:
    """Return the magnitudes of each operation on pictures of a size, and whether they are given a sign."""
    if is_v1(transform):
        sized = type(transform).__name__ != "TrivialAugmentWide"
        space = transform._augmentation_space(bins, (height, width)) if sized else transform._augmentation_space(bins)
        return {name: (values.tolist() if values.ndim else [], signed) for name, (values, signed) in space.items()}
    found = {}
    for name, (make, signed) in transform._AUGMENTATION_SPACE.items():
        values = make(bins, height, width)
        listed = [] if values is None else [255.0 * value if name == "Solarize" else value for value in values.tolist()]
        found[name] = (listed, signed)
    return found


def _choices(transform: Any, bins: int) -> dict[str, dict[str, Any]]:
    """Return the operations that a transform chooses from, as the native core takes them."""
    spaces = [run(transform, lambda size: _space(transform, bins, *size), size) for size in ((32, 48), (224, 331))]
    choices = {}
    for name, (magnitudes, signed) in spaces[0].items():
        if name not in _OPERATIONS:
            refuse(transform, f"the operation {name!r} is not known", "torchvision's operations")
        require(transform, *filter(None, [_OPERATIONS[name]]))
        share = 0.0
        if magnitudes != spaces[1][name][0]:
            share = _MOST_SHIFT
            sides = {"TranslateX": (48, 331), "TranslateY": (32, 224)}.get(name, ())
            linear = [torch.linspace(0.0, share * side, bins).tolist() for side in sides]
            if linear != [space[name][0] for space in spaces] or not installed.magnitudes_alike(share, bins):
                refuse(transform, f"the native core does not reproduce the magnitudes of {name}", "another torchvision")
            magnitudes = []
        choices[name] = {"operation": name, "magnitudes": magnitudes, "share": share, "signed": bool(signed)}
    return choices


def _bins(transform: Any) -> int:
    bins = transform.num_magnitude_bins
    if not is_int(bins) or not 2 <= bins <= 4096:
        refuse(transform, f"num_magnitude_bins={bins!r}", "a whole number of at least 2")
    return int(bins)


def _automatic(transform: Any, reader: Any, kind: str, bins: int, **given: Any) -> dict[str, Any]:
    look = look_of(transform, reader)
    return {"kind": kind, "bins": bins, "second": not is_v1(transform)} | given | look


def _trivial_augment(transform: Any, reader: Any) -> dict[str, Any]:
    bins = _bins(transform)
    choices = list(_choices(transform, bins).values())
    return _automatic(transform, reader, "choices", bins, choices=choices, count=1, bin=None)


def _rand_augment(transform: Any, reader: Any) -> dict[str, Any]:
    bins, magnitude, count = _bins(transform), transform.magnitude, transform.num_ops
    if not is_int(magnitude) or not is_int(count) or not 0 <= magnitude < bins:
        refuse(transform, f"num_ops={count!r}, magnitude={magnitude!r}", "whole numbers, and magnitude below the bins")
    choices = list(_choices(transform, bins).values())
    return _automatic(transform, reader, "choices", bins, choices=choices, count=count, bin=magnitude)


def _auto_augment(transform: Any, reader: Any) -> dict[str, Any]:
    bins = 10
    choices = _choices(transform, bins)

    def step(name: str, p: float, number: int | None) -> tuple[Any, ...]:
        choice = choices.get(name)
        drawn = choice is not None and (bool(choice["magnitudes"]) or choice["share"] != 0)
        if choice is None or drawn != (number is not None) or (number is not None and not 0 <= number < bins):
            refuse(transform, f"the policy's step {(name, p, number)!r}", "torchvision's policies")
        return choice, float(np.float32(p)), number or 0

    given: Sequence[Any] = transform.policies if is_v1(transform) else transform._policies
    if not all(len(policy) == 2 for policy in given):
        refuse(transform, "a policy does not have two steps", "torchvision's policies")
    policies = [tuple(step(*one) for one in policy) for policy in given]
    return _automatic(transform, reader, "policies", bins, policies=policies)


_KEYED = {(AUTOMATIC, "forward"): of_operation, (V2, "forward"): of_operation}
TRANSFORMS = {
    "TrivialAugmentWide": Known(add, _trivial_augment, keyed=_KEYED),
    "RandAugment": Known(add, _rand_augment, keyed=_KEYED),
    "AutoAugment": Known(add, _auto_augment, keyed=_KEYED),
}
