"""Collate functions that call torch's default_collate with their samples, and what that returns to them.

MixUp and CutMix are applied so: ``return mixup(*default_collate(batch))``. Such a function looks at no sample, which
its code shows: each mention of its argument is the one argument of a call of default_collate. Its samples may then lie
in one piece of memory. The first of them is of a class that torch's own table of collate functions knows, whose
function returns that piece.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

#: Names by which a function may look at its own variables.
_LOOKING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack"}
_NEVER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
_ENDS = ("RETURN_", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def only_collates(collate_fn: object) -> bool:
    """Return whether a function hands its first argument on to default_collate and does nothing else with it."""
    function, position = _function_of(collate_fn)
    if function is None:
        return False
    code = function.__code__
    if position >= code.co_argcount or code.co_flags & _NEVER or code.co_exceptiontable:
        return False
    name = code.co_varnames[position]
    if name in code.co_cellvars or not _LOOKING.isdisjoint(code.co_names):
        return False
    return _only_collated(function, name)


def _function_of(collate_fn: object, position: int = 0) -> tuple[types.FunctionType | None, int]:
    """Return the function that is called in the end, and which of its parameters gets the samples."""
    if isinstance(collate_fn, functools.partial):
        inner, number = _function_of(collate_fn.func, position + len(collate_fn.args))
        if (
            inner is not None
            and number < len(names := inner.__code__.co_varnames)
            and names[number] in collate_fn.keywords
        ):
            return None, 0
        return inner, number
    if type(collate_fn) is types.MethodType:
        return _function_of(collate_fn.__func__, position + 1)
    if type(collate_fn) is types.FunctionType:
        return collate_fn, position
    call = inspect.getattr_static(type(collate_fn), "__call__", None)
    return (call, position + 1) if type(call) is types.FunctionType else (None, 0)


def _only_collated(function: types.FunctionType, name: str) -> bool:
    """Return whether a parameter is mentioned in calls of default_collate alone, of which one is made at most."""
    steps = list(dis.get_instructions(function))
    calls: set[int] = set()
    straight = True
    for number, step in enumerate(steps):
        straight = straight and not step.is_jump_target and step.opcode not in _JUMPS
        if step.argval != name and not (isinstance(step.argval, tuple) and name in step.argval):
            continue
        if step.opname == "STORE_FAST" and straight:
            break  # from here on it is the name of something else
        if step.opname not in _LOADS or not _is_argument(function, steps, number):
            return False
        calls.add(number)
    return bool(calls) and not any(_comes_after(steps, call, calls) for call in calls)


def _comes_after(steps: list[dis.Instruction], begin: int, wanted: set[int]) -> bool:
    """Return whether one of these instructions, by number, may be executed behind the one at `begin`."""
    numbers = {step.offset: number for number, step in enumerate(steps)}
    seen: set[int] = set()
    waiting = [begin + 1]
    while waiting:
        number = waiting.pop()
        if number in seen or number >= len(steps):
            continue
        if number in wanted:
            return True
        seen.add(number)
        step = steps[number]
        if step.opcode in _JUMPS:
            waiting.append(numbers[step.argval])
        if not step.opname.startswith(_ENDS):
            waiting.append(number + 1)
    return False


def _is_argument(function: types.FunctionType, steps: list[dis.Instruction], number: int) -> bool:
    """Return whether what an instruction loads is the one argument of a call of default_collate."""
    after = [step for step in steps[number + 1 : number + 3] if step.opname != "PRECALL"]
    if not after or after[0].opname != "CALL" or after[0].arg != 1:
        return False
    before = (step for step in reversed(steps[:number]) if step.opname != "PUSH_NULL")
    attributes: list[str] = []
    for step in before:
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        attributes.append(step.argval)
    else:
        return False
    found = _variable(function, step)
    for attribute in reversed(attributes):
        found = getattr(found, attribute, None) if isinstance(found, types.ModuleType) else None
    return found is default_collate


def _variable(function: types.FunctionType, step: dis.Instruction) -> Any:
    """Return what an instruction loads from a global variable, or one of an enclosing function; None: neither."""
    if step.opname == "LOAD_GLOBAL":
        return function.__globals__.get(step.argval, getattr(builtins, step.argval, None))
    if step.opname == "LOAD_DEREF" and step.argval in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(step.argval)]
        try:
            return cell.cell_contents
        except ValueError:  # the variable has no value yet
            return None
    return None


# --- what default_collate returns -------------------------------------------------------------------------------------


class _Tuple(tuple[Any, ...]):
    """The first sample of a batch that is collated already."""


class _List(list[Any]):
    """The same, of samples that are lists."""


class _Dict(dict[Any, Any]):
    """The same, of samples that are dictionaries."""


class _Tensor(torch.Tensor):
    """The same, of samples that are tensors."""


_MARKED: dict[type, Callable[[Any], Any]] = {
    tuple: _Tuple,
    list: _List,
    dict: _Dict,
    torch.Tensor: lambda tensor: tensor.as_subclass(_Tensor),
}


def with_answer(samples: list[Any], collate: Callable[[], Any]) -> list[Any]:
    """Return samples for which default_collate returns what `collate` returns, where it is called with this very list.

    It does so once: a second batch of them is another one. samples: in a list of the caller's, which is returned.
    """
    first = samples[0]
    mark = _MARKED.get(type(first))
    if mark is not None:
        samples[0] = marked = mark(first)
        marked.answer = samples, first, collate
    return samples


def _collated(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Return the batch of samples the first of which is marked. It is called by default_collate."""
    samples, first, collate = batch[0].answer
    if batch is not samples:
        return torch_collate([first, *batch[1:]], collate_fn_map=collate_fn_map)
    samples[0] = first
    return collate()


default_collate_fn_map.update(dict.fromkeys((_Tuple, _List, _Dict, _Tensor), _collated))
