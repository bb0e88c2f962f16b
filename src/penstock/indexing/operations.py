"""The operations that a class which only indexes may use: what each gives for a sample, and how for a whole batch.

Each calls torch's or numpy's own function for the example, and adds the step that does the same for a column.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import penstock._native as _native
from penstock.indexing.program import (
    Columns,
    NotIndexing,
    Program,
    Step,
    Unlike,
    Value,
    column_of,
    dtype_of,
    is_array,
    objects_of,
)

#: Whole numbers that a batch is computed with stay far below what 64 bits hold.
_MOST = 1 << 40
_Made = Callable[[Columns], torch.Tensor]


def is_number(example: Any) -> bool:
    """Return whether a value is one number of Python's, numpy's or torch's."""
    return dtype_of(example) is not None and (not isinstance(example, torch.Tensor | np.ndarray) or example.ndim == 0)


def is_row(example: Any) -> bool:
    """Return whether a value is a tensor or an array."""
    return isinstance(example, torch.Tensor | np.ndarray) and dtype_of(example) is not None


# --- indexing ---------------------------------------------------------------------------------------------------------


def item(program: Program, holder: Any, at: Value) -> Value:
    """Return the item of a container or an array that a value says."""
    if type(holder) in (list, tuple, range, dict):
        if type(at.example) is bool or dtype_of(at.example) is torch.bool or not _is_plain(at.example):
            raise NotIndexing("is not an index")
        example = holder[at.example]
        return program.add(
            lambda columns: column_of([holder[key] for key in objects_of(columns, at)], example), example
        )
    if type(holder) not in (torch.Tensor, torch.nn.Parameter, np.ndarray, np.memmap):
        raise NotIndexing(f"is an item of a {type(holder).__name__}")
    numbers, example = as_numbers(program, at), holder[at.example]
    if is_array(holder):
        return program.gather(holder, numbers, example)
    if isinstance(holder, np.ndarray) and dtype_of(example) is None and holder.dtype.kind in "OUS":
        base = holder.view(np.ndarray)
        return program.add(lambda columns: column_of([base[key] for key in objects_of(columns, at)], example), example)
    raise NotIndexing("is an item of an array that is not plain memory")


def _is_plain(key: Any) -> bool:
    """Return whether a key is compared and hashed without code of the user's."""
    return dtype_of(key) is not None or type(key) in (str, bytes, type(None))


def as_numbers(program: Program, value: Value) -> Value:
    """Return a value that is an index as a column of int64. Raises NotIndexing for anything else."""
    dtype = dtype_of(value.example)
    whole = dtype in (torch.int64, torch.int32, torch.int16, torch.int8) or (
        isinstance(value.example, np.integer) and dtype is torch.uint8  # a tensor of uint8 is a mask
    )
    if not whole or not is_number(value.example):
        raise NotIndexing("is not a whole number to index by")
    if dtype is torch.int64:
        return value
    return program.add(lambda columns: columns[value.slot].to(torch.int64), np.int64(value.example), fails=False)


def window(program: Program, array: Any, begin: Value, end: Any) -> Value:
    """Return array[begin:end] where the two are as far apart for each sample."""
    if begin.line is None or not isinstance(end, Value) or end.line is None or begin.line[:2] != end.line[:2]:
        raise NotIndexing("is a slice whose length may differ from sample to sample")
    length = end.line[2] - begin.line[2]
    if length <= 0 or not is_array(array):
        raise NotIndexing("is not a slice of rows of an array")
    if begin.example < 0 or begin.example + length > len(array):
        raise NotIndexing("is cut off at an end")
    return program.gather(array, begin, array[begin.example : begin.example + length], length)


def part(program: Program, value: Value, index: Any) -> Value:
    """Return what lies in a sample's value under an index that is the same for all samples."""
    example, slot = value.example, value.slot
    if not is_row(example) and type(example) not in (list, tuple, dict, str):
        raise NotIndexing(f"is a part of a {type(example).__name__}")
    made = example[index]
    if is_row(example):
        keys = index if isinstance(index, tuple) else (index,)
        allowed = int | slice | type(None) | type(Ellipsis)
        if not all(isinstance(key, allowed) and type(key) is not bool for key in keys):
            raise NotIndexing("is indexed by more than numbers and slices")
        whole = (slice(None), *keys)
        return program.add(lambda columns: columns[slot][whole], made, value.root)
    return program.add(lambda columns: column_of([one[index] for one in columns[slot]], made), made)


