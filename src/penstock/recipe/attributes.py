"""What the attributes of an object were, so that a later change of any of them is noticed."""

from __future__ import annotations

import enum
import functools
from types import FunctionType
from typing import Any

import numpy as np
import torch

_VALUES = (
    *(bool, int, float, complex, str, bytes, type(None), type, enum.Enum, torch.dtype, torch.device, np.generic),
    *(FunctionType, functools.partial),
)


class AttributeState:
    """What the attributes of an object were, and what lists, tensors and arrays in them held.

    Args:
        owner: the object, which is not kept alive.
        without: the name of an attribute that does not count.

    Attributes:
        objects: what the attributes hold beside plain values, containers of them, tensors and arrays: objects, which
            count as the same while they are the same object.
        fixed: the attributes hold no array, and every change of a tensor can be noticed.
    """

    def __init__(self, owner: object, without: str | None = None) -> None:
        self.objects: list[Any] = []
        self.fixed = True
        self._without = without
        self._empty: list[Any] = []  # most containers are: the hooks of a module
        self._containers: list[tuple[Any, Any]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._attributes = dict(self._attributes_of(owner))
        for value in self._attributes.values():
            self._note(value)

    def same(self, owner: object) -> bool:
        """Return whether the attributes are what they were."""
        try:
            if self._attributes_of(owner) != self._attributes or any(self._empty):
                return False
            for container, copy in self._containers:
                if container != copy:
                    return False
            for tensor, version in self._versions:
                if tensor._version != version:
                    return False
            return all(np.array_equal(array, copy) for array, copy in self._arrays) if self._arrays else True
        except Exception:  # of a comparison
            return False

    def _attributes_of(self, owner: object) -> dict[str, Any]:
        attributes: dict[str, Any] = getattr(owner, "__dict__", {})
        if self._without is None:
            return attributes
        return {name: value for name, value in attributes.items() if name != self._without}

    def _note(self, value: Any) -> None:
        """Note what a value is, and what is in it."""
        if isinstance(value, torch.Tensor):
            if value.is_inference():
                self.fixed = False
            else:
                self._versions.append((value, value._version))
        elif isinstance(value, np.ndarray):
            self.fixed = False
            self._arrays.append((value, value.copy()))
        elif isinstance(value, list | tuple | set | dict):
            if not value:
                self._empty.append(value)
            elif not isinstance(value, tuple):
                self._containers.append((value, value.copy()))
            for item in value.values() if isinstance(value, dict) else value:
                self._note(item)
        elif not isinstance(value, _VALUES):
            self.objects.append(value)
