"""Where a dataset shows that it has a Compose of torchvision's transforms."""

from __future__ import annotations

from typing import Any

from torch.utils.data import ConcatDataset, Subset

from penstock.recipe.torchvision import classes

#: Datasets of a ConcatDataset that are looked at: they are alike as a rule.
_DATASETS = 8


def composes_in(dataset: Any) -> tuple[str, ...]:
    """Return the attributes of a dataset that hold a Compose, such as ".transform", each name once.

    It looks at the attributes of the dataset, or of those that it is a Subset or ConcatDataset of, and at what lists,
    tuples, dicts and objects in them hold.
    """
    if isinstance(dataset, Subset):
        return composes_in(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return tuple(dict.fromkeys(name for part in dataset.datasets[:_DATASETS] for name in composes_in(part)))
    kinds = tuple(classes("Compose"))
    held = getattr(dataset, "__dict__", {})
    return tuple(f".{name}" for name, value in held.items() if kinds and _holds(value, kinds))


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds):
        return True
    if type(value) in (list, tuple):
        return any(isinstance(one, kinds) for one in value[:_DATASETS])
    inside = value if type(value) is dict else getattr(value, "__dict__", {})
    return any(isinstance(one, kinds) for one in inside.values())