def parts(program: Program, value: Value) -> list[Value]:
    """Return the items of a value that is taken apart."""
    example, slot = value.example, value.slot
    if is_row(example) and example.ndim:
        return [part(program, value, number) for number in range(len(example))]
    if type(example) not in (list, tuple):
        raise NotIndexing("is taken apart")
    count = len(example)

    def alike(columns: Columns) -> list[Any]:
        if set(map(len, columns[slot])) != {count}:
            raise Unlike
        objects: list[Any] = columns[slot]
        return objects

    checked = program.add(alike, example, value.root)
    return [part(program, checked, number) for number in range(count)]


def checked(program: Program, compare: Callable[[Any, Any], Any], pair: tuple[Any, Any], bad: bool) -> None:
    """Add the check that a comparison of two numbers has another result than `bad` for each sample."""
    if not all(type(one.example if isinstance(one, Value) else one) in (int, float) for one in pair):
        raise NotIndexing("compares other objects than numbers")
    made = compare(*(one.example if isinstance(one, Value) else one for one in pair))

    def step(columns: Columns) -> torch.Tensor:
        column = compare(*(columns[one.slot] if isinstance(one, Value) else one for one in pair))
        if bool(column.any() if bad else not column.all()):
            raise Unlike
        return column  # type: ignore[no-any-return]

    program.add(step, made)


# --- conversions ------------------------------------------------------------------------------------------------------


def converted(program: Program, value: Value, made: Any, *, python: bool = False) -> Value:
    """Return a value of which each element becomes one of the dtype of `made`, which the class makes of the example.

    python: they are whole numbers of Python's.
    """
    slot, source, target = value.slot, dtype_of(value.example), dtype_of(made)
    if source is None or target is None:
        raise NotIndexing("is converted to what no tensor holds")
    step = _conversion(slot, source, target, python=python or type(value.example) is int)
    return program.add(step, made, value.root if source is target else None)


def _conversion(slot: int, source: torch.dtype, target: torch.dtype, *, python: bool) -> Step:
    if source is target:
        return lambda columns: columns[slot]
    if source.is_complex and not target.is_complex:
        raise NotIndexing("drops imaginary parts")
    floating = target.is_floating_point or target.is_complex
    if python and floating and target is not torch.float64:  # Python's numbers become floats of 64 bits first
        return lambda columns: columns[slot].to(torch.float64).to(target)
    if floating or target is torch.bool or source is torch.bool:
        return lambda columns: columns[slot].to(target)
    least, most = torch.iinfo(target).min, torch.iinfo(target).max
    if not source.is_floating_point:
        inside = torch.iinfo(source).min >= least and torch.iinfo(source).max <= most
        if inside or not python:
            return lambda columns: columns[slot].to(target)

    def checked(columns: Columns) -> torch.Tensor:
        column = columns[slot]  # what is out of range is nowhere defined, or an error
        if column.numel() and not (column.min() >= max(least, -_MOST) and column.max() <= min(most, _MOST)):
            raise Unlike
        converted: torch.Tensor = column.to(target)
        return converted

    return checked


def shaped(program: Program, value: Value, made: Any) -> Value:
    """Return a value whose elements are arranged as in `made`, in the same order."""
    slot, shape = value.slot, tuple(made.shape)
    return program.add(lambda columns: columns[slot].reshape(len(columns[slot]), *shape), made, value.root)


def permuted(program: Program, value: Value, order: Sequence[int], made: Any) -> Value:
    slot, dims = value.slot, len(order)
    axes = (0, *(axis % dims + 1 for axis in order))
    return program.add(lambda columns: columns[slot].permute(axes), made, value.root)


def of_objects(program: Program, value: Value, make: Callable[[Any], Any], *, typed: bool, lists: bool) -> Value:
    """Return the tensor or array that a class makes of a list of numbers, which each sample's value is.

    Args:
        make: makes that of one sample.
        typed: of a dtype that does not depend on the numbers.
        lists: torch makes it; False: numpy does.
    """
    slot, kind, first = value.slot, type(value.example), _first(value.example)
    if kind not in (list, tuple) or not _only(value.example, type(first)) or type(first) not in (int, float, bool):
        raise NotIndexing("is made of more than numbers")
    made = make(value.example)
    shape, target = tuple(made.shape), dtype_of(made)
    dtype = target if typed else None
    if kind is list and type(first) is int and len(shape) == 1 and target is not None:
        rows = program.add(_rows_of_integers(slot, shape[0]), np.array(value.example))
        return converted(program, rows, made, python=True)

    def step(columns: Columns) -> torch.Tensor:
        objects = columns[slot]
        if set(map(type, objects)) != {kind}:
            raise Unlike
        if dtype is None and any(type(_first(one)) is not type(first) for one in objects):
            raise Unlike
        column = torch.tensor(objects, dtype=dtype) if lists else torch.from_numpy(np.array(objects, _of_numpy(dtype)))
        if column.dtype is not target or column.shape[1:] != shape:
            raise Unlike
        return column

    return program.add(step, made)


