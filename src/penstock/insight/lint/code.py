"""The user's own functions that a dataset calls for a sample, what their code names, and the rules about these names.

Names are read from the compiled code, so that they are known where there is no source (an interactive session).
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

from penstock.insight.check import Remark, State, place
from penstock.insight.lint.state import Ownership
from penstock.recipe.unseeded_generators import attributes
from penstock.system.words import and_join

#: The methods that are called for samples, by loaders, by transforms and by torch's modules.
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
#: How many functions are read, and the most lines that a remark names.
_MOST, _LINES = 500, 4
#: Steps of compiled code that load a variable, by where it is; and those between names.
_SCOPES = {"LOAD_GLOBAL": "module", "LOAD_NAME": "module", "LOAD_DEREF": "around", "LOAD_CLASSDEREF": "around"}
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP")
#: What of random and numpy.random does not draw from the module's global generator, beside classes.
_NO_DRAWS = frozenset(("default_rng", "seed", "get_state", "set_state", "getstate", "setstate", "get_bit_generator"))


class _Mention(NamedTuple):
    """An expression of names in a function, the first of which is not a local variable: `np.random.rand`."""

    name: str
    """As its module calls it: "numpy.random.rand"."""
    line: int
    value: Any
    """None: it is not known before the code runs."""


class Function:
    """A function of the user's own."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.codes = [function.__code__]
        for code in self.codes:  # of functions and comprehensions in it
            self.codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]

    @cached_property
    def mentions(self) -> list[_Mention]:
        """What its code names."""
        around: dict[str, Any] = {}
        for variable, cell in zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # not set yet
                around[variable] = cell.cell_contents
        known = {"module": {**vars(builtins), **self.function.__globals__}, "around": around}
        return [
            _along(known[scope].get(names[0]), names[0], names[1:], line)
            for code in self.codes
            for names, line, scope in _expressions(code)
            if scope
        ]

    @property
    def attributes(self) -> set[str]:
        """The names of attributes of what its variables, and other expressions, are: `load` of `self.load(index)`."""
        return {name for code in self.codes for names, _, scope in _expressions(code) if not scope for name in names}

    @property
    def calls_super(self) -> bool:
        """Whether it calls what it hides, of a class behind its own."""
        return any("super" in code.co_names for code in self.codes)


def _expressions(code: types.CodeType) -> Iterator[tuple[list[str], int, str]]:
    """Yield the names that code joins by dots, the line, and where the variable is that they begin with.

    That is the module, or a function around; "": they are attributes of a variable of the function, or of another
    expression.
    """
    names: list[str] = []
    scope, line, begun = "", code.co_firstlineno, code.co_firstlineno
    for step in dis.get_instructions(code):
        line = (step.positions.lineno if step.positions else None) or line
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(step.argval))
        elif step.opname not in _BETWEEN:
            if names:
                yield names, begun, scope
            scope, begun = _SCOPES.get(step.opname, ""), line
            names = [str(step.argval)] if scope else []


def _along(value: Any, name: str, names: list[str], line: int) -> _Mention:
    """Return what attributes lead to from a value: through modules, and no further."""
    while type(value) is types.ModuleType:
        name = str(vars(value).get("__name__", name))
        if not names:
            break
        value = vars(value).get(names[0], sys.modules.get(f"{name}.{names[0]}"))
        name, names = f"{name}.{names[0]}", names[1:]
    name = _draws().get(id(value), name)
    return _Mention(".".join([name, *names]), line, None if names else value)


@cache
def _draws() -> Mapping[int, str]:
    """Return the names of the functions that draw from global generators of random and numpy.random, by their id()."""
    return {
        id(value): f"{module}.{name}"
        for module in ("random", "numpy.random")
        for name, value in vars(sys.modules[module]).items()
        if callable(value) and name[:1].islower() and name not in _NO_DRAWS
    }


# --- which functions -------------------------------------------------------------------------------------------------


def sample_functions(values: Iterable[Any], own: Ownership) -> list[Function]:
    """Return the user's own functions that may be called for a sample, each once.

    Those are the methods of datasets and transforms, functions among what they hold, and what all of these name. One
    object of a class stands for all.
    """
    held: dict[Any, Any] = {}
    for value in values:
        if _is_function(value) or own.of(type(value)):
            held.setdefault(id(value) if _is_function(value) else type(value), value)
    found: dict[types.CodeType, Function] = {}
    names, before = set(_ENTRIES), -1
    while before < len(found) < _MOST:
        before = len(found)
        named = [mention.value for one in found.values() for mention in one.mentions if mention.value is not None]
        for one in (*held.values(), *named):
            for function in _functions(one, names, own):
                found.setdefault(function.codes[0], function)
        names |= {name for one in found.values() for name in one.attributes if not name.startswith("__")}
    return list(found.values())


