"""Batches of any structure: tuples, named tuples, lists, mappings and dataclasses, and the leaves in them."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def _no_other(value: object) -> bool:
    return False


def map_leaves(batch: Any, function: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = _no_other) -> Any:
    """Return the batch with function(leaf) in the place of each leaf; the batch itself is left as it is.

    Containers keep their types: tuples, named tuples, lists and their subclasses, mappings (a plain dict where the
    type cannot be built from a dict) and dataclasses, frozen ones too. Fields of a dataclass that its __init__ does
    not take are left to its __post_init__. All else is a leaf: tensors, arrays, numbers, strings, None, sets, objects.

    Args:
        batch: of any structure.
        function: called once a leaf, in order.
        is_leaf: asked first about every value, the batch included; true for a container that is to be a leaf.

    Raises:
        Exception: what function raises, and what a container's own type raises when it is built anew.
    """
    if is_leaf(batch) or (parts := _parts(batch)) is None:
        return function(batch)
    return _rebuilt(batch, [map_leaves(part, function, is_leaf) for part in parts])


def leaves(batch: Any, is_leaf: Callable[[Any], bool] = _no_other) -> Iterator[Any]:
    """Yield the leaves of a batch in the order of map_leaves."""
    if is_leaf(batch) or (parts := _parts(batch)) is None:
        yield batch
    else:
        for part in parts:
            yield from leaves(part, is_leaf)


def _parts(value: Any) -> list[Any] | None:
    """Return what a container holds, or None for all else."""
    if isinstance(value, torch.Tensor | str | bytes):  # most leaves are: no further question
        return None
    if isinstance(value, tuple | list):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # before Mapping: some types are both
        return [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
    if isinstance(value, Mapping):
        return list(value.values())
    return None


def _rebuilt(value: Any, parts: list[Any]) -> Any:
    """Return a container like value that holds parts instead."""
    kind = type(value)
    if kind is list:
        return parts
    if isinstance(value, tuple):
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if isinstance(value, list):
        clone = copy.copy(value)  # a subclass may have attributes of its own
        clone[:] = parts
        return clone
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **dict(zip(names, parts, strict=True)))
    return _rebuilt_mapping(value, dict(zip(value, parts, strict=True)))


# Other mappings are not copied: a copy of one that wraps a dict would share that dict with the batch.
def _rebuilt_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(value) is dict:
        return items
    try:
        if isinstance(value, dict | UserDict):
            clone = copy.copy(value)  # a defaultdict keeps its factory, a BatchEncoding its encodings
            clone.update(items)
            return clone
        return type(value)(items)  # type: ignore[call-arg]  # where its constructor takes one: else TypeError
    except TypeError:
        return items
