"""Whether what a plan was made of is unchanged, which is looked at before each batch: a few microseconds.

A dataset's attributes are compared by identity, because a plan is made anew for another object; what its transforms
hold is compared by value, because a plan reads it once; and arrays by their addresses, because threads read their
memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

import penstock._native as _native
from penstock.recipe.attributes import AttributeState
from penstock.recipe.originals import hooked, replaced_in, replaced_in_class
from penstock.recipe.steps import Refusal
from penstock.recipe.torchvision import classes

Unchanged = Callable[[], bool]
"""Returns whether something is what it was when this function was made."""

_ABSENT = object()


def same_attributes(owner: object, *names: str) -> Unchanged:
    """Return whether these attributes of an object stay the objects that they are now."""
    held = vars(owner)
    kept = [(name, held.get(name, _ABSENT)) for name in names]

    def same() -> bool:
        for name, value in kept:  # noqa: SIM110  called for each batch, and a generator costs more
            if held.get(name, _ABSENT) is not value:
                return False
        return True

    return same


def same_items(owner: Sequence[Any]) -> Unchanged:
    """Return whether a sequence keeps the objects that it holds now."""
    kept = list(owner)
    return lambda: len(owner) == len(kept) and all(map(operator.is_, owner, kept))


def all_of(*parts: Unchanged) -> Unchanged:
    """Return whether all of these are unchanged."""
    if len(parts) == 1:
        return parts[0]

    def unchanged() -> bool:
        for part in parts:  # noqa: SIM110  called for each batch, and a generator costs more
            if not part():
                return False
        return True

    return unchanged


def same_memory(arrays: Sequence[torch.Tensor | np.ndarray]) -> Unchanged:
    """Return whether arrays keep their addresses, shapes, strides and dtypes."""
    return all_of(*(_place_of_array(one) if isinstance(one, np.ndarray) else _place(one) for one in arrays))


def _place(tensor: torch.Tensor) -> Unchanged:
    address, shape, strides = tensor.data_ptr(), tensor.shape, tensor.stride()
    dtype, requires_grad = tensor.dtype, tensor.requires_grad
    return lambda: (
        tensor.data_ptr() == address
        and tensor.shape == shape
        and tensor.stride() == strides
        and tensor.dtype is dtype
        and tensor.requires_grad is requires_grad
    )


def _place_of_array(array: np.ndarray) -> Unchanged:
    address, shape, strides, dtype = _native.address(array), array.shape, array.strides, array.dtype
    return lambda: (
        _native.address(array) == address and array.shape == shape and array.strides == strides and array.dtype == dtype
    )


class TransformState:
    """What the attributes of a transform, and of all transforms in it, were."""

    def __init__(self, transform: object) -> None:
        self._states: dict[int, tuple[object, AttributeState]] = {}
        self._kinds: set[type] = set()
        waiting = [transform]
        while waiting:
            part = waiting.pop()
            if _is_transform(part) and id(part) not in self._states:
                state = AttributeState(part)
                self._states[id(part)] = part, state
                self._kinds.add(type(part))
                waiting += state.objects

    def holds(self) -> bool:
        """Return whether the attributes are what they were, and the methods of the classes their packages' own."""
        same = all(state.same(part) for part, state in self._states.values())
        return same and not hooked() and all(replaced_in_class(kind) is None for kind in self._kinds)


def _is_transform(value: object) -> bool:
    if not hasattr(value, "__dict__") or isinstance(value, type | Enum):
        return False
    kind = type(value)
    ours = ("torchvision.transforms", "penstock.recipe.views")
    return kind.__module__.startswith(ours) or kind in classes("Compose")


#: What default_collate meets in samples of tensors, arrays and numbers.
_COLLATED: tuple[Any, ...] = (torch.empty(0, device="cpu"), np.empty(0), np.float32(0), 0.0, 0, (), {})
#: torch's table of collating, as it was when it treated all of these as torch defines it.
_approved: dict[Any, Any] = {}


def replaced_in_collating() -> Refusal | None:
    """Return which function of torch's that default_collate calls was replaced, or None."""
    return replaced_in("torch.utils.data._utils.collate", "default_collate collate")


def collates_as_torch() -> bool:
    """Return whether default_collate treats tensors, arrays, numbers, tuples and dictionaries as torch defines it."""
    if replaced_in_collating() is not None:
        return False
    if default_collate_fn_map == _approved:
        return True
    for kind, function in default_collate_fn_map.items():
        if function.__module__ != collate.__module__ and any(isinstance(value, kind) for value in _COLLATED):
            return False
    _approved.clear()
    _approved.update(default_collate_fn_map)
    return True
