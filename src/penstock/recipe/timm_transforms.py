"""timm's transforms where Python draws: timm's own code draws from its generators, and the native core does the rest.

Which operations a picture gets is recorded by copies of timm's objects whose functions on images only take note of
their arguments. Penstock does not import timm: a program that has one of its transforms has imported it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import penstock._native as _native
from penstock.recipe import effects
from penstock.recipe.conversions import pointwise
from penstock.recipe.geometry import scale_and_ratio, tensor_of
from penstock.recipe.originals import is_original, replaced_in_class
from penstock.recipe.resampling import FILTERS, sampling_of
from penstock.recipe.torchvision import Known, pair, refuse

_TRANSFORMS = "timm.data.transforms"
_AUTOMATIC = "timm.data.auto_augment"
_REMEDY = "torchvision's transform of that kind"
#: The attributes under which transforms hold lists of others, or lists of such lists.
HOLDING = ("ops", "policy")


def timm_classes(name: str) -> list[type]:
    """Return timm's classes of this name, as far as they are imported."""
    found = (vars(sys.modules[module]).get(name) for module in (_TRANSFORMS, _AUTOMATIC) if module in sys.modules)
    return [kind for kind in found if isinstance(kind, type) and kind.__module__ in (_TRANSFORMS, _AUTOMATIC)]


def held_operations(transform: Any) -> list[Any]:
    """Return the operations that a transform of timm's chooses from; none where it is another."""
    if type(transform) not in (*timm_classes("RandAugment"), *timm_classes("AutoAugment")):
        return []
    held = vars(transform).get("ops", vars(transform).get("policy", ()))
    if type(held) not in (list, tuple):
        return []
    return [one for part in held for one in (part if type(part) in (list, tuple) else (part,))]


# --- crops ------------------------------------------------------------------------------------------------------------


def random_resized_crop(reader: Any, transform: Any) -> None:
    """Add timm's RandomResizedCropAndInterpolation to what a Reader has."""
    _require_python(reader, transform)
    if not reader.is_pil():
        refuse(transform, "the native core has it for PIL images alone", "it before the conversion to a tensor")
    own = vars(type(transform)).get("get_params")
    if not isinstance(own, staticmethod):
        refuse(transform, "this timm draws in another way", _REMEDY)
    given = transform.interpolation
    several = list(given) if type(given) in (list, tuple) else [given]
    samplings = [sampling_of(_Resize(one), pil=True, raw=True) for one in several]
    if len({sampling["arithmetic"] for sampling in samplings}) != 1:
        refuse(transform, "its interpolations are computed in several ways", "one interpolation")
    reader.add_operation(
        transform,
        "resize",
        partial(_crop_drawn, transform),
        op="RandomResizedCrop",
        size=pair(transform, transform.size),
        **scale_and_ratio(transform),
        **samplings[0],
    )
    reader.draws_elsewhere = True


class _Resize:
    """What of a transform tells how it resizes."""

    antialias = True

    def __init__(self, interpolation: Any) -> None:
        self.interpolation = interpolation


_Resize.__module__ = "torchvision.transforms.transforms"  # timm calls the first generation's function


def _crop_drawn(transform: Any, height: int, width: int) -> tuple[Any, ...]:
    box = transform.get_params(tensor_of(height, width), transform.scale, transform.ratio)
    given = transform.interpolation
    if not isinstance(given, list | tuple):
        return (*box,)
    return *box, _random_choice(given).value


def _random_choice(given: Any) -> Any:
    return sys.modules[_TRANSFORMS].random.choice(given)


# --- RandAugment and AutoAugment --------------------------------------------------------------------------------------

Recorded = list[dict[str, Any]]
_Describe = Callable[..., Iterator[dict[str, Any]]]


class _Picture:
    """Stands for a picture that operations are recorded on: it has its size, and their effects."""

    def __init__(self, height: int, width: int) -> None:
        self.size = width, height
        self.effects: Recorded = []


def automatic(reader: Any, transform: Any) -> None:
    """Add timm's RandAugment or AutoAugment to what a Reader has."""
    _require_python(reader, transform)
    if not reader.is_pil() or reader.values[0].mode != "RGB":
        refuse(transform, "the native core has it for PIL images of mode RGB alone", _REMEDY)
    held = held_operations(transform)
    if not held or any(type(one) not in timm_classes("AugmentOp") for one in held):
        refuse(transform, "its operations are not all timm's", "timm's operations")
    for one in held:
        _check(transform, one)
    recording = copy.copy(transform)
    for name in HOLDING:
        if name in vars(transform):
            setattr(recording, name, _recording(vars(transform)[name]))
    reader.add_operation(
        transform,
        "augment",
        partial(_effects_drawn, recording),
        op="Augment",
        name=type(transform).__name__,
        augmentation={"kind": "effects", "effects": []},
    )
    reader.draws_elsewhere = True


def _check(transform: Any, operation: Any) -> None:
    """Refuse an operation that does what the native core does not. Raises Refused."""
    name = _name_of(operation.aug_fn)
    if name not in _EFFECTS or replaced_in_class(type(operation)) is not None:
        refuse(transform, f"its operation {operation.name} is not known natively, or was replaced", _REMEDY)
    for effect in _EFFECTS[name][0]:
        if not effects.reproduced(effect):
            refuse(transform, f"the effect {effect!r} of this Pillow is not reproduced natively", "another Pillow")
    if operation.kwargs.keys() - {"fillcolor", "resample"}:
        refuse(transform, "this timm gives its operations other arguments", _REMEDY)
    fill = operation.kwargs.get("fillcolor")
    whole = type(fill) is tuple and len(fill) == 3 and all(type(one) is int and 0 <= one <= 255 for one in fill)
    if not whole:
        refuse(transform, f"fillcolor={fill!r}", "a colour of three bytes")


