"""Which of the functions that a native plan replaces are still those of their packages.

A program, or a test of one, may put its own function in the place of torch.load, of Image.open or of a method of a
transform or dataset. The native core would then not do what the program wants, so that such a plan is Python's. What
lies deeper in these packages is not looked at. A function counts as its package's own if its globals are those of the
package: this does not depend on whether Penstock or the program was imported first, and a mock never does.

A function of Penstock's passes for the one that it replaces (patches.py). What is replaced in the middle of a
pass is seen by the next one. Objects that are the same as before are not looked at again.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import numpy as np
import torch

from penstock.recipe.patches import Patches, original_of
from penstock.recipe.steps import Refusal

#: The methods of a dataset that its samples come from, and those that its other parts are found with.
READING = "__getitem__ __getitems__ __len__ __getattr__ __getattribute__ _sample read label path"
#: The methods of a transform that decide what it does to an image.
_TRANSFORMING = "__call__ forward transform make_params get_params"

#: By question: the pass, the functions that were found, and the answer.
_answers: dict[Any, tuple[object, list[Any], Refusal | None]] = {}
_pass = object()
_MOST_ANSWERS = 1000


def look_again() -> None:
    """Have each question answered anew, as a pass begins."""
    global _pass
    _pass = object()
    if len(_answers) > _MOST_ANSWERS:  # of classes that a program makes again and again
        _answers.clear()


def this_pass() -> object:
    """Return what is another object since the last look_again()."""
    return _pass


HOOKED = Refusal("torch.nn.Module", "torch has hooks for all modules", "no global module hooks")


def hooked() -> bool:
    """Return whether hooks are called with every torch.nn.Module."""
    module = torch.nn.modules.module
    return any(
        (
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
        )
    )


def replaced_in_opening() -> Refusal | None:
    """Return which function that opens image files was replaced, or None."""
    image, plugin = sys.modules.get("PIL.Image"), sys.modules.get("PIL.JpegImagePlugin")
    if image is not None and plugin is not None:
        given = image.OPEN.get("JPEG")
        if "jpeg" in image.DECODERS or (given is not None and given[0] is not plugin.jpeg_factory):
            return _refusal("PIL's reader of JPEG", image.DECODERS.get("jpeg") or given[0])
    return replaced_in("PIL.Image", "open") or replaced_in("torchvision.datasets.folder", "pil_loader default_loader")


def replaced_in(module: str, names: str) -> Refusal | None:
    """Return which of these functions of a module was replaced, or None."""
    return _answered((module, names), [sys.modules.get(module)])


def replaced_in_class(kind: type, names: str = _TRANSFORMING) -> Refusal | None:
    """Return which of these methods of a class of a package, or of its bases, was replaced, or None."""
    return _answered((kind, names), kind.__mro__)


def own_class(module: str, name: str) -> Any:
    """Return a package's class by its name in a module; None: there is none, or one of a program's."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and _root(kind.__module__) == _root(module) else None


def is_original(value: object, module: str, name: str = "") -> bool:
    """Return whether a function is defined by a module, under this name if one is given."""
    return not _is_foreign(value, module, name)


#: A class by its module and name, one of its methods, and what makes another of the original.
Row = tuple[str, str, str, Callable[[Any], Callable[..., Any]]]


def add_methods(patches: Patches, rows: Iterable[Row], active: Callable[[], bool]) -> None:
    """Add methods of imported classes to patches. One that a program has put in the place of another stays."""
    for module, name, method, make in rows:
        kind = own_class(module, name)
        if kind is None or (kind, method) in patches or method not in vars(kind):
            continue
        if replaced_in_class(kind, method) is None:
            patches.add(kind, method, make, active)


def _answered(question: tuple[Any, str], holders: Iterable[Any]) -> Refusal | None:
    """Return which function of these names was replaced in modules or classes; it is looked for once a pass."""
    known, before, answer = _answers.get(question, (None, (), None))
    if known is _pass:
        return answer
    names = question[1].split()
    owners = [one for one in holders if one is not None and getattr(one, "__module__", "") != "builtins"]
    found = [vars(owner).get(name) for owner in owners for name in names]
    if len(before) != len(found) or any(map(operator.is_not, before, found)):
        answer = _replaced(owners, names)
    _answers[question] = _pass, found, answer
    return answer


def _replaced(holders: Iterable[Any], names: Sequence[str]) -> Refusal | None:
    """Return which function of these names was replaced in modules or classes, or None."""
    for holder in holders:
        is_class = isinstance(holder, type)  # whose methods have other names for themselves, such as __copy__
        home, shown = (holder.__module__, holder.__qualname__) if is_class else (holder.__name__, holder.__name__)
        for name in names:
            value = vars(holder).get(name)
            if value is not None and _is_foreign(value, home, "" if is_class else name):
                return _refusal(f"{shown}.{name}", value)
    return None


def _refusal(name: str, value: Any) -> Refusal:
    value = getattr(value, "__func__", value)
    by = f"a {type(value).__module__}.{type(value).__qualname__}"
    if type(value) is FunctionType:
        own = getattr(value.__code__, "co_qualname", value.__qualname__)
        by = f"{value.__globals__.get('__name__', '?')}.{own}"
    return Refusal(name, f"it was replaced by {by}", "the unmodified function")


def _is_foreign(value: Any, module: str, name: str) -> bool:
    """Return whether what is found in a module, or a class of it, is a function, or acts as one, of another package.

    name: what it is called there; empty: by any name.
    """
    value = original_of(value) or value
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if type(value) is FunctionType:
        home = _root(str(value.__globals__.get("__name__", "")))
        # torchvision's classes have functions of torch's.
        own = home == _root(module) or (home, _root(module)) == ("torch", "torchvision")
        return not own or name not in ("", value.__code__.co_name)
    if isinstance(value, BuiltinFunctionType):
        return name not in ("", value.__name__)
    if isinstance(value, type | MethodDescriptorType | WrapperDescriptorType):
        return False
    return callable(value) or (hasattr(type(value), "__get__") and type(value).__module__ != "builtins")


def _root(module: str) -> str:
    return module.partition(".")[0]


# --- what the attributes of an object were, so that a later change of any of them is noticed --------------------------

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
