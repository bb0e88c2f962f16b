"""The user's own functions that a dataset calls for a sample, what their code names, and the rules about these names.

Names are read from the compiled code, so that they are known where there is no source (an interactive session).
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from penstock.insight.check import Remark, State, place
from penstock.insight.lint.state import Ownership, own_attributes
from penstock.recipe.unseeded_generators import attributes
from penstock.system.words import and_join

#: The methods that are called for samples, by loaders, by transforms and by torch's modules.
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
#: How many functions are read.
_MOST = 500
#: The most lines that a remark names.
_LINES = 4
#: Stands for a value that is not known before the code runs.
_UNKNOWN: Any = object()
#: Steps of compiled code that load a variable, and those between the parts of an expression of names.
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "STORE_FAST_LOAD_FAST")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP")


@dataclass(frozen=True)
class _Mention:
    """An expression of names in a function: `np.random.rand`."""

    name: str
    """As its module calls it where the value is known: "numpy.random.rand"; "self.load" of the object whose method it
    is; ".cuda" of a variable, or of what another expression gives."""
    line: int
    value: Any = _UNKNOWN


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the user's own."""

    function: types.FunctionType
    owner: Any = None
    """The object whose method it is; None: it is none."""
    kind: type | None = None
    """The class that defines it."""

    @cached_property
    def codes(self) -> list[types.CodeType]:
        """Its code, and that of functions and comprehensions in it."""
        found = [self.function.__code__]
        for code in found:
            found += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        return found

    @cached_property
    def mentions(self) -> list[_Mention]:
        """What its code names."""
        return [self._resolved(*found) for code in self.codes for found in _expressions(code)]

    def _resolved(self, names: list[str], line: int, local: bool) -> _Mention:
        """Return what an expression of names is, as far as it is known without running anything."""
        code, first = self.function.__code__, names[0]
        if not first:
            return _Mention(".".join(names), line)
        if self.owner is not None and code.co_argcount and first == code.co_varnames[0]:
            return _Mention(".".join(["self", *names[1:]]), line)
        if first in code.co_freevars:
            return _along(self._enclosed(first), first, names[1:], line)
        if local:
            return _Mention(".".join(["", *names[1:]]), line)
        value = self.function.__globals__.get(first, vars(builtins).get(first, _UNKNOWN))
        return _along(value, first, names[1:], line)

    def _enclosed(self, name: str) -> Any:
        """Return a variable of the function around this one."""
        cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=False))
        try:
            return cells[name].cell_contents
        except (KeyError, ValueError):  # not set yet
            return _UNKNOWN


def _expressions(code: types.CodeType) -> Iterator[tuple[list[str], int, bool]]:
    """Yield the names that code joins by dots, the line, and whether the first one is a variable of a function.

    The first name is empty where another expression comes before.
    """
    names, local, line = [""], False, code.co_firstlineno
    begun = line
    for step in dis.get_instructions(code):
        line = (step.positions.lineno if step.positions else None) or line
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(step.argval))
        elif step.opname not in _BETWEEN:
            if names != [""]:
                yield names, begun, local
            names, local, begun = [""], False, line
            if step.opname.startswith(_LOADS):
                names = [str(step.argval[-1] if isinstance(step.argval, tuple) else step.argval)]
                local = not step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME"))
    if names != [""]:
        yield names, begun, local


def _along(value: Any, name: str, names: list[str], line: int) -> _Mention:
    """Return what attributes lead to from a value: through modules, and no further."""
    name = _full_name(value, name)
    if not names or type(value) is not types.ModuleType:
        return _Mention(".".join([name, *names]), line, _UNKNOWN if names else value)
    name = f"{name}.{names[0]}"
    return _along(vars(value).get(names[0], sys.modules.get(name, _UNKNOWN)), name, names[1:], line)


def _full_name(value: Any, name: str) -> str:
    """Return the name by which its module calls a value: "numpy.random.rand" of what was imported as rand."""
    if type(value) is types.ModuleType:
        return str(vars(value).get("__name__", name))
    if issubclass(type(value), types.FunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value) in (types.MethodType, types.BuiltinFunctionType):
        for module, generator in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
            if value.__self__ is vars(sys.modules.get(module, builtins)).get(generator, _UNKNOWN):
                return f"{module.removesuffix('.mtrand')}.{value.__name__}"
    return name


