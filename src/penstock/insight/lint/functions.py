"""The functions of the user's own that a dataset calls for a sample, and what their code names.

Names are read from the compiled code, so that they are known where there is no source (an interactive session).
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.insight.lint.objects import Held, own_attributes
from penstock.insight.lint.ownership import Ownership
from penstock.recipe.unseeded_generators import attributes

#: The methods that are called for samples, by loaders, by transforms and by torch's modules.
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
#: How many functions are read.
_MOST = 500
#: Stands for a value that is not known before the code runs.
UNKNOWN: Any = object()


@dataclass(frozen=True)
class Mention:
    """An expression of names in a function: `np.random.rand`."""

    name: str
    """As its module calls it where the value is known: "numpy.random.rand"; "self.load" of the object whose method it
    is; ".cuda" of a variable, or of what another expression gives."""
    line: int
    value: Any = UNKNOWN


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the user's own."""

    function: types.FunctionType
    owner: Any = None
    """The object whose method it is; None: it is none."""
    kind: type | None = None
    """The class that defines it."""

    @property
    def name(self) -> str:
        """Its name, with that of its class."""
        return self.function.__qualname__.rpartition("<locals>.")[2]

    @property
    def file(self) -> str:
        """The file that it is written in."""
        return self.function.__code__.co_filename

    @property
    def own_name(self) -> str:
        """What it calls the object whose method it is: "self"."""
        code = self.function.__code__
        return code.co_varnames[0] if self.owner is not None and code.co_argcount else ""

    @cached_property
    def mentions(self) -> tuple[Mention, ...]:
        """What its code names, in order, with the code of functions and comprehensions in it."""
        return tuple(_mentions(self.function.__code__, self, frozenset()))

    @cached_property
    def imports(self) -> dict[str, str]:
        """The local names of what its code imports, with the full names."""
        return dict(_imports(self.function.__code__))

    @cached_property
    def tree(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Its source, with the lines of its file; None where there is none, or it is not this function's."""
        code = self.function.__code__
        try:
            lines, first = inspect.getsourcelines(code)
            found = ast.parse(textwrap.dedent("".join(lines))).body[0]
        except (OSError, TypeError, SyntaxError, ValueError, IndexError):
            return None
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) or found.name != code.co_name:
            return None  # a lambda, or the file has changed
        ast.increment_lineno(found, max(first, 1) - 1)
        return found

    def resolve(self, names: list[str], line: int, inner: frozenset[str] = frozenset()) -> Mention:
        """Return what an expression of names is, as far as it is known without running anything.

        inner: variables of the function in this one whose code has the expression.
        """
        code, written = self.function.__code__, ".".join(names)
        first = names[0]
        if first in self.imports:
            return _through(self.imports[first].split("."), names[1:], line)
        if self.owner is not None and first == self.own_name and first not in inner:
            return Mention(".".join(["self", *names[1:]]), line)
        if first in code.co_varnames or first in code.co_cellvars or first in inner:
            return Mention(".".join(["", *names[1:]]), line)
        value = self._enclosed(first)
        if value is UNKNOWN:
            value = self.function.__globals__.get(first, UNKNOWN)
        if value is UNKNOWN:
            value = vars(builtins).get(first, UNKNOWN)
        return Mention(written, line) if value is UNKNOWN else _along(value, first, names[1:], line)

    def _enclosed(self, name: str) -> Any:
        """Return a variable of the function around this one."""
        free = self.function.__code__.co_freevars
        try:
            return (self.function.__closure__ or ())[free.index(name)].cell_contents if name in free else UNKNOWN
        except ValueError:  # not set yet
            return UNKNOWN


def _through(module: list[str], names: list[str], line: int) -> Mention:
    """Return what names are in a module that code imports, as far as it is imported by now."""
    for cut in range(len(module), 0, -1):
        found = sys.modules.get(".".join(module[:cut]))
        if found is not None:
            return _along(found, ".".join(module[:cut]), [*module[cut:], *names], line)
    return Mention(".".join([*module, *names]), line)


def _along(value: Any, name: str, names: list[str], line: int) -> Mention:
    """Return what attributes lead to from a value: through modules, and no further."""
    name = vars(value).get("__name__", name) if type(value) is types.ModuleType else _canonical(value, name)
    for number, attribute in enumerate(names):
        if type(value) is not types.ModuleType:
            return Mention(".".join([name, *names[number:]]), line)
        found = vars(value).get(attribute, UNKNOWN)
        if found is UNKNOWN:
            found = sys.modules.get(f"{name}.{attribute}", UNKNOWN)
        name = f"{name}.{attribute}"
        if found is UNKNOWN:
            return Mention(".".join([name, *names[number + 1 :]]), line)
        value = found
        name = vars(value).get("__name__", name) if type(value) is types.ModuleType else name
    return Mention(name, line, value)


