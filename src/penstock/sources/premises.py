"""Premises of a plan, which are looked at before each batch: a few microseconds.

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
from torch.utils.data._utils.collate import (
    collate_float_fn,
    collate_int_fn,
    collate_numpy_array_fn,
    collate_numpy_scalar_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)

import penstock._native as _native
from penstock.recipe.attributes import AttributeState
from penstock.recipe.originals import hooked, replaced_in, replaced_in_class
from penstock.recipe.steps import Refusal
from penstock.recipe.torchvision import classes
from penstock.recipe.views import Views

Holds = Callable[[], bool]
"""Returns whether a premise still holds."""

_ABSENT = object()


def same_attributes(owner: object, *names: str) -> Holds:
    """Return a premise: these attributes of an object stay the objects that they are now."""
    held = vars(owner)
    kept = [(name, held.get(name, _ABSENT)) for name in names]

    def same() -> bool:
        for name, value in kept:  # noqa: SIM110  called for each batch, and a generator costs more
            if held.get(name, _ABSENT) is not value:
                return False
        return True

    return same


def same_items(owner: Sequence[Any]) -> Holds:
    """Return a premise: a sequence keeps the objects that it holds now."""
    kept = list(owner)
    return lambda: len(owner) == len(kept) and all(map(operator.is_, owner, kept))


def all_of(*premises: Holds) -> Holds:
    """Return the premise that all of these hold."""
    if len(premises) == 1:
        return premises[0]

    def hold() -> bool:
        for holds in premises:  # noqa: SIM110  called for each batch, and a generator costs more
            if not holds():
                return False
        return True

    return hold


def same_memory(arrays: Sequence[torch.Tensor | np.ndarray]) -> Holds:
    """Return a premise: arrays keep their addresses, shapes, strides and dtypes."""
    return all_of(*(_place_of_array(one) if isinstance(one, np.ndarray) else _place(one) for one in arrays))


def _place(tensor: torch.Tensor) -> Holds:
    address, shape, strides = tensor.data_ptr(), tensor.shape, tensor.stride()
    dtype, requires_grad = tensor.dtype, tensor.requires_grad
    return lambda: (
        tensor.data_ptr() == address
        and tensor.shape == shape
        and tensor.stride() == strides
        and tensor.dtype is dtype
        and tensor.requires_grad is requires_grad
    )


def _place_of_array(array: np.ndarray) -> Holds:
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
    return kind is Views or kind.__module__.startswith("torchvision.transforms") or kind in classes("Compose")


#: The kind under which torch's table has the function for scalars of numpy.
NUMPY_SCALARS = (np.bool_, np.number, np.object_)
#: By kind of sample: the function in torch's own table of collating.
_COLLATING: dict[Any, Any] = {
    torch.Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    NUMPY_SCALARS: collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,
}
#: By kinds: the table, as it was when it treated these kinds as torch's own does.
_approved: dict[tuple[Any, ...], dict[Any, Any]] = {}


def replaced_in_collating() -> Refusal | None:
    """Return which function of torch's that default_collate calls was replaced, or None."""
    return replaced_in("torch.utils.data._utils.collate", "default_collate collate")


def collates_as_torch(*kinds: Any) -> bool:
    """Return whether default_collate treats these kinds, and tuples and dictionaries, as torch defines it."""
    if replaced_in_collating() is not None:
        return False
    if default_collate_fn_map == _approved.get(kinds):
        return True
    original = all(default_collate_fn_map.get(kind) is _COLLATING[kind] for kind in kinds)
    if not original or any(isinstance((), kind) or isinstance({}, kind) for kind in default_collate_fn_map):
        return False
    _approved[kinds] = dict(default_collate_fn_map)
    return True
