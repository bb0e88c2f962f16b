"""What a program was read from, and whether that still is what it was: looked at before each batch."""

from __future__ import annotations

from collections.abc import Callable, Sized
from types import FunctionType
from typing import Any

import torch

from penstock.indexing.program import is_array, is_at, place_of

_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_modes = torch._C._len_torch_function_stack
_item = torch._C.TensorBase.__getitem__


class Reads:
    """The attributes, items, functions and classes that a program was read from."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], tuple[Callable[[Any], Any], Any, Any]] = {}
        self._arrays: dict[tuple[int, Any], tuple[Callable[[Any], Any], Any, int, tuple[Any, ...]]] = {}
        self._sizes: list[tuple[Sized, int]] = []
        self._functions: list[tuple[FunctionType, Any]] = []
        self._more: list[Callable[[], bool]] = []
        self._default = torch.get_default_dtype()

    def item(self, holder: Any, key: Any, value: Any, find: Callable[[Any], Any] | None = None) -> Any:
        """Note that a holder has a value under a key, and return the value."""
        find = find or (holder.get if hasattr(holder, "get") else holder.__getitem__)
        if is_array(value):  # which is not held: its owner may want its memory back
            self._arrays[id(holder), key] = find, key, id(value), place_of(value)
        else:
            self._found[id(holder), key] = find, key, value
        return value

    def lacks(self, holder: Any, key: Any) -> None:
        """Note that a holder has nothing under a key."""
        self._found[id(holder), "without", key] = holder.__contains__, key, False

    def held(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return the arrays, and where they lie: while they are held their owner may exchange them for others."""
        return [(find(key), place) for find, key, _, place in self._arrays.values()]

    def size(self, container: Any) -> int:
        """Note the length of a container, and return it."""
        self._sizes.append((container, len(container)))
        return len(container)

    def kind(self, kind: type) -> None:
        """Note that a class, and its bases, have the attributes that they have."""
        for base in kind.__mro__[:-1]:
            self._sizes.append((vars(base), len(vars(base))))

    def function(self, function: FunctionType) -> None:
        code = function.__code__, function.__defaults__, function.__kwdefaults__
        self._functions.append((function, code))

    def also(self, same: Callable[[], bool]) -> None:
        self._more.append(same)

    def unchanged(self) -> list[Any] | None:
        """Return the arrays that are read where all is what it was, but for the elements of arrays and longer lists.

        None: something has changed. Who reads the arrays holds them meanwhile: another thread may exchange them.
        """
        arrays: list[Any] = []
        if _modes() or torch.get_default_dtype() is not self._default or torch.Tensor.__getitem__ is not _item:
            return None
        try:
            for find, key, value in self._found.values():
                now = find(key)
                if now is not value and not (type(value) in _PLAIN and type(now) is type(value) and now == value):
                    return None
            for find, key, identity, place in self._arrays.values():
                array = find(key)
                arrays.append(array)
                if id(array) != identity or not is_at(array, place):
                    return None
            for container, length in self._sizes:
                if len(container) != length:
                    return None
            for function, code in self._functions:
                if (function.__code__, function.__defaults__, function.__kwdefaults__) != code:
                    return None
            for same in self._more:
                if not same():
                    return None
        except Exception:  # there is no such item any more
            return None
        return arrays
