"""The syntax tree of a function, from its source text; only where that text compiles to the code that runs."""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import weakref
from types import CodeType, FunctionType, ModuleType

#: The trees that were read, or None where a function has none.
_read: weakref.WeakKeyDictionary[CodeType, ast.FunctionDef | None] = weakref.WeakKeyDictionary()
#: What `from __future__ import` changes in how a text is compiled.
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def tree_of(function: FunctionType) -> ast.FunctionDef | None:
    """Return the tree of a function without decorators; None: it has no source text, or the text is another one's."""
    code = function.__code__
    if code not in _read:
        try:
            _read[code] = _tree(function)
        except Exception:  # of a text that is cut off, or that another program has written
            _read[code] = None
    return _read[code]


def _tree(function: FunctionType) -> ast.FunctionDef | None:
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    text = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
    # A method is compiled in a class of that name, which names with two underscores depend on, and in a function that
    # has the variables which it takes from around it.
    around = [name for name in code.co_freevars if name != "__class__"]
    qualified = getattr(code, "co_qualname", function.__qualname__).split(".")
    home = qualified[-2] if len(qualified) > 1 and qualified[-2].isidentifier() else "_"
    if text[:1].isspace():
        text = f"def _({', '.join(around)}):\n class {home}:\n{text}"
    module = ast.parse(text)
    found = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == code.co_name]
    if len(found) != 1 or found[0].decorator_list:
        return None
    # A call of a method of what the module imports is compiled in another way.
    names = dict.fromkeys(name for one in (code, *_codes(code)) for name in one.co_names)
    used = [name for name in names if name in function.__globals__]
    modules = [name for name in used if isinstance(function.__globals__[name], ModuleType)]
    return found[0] if any(_compiles_to(module, imports, code) for imports in (modules, used, [])) else None


def _compiles_to(module: ast.Module, imports: list[str], code: CodeType) -> bool:
    """Return whether a function's code is what a text is compiled to, in a module that imports these names."""
    before = [ast.Import([ast.alias(name) for name in imports])] if imports else []
    whole = ast.fix_missing_locations(ast.Module([*before, *module.body], []))
    compiled = compile(whole, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    return any(_same(one, code) for one in _codes(compiled))


def _codes(code: CodeType) -> list[CodeType]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return inner + [deeper for one in inner for deeper in _codes(one)]


def _same(one: CodeType, other: CodeType) -> bool:
    """Return whether two codes do the same, wherever they stand."""
    alike = all(getattr(one, name) == getattr(other, name) for name in _COMPARED)
    return (
        alike
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same_constant, one.co_consts, other.co_consts))
    )


def _same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _same(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


_COMPARED = (
    *("co_code", "co_name", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_kwonlyargcount", "co_posonlyargcount"),
)