def _name_of(function: Any) -> str:
    """Return the name of a function of timm's on images; "" for any other."""
    name = function.__name__ if isinstance(function, FunctionType) else ""
    own = name and is_original(function, _AUTOMATIC, name) and vars(sys.modules[_AUTOMATIC]).get(name) is function
    return name if own else ""


def _recording(held: Any) -> Any:
    """Return operations of timm's, or lists of them, whose functions on images only take note of their arguments."""
    if isinstance(held, list | tuple):
        return type(held)(map(_recording, held))
    operation = copy.copy(held)
    operation.aug_fn = partial(_record, _EFFECTS[_name_of(held.aug_fn)][1])
    return operation


def _record(effect: _Describe, picture: _Picture, *arguments: Any, **named: Any) -> _Picture:
    picture.effects.extend(effect(picture, *arguments, **named))
    return picture


def _effects_drawn(recording: Any, height: int, width: int) -> _native.Effects:
    picture = recording(_Picture(height, width))
    return _native.effects_of(picture.effects, height, width)


def _plain(effect: str) -> _Describe:
    def described(_: _Picture, *arguments: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {"effect": effect, "value": float(arguments[0])} if arguments else {"effect": effect}

    return described


def _posterized(_: _Picture, bits: int, **__: Any) -> Iterator[dict[str, Any]]:
    if bits < 8:
        yield {"effect": "posterize", "value": float(bits)}


def _lightened(_: _Picture, add: int, **__: Any) -> Iterator[dict[str, Any]]:
    yield {"effect": "solarize_add", "value": float(add)}


def _desaturated(_: _Picture, factor: float, **__: Any) -> Iterator[dict[str, Any]]:
    yield {"effect": "saturation", "value": min(1.0, max(0.0, 1.0 - factor))}


def _look(named: dict[str, Any]) -> dict[str, Any]:
    """Return filter and fill of a function that moves pixels; of several filters timm's own code draws one."""
    sys.modules[_AUTOMATIC]._check_args_tf(named)
    return {"filter": FILTERS.get(int(named["resample"]), ""), "fill": bytes(named["fillcolor"])}


def _moved(matrix: Callable[[float, tuple[int, int]], tuple[float, ...]]) -> _Describe:
    def described(picture: _Picture, amount: float, **named: Any) -> Iterator[dict[str, Any]]:
        yield {"effect": "affine", "matrix": matrix(amount, picture.size), **_look(named)}

    return described


def _rotated(_: _Picture, degrees: float, **named: Any) -> Iterator[dict[str, Any]]:
    yield {"effect": "rotate", "value": float(degrees), **_look(named)}


_WARPS = ("affine nearest", "affine bilinear", "affine bicubic")
#: By the names of timm's functions on images: the effects of Pillow's that they come to, and how those are described.
_EFFECTS: dict[str, tuple[tuple[str, ...], _Describe]] = {
    "auto_contrast": (("autocontrast",), _plain("autocontrast")),
    "equalize": (("equalize",), _plain("equalize")),
    "invert": (("invert",), _plain("invert")),
    "solarize": (("solarize",), _plain("solarize")),
    "solarize_add": ((), _lightened),
    "posterize": (("posterize",), _posterized),
    "contrast": (("contrast",), _plain("contrast")),
    "color": (("saturation",), _plain("saturation")),
    "brightness": (("brightness",), _plain("brightness")),
    "sharpness": (("sharpness",), _plain("sharpness")),
    "desaturate": (("saturation",), _desaturated),
    "rotate": (_WARPS, _rotated),
    "shear_x": (_WARPS, _moved(lambda factor, _: (1.0, factor, 0.0, 0.0, 1.0, 0.0))),
    "shear_y": (_WARPS, _moved(lambda factor, _: (1.0, 0.0, 0.0, factor, 1.0, 0.0))),
    "translate_x_abs": (_WARPS, _moved(lambda pixels, _: (1.0, 0.0, pixels, 0.0, 1.0, 0.0))),
    "translate_y_abs": (_WARPS, _moved(lambda pixels, _: (1.0, 0.0, 0.0, 0.0, 1.0, pixels))),
    "translate_x_rel": (_WARPS, _moved(lambda share, size: (1.0, 0.0, share * size[0], 0.0, 1.0, 0.0))),
    "translate_y_rel": (_WARPS, _moved(lambda share, size: (1.0, 0.0, 0.0, 0.0, 1.0, share * size[1]))),
}


def _require_python(reader: Any, transform: Any) -> None:
    if not reader.drawn_by_python:
        refuse(transform, "it draws from generators of Python's and NumPy's", _REMEDY)


#: By the names of timm's classes.
TRANSFORMS = {
    "RandomResizedCropAndInterpolation": Known(random_resized_crop),
    "RandAugment": Known(automatic),
    "AutoAugment": Known(automatic),
    **dict.fromkeys(("MaybeToTensor", "MaybePILToTensor", "ToTensor"), Known(pointwise)),
}