def _rows_of_integers(slot: int, length: int) -> Step:
    """Return the step that writes lists of so many of Python's whole numbers."""

    def step(columns: Columns) -> torch.Tensor:
        objects = columns[slot]
        out = torch.empty((len(objects), length), dtype=torch.int64)
        place, row = out.data_ptr(), length * out.element_size()
        for number, one in enumerate(objects):
            if type(one) is not list or len(one) != length or not write(one, place + number * row):
                raise Unlike
        return out

    write = _native.write_integers
    return step


def _of_numpy(dtype: torch.dtype | None) -> Any:
    return None if dtype is None else torch.empty(0, dtype=dtype, device="cpu").numpy().dtype


def _first(value: Any) -> Any:
    while type(value) in (list, tuple) and value:
        value = value[0]
    return value


def _only(value: Any, kind: type) -> bool:
    return all(_only(one, kind) for one in value) if type(value) in (list, tuple) else type(value) is kind


def stacked(program: Program, values: Sequence[Any], made: Any, axis: int = 0) -> Value:
    """Return the tensor or array that a class makes of several values, or numbers, along a new axis."""
    target = dtype_of(made)
    if target is None or not any(isinstance(one, Value) for one in values):
        raise NotIndexing("is made of more than numbers")
    steps: list[_Made] = []
    for one in values:
        if isinstance(one, Value):
            source = dtype_of(one.example)
            if source is None or not (is_number(one.example) or is_row(one.example)):
                raise NotIndexing("is made of more than numbers")
            steps.append(_conversion(one.slot, source, target, python=type(one.example) is int))
        elif type(one) in (int, float, bool):
            steps.append(lambda columns, one=one: torch.full((len(columns[0]),), one, dtype=target))  # type: ignore[misc]
        else:
            raise NotIndexing("is made of more than numbers")
    axis += 1 if axis >= 0 else 0
    return program.add(lambda columns: torch.stack([step(columns) for step in steps], axis), made)


def joined(program: Program, values: Sequence[Any], made: Any, axis: int = 0) -> Value:
    """Return the tensor or array that a class makes of several, one behind another."""
    if not all(isinstance(one, Value) and dtype_of(one.example) is dtype_of(made) for one in values):
        raise NotIndexing("joins values of several kinds")
    slots = [one.slot for one in values]
    axis += 1 if axis >= 0 else 0
    return program.add(lambda columns: torch.cat([columns[slot] for slot in slots], axis), made)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def calculated(program: Program, calculate: Callable[[Any, Any], Any], left: Any, right: Any) -> Value:
    """Return the result of an operator of two values, one of which may be the same for all samples."""
    examples = [one.example if isinstance(one, Value) else one for one in (left, right)]
    if not all(type(one) in (int, float) or is_number(one) or is_row(one) for one in examples):
        raise NotIndexing("calculates with other objects than numbers")
    divides = calculate in (operator.truediv, operator.floordiv, operator.mod)
    if divides and isinstance(right, Value) and not isinstance(right.example, torch.Tensor):
        raise NotIndexing("divides by what differs from sample to sample")
    if divides and not isinstance(right, Value) and np.any(np.asarray(right) == 0):
        raise NotIndexing("divides by zero")
    made = calculate(*examples)
    if all(type(one) in (int, float) for one in examples):
        return _of_python(program, calculate, left, right, made)
    target = dtype_of(made)
    if target is None or target.is_complex or target is torch.bool or type(made) is np.memmap:
        raise NotIndexing("calculates what is not done for a batch")
    if calculate not in (operator.add, operator.sub, operator.mul, operator.truediv):
        raise NotIndexing("calculates what is not done for a batch")
    if isinstance(made, np.generic) and not target.is_floating_point and target is not torch.int64:
        raise NotIndexing("calculates with small whole numbers, which numpy warns of")
    ours = isinstance(made, torch.Tensor)
    parts = [_operand(one, made, ours=ours) for one in (left, right)]
    limited = isinstance(made, np.generic) and not target.is_floating_point

    def step(columns: Columns) -> torch.Tensor:
        column = calculate(parts[0](columns), parts[1](columns))
        if limited and column.numel() and column.abs().max() > _MOST:
            raise Unlike
        return column  # type: ignore[no-any-return]

    return program.add(step, made)


