"""What a dataset says of its pictures and labels: the names of its classes, and a normalisation of its transform."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from penstock.insight.pictures import Normalisation
from penstock.insight.texts import LABELS
from penstock.recipe.torchvision import classes, flatten
from penstock.sources.tree import source_of

T = TypeVar("T", bound=Hashable)

#: Transforms behind a Normalize that leave its values as they are, or put others in the place of some.
_AFTER = ("RandomErasing", "ToPureTensor", "RandomHorizontalFlip", "RandomVerticalFlip", "CenterCrop", "RandomCrop")


def classes_of(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of a dataset's classes by label; None: it has none, or its labels are not their numbers.

    All parts of a ConcatDataset must have the same names.
    """
    return _of_all_parts(dataset, _classes)


def normalisation_of(dataset: Any) -> Normalisation | None:
    """Return the normalisation that a dataset's transform ends with: torchvision's Normalize; None: there is none.

    It is looked for in the dataset's attribute `transform`, a Compose of torchvision's or a single transform. All parts
    of a ConcatDataset must have the same one.
    """
    return _of_all_parts(dataset, _normalisation)


def _of_all_parts(dataset: Any, find: Callable[[Any], T | None]) -> T | None:
    """Return what is found in each dataset that the samples come from; None: they differ."""
    try:
        found = {find(source.dataset) for source in source_of(dataset).parts()}
    except Exception:  # a dataset of any kind may raise anything
        return None
    return found.pop() if len(found) == 1 else None


def _classes(dataset: Any) -> tuple[str, ...] | None:
    names = getattr(dataset, "classes", None)
    if names is None:  # a Hugging Face dataset, whose labels are a ClassLabel
        features = getattr(dataset, "features", None) or {}
        names = next((features[name].names for name in LABELS if hasattr(features.get(name), "names")), None)
    if getattr(dataset, "target_transform", None) is not None or not isinstance(names, list | tuple):
        return None
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def _normalisation(dataset: Any) -> Normalisation | None:
    kinds = classes("Normalize")
    steps = list(flatten(getattr(dataset, "transform", None)))
    places = [place for place, step in enumerate(steps) if type(step) in kinds]
    after = tuple(kind for name in _AFTER for kind in classes(name))
    if len(places) != 1 or any(type(step) not in after for step in steps[places[0] + 1 :]):
        return None
    step: Any = steps[places[0]]
    mean, std = (tuple(float(one) for one in _numbers(values)) for values in (step.mean, step.std))
    return Normalisation(mean, std) if all(std) else None


def _numbers(values: Any) -> Any:
    return values if hasattr(values, "__len__") else [values]
