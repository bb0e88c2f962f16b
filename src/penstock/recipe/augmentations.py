"""Augmentations of torchvision as the native core takes them: which effects a picture gets, and how they are drawn.

They act on PIL images, RandomErasing on tensors. What they draw is what torchvision draws from torch's generator,
number by number. Here: those that change colours, turn or distort pictures, erase parts of them, or choose among such
operations.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.recipe import drawing, installed
from penstock.recipe.geometry import interpolation_of, tensor_of
from penstock.recipe.installed import recipe_of
from penstock.recipe.torchvision import AUTOMATIC, V2, Known, changed, flatten, is_int, is_v1, low_high, refuse, run

Augmentation = dict[str, Any]
"""How the native core takes an augmentation: see native/bind/augmentation.cc."""


def add(reader: Any, transform: Any) -> None:
    """Add an augmentation of a known class to what a Reader has. Raises Refused."""
    if not reader.is_pil():
        refuse(transform, "the native core has it only for PIL images", "it before the conversion to a tensor")
    if not installed.draws_alike():
        refuse(transform, "this torch draws random numbers differently", "another torch")
    described = reader.known(transform).describe(transform, reader)
    reader.add_operation(transform, "augment", op="Augment", name=type(transform).__name__, augmentation=described)
    if reader.drawn_by_python:
        reader.draws[-1] = partial(drawing.effects, recipe_of(described))


def look_of(transform: Any, reader: Any) -> dict[str, Any]:
    """Return the filter of a transform that moves pixels, and the colour of pixels from outside the picture."""
    name = interpolation_of(transform)
    name = "nearest" if name == "nearest-exact" else name
    if name not in ("nearest", "bilinear", "bicubic"):
        refuse(transform, f"Pillow has no {name} filter for this transform", "another interpolation")
    require(transform, f"affine {name}")
    fill = transform.fill
    if isinstance(fill, dict):
        refuse(transform, "a fill for each type of input", "one fill")
    functional: Any = sys.modules["torchvision.transforms.functional"]
    move: dict[str, Any] = {"angle": 0.0, "translate": [1, 0], "scale": 1.0, "shear": [0.0, 0.0], "fill": fill}
    moved = run(transform, lambda dot: functional.affine(dot, **move), reader.dot())
    return {"filter": name, "fill": np.asarray(moved.crop((0, 0, 1, 1))).tobytes()}


def require(transform: Any, *names: str) -> None:
    """Refuse a transform unless the installed Pillow has these effects as the native core does."""
    for name in names:
        if name not in installed.effects_alike():
            refuse(transform, f"the native core does not reproduce {name!r} of this Pillow", "another Pillow")


# --- effects that a picture gets with a probability, and colours ------------------------------------------------------


def maybe(transform: Any, *then: Augmentation, in_float32: bool, inclusive: bool = False) -> Augmentation:
    """Return augmentations that are all done or none. in_float32: torchvision compares p with a tensor of float32."""
    if not isinstance(transform.p, int | float):
        refuse(transform, f"p={transform.p!r} is not a number", "a number")
    p = float(np.float32(transform.p)) if in_float32 else float(transform.p)
    return {"kind": "maybe", "p": p, "inclusive": inclusive, "then": list(then)}


def _effect(name: str, attribute: str | None, transform: Any, _: Any) -> Augmentation:
    """Describe a class that has one effect with a probability; attribute: that with the effect's number."""
    value = None if attribute is None else getattr(transform, attribute)
    whole = attribute == "bits"
    if attribute and (isinstance(value, bool) or not isinstance(value, int if whole else int | float)):
        refuse(transform, f"{attribute}={value!r}", "a whole number" if whole else "a number")
    require(transform, name)
    effect = {"effect": name} if value is None else {"effect": name, "value": value}
    in_float32 = not is_v1(transform) or name == "grayscale"
    return maybe(transform, {"kind": "effects", "effects": [effect]}, in_float32=in_float32)


def _jitter(transform: Any, _: Any) -> Augmentation:
    names = ("brightness", "contrast", "saturation", "hue")
    given = [name for name in names if getattr(transform, name) is not None]
    require(transform, *given)
    return {"kind": "jitter"} | {name: low_high(transform, name) if name in given else None for name in names}


def _apply(transform: Any, reader: Any) -> Augmentation:
    parts = transform.transforms
    if type(parts) not in (list, tuple):
        refuse(transform, f"its transforms are a {type(parts).__name__}", "a list of them")
    described = [_part(transform, one, reader) for given in parts for one in flatten(given)]
    return maybe(transform, *described, in_float32=True, inclusive=is_v1(transform))


def _part(transform: Any, part: Any, reader: Any) -> Augmentation:
    known = reader.known(part)
    if known is None or known.describe is None:
        refuse(transform, f"{type(part).__name__} is not an augmentation that the native core knows", "others")
    if (why := changed(part)) is not None:
        refuse(part, why, "the unmodified class")
    return known.describe(part, reader)  # type: ignore[no-any-return]


# --- rotations and shears ---------------------------------------------------------------------------------------------


def _pair_or_none(transform: Any, name: str) -> tuple[float, float] | None:
    return None if getattr(transform, name) is None else low_high(transform, name)


