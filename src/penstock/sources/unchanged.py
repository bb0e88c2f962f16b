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
from PIL import Image, ImageFile
from torch.utils.data._utils import fetch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

import penstock._native as _native
from penstock.recipe.originals import AttributeState, hooked, replaced_in, replaced_in_class
from penstock.recipe.reader import Views
from penstock.recipe.steps import Refusal
from penstock.recipe.torchvision import classes, is_wrapper

Unchanged = Callable[[], bool]
"""Returns whether something is what it was when this function was made."""

#: Lists and dictionaries of at most so many items are compared item by item, longer ones by their length.
_SHORT = 64


def same_items(owner: Sequence[Any]) -> Unchanged:
    """Return whether a sequence keeps the objects that it holds now."""
    kept = list(owner)
    return lambda: len(owner) == len(kept) and all(map(operator.is_, owner, kept))


def always() -> bool:
    """Return True: nothing can change."""
    return True


def all_of(*parts: Unchanged) -> Unchanged:
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
    kept = [(one, _place(one)) for one in arrays]

    def same() -> bool:
        for one, place in kept:  # noqa: SIM110  called for each batch, and a generator costs more
            if _place(one) != place:
                return False
        return True

    return same


def _place(array: torch.Tensor | np.ndarray) -> tuple[Any, ...]:
    if isinstance(array, np.ndarray):
        return _native.address(array), array.shape, array.strides, array.dtype
    return array.data_ptr(), array.shape, array.stride(), array.dtype, array.requires_grad


class DatasetState:
    """What a dataset was: its attributes, what its transforms hold, and the settings of torch and Pillow.

    Attributes:
        same_memory: returns whether the arrays among its attributes are where they were.
    """

    def __init__(self, dataset: object) -> None:
        self._attributes = vars(dataset)
        self._kept = list(self._attributes.items())
        values = list(self._attributes.values())
        containers = [value for value in values if isinstance(value, list | dict)]
        self._short = [(value, value.copy()) for value in containers if len(value) <= _SHORT]
        self._long = [(value, len(value)) for value in containers if len(value) > _SHORT]
        self.same_memory = same_memory([value for value in values if _has_address(value)])
        self._transforms = list(_states_of(self._attributes.get("transform")).values())
        self._kinds = {type(part) for part, _ in self._transforms}
        self._wrappers = [part for part, _ in self._transforms if is_wrapper(part)]
        self._settings = _settings()

    def same(self) -> bool:
        """Return whether the dataset is what it was, but for the elements of its arrays and longer lists."""
        held = self._attributes
        for name, value in self._kept:
            if name not in held or held[name] is not value:
                return False
        try:
            same = all(now == then for now, then in self._short) and all(len(now) == then for now, then in self._long)
        except Exception:  # of a comparison
            return False
        if not (same and self.same_memory() and self._settings == _settings()) or (self._transforms and hooked()):
            return False
        same = all(state.same(part) for part, state in self._transforms)
        same = same and all(replaced_in_class(kind) is None for kind in self._kinds)
        return same and all(map(is_wrapper, self._wrappers))


def _has_address(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout == torch.strided and type(value) in (torch.Tensor, torch.nn.Parameter)
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def _settings() -> tuple[Any, ...]:
    return torch.get_default_dtype(), Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES


def _states_of(transform: object) -> dict[int, tuple[object, AttributeState]]:
    """Return what a transform, and all transforms in it, hold, by their identity."""
    found: dict[int, tuple[object, AttributeState]] = {}
    waiting = [transform]
    while waiting:
        part = waiting.pop()
        if _is_transform(part) and id(part) not in found:
            found[id(part)] = part, AttributeState(part)
            waiting += found[id(part)][1].objects
    return found


def _is_transform(value: object) -> bool:
    if not hasattr(value, "__dict__") or isinstance(value, type | Enum):
        return False
    kind = type(value)
    theirs = kind.__module__.startswith("torchvision.transforms")
    return theirs or kind is Views or kind in classes("Compose") or is_wrapper(value)


#: What default_collate meets in samples of tensors, arrays and numbers.
_COLLATED: tuple[Any, ...] = (torch.empty(0, device="cpu"), np.empty(0), np.float32(0), 0.0, 0, (), {})
#: torch's table of collating, as it was when it treated all of these as torch defines it.
_approved: dict[Any, Any] = {}


def replaced_fetcher() -> Any:
    """Return the class by which a program has replaced torch's fetcher of map-style datasets, or None.

    Axolotl's does, whose batch samplers give lists of lists of indices.
    """
    found: Any = fetch._MapDatasetFetcher
    return None if found.fetch.__module__ == fetch.__name__ else found


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
