"""What a plan was made from, and whether it still is so: a few microseconds, asked at each batch.

A dataset's attributes are compared by identity, for they are read anew where another object stands there; what its
transforms hold is compared by value, for it was read once; and arrays by where they lie, for threads read that memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate_numpy_array_fn, collate_tensor_fn, default_collate_fn_map

from penstock import _native
from penstock.recipe.originals import replaced_in
from penstock.recipe.steps import Refusal
from penstock.recipe.torchvision import classes

Holds = Callable[[], bool]
"""Whether a premise still holds."""

_ABSENT = object()


def attributes(owner: object, *names: str) -> Holds:
    """Return whether these attributes of an object still are the objects that they are now."""
    held = vars(owner)
    kept = [(name, held.get(name, _ABSENT)) for name in names]

    def same() -> bool:
        for name, value in kept:  # noqa: SIM110  each batch asks, and a generator costs more
            if held.get(name, _ABSENT) is not value:
                return False
        return True

    return same


def items(owner: Sequence[Any]) -> Holds:
    """Return whether a sequence still holds the objects that it holds now."""
    kept = list(owner)
    return lambda: len(owner) == len(kept) and all(map(operator.is_, owner, kept))


def all_of(*premises: Holds) -> Holds:
    """Return whether all of these hold."""
    if len(premises) == 1:
        return premises[0]

    def hold() -> bool:
        for holds in premises:  # noqa: SIM110  each batch asks, and a generator costs more
            if not holds():
                return False
        return True

    return hold


def places(arrays: Sequence[torch.Tensor | np.ndarray]) -> Holds:
    """Return whether arrays still lie where they lie now, and are what they are."""
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
    """What the attributes of a transform, and of its parts where it is a Compose, were.

    Objects that are no transforms of torchvision's count as the same while they are the same object.
    """

    def __init__(self, transform: object) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []  # most are: the hooks of a module
        self._tensors: list[tuple[torch.Tensor, int]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._seen: set[int] = set()
        self._keep(transform)
        del self._seen

    def holds(self) -> bool:
        """Return whether they still are."""
        try:
            return (
                all(held == kept for held, kept in self._attributes)
                and not any(self._empty)
                and all(held == kept for held, kept in self._containers)
                and all(tensor._version == version for tensor, version in self._tensors)
                and all(np.array_equal(held, kept) for held, kept in self._arrays)
            )
        except Exception:  # of a comparison
            return False

    def _keep(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        if isinstance(value, torch.Tensor):
            if not value.is_inference():
                self._tensors.append((value, value._version))
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.copy()))
        elif isinstance(value, list | dict | set):
            self._seen.add(id(value))
            if value:
                self._containers.append((value, value.copy()))
            else:
                self._empty.append(value)
            for item in value.values() if isinstance(value, dict) else value:
                self._keep(item)
        elif isinstance(value, tuple):
            for item in value:
                self._keep(item)
        elif _is_transform(value):
            self._seen.add(id(value))
            held = vars(value)
            self._attributes.append((held, held.copy()))
            for item in held.values():
                self._keep(item)


def _is_transform(value: object) -> bool:
    if not hasattr(value, "__dict__") or isinstance(value, type | Enum):
        return False
    return type(value).__module__.startswith("torchvision.transforms") or type(value) in classes("Compose")


#: By kind of sample: the function in torch's table of collating.
_TORCHS = {torch.Tensor: collate_tensor_fn, np.ndarray: collate_numpy_array_fn}
#: By kinds: a table of torch's that treats them as its own says.
_as_torchs: dict[tuple[type, ...], dict[Any, Any]] = {}


def replaced_in_collating() -> Refusal | None:
    """Return which function of torch's that default_collate comes to was replaced, or None."""
    return replaced_in("torch.utils.data._utils.collate", "default_collate collate")


def collates_as_torch(*kinds: type) -> bool:
    """Return whether default_collate treats these kinds, and tuples, as torch's own table says."""
    if replaced_in_collating() is not None:
        return False
    if default_collate_fn_map == _as_torchs.get(kinds):
        return True
    theirs = all(default_collate_fn_map.get(kind) is _TORCHS[kind] for kind in kinds)
    if not theirs or any(isinstance((), kind) for kind in default_collate_fn_map):
        return False
    _as_torchs[kinds] = dict(default_collate_fn_map)
    return True