# --- which functions -------------------------------------------------------------------------------------------------


def sample_functions(values: Iterable[Any], own: Ownership) -> list[Function]:
    """Return the user's own functions that may be called for a sample, each once.

    Those are the methods of datasets and transforms, functions among what they hold, and what all of these name.
    """
    waiting = [function for value in values for function in _entries(value, own)][::-1]
    seen: set[tuple[int, int]] = set()
    found: list[Function] = []
    while waiting and len(found) < _MOST:
        one = waiting.pop()
        if (key := (id(one.function.__code__), id(one.owner))) not in seen:
            seen.add(key)
            found.append(one)
            waiting.extend([other for mention in one.mentions for other in _named(one, mention, own)][::-1])
    return found


def _entries(value: Any, own: Ownership) -> list[Function]:
    """Return the functions that are called where an object is: it itself, or methods of its class."""
    if _is_function(value):
        return _unwrapped(value, None, own)
    if not own.of(type(value)):
        return []
    return [function for name in _ENTRIES for function in _methods(value, name, own)]


def _named(function: Function, mention: _Mention, own: Ownership) -> list[Function]:
    """Return the user's own functions that a mention in a function leads to."""
    owner, value, words = function.owner, mention.value, mention.name.split(".")
    if value is super and owner is not None:
        return _methods(owner, function.function.__name__, own, after=function.kind)
    if issubclass(type(value), type):
        return _unwrapped(vars(value).get("__init__"), value, own, value) if own.of(value) else []
    if value is not _UNKNOWN:
        return _entries(value, own)
    if words[0] != "self" or owner is None or len(words) < 2:
        return []
    found = _methods(owner, words[1], own)
    inside = own_attributes(owner, own).get(words[1]) if len(words) > 2 else None
    return found + (_methods(inside, words[2], own) if own.of(type(inside)) else [])


def _methods(owner: Any, name: str, own: Ownership, after: type | None = None) -> list[Function]:
    """Return the method of an object of this name, where it is the user's own.

    after: the class of its class's order behind which the search begins, as super() does.
    """
    order = type(owner).__mro__
    if after in order:
        order = order[order.index(after) + 1 :]
    kind = next((kind for kind in order if name in vars(kind)), None)
    return [] if kind is None else _unwrapped(vars(kind)[name], owner, own, kind)


def _unwrapped(value: Any, owner: Any, own: Ownership, kind: type | None = None) -> list[Function]:
    """Return the functions of the user's own in a function: what decorators, properties and the like are around."""
    found: list[Function] = []
    for _ in range(16):
        if issubclass(type(value), staticmethod | classmethod):
            value, owner = value.__func__, None if issubclass(type(value), staticmethod) else owner
        elif issubclass(type(value), property):
            value = value.fget
        elif type(value) is types.MethodType:
            value, owner = value.__func__, value.__self__
        if type(value) is types.FunctionType and own.of(value):
            found.append(Function(value, owner, kind))
        value = attributes(value).get("__wrapped__") if _is_function(value) else None
        if value is None:
            break
    return found


def _is_function(value: Any) -> bool:
    return type(value) in (types.FunctionType, types.MethodType) or type(value).__module__ == "functools"


# --- rules -----------------------------------------------------------------------------------------------------------

#: What of random and numpy.random does not draw from the module's global generator, beside classes.
_NO_DRAWS = frozenset(("default_rng", "seed", "get_state", "set_state", "getstate", "setstate", "get_bit_generator"))
#: What of torch.cuda needs no CUDA context.
_CUDA_QUESTIONS = frozenset(("is_available", "device_count", "is_initialized", "amp"))