def _canonical(value: Any, name: str) -> str:
    """Return the full name of what was imported from a module by its own name: "numpy.random.rand"."""
    if issubclass(type(value), types.FunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    bound = getattr(value, "__self__", None) if _is_bound(value) else None
    for module, attribute in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        if bound is not None and bound is vars(sys.modules.get(module, builtins)).get(attribute):
            return f"{module.removesuffix('.mtrand')}.{value.__name__}"
    return name


def _is_bound(value: Any) -> bool:
    return type(value) in (types.MethodType, types.BuiltinFunctionType)


# --- reading code ----------------------------------------------------------------------------------------------------


def _mentions(code: types.CodeType, function: Function, inner: frozenset[str]) -> Iterator[Mention]:
    """Yield what code names.

    inner: variables of the code, and of what is around it, where it lies in the function's.
    """
    for names, line in _expressions(code):
        if names[0]:
            yield function.resolve(names, line, inner)
        elif len(names) > 1:
            yield Mention(".".join(names), line)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            variables = inner.union(constant.co_varnames, constant.co_cellvars)
            yield from _mentions(constant, function, variables)


def _expressions(code: types.CodeType) -> Iterator[tuple[list[str], int]]:
    """Yield the names that code joins by dots, and the line; the first is empty where an expression comes before."""
    names: list[str] = [""]
    line = begun = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = (step.positions.lineno if step.positions else None) or line
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(step.argval))
        elif step.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP"):
            yield names, begun
            names, begun = [""], line
            if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
                *before, last = step.argval if isinstance(step.argval, tuple) else (step.argval,)
                yield from (([str(name)], line) for name in before)
                names = [str(last)]
            elif step.opname == "STORE_FAST_LOAD_FAST":  # Python 3.13 stores one variable and loads another in one step
                names = [str(step.argval[1])]
    yield names, begun


def _imports(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Yield (local name, full name) of what code imports."""
    module = found = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module, found = str(step.argval), ""
        elif step.opname == "IMPORT_FROM" and module:
            name = str(step.argval)
            found = module if module.endswith(f".{name}") else f"{module}.{name}"
        elif step.opname.startswith(("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")) and module:
            name = str(step.argval[0] if isinstance(step.argval, tuple) else step.argval)
            top = module.partition(".")[0]
            yield name, found or (top if name == top else module)
            if not found:
                module = ""
        elif step.opname == "POP_TOP":
            module = module if found else ""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant)


# --- which functions ---------------------------------------------------------------------------------------------


def sample_functions(held: Iterable[Held], own: Ownership) -> list[Function]:
    """Return the user's own functions that may be called for a sample.

    Those are the methods of datasets and transforms, functions among their attributes, and what all of these name.
    """
    found: list[Function] = []
    for one in held:
        if _is_function(one.value):
            found += _unwrapped(one.value, None, own)
        elif own.of_class(type(one.value)):
            for name in _ENTRIES:
                found += methods(one.value, name, own)
    return reached(found, own)


def reached(functions: list[Function], own: Ownership) -> list[Function]:
    """Return functions with all of the user's own that they name, each once."""
    seen: set[tuple[int, int]] = set()
    waiting, found = list(reversed(functions)), list[Function]()
    while waiting and len(found) < _MOST:
        one = waiting.pop()
        if (key := (id(one.function.__code__), id(one.owner))) not in seen:
            seen.add(key)
            found.append(one)
            waiting.extend(reversed(list(_named(one, own))))
    return found


def _named(function: Function, own: Ownership) -> Iterator[Function]:
    """Yield the user's own functions that a function names."""
    for mention in function.mentions:
        value, words = mention.value, mention.name.split(".")
        if value is super and function.owner is not None:
            yield from methods(function.owner, function.function.__name__, own, after=function.kind)
        elif _is_function(value):
            yield from _unwrapped(value, None, own)
        elif issubclass(type(value), type) and own.of_class(value):
            yield from _unwrapped(vars(value).get("__init__"), value, own, value)
        elif value is not UNKNOWN and own.of_class(type(value)):
            for name in _ENTRIES:
                yield from methods(value, name, own)
        elif words[0] == "self" and function.owner is not None and len(words) > 1:
            yield from methods(function.owner, words[1], own)
            inside = _attribute(function.owner, words[1], own) if len(words) > 2 else None
            if inside is not None and own.of_class(type(inside)):
                yield from methods(inside, words[2], own)


def _attribute(owner: Any, name: str, own: Ownership) -> Any:
    return own_attributes(owner, own).get(name) if own.of_class(type(owner)) else None


def methods(owner: Any, name: str, own: Ownership, after: type | None = None) -> list[Function]:
    """Return the method of an object of this name, where it is the user's own.

    after: the class of its class's order behind which the search begins, as super() does.
    """
    order = type(owner).__mro__
    if after is not None and after in order:
        order = order[order.index(after) + 1 :]
    for kind in order:
        if name in vars(kind):
            return _unwrapped(vars(kind)[name], owner, own, kind)
    return []


def _unwrapped(value: Any, owner: Any, own: Ownership, kind: type | None = None) -> list[Function]:
    """Return the functions of the user's own in a function: what decorators, properties and the like are around."""
    found: list[Function] = []
    for _ in range(16):
        if issubclass(type(value), staticmethod):
            value, owner = value.__func__, None
        elif issubclass(type(value), classmethod):
            value = value.__func__
        elif issubclass(type(value), property):
            value = value.fget
        elif type(value) is types.MethodType:
            value, owner = value.__func__, value.__self__
        if type(value) is types.FunctionType and own.of_function(value):
            found.append(Function(value, owner, kind))
        inner = attributes(value).get("__wrapped__") if _is_function(value) else None
        if inner is None:
            break
        value = inner
    return found


def _is_function(value: Any) -> bool:
    return type(value) in (types.FunctionType, types.MethodType) or type(value).__module__ == "functools"
