"""The preprocessing that torchvision's weights name, as the transforms that do the same one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from penstock.recipe.torchvision import V1, classes, refuse, run

_Steps = list[tuple[str, dict[str, Any]]]
_TO_FLOAT: _Steps = [("PILToTensor", {}), ("ConvertImageDtype", {"dtype": torch.float32})]


def _resize(preset: Any) -> _Steps:
    named = {"size": preset.resize_size, "interpolation": preset.interpolation, "antialias": preset.antialias}
    return [("Resize", named)]


def _normalize(preset: Any) -> _Steps:
    return [("Normalize", {"mean": preset.mean, "std": preset.std})]


def _classification(preset: Any) -> _Steps:
    return [*_resize(preset), ("CenterCrop", {"size": preset.crop_size}), *_TO_FLOAT, *_normalize(preset)]


def _segmentation(preset: Any) -> _Steps:
    return [*(_resize(preset) if preset.resize_size is not None else ()), *_TO_FLOAT, *_normalize(preset)]


#: By the names of the classes in torchvision.transforms._presets: the names and arguments of the first generation's
#: transforms that come one after the other.
PRESETS: dict[str, Callable[[Any], _Steps]] = {
    "ImageClassification": _classification,
    "SemanticSegmentation": _segmentation,
    "ObjectDetection": lambda _: _TO_FLOAT,
}


def steps_of(preset: Any) -> Iterator[Any]:
    """Yield the transforms that do what a preset of a known class does. Raises Refused."""
    for name, arguments in PRESETS[type(preset).__name__](preset):
        kind = next(iter(classes(name, V1)), None)
        if kind is None:
            refuse(preset, f"{V1}.{name} was replaced", "the class as it is")
        yield run(preset, _maker(kind), arguments)


def _maker(kind: type) -> Callable[[dict[str, Any]], Any]:
    return lambda named: kind(**named)
