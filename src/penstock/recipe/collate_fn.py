"""Collate functions that call torch's default_collate with their samples, and what that returns to them.

MixUp and CutMix are applied so: ``return mixup(*default_collate(batch))``. Such a function looks at no sample, which
its code shows: its argument is mentioned once, as the one argument of a call of default_collate outside of any loop;
the result may take its name. It is given a list of one object of a class that torch's own table of collate functions
knows, whose function returns the batch.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

#: Names by which a function may look at its own variables.
_LOOKING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack"}
_NEVER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD")  # the latter two are of Python 3.10
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def only_collates(collate_fn: object) -> bool:
    """Return whether a function hands its first argument on to default_collate and does nothing else with it."""
    function, position = _function_of(collate_fn)
    if function is None:
        return False
    code = function.__code__
    if (
        position >= code.co_argcount
        or code.co_flags & _NEVER
        or (sys.version_info >= (3, 11) and code.co_exceptiontable)
    ):
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
    """Return whether the first mention of a parameter is as the argument of default_collate, and it is the only one."""
    steps = [step for step in dis.get_instructions(function) if step.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    mentions = [n for n, step in enumerate(steps) if name in (step.argval if _is_pair(step) else (step.argval,))]
    first = mentions[0] if mentions else len(steps)
    if first + 2 >= len(steps) or not steps[first].opname.startswith("LOAD_FAST") or _is_pair(steps[first]):
        return False
    load, call, after = steps[first : first + 3]
    if call.opname not in _CALLS or call.arg != 1 or _before(function, steps[:first]) is not default_collate:
        return False
    rebinds = after.opname.startswith("STORE_FAST") and name == (after.argval[0] if _is_pair(after) else after.argval)
    looped = any(step.opcode in _JUMPS and step.offset > load.offset >= step.argval for step in steps)
    tries = any(step.opname.startswith("SETUP_") for step in steps)  # in Python 3.10, which has no table of exceptions
    return not (looped or tries) and (rebinds or len(mentions) == 1)


def _is_pair(step: dis.Instruction) -> bool:
    return isinstance(step.argval, tuple)


def _before(function: types.FunctionType, steps: list[dis.Instruction]) -> Any:
    """Return what the last of some instructions have loaded: a variable, or a module's attribute; None: another."""
    attributes: list[str] = []
    while steps and steps[-1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        attributes.insert(0, steps.pop().argval)
    value = None
    if steps and steps[-1].opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
        with contextlib.suppress(ValueError):  # a variable has no value yet
            found = inspect.getclosurevars(function)
            value = {**found.globals, **found.nonlocals}.get(steps[-1].argval)
    for attribute in attributes:
        value = getattr(value, attribute, None) if isinstance(value, types.ModuleType) else None
    return value


class Collated:
    """Stands for each sample of a batch, or each value of a field, that default_collate need not make.

    batch: returns what default_collate returns for a list of this object.
    """

    def __init__(self, batch: Callable[[], Any]) -> None:
        self.batch = batch


def _batch(batch: Sequence[Collated], *, collate_fn_map: Any = None) -> Any:
    return batch[0].batch()


default_collate_fn_map[Collated] = _batch
