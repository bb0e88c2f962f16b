"""Classes of a program whose call only hands the image to a transform that they hold, as presets do.

That is told by the bytecode of the method: it is that of one of the functions below, but for the attribute's name.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import torch


def _returned(self: Any, image: Any) -> Any:
    return self.transforms(image)


def _returned_by_name(self: Any, image: Any) -> Any:
    image = self.transforms(image)
    return image  # noqa: RET504


def _shape(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, but for names and constants, of which those above load none."""
    outer = len(code.co_names), code.co_freevars, code.co_cellvars, code.co_argcount, code.co_kwonlyargcount
    return code.co_code, code.co_flags & ~_NAMES_ONLY, code.co_nlocals, *outer


#: CO_NESTED and CO_HAS_DOCSTRING, and what __future__ changes in annotations.
_NAMES_ONLY = 0x10 | 0x4000000 | 0x1000000
_SHAPES = {_shape(function.__code__) for function in (_returned, _returned_by_name)}


def held_transform(value: Any) -> Any:
    """Return the transform to which an object of a program's class hands its one argument, and does no more.

    None: it is another object, or its call may do something else.
    """
    kind: Any = type(value)
    module = issubclass(kind, torch.nn.Module)
    name = "forward" if module else "__call__"
    function = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    if type(function) is not FunctionType or _shape(function.__code__) not in _SHAPES:
        return None
    own = getattr(value, "__dict__", {})
    (attribute,) = function.__code__.co_names
    if name in own or hasattr(kind, attribute) or kind.__getattribute__ is not object.__getattribute__:
        return None
    if module:
        if kind.__call__ is not torch.nn.Module.__call__ or kind.__getattr__ is not torch.nn.Module.__getattr__:
            return None
        return own.get(attribute, own.get("_modules", {}).get(attribute))
    return own.get(attribute)