def _operand(one: Any, made: Any, *, ours: bool) -> Callable[[Columns], Any]:
    """Return what gives an operand for a batch. ours: torch does the operation for a sample; else numpy does."""
    target = dtype_of(made)
    if isinstance(one, Value):
        example, slot = one.example, one.slot
        shape = getattr(example, "shape", ())
        if shape != made.shape or isinstance(example, torch.Tensor) is not ours:
            raise NotIndexing("calculates with values of other shapes")
        return (lambda columns: columns[slot]) if ours else (lambda columns: columns[slot].to(target))
    if type(one) in (int, float):
        return lambda columns: one if ours else torch.tensor(one, dtype=target)
    alike = isinstance(one, torch.Tensor) is ours and is_array(one) if is_row(one) else not ours
    fits = is_number(one) or (0 < one.ndim <= made.ndim)
    if not alike or not fits or (ours and (one.ndim == 0 or made.ndim == 0)):
        raise NotIndexing("calculates with what is not done for a batch")
    if ours:
        return lambda columns: one
    return lambda columns: torch.from_numpy(np.array(one)).to(target)


def _of_python(program: Program, calculate: Callable[[Any, Any], Any], left: Any, right: Any, made: Any) -> Value:
    """Return the result of an operator of two numbers of Python's."""
    whole = type(made) is int
    if not whole and (calculate is operator.floordiv or calculate is operator.mod):
        raise NotIndexing("calculates what is not done for a batch")
    slots = [one.slot if isinstance(one, Value) else None for one in (left, right)]
    if calculate not in _EXACT:
        raise NotIndexing("calculates what is not done for a batch")
    unknown = [
        one.slot for one in (left, right) if isinstance(one, Value) and one.bound is None and type(one.example) is int
    ]
    least, most = (_MOST if isinstance(one, Value) and one.bound is None else _bound(one) for one in (left, right))
    bound = least * most if calculate is operator.mul else most if calculate is operator.mod else least + most
    if whole and bound > 1 << 62:
        raise NotIndexing("calculates with large numbers")

    def step(columns: Columns) -> torch.Tensor:
        for slot in unknown:
            if columns[slot].abs().max() > _MOST:
                raise Unlike
        numbers = [one if slot is None else columns[slot] for one, slot in zip((left, right), slots, strict=True)]
        if whole:
            return _EXACT[calculate](*numbers)  # type: ignore[no-any-return]
        doubles = [one.to(torch.float64) if isinstance(one, torch.Tensor) else float(one) for one in numbers]
        return _EXACT[calculate](*doubles)  # type: ignore[no-any-return]

    result = program.add(step, made, fails=bool(unknown))
    if whole:
        result.line, result.bound = _line(calculate, left, right) or result.line, bound
    return result


#: What does for tensors what an operator does for Python's numbers, as long as they are not large.
_EXACT: dict[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    **{one: one for one in (operator.add, operator.sub, operator.mul, operator.truediv)},
    operator.floordiv: lambda left, right: torch.div(left, right, rounding_mode="floor"),
    operator.mod: torch.remainder,
}


def _bound(one: Any) -> int:
    """Return what a number is at most, but for its sign."""
    if isinstance(one, Value):
        return _MOST if one.bound is None else one.bound
    return abs(one) if type(one) is int else 0


def _line(calculate: Callable[[Any, Any], Any], left: Any, right: Any) -> tuple[int, int, int] | None:
    """Return a result as column * factor + offset, where it is that."""
    one, other = (left, right) if isinstance(left, Value) else (right, left)
    if one.line is None or (isinstance(other, Value) and other.line is None):
        return None
    slot, factor, offset = one.line
    if isinstance(other, Value):
        second = other.line
        if second is None or second[0] != slot or calculate not in (operator.add, operator.sub):
            return None
        return slot, calculate(factor, second[1]), calculate(offset, second[2])
    if calculate is operator.add:
        return slot, factor, offset + other
    if calculate is operator.sub:
        return (slot, factor, offset - other) if one is left else (slot, -factor, other - offset)
    if calculate is operator.mul:
        return slot, factor * other, offset * other
    return None
