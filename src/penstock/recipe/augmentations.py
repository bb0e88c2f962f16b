"""Augmentations of torchvision as the native core takes them: which effects a picture gets, and how they are drawn.

They act on PIL images, RandomErasing on tensors. What they draw is what torchvision draws from torch's generator,
number by number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from penstock.recipe import effects
from penstock.recipe.blurring import blurs_alike, describe_blur
from penstock.recipe.choosing import describe_choice
from penstock.recipe.resampling import interpolation_of
from penstock.recipe.torchvision import changed, flatten, is_int, is_v1, low_high, refuse, run

Augmentation = dict[str, Any]
"""How the native core takes an augmentation: see native/bind/augmentation.cc."""

_BEFORE = "it before the conversion to a tensor"
#: The share of a side by which the automatic augmentations move a picture at most.
_MOST_SHIFT = 150.0 / 331.0


class Picture(Protocol):
    """The picture that an augmentation is given, as a Reader has it."""

    drawn_by_python: bool
    """Python has the native core draw each sample's effects, and may add to them."""
    foreseen: bool
    """Python is told of the samples before the native core draws their effects."""

    def is_pil(self) -> bool: ...
    def size(self) -> tuple[int, int, int] | None: ...
    def dot(self) -> Any: ...


def describe(transform: Any, picture: Picture) -> Augmentation:
    """Return how the native core takes an augmentation of a known class. Raises Refused."""
    if not picture.is_pil():
        refuse(transform, "the native core has it for PIL images alone", _BEFORE)
    if not effects.draws_alike():
        refuse(transform, "this torch draws in another way", "another torch")
    return DESCRIPTIONS[type(transform).__name__](transform, picture)


def fixed(transform: Any, name: str, value: float | None = None) -> Augmentation:
    """Return an effect that is not drawn."""
    _require(transform, name)
    return {"kind": "effects", "effects": [{"effect": name} if value is None else {"effect": name, "value": value}]}


def look_of(transform: Any, picture: Picture, effect: str = "affine") -> dict[str, Any]:
    """Return the filter of a transform that moves pixels, and the colour of pixels from outside the picture."""
    name = interpolation_of(transform)
    name = "nearest" if name == "nearest-exact" else name
    if name not in ("nearest", "bilinear", "bicubic"):
        refuse(transform, f"Pillow moves pixels by no {name} filter", "another interpolation")
    _require(transform, f"{effect} {name}")
    fill = transform.fill
    if isinstance(fill, dict):
        refuse(transform, "a fill for each type of input", "one fill")
    functional: Any = sys.modules["torchvision.transforms.functional"]
    move: dict[str, Any] = {"angle": 0.0, "translate": [1, 0], "scale": 1.0, "shear": [0.0, 0.0], "fill": fill}
    moved = run(transform, lambda dot: functional.affine(dot, **move), picture.dot())
    return {"filter": name, "fill": np.asarray(moved.crop((0, 0, 1, 1))).tobytes()}


def _require(transform: Any, *names: str) -> None:
    for name in names:
        if not effects.reproduced(name):
            refuse(transform, f"the effect {name!r} of this Pillow is not reproduced natively", "another Pillow")


def _probability(transform: Any, *, in_float32: bool) -> float:
    """Return p as torchvision compares it with a number drawn: with a tensor of float32, or as it is."""
    if not isinstance(transform.p, int | float):
        refuse(transform, f"p={transform.p!r} is not a number", "a number")
    return float(np.float32(transform.p)) if in_float32 else float(transform.p)


def _maybe(transform: Any, *then: Augmentation, in_float32: bool, inclusive: bool = False) -> Augmentation:
    p = _probability(transform, in_float32=in_float32)
    return {"kind": "maybe", "p": p, "inclusive": inclusive, "then": list(then)}


def _random(name: str, attribute: str | None = None) -> Callable[[Any, Picture], Augmentation]:
    """Return what describes a class that has one effect with a probability."""

    def description(transform: Any, picture: Picture) -> Augmentation:
        value = None if attribute is None else getattr(transform, attribute)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            refuse(transform, f"{attribute}={value!r}", "a number")
        return _maybe(transform, fixed(transform, name, value), in_float32=not is_v1(transform) or name == "grayscale")

    return description