def _rotation(transform: Any, reader: Any) -> Augmentation:
    if transform.expand:
        refuse(transform, "expand=True gives each image another size", "expand=False")
    return _warp(transform, reader, rotates=True)


def _affine(transform: Any, reader: Any) -> Augmentation:
    shear = transform.shear
    if shear is not None and (len(shear) not in (2, 4) or not all(isinstance(one, int | float) for one in shear)):
        refuse(transform, f"shear={shear!r}", "two or four numbers")
    return _warp(
        transform,
        reader,
        rotates=False,
        translate=_pair_or_none(transform, "translate"),
        scale=_pair_or_none(transform, "scale"),
        shear_x=shear and tuple(shear[:2]),
        shear_y=(shear and tuple(shear[2:])) or None,
    )


def _warp(transform: Any, reader: Any, **given: Any) -> Augmentation:
    none = dict.fromkeys(("translate", "scale", "shear_x", "shear_y"))
    degrees, center = low_high(transform, "degrees"), _pair_or_none(transform, "center")
    return {"kind": "warp", "degrees": degrees, "center": center} | none | given | look_of(transform, reader)


# --- erased parts of tensors ------------------------------------------------------------------------------------------


def _erasing(reader: Any, transform: Any) -> None:
    """Add a RandomErasing, which has one value a channel, and is the last step but for conversions."""
    dot = reader.dot()
    if not isinstance(dot, torch.Tensor):
        refuse(transform, "the native core erases parts only of tensors", "it after the conversion to a tensor")
    if not installed.draws_alike():
        refuse(transform, "this torch draws random numbers differently", "another torch")
    given = transform.value
    if given is None or isinstance(given, str):
        refuse(transform, "it draws a number for each pixel", "one number as value=, or one for each channel")
    if not isinstance(transform.p, int | float):
        refuse(transform, f"p={transform.p!r} is not a number", "a number")
    values = torch.tensor([float(one) for one in (given if isinstance(given, list | tuple) else [given])])
    if len(values) not in (1, len(dot)):
        refuse(transform, f"value={given!r} for {len(dot)} channels", "one value, or one for each channel")
    functional: Any = sys.modules[f"torchvision.transforms.{'' if is_v1(transform) else 'v2.'}functional"]
    erased = run(transform, lambda picture: functional.erase(picture, 0, 0, 1, 1, values[:, None, None]), dot)
    if type(erased) is not type(dot):
        refuse(transform, f"it returns a {type(erased).__name__} for a {type(dot).__name__}", "a plain tensor")
    scale, ratio = low_high(transform, "scale"), low_high(transform, "ratio")
    reader.add_operation(
        transform,
        "erase",
        partial(_erasing_drawn, transform, len(dot)),
        op="RandomErasing",
        fill=reader.fill(erased),
        p=float(np.float32(transform.p)),  # both generations compare it with a tensor of float32
        scale=scale,
        log_ratio=run(transform, torch.log, torch.tensor(ratio)).tolist(),
    )
    reader.erases = True


def _erasing_drawn(transform: Any, channels: int, height: int, width: int) -> tuple[int, int, int, int] | None:
    image = tensor_of(height, width, channels)
    with drawing.of_next_operation():
        if torch.rand(1) >= transform.p:
            return None
        if is_v1(transform):
            top, left, rows, columns, value = transform.get_params(image, transform.scale, transform.ratio, [0.0])
            return None if value is image else (top, left, rows, columns)
        drawn = transform.make_params([image])
    return None if drawn["v"] is None else (drawn["i"], drawn["j"], drawn["h"], drawn["w"])


# --- AutoAugment, RandAugment and TrivialAugmentWide ------------------------------------------------------------------

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


# --- the table --------------------------------------------------------------------------------------------------------


_EFFECTS = {
    "RandomGrayscale": ("grayscale", None),
    "RandomInvert": ("invert", None),
    "RandomPosterize": ("posterize", "bits"),
    "RandomSolarize": ("solarize", "threshold"),
    "RandomAdjustSharpness": ("sharpness", "sharpness_factor"),
    "RandomAutocontrast": ("autocontrast", None),
    "RandomEqualize": ("equalize", None),
}
_AUTOMATIC = {(AUTOMATIC, "forward"): drawing.of_operation, (V2, "forward"): drawing.of_operation}
TRANSFORMS = {
    "ColorJitter": Known(add, _jitter, joint=True, keyed=drawing.PARAMETERS),
    **{
        name: Known(add, partial(_effect, *effect), joint=True, keyed=drawing.BY_CHANCE)
        for name, effect in _EFFECTS.items()
    },
    "RandomApply": Known(add, _apply, keyed=drawing.WHOLE),
    "RandomRotation": Known(add, _rotation, keyed=drawing.PARAMETERS),
    "RandomAffine": Known(add, _affine, keyed=drawing.PARAMETERS),
    "RandomErasing": Known(_erasing, keyed=drawing.BY_CHANCE),
    "TrivialAugmentWide": Known(add, _trivial_augment, keyed=_AUTOMATIC),
    "RandAugment": Known(add, _rand_augment, keyed=_AUTOMATIC),
    "AutoAugment": Known(add, _auto_augment, keyed=_AUTOMATIC),
}
