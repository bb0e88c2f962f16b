"""What a dataset holds: a walk over objects, their attributes, and the functions and transforms among them.

No code of an object's class runs: attributes are read as they lie, and elements as built-in types give them.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.insight.lint.ownership import Ownership
from penstock.recipe.unseeded_generators import attributes, parts

#: How many objects are visited, and how deep in one another.
_OBJECTS, _DEPTH = 4_000, 8
_CLOSED = (str, bytes, bytearray, int, float, complex, type(None), torch.Tensor, np.ndarray, type, types.ModuleType)


@dataclass(frozen=True, eq=False)
class Held:
    """An object that a dataset holds."""

    path: str
    """The expression that leads to it: "dataset.dataset.samples"."""
    value: Any
    owner: Any = None
    """The object of the user's own whose attribute it is, or lies in; None: a library's."""
    attribute: str = ""
    """That attribute of the owner."""
    direct: bool = False
    """It is that attribute itself, and not in it."""


def held_objects(root: object, own: Ownership) -> Iterator[Held]:
    """Yield what a dataset holds, itself first, the nearest objects before those in them."""
    seen: set[int] = set()
    waiting: deque[tuple[Held, int]] = deque([(Held("dataset", root), 0)])
    while waiting and len(seen) < _OBJECTS:
        held, depth = waiting.popleft()
        value = held.value
        if id(value) in seen:
            continue
        if type(value) in (str, int, float, bool, type(None)):
            continue
        seen.add(id(value))
        yield held
        if depth < _DEPTH and not issubclass(type(value), _CLOSED):
            waiting.extend((one, depth + 1) for one in _inside(held, own))


def _inside(held: Held, own: Ownership) -> Iterator[Held]:
    """Yield what an object holds."""
    value, kind = held.value, type(held.value)
    plain = issubclass(kind, (list, tuple, dict)) or kind in (types.FunctionType, types.MethodType)
    if plain or not own.of_class(kind):
        within = held.owner if plain else None
        for name, part in parts(value):
            yield Held(held.path + name, part, within, held.attribute if within is not None else "")
    else:
        for name, part in own_attributes(value, own).items():
            yield Held(f"{held.path}.{name}", part, value, name, direct=True)
    if kind in (set, frozenset, deque):
        for number, part in zip(range(32), value, strict=False):
            yield Held(f"{held.path}<{number}>", part, held.owner, held.attribute)


def own_attributes(value: Any, own: Ownership) -> dict[str, Any]:
    """Return the attributes of an object of the user's: those of its classes that are data, and its own."""
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        if own.of_class(kind):
            found.update((name, part) for name, part in vars(kind).items() if _is_data(name, part))
    found.update(attributes(value))
    return found


def _is_data(name: str, value: Any) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return False
    return not hasattr(type(value), "__get__")
