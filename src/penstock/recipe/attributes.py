"""What the attributes of an object were, so that a later change of any of them is noticed."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch

_VALUES = (bool, int, float, complex, str, bytes, type(None), type, enum.Enum, torch.dtype, torch.device, np.generic)


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
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._attributes = {name: self._copied(value) for name, value in self._attributes_of(owner).items()}

    def same(self, owner: object) -> bool:
        """Return whether the attributes are what they were."""
        try:
            return (
                bool(self._attributes_of(owner) == self._attributes)
                and all(tensor._version == version for tensor, version in self._versions)
                and all(np.array_equal(array, copy) for array, copy in self._arrays)
            )
        except Exception:  # of a comparison
            return False

    def _attributes_of(self, owner: object) -> dict[str, Any]:
        attributes: dict[str, Any] = getattr(owner, "__dict__", {})
        if self._without is None:
            return attributes
        return {name: value for name, value in attributes.items() if name != self._without}

    def _copied(self, value: Any) -> Any:
        """Return a copy that will differ from the value when that is changed; tensors and arrays are noted instead."""
        if isinstance(value, torch.Tensor):
            if value.is_inference():
                self.fixed = False
            else:
                self._versions.append((value, value._version))
        elif isinstance(value, np.ndarray):
            self.fixed = False
            self._arrays.append((value, value.copy()))
        elif isinstance(value, dict):
            return {key: self._copied(item) for key, item in value.items()}
        elif isinstance(value, list | tuple | set):
            items = [self._copied(item) for item in value]
            return items if isinstance(value, list) else tuple(items) if isinstance(value, tuple) else set(items)
        elif not isinstance(value, _VALUES):
            self.objects.append(value)
        return value
