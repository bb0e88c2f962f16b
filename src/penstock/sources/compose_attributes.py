"""The attributes of a dataset that hold a Compose of torchvision's transforms."""

from __future__ import annotations

from typing import Any

from penstock.recipe.torchvision import classes
from penstock.sources.tree import source_of

#: How many datasets of a ConcatDataset, and elements of a list, are looked at: they are alike as a rule.
_LOOKED_AT = 8


def composes_in(dataset: Any) -> tuple[str, ...]:
    """Return the attributes of a dataset that hold a Compose, such as ".transform", each name once.

    The attributes of the dataset are searched, or of those that it is a Subset or ConcatDataset of, and what lists,
    tuples, dicts and objects in them hold.
    """
    kinds = tuple(classes("Compose"))
    if not kinds:
        return ()
    held = (getattr(part.dataset, "__dict__", {}) for part in source_of(dataset).parts(_LOOKED_AT))
    return tuple(dict.fromkeys(f".{name}" for one in held for name, value in one.items() if _holds(value, kinds)))


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds):
        return True
    if type(value) in (list, tuple):
        return any(isinstance(one, kinds) for one in value[:_LOOKED_AT])
    inside = value if type(value) is dict else getattr(value, "__dict__", {})
    return any(isinstance(one, kinds) for one in inside.values())