def _blur(transform: Any, picture: Picture) -> Augmentation:
    size, second = transform.kernel_size, not is_v1(transform)
    if len(size) != 2 or not all(is_int(one) and one > 0 and one % 2 for one in size):
        refuse(transform, f"kernel_size={size!r}", "two odd numbers")
    if not picture.drawn_by_python:
        _look_at_sums(transform, picture, size[1], size[0], second)
    return describe_blur(low_high(transform, "sigma"), size[1], size[0], second=second)


def _look_at_sums(transform: Any, picture: Picture, rows: int, columns: int, second: bool) -> None:
    """Refuse a blur unless all pictures have a size for which the native core is known to add as torch does."""
    if not picture.foreseen:
        refuse(transform, "torch computes its weights for each sample", "transforms that are all native")
    found = picture.size()
    if found is None:
        refuse(transform, "pictures of many sizes, for which torch may add in many ways", "it after a crop or resize")
    if not blurs_alike(rows, columns, second, found):
        refuse(transform, "torch blurs pictures of this size in another way", "another one")


def _posterize(transform: Any, picture: Picture) -> Augmentation:
    if not is_int(transform.bits):
        refuse(transform, f"bits={transform.bits!r}", "a whole number")
    return _random("posterize", "bits")(transform, picture)


def _jitter(transform: Any, _: Picture) -> Augmentation:
    names = ("brightness", "contrast", "saturation", "hue")
    given = [name for name in names if getattr(transform, name) is not None]
    _require(transform, *given)
    return {"kind": "jitter"} | {name: low_high(transform, name) if name in given else None for name in names}


def _parts(transform: Any, picture: Picture) -> list[Augmentation]:
    """Return the augmentations that a transform of transforms holds, one behind the other."""
    return [one for part in _parts_of_each(transform, picture) for one in part]


def _parts_of_each(transform: Any, picture: Picture) -> list[list[Augmentation]]:
    """Return the augmentations of each transform that a transform holds; a Compose has several."""
    parts = transform.transforms
    if type(parts) not in (list, tuple):
        refuse(transform, f"its transforms are a {type(parts).__name__}", "a list of them")
    return [[_part(transform, one, picture) for one in flatten(given)] for given in parts]


def _part(transform: Any, part: Any, picture: Picture) -> Augmentation:
    name = type(part).__name__
    if not type(part).__module__.startswith("torchvision.transforms.") or name not in DESCRIPTIONS:
        refuse(transform, f"{name} in it is no augmentation that the native core knows", "others")
    if name in ("RandomChoice", "RandomPerspective") or (name == "RandomOrder" and is_v1(part)):
        refuse(transform, f"{name} in it is drawn by Python", "it by itself")
    if (why := changed(part)) is not None:
        refuse(part, why, "the class as it is")
    return DESCRIPTIONS[name](part, picture)


def _apply(transform: Any, picture: Picture) -> Augmentation:
    return _maybe(transform, *_parts(transform, picture), in_float32=True, inclusive=is_v1(transform))


def _each(transform: Any, picture: Picture) -> list[Augmentation]:
    """Return an augmentation for each transform that a transform holds."""
    return [
        part[0] if len(part) == 1 else {"kind": "all", "parts": part} for part in _parts_of_each(transform, picture)
    ]


def _order(transform: Any, picture: Picture) -> Augmentation:
    return {"kind": "shuffled", "parts": _each(transform, picture)}


def _choice(transform: Any, picture: Picture) -> Augmentation:
    return describe_choice(transform, _each(transform, picture))


def _perspective(transform: Any, picture: Picture) -> Augmentation:
    if not picture.drawn_by_python:
        refuse(transform, "torch solves for its coefficients", "RandomAffine")
    look = look_of(transform, picture, "perspective")
    return {"kind": "effects", "effects": [], "look": look}


def _pair_or_none(transform: Any, name: str) -> tuple[float, float] | None:
    return None if getattr(transform, name) is None else low_high(transform, name)


def _rotation(transform: Any, picture: Picture) -> Augmentation:
    if transform.expand:
        refuse(transform, "expand=True gives each picture a size of its own", "expand=False")
    return _warp(transform, picture, rotates=True)


