"""torchvision's transform objects: their classes, parts and parameters, and refusals of what is not as expected.

Penstock does not import torchvision: a program that has one of its transforms has imported it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, NoReturn

import torch

from penstock.recipe.originals import replaced_in_class
from penstock.recipe.steps import Refusal

V1 = "torchvision.transforms.transforms"
AUTOMATIC = "torchvision.transforms.autoaugment"
PRESETS = "torchvision.transforms._presets"
V2 = "torchvision.transforms.v2"
TV_TENSORS = "torchvision.tv_tensors"
#: The modules of the first generation.
FIRST = (V1, AUTOMATIC, PRESETS)
# Methods that a transform object may carry as attributes, over those of its class.
_OVERRIDES = {
    *("forward", "transform", "make_params", "get_params", "check_inputs", "__call__", "_call_kernel"),
    *("_augmentation_space", "_apply_image_or_video_transform", "_get_random_item", "_needs_transform_list"),
}


Draw = Callable[[int, int], Any]
"""Has a transform draw its parameters for a picture of (height, width); returns them as the native core takes them."""


@dataclass(frozen=True)
class Known:
    """What is known of the transforms of one name, of both generations: a row of the table in their home."""

    add: Callable[[Any, Any], None]
    """Adds a transform to a Reader. Raises Refused."""
    describe: Callable[[Any, Any], dict[str, Any]] | None = None
    """Returns an augmentation as the native core takes it (native/bind/augmentation.cc), for a transform and a Reader:
    alone or as a part of another one. Raises Refused."""
    joint: bool = False
    """In version 2 it is done natively to the image of a sample that has masks, boxes or keypoints too."""
    keyed: Mapping[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)
    """By the class's module and the name of a method that draws: what is called in its place for a keyed sample."""


class Refused(Exception):
    """Ends the reading of a transform; carries the reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def flatten(transform: object) -> Iterator[object]:
    """Yield the parts of a transform in turn; a Compose is its parts, and a wrapper is what it holds."""
    plain = type(transform) in classes("Compose") and changed(transform) is None
    parts = transform.transforms if plain else ()  # type: ignore[attr-defined]
    if isinstance(parts, Sequence | torch.nn.ModuleList) and len(parts) > 0:
        for step in parts:
            yield from flatten(step)
    elif is_wrapper(transform) and changed(transform) is None:
        yield from flatten(held_transform(transform))
    else:
        yield transform


def is_wrapper(transform: object) -> bool:
    """Return whether an object of a program's class only calls a transform of torchvision's that it holds."""
    if _root_of(transform) in ("torchvision", "torch", "timm", "penstock"):
        return False
    held = held_transform(transform)
    return held is not None and (type(held).__module__.startswith("torchvision.transforms") or is_wrapper(held))


def _root_of(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def changed(transform: object) -> str | None:
    """Return what makes a transform object do otherwise than its class, or None."""
    if isinstance(transform, torch.nn.Module):
        if transform._forward_hooks or transform._forward_pre_hooks:
            return "it has forward hooks"
        if transform._compiled_call_impl is not None:
            return "it was compiled"
    if _OVERRIDES & getattr(transform, "__dict__", {}).keys():
        return "a method was replaced on the object"
    replaced = replaced_in_class(type(transform))
    return None if replaced is None else f"{replaced.what}: {replaced.why}"


def classes(name: str, *modules: str) -> list[type]:
    """Return torchvision's classes of this name in these modules (both generations), as far as they are imported."""
    imported = [sys.modules[where] for where in modules or (*FIRST, V2) if where in sys.modules]
    found = (vars(module).get(name) for module in imported)
    # A program may have put its own class there.
    return [kind for kind in found if isinstance(kind, type) and kind.__module__.startswith(("torchvision.", "timm."))]


def shown(transform: object) -> str:
    return " ".join(repr(transform).split())


def is_v1(transform: object) -> bool:
    return type(transform).__module__ in FIRST


def refuse(transform: object, why: str, remedy: str) -> NoReturn:
    raise Refused(Refusal(type(transform).__name__, why, remedy))


def run(transform: object, function: Callable[[Any], Any], value: Any) -> Any:
    """Return function(value), where torchvision's own errors become refusals of the transform."""
    try:
        if threading.current_thread() is not threading.main_thread():
            return function(value)  # the filters of warnings belong to all threads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user sees them where the transform is made or run
            return function(value)
    except Exception as error:
        why = f"torchvision itself raises {type(error).__name__}: {error}"
        refuse(transform, why, "a pipeline that torchvision can run")


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def pair(transform: Any, size: Sequence[int]) -> tuple[int, int]:
    if len(size) != 2 or not all(is_int(n) and n > 0 for n in size):
        refuse(transform, f"size={size!r}", "size=(height, width) in whole pixels")
    return (size[0], size[1])


def low_high(transform: Any, name: str) -> tuple[float, float]:
    """Return the two numbers that an attribute of a transform holds."""
    values = getattr(transform, name)
    if len(values) != 2 or not all(isinstance(value, int | float) for value in values):
        refuse(transform, f"{name}={values!r}", f"{name}=(low, high)")
    return (float(values[0]), float(values[1]))


def margins(transform: Any, padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of a torchvision padding."""
    given = [padding] if isinstance(padding, int) else list(padding) if isinstance(padding, list | tuple) else []
    if len(given) not in (1, 2, 4) or not all(is_int(n) and n >= 0 for n in given):
        refuse(transform, f"padding={padding!r}", "one, two or four whole numbers that are not negative")
    left, top, right, bottom = given if len(given) == 4 else given * (4 // len(given))
    return (left, top, right, bottom)


# --- classes of a program whose call only hands the image to a transform that they hold, as presets do ----------------

# That is told by the bytecode of the method: it is that of one of these functions, but for the attribute's name.


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
