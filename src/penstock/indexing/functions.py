"""The functions and methods of torch's, numpy's and Python's that a class which only indexes may call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional

from penstock.indexing import operations
from penstock.indexing.program import Made, NotIndexing, Program, Value, column_of, differs, dtype_of, is_array

Known = Callable[[Program, list[Any], dict[str, Any]], Any]


def PURE(program: Program, given: list[Any], named: dict[str, Any]) -> Any:
    """Stand for functions whose result follows only from their arguments."""
    raise NotImplementedError


def known(function: Any) -> Known | None:
    """Return what does for a batch what a function does for a sample; None: the function is outside of the language."""
    try:
        return _FUNCTIONS.get(function)
    except TypeError:  # it cannot be hashed
        return None


# --- attributes and methods -------------------------------------------------------------------------------------------

#: Methods that give other elements or the same ones, the same in another shape, and in another order.
_ELEMENTS = {"float", "long", "int", "double", "half", "bool", "byte", "short", "char", "bfloat16"} | {
    *("to", "type", "astype", "cpu", "clone", "contiguous", "detach", "copy", "numpy")
}
_SHAPES = {"unsqueeze", "squeeze", "reshape", "view", "flatten", "ravel"}
_ORDERS = {"permute", "transpose", "swapaxes", "t"}


def attribute(program: Program, value: Value, name: str) -> Any:
    """Return an attribute of a sample's value."""
    example = value.example
    if operations.is_row(example):
        if name in ("shape", "ndim", "dtype"):
            return getattr(example, name)
        if name == "T":
            return _permuted(program, value, lambda one: one.T)
    raise NotIndexing


def method(program: Program, value: Value, name: str, given: list[Any], named: dict[str, Any]) -> Any:
    """Return what a method of a sample's value gives."""
    example = value.example
    if differs([*given, *named.values()]):
        raise NotIndexing("takes what differs from sample to sample")
    given = [_constant(one) for one in given]
    if dtype_of(example) is None or type(example) in (bool, int, float):
        raise NotIndexing
    if name in ("size", "dim", "numel") and isinstance(example, torch.Tensor):
        return getattr(example, name)(*given, **named)
    if name in ("item", "tolist") and operations.is_number(example) and not given:
        return operations.converted(program, value, example.item())
    if name not in _ELEMENTS | _SHAPES | _ORDERS:
        raise NotIndexing
    made = getattr(example, name)(*given, **named)
    if name in _ELEMENTS:
        return operations.converted(program, value, made)
    if name in _SHAPES:
        return operations.shaped(program, value, made)
    return _permuted(program, value, lambda one: getattr(one, name)(*given, **named))


def _permuted(program: Program, value: Value, permute: Callable[[Any], Any]) -> Value:
    """Return a value whose dimensions are in another order, which a stand-in with other lengths tells."""
    lengths = tuple(range(value.example.ndim))
    other = torch.empty(lengths) if isinstance(value.example, torch.Tensor) else np.empty(lengths)
    return operations.permuted(program, value, permute(other).shape, permute(value.example))


def of_constant(owner: Any, name: str, given: list[Any]) -> Any:
    """Return what a method gives of what the dataset holds."""
    if is_array(owner) and isinstance(owner, torch.Tensor) and name in ("size", "dim", "numel"):
        return getattr(owner, name)(*given)
    raise NotIndexing


def _constant(value: Any) -> Any:
    listed = isinstance(value, Made) and isinstance(value.items, tuple | list)
    return type(value.items)(map(_constant, value.items)) if listed else value


def shares(one: Any, other: Any) -> bool:
    """Return whether two tensors or arrays may lie in the same memory."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return True
    return bool(np.may_share_memory(one, other))


# --- functions --------------------------------------------------------------------------------------------------------


def _makes(function: Any) -> Known:
    """Return what makes a tensor or an array of a sample's value, or of several numbers."""
    ours = getattr(function, "__module__", "").startswith("torch") or function in (torch.tensor, torch.as_tensor)

    def make(program: Program, given: list[Any], named: dict[str, Any]) -> Value:
        if not given or len(given) > 2 or named.keys() - {"dtype"} or differs([*given[1:], *named.values()]):
            raise NotIndexing("takes arguments beyond a value and a dtype")
        value, *more = given
        dtype = named.get("dtype", more[0] if more else None)
        if not isinstance(value, Value):
            items = value.items if isinstance(value, Made) else None
            if not isinstance(items, list | tuple):
                raise NotIndexing("makes the same for each sample")
            examples = [one.example if isinstance(one, Value) else one for one in items]
            return operations.stacked(program, items, function(examples, *more, **named))
        example = value.example
        if function in _CLASSES and operations.is_number(example):
            raise NotIndexing("makes a tensor of so many elements")
        if dtype_of(example) is not None:
            made = _once(function, example, *more, **named)
            return operations.converted(program, value, made)
        typed = dtype is not None or function in _CLASSES
        make_one = partial(_called, function, more, named)
        return operations.of_objects(program, value, make_one, typed=typed, lists=ours)

    return make