def _affine(transform: Any, picture: Picture) -> Augmentation:
    shear = transform.shear
    if shear is not None and (len(shear) not in (2, 4) or not all(isinstance(one, int | float) for one in shear)):
        refuse(transform, f"shear={shear!r}", "two or four numbers")
    return _warp(
        transform,
        picture,
        rotates=False,
        translate=_pair_or_none(transform, "translate"),
        scale=_pair_or_none(transform, "scale"),
        shear_x=shear and tuple(shear[:2]),
        shear_y=(shear and tuple(shear[2:])) or None,
    )


def _warp(transform: Any, picture: Picture, **given: Any) -> Augmentation:
    none = dict.fromkeys(("translate", "scale", "shear_x", "shear_y"))
    degrees, center = low_high(transform, "degrees"), _pair_or_none(transform, "center")
    return {"kind": "warp", "degrees": degrees, "center": center} | none | given | look_of(transform, picture)


# --- AutoAugment and its like -----------------------------------------------------------------------------------------

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
        _require(transform, *filter(None, [_OPERATIONS[name]]))
        share = 0.0
        if magnitudes != spaces[1][name][0]:
            share = _MOST_SHIFT
            sides = {"TranslateX": (48, 331), "TranslateY": (32, 224)}.get(name, ())
            linear = [torch.linspace(0.0, share * side, bins).tolist() for side in sides]
            if linear != [space[name][0] for space in spaces] or not effects.magnitudes_alike(share, bins):
                refuse(transform, f"the magnitudes of {name} are not reproduced natively", "another torchvision")
            magnitudes = []
        choices[name] = {"operation": name, "magnitudes": magnitudes, "share": share, "signed": bool(signed)}
    return choices


def _bins(transform: Any) -> int:
    bins = transform.num_magnitude_bins
    if not is_int(bins) or not 2 <= bins <= 4096:
        refuse(transform, f"num_magnitude_bins={bins!r}", "a whole number of at least 2")
    return int(bins)


def _automatic(transform: Any, picture: Picture, kind: str, bins: int, **given: Any) -> Augmentation:
    look = look_of(transform, picture)
    return {"kind": kind, "bins": bins, "second": not is_v1(transform)} | given | look


def _trivial_augment(transform: Any, picture: Picture) -> Augmentation:
    bins = _bins(transform)
    choices = list(_choices(transform, bins).values())
    return _automatic(transform, picture, "choices", bins, choices=choices, count=1, bin=None)


def _rand_augment(transform: Any, picture: Picture) -> Augmentation:
    bins, magnitude, count = _bins(transform), transform.magnitude, transform.num_ops
    if not is_int(magnitude) or not is_int(count) or not 0 <= magnitude < bins:
        refuse(transform, f"num_ops={count!r}, magnitude={magnitude!r}", "whole numbers, and magnitude below the bins")
    choices = list(_choices(transform, bins).values())
    return _automatic(transform, picture, "choices", bins, choices=choices, count=count, bin=magnitude)


def _auto_augment(transform: Any, picture: Picture) -> Augmentation:
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
        refuse(transform, "a policy has not two steps", "torchvision's policies")
    policies = [tuple(step(*one) for one in policy) for policy in given]
    return _automatic(transform, picture, "policies", bins, policies=policies)


#: By the names of torchvision's classes of both generations.
DESCRIPTIONS: dict[str, Callable[[Any, Picture], Augmentation]] = {
    "ColorJitter": _jitter,
    "GaussianBlur": _blur,
    "RandomGrayscale": _random("grayscale"),
    "RandomInvert": _random("invert"),
    "RandomPosterize": _posterize,
    "RandomSolarize": _random("solarize", "threshold"),
    "RandomAdjustSharpness": _random("sharpness", "sharpness_factor"),
    "RandomAutocontrast": _random("autocontrast"),
    "RandomEqualize": _random("equalize"),
    "RandomApply": _apply,
    "RandomOrder": _order,
    "RandomChoice": _choice,
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandomPerspective": _perspective,
    "TrivialAugmentWide": _trivial_augment,
    "RandAugment": _rand_augment,
    "AutoAugment": _auto_augment,
}


def describe_erasing(transform: Any, dot: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the operation of a RandomErasing, and a picture whose upper left pixel it has erased. Raises Refused.

    It has one value a channel, and is the last step but for conversions.

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