def global_random(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield remarks on functions that draw from the global generators of random and numpy.random."""
    for function in functions:
        seeded = {mention.name for mention in function.mentions}
        found = [one for one in function.mentions if (kind := _generator(one.name)) and f"{kind}.seed" not in seeded]
        if found:
            yield _remark(
                "global-random",
                State.LOOK,
                function,
                found,
                "draws from a generator that all samples of a worker share",
                "What a sample gets depends on which samples the worker read before: other numbers of workers, a "
                "resumed run and, in threads, every run give other samples.",
                "Give penstock.DataLoader(seed=...) with worker processes, which sets the generators for each "
                "sample, or draw from torch.utils.data.get_worker_info().rng, or from a generator made of (seed, "
                "epoch, index).",
            )


def _generator(name: str) -> str | None:
    """Return the module whose global generator a function of this name draws from."""
    module, _, function = name.rpartition(".")
    draws = module in ("random", "numpy.random") and function[:1].islower() and function not in _NO_DRAWS
    return module if draws else None


def opencv_threads(functions: list[Function]) -> Iterator[Remark]:
    """Yield a remark on the first function that calls OpenCV, where its pool of threads is on."""
    module = sys.modules.get("cv2")
    calls = [[one for one in function.mentions if one.name.startswith("cv2.")] for function in functions]
    careful = any(mention.name == "cv2.setNumThreads" for found in calls for mention in found)
    if careful or (module is not None and module.getNumThreads() <= 1):
        return
    for function, found in zip(functions, calls, strict=True):
        if found:
            yield _remark(
                "opencv-threads",
                State.LOOK,
                function,
                found,
                "runs in OpenCV's own pool of threads",
                "Each worker starts as many threads as the machine has CPUs, which compete with the other workers; and "
                "a pool that was used before a fork may hang in the child.",
                "Call cv2.setNumThreads(0) where cv2 is imported.",
            )
            return


def cuda_calls(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield remarks on functions that use CUDA for a sample."""
    for function in functions:
        named = _names_cuda_in(function)
        found = [one for one in function.mentions if _uses_cuda(one.name) or (named and one.name.endswith(".to"))]
        if named and not found:  # torch.zeros(3, device="cuda")
            found = [one for one in function.mentions if one.name.startswith("torch.")]
        if found:
            yield _remark(
                "cuda",
                State.BAD,
                function,
                found,
                "uses CUDA while a sample is made",
                "A forked worker cannot set CUDA up where its parent has ('Cannot re-initialize CUDA in forked "
                "subprocess'); a spawned one takes hundreds of MiB of the GPU's memory for a context of its own, and "
                "copies samples one by one.",
                "Return CPU tensors, and copy whole batches: penstock.DataLoader(device='cuda'), or pin_memory=True "
                "and .to('cuda', non_blocking=True) in the loop.",
            )


def _uses_cuda(name: str) -> bool:
    words = name.split(".")
    if words[:2] == ["torch", "cuda"]:
        return len(words) > 2 and words[2] not in _CUDA_QUESTIONS
    return words[-1] == "cuda" and words[0] not in ("torch", "self") and len(words) > 1


def _names_cuda_in(function: Function) -> bool:
    """Return whether a function names a CUDA device: as a text, by a global variable, or by an attribute of self."""
    held = attributes(function.owner) if function.owner is not None else {}
    values = [constant for code in function.codes for constant in code.co_consts]
    values += [held.get(one.name.removeprefix("self."), one.value) for one in function.mentions]
    return any(_names_cuda(value) for value in values)


def _names_cuda(value: Any) -> bool:
    if type(value) is torch.device:
        return bool(value.type == "cuda")
    return type(value) is str and (value == "cuda" or value.startswith("cuda:"))


def _remark(
    rule: str, state: State, function: Function, found: list[_Mention], does: str, why: str, change: str
) -> Remark:
    """Return the remark on what a function names."""
    found = sorted(found, key=lambda mention: mention.line)
    names = list(dict.fromkeys(mention.name for mention in found))
    lines = list(dict.fromkeys(mention.line for mention in found))
    more = f" and {len(names) - _LINES} more" if len(names) > _LINES else ""
    shown = and_join(tuple(names)) if not more else ", ".join(names[:_LINES]) + more
    if lines[1:]:
        shown += f" (lines {', '.join(map(str, lines[:_LINES]))}{', ...' if len(lines) > _LINES else ''})"
    written = function.function.__qualname__.rpartition("<locals>.")[2]
    where = place(written, function.function.__code__.co_filename, lines[0])
    return Remark(rule, state, where, f"{shown}: {does}", why, change)
