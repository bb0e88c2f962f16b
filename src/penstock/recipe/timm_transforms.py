"""timm's crop and conversions: timm's own code draws from its generators, and the native core does the rest.

Penstock does not import timm: a program that has one of its transforms has imported it.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from penstock.recipe.conversions import pointwise
from penstock.recipe.geometry import scale_and_ratio, tensor_of
from penstock.recipe.resampling import sampling_of
from penstock.recipe.torchvision import Known, pair, refuse

_TRANSFORMS = "timm.data.transforms"
_REMEDY = "torchvision's transform of that kind"


def timm_classes(name: str) -> list[type]:
    """Return timm's classes of this name, as far as they are imported."""
    kind = getattr(sys.modules.get(_TRANSFORMS), name, None)
    return [kind] if isinstance(kind, type) and kind.__module__ == _TRANSFORMS else []


def _resized_crop(reader: Any, transform: Any) -> None:
    if not reader.drawn_by_python:
        refuse(transform, "it draws from generators of Python's and NumPy's", _REMEDY)
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
    return *box, sys.modules[_TRANSFORMS].random.choice(given).value


#: By the names of timm's classes.
TRANSFORMS = {
    "RandomResizedCropAndInterpolation": Known(_resized_crop),
    **dict.fromkeys(("MaybeToTensor", "MaybePILToTensor", "ToTensor"), Known(pointwise)),
}