def _functions(value: Any, names: set[str], own: Ownership) -> Iterator[Function]:
    """Yield the user's own functions in a value: itself, its methods of these names, the __init__ of a class."""
    if _is_function(value):
        yield from _unwrapped(value, own)
    elif issubclass(type(value), type):
        if own.of(value):
            yield from _unwrapped(vars(value).get("__init__"), own)
    elif own.of(type(value)):
        hidden: set[str] = set()  # by a class that comes before, which does not call super()
        for kind in type(value).__mro__:
            for name in (name for name in vars(kind) if name in names - hidden):
                functions = list(_unwrapped(vars(kind)[name], own)) if own.of(kind) else []
                yield from functions
                if not any(one.calls_super for one in functions):
                    hidden.add(name)


def _unwrapped(value: Any, own: Ownership) -> Iterator[Function]:
    """Yield the functions of the user's own in a function: what decorators, properties and the like are around."""
    for _ in range(16):
        if issubclass(type(value), staticmethod | classmethod | types.MethodType):
            value = value.__func__
        elif issubclass(type(value), property):
            value = value.fget
        if type(value) is types.FunctionType and own.of(value):
            yield Function(value)
        value = attributes(value).get("__wrapped__") if _is_function(value) else None
        if value is None:
            break


def _is_function(value: Any) -> bool:
    return type(value) in (types.FunctionType, types.MethodType) or type(value).__module__ == "functools"


# --- rules -----------------------------------------------------------------------------------------------------------

#: Of each rule about code: what the functions that it finds do, what that costs, and what to change.
_RULES = {
    "global-random": (
        "draws from a generator that all samples of a worker share",
        "What a sample gets depends on which samples the worker read before: other numbers of workers, a resumed run "
        "and, in threads, every run give other samples.",
        "Give penstock.DataLoader(seed=...) with worker processes, which sets the generators for each sample, or draw "
        "from torch.utils.data.get_worker_info().rng, or from a generator made of (seed, epoch, index).",
    ),
    "opencv-threads": (
        "runs in OpenCV's own pool of threads",
        "Each worker starts as many threads as the machine has CPUs, which compete with the other workers; and a pool "
        "that was used before a fork may hang in the child.",
        "Call cv2.setNumThreads(0) where cv2 is imported.",
    ),
}


def of_code(functions: list[Function]) -> Iterator[Remark]:
    """Yield remarks on the functions that are called for a sample."""
    for function in functions:
        if found := _of_global_random(function):
            yield _remark("global-random", function, found)
    cv2 = [(one, found) for one in functions if (found := [m for m in one.mentions if m.name.startswith("cv2.")])]
    limited = any(mention.name == "cv2.setNumThreads" for _, found in cv2 for mention in found)
    if cv2 and not limited and ((module := sys.modules.get("cv2")) is None or module.getNumThreads() > 1):
        yield _remark("opencv-threads", *cv2[0])


def _of_global_random(function: Function) -> list[_Mention]:
    seeded = {mention.name for mention in function.mentions}
    return [
        one
        for one in function.mentions
        if id(one.value) in _draws() and f"{one.name.rpartition('.')[0]}.seed" not in seeded
    ]


def _remark(rule: str, function: Function, found: list[_Mention]) -> Remark:
    """Return the remark on what a function names."""
    does, why, change = _RULES[rule]
    found = sorted(found, key=lambda mention: mention.line)
    names = list(dict.fromkeys(mention.name for mention in found))
    lines = list(dict.fromkeys(mention.line for mention in found))
    more = f" and {len(names) - _LINES} more" if len(names) > _LINES else ""
    shown = and_join(tuple(names)) if not more else ", ".join(names[:_LINES]) + more
    if lines[1:]:
        shown += f" (lines {', '.join(map(str, lines[:_LINES]))}{', ...' if len(lines) > _LINES else ''})"
    written = function.function.__qualname__.rpartition("<locals>.")[2]
    where = place(written, function.codes[0].co_filename, lines[0])
    return Remark(rule, State.LOOK, where, f"{shown}: {does}", why, change)