def _called(function: Any, more: list[Any], named: dict[str, Any], example: Any) -> Any:
    return function(example, *more, **named)


def _once(function: Any, example: Any, *more: Any, **named: Any) -> Any:
    if function is torch.tensor and isinstance(example, torch.Tensor):  # which torch warns of, and the class has
        return example.detach().clone().to(named.get("dtype", more[0] if more else None) or example.dtype)
    return function(example, *more, **named)


def _number(kind: type) -> Known:
    def make(program: Program, given: list[Any], named: dict[str, Any]) -> Any:
        (value,) = given
        if named:
            raise NotIndexing
        if isinstance(value, bool | int | float | str):
            return kind(value)
        if isinstance(value, Value) and type(value.example) is str:
            slot = value.slot
            made = kind(value.example)
            return program.add(lambda columns: column_of(list(map(kind, columns[slot])), made), made)
        if not isinstance(value, Value) or not operations.is_number(value.example):
            raise NotIndexing
        return operations.converted(program, value, kind(value.example))

    return make


def _one_hot(program: Program, given: list[Any], named: dict[str, Any]) -> Value:
    value, *more = given
    classes = named.get("num_classes", more[0] if more else -1)
    if not isinstance(value, Value) or type(classes) is not int or classes < 1 or named.keys() - {"num_classes"}:
        raise NotIndexing("is one_hot without num_classes")
    function, slot = torch.nn.functional.one_hot, value.slot
    return program.add(lambda columns: function(columns[slot], classes), function(value.example, classes))


def _combines(function: Any, combine: Callable[..., Value]) -> Known:
    def make(program: Program, given: list[Any], named: dict[str, Any]) -> Value:
        items, *more = [one.items if isinstance(one, Made) else one for one in given]
        axis = named.get("dim", named.get("axis", more[0] if more else 0))
        if type(axis) is not int or not isinstance(items, list | tuple) or named.keys() - {"dim", "axis"}:
            raise NotIndexing
        examples = [one.example if isinstance(one, Value) else one for one in items]
        return combine(program, items, function(examples, *more, **named), axis)

    return make


def _as_method(name: str) -> Known:
    def make(program: Program, given: list[Any], named: dict[str, Any]) -> Any:
        value, *more = given
        if not isinstance(value, Value):
            raise NotIndexing
        return method(program, value, name, more, named)

    return make


def _expanded(program: Program, given: list[Any], named: dict[str, Any]) -> Value:
    value, *more = given
    if not isinstance(value, Value) or differs([*more, *named.values()]):
        raise NotIndexing
    return operations.shaped(program, value, np.expand_dims(value.example, *more, **named))


#: The constructors of tensors that are named after a dtype.
_CLASSES = (
    *(torch.Tensor, torch.FloatTensor, torch.LongTensor, torch.DoubleTensor, torch.IntTensor, torch.BoolTensor),
    *(torch.ByteTensor, torch.HalfTensor, torch.ShortTensor),
)
_NUMPY_TYPES = (np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.bool_)
_FUNCTIONS: dict[Any, Known] = {
    **{one: _makes(one) for one in (torch.tensor, torch.as_tensor, torch.from_numpy, np.array, np.asarray)},
    **{one: _makes(one) for one in (*_CLASSES, *_NUMPY_TYPES)},
    **{one: _number(one) for one in (int, float)},
    torch.nn.functional.one_hot: _one_hot,
    torch.stack: _combines(torch.stack, operations.stacked),
    np.stack: _combines(np.stack, operations.stacked),
    torch.cat: _combines(torch.cat, operations.joined),
    np.concatenate: _combines(np.concatenate, operations.joined),
    **{getattr(torch, name): _as_method(name) for name in ("unsqueeze", "squeeze", "reshape", "flatten", "permute")},
    **{getattr(torch, name): _as_method(name) for name in ("transpose", "clone")},
    np.expand_dims: _expanded,
    **dict.fromkeys((len, isinstance, torch.is_tensor, tuple, list, dict, zip, enumerate, range), PURE),
    **dict.fromkeys((min, max, abs, bool, str, round), PURE),
}
