"""Reads what a dataset's `__getitem__` does by its syntax tree, as far as it only indexes what the dataset holds.

What does not depend on the index is worked out once, and noted (`Reads`); what does becomes a step of a `Program`. A
class that does anything else is not read: the language is closed, and the first expression outside of it is named.
"""

from __future__ import annotations

import ast
import builtins
import operator
import weakref
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from penstock.indexing import frames, functions, operations
from penstock.indexing.guard import Reads
from penstock.indexing.program import Made, NotIndexing, Program, Value, differs, is_array
from penstock.indexing.source_text import tree_of

_DEEPEST = 4  # calls of functions of the user's within each other
_MOST_NODES, _MOST_ITEMS = 2000, 64
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_PLAIN = (bool, int, float, str, type(None))
_COMPARABLE = (*_PLAIN, torch.dtype, np.dtype, torch.Size)
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(slots=True)
class Method:
    """A function of an object's class, with the object."""

    function: FunctionType
    owner: Any


class _Returned(Exception):
    pass


class Reader:
    """Reads the `__getitem__` of a dataset.

    Args:
        index: of the sample that serves as the example.

    Raises NotIndexing, with the expression that is outside of the language.
    """

    def __init__(self, dataset: Any, index: int) -> None:
        self.program, self.reads = Program(index), Reads()
        self.takes_ints_only = False
        """The class tells Python's whole numbers from numpy's."""
        self._dataset = weakref.ref(dataset)
        self._nodes, self._frames = 0, list[_Frame]()
        method = self._attribute(dataset, "__getitem__")
        if not isinstance(method, Method):
            raise NotIndexing(f"{type(dataset).__name__}.__getitem__ is not a function")
        self.reads.lacks(vars(dataset), "__getitems__")
        self.sample = self._call_function(method.function, [dataset, self.program.index], {})

    # --- functions ------------------------------------------------------------------------------------------------

    def _call_function(self, function: FunctionType, given: list[Any], named: dict[str, Any]) -> Any:
        tree = tree_of(function)
        where = f"{function.__qualname__}()"
        if tree is None:
            raise NotIndexing(f"{where} has no source text that is what runs")
        self.reads.function(function)
        frames = self._frames
        if len(frames) >= _DEEPEST:
            raise NotIndexing(f"{where} is called by too many functions")
        frames.append(_Frame(function, _bound(function, tree.args, given, named)))
        try:
            for statement in tree.body:
                self._statement(statement)
        except _Returned as returned:
            return returned.args[0]
        finally:
            frames.pop()
        return None

    @property
    def _frame(self) -> _Frame:
        return self._frames[-1]

    def _refused(self, node: ast.AST, why: str = "is more than indexing") -> NotIndexing:
        return NotIndexing(f"{self._frame.function.__qualname__}: `{ast.unparse(node)[:80]}` {why}")

    # --- statements -----------------------------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return():
                raise _Returned(None if node.value is None else self._value(node.value))
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self._value(node.value))
            case ast.AugAssign(target=ast.Name()):
                self._assign(node.target, self._in_place(node))
            case ast.If(body=[ast.Raise()], orelse=[]):
                if self._condition(node.test) is True:
                    raise self._refused(node)
            case ast.If():
                for inner in node.body if self._holds(node.test) else node.orelse:
                    self._statement(inner)
            case ast.For() if not node.orelse:
                for one in self._items(node.iter, self._value(node.iter)):
                    self._assign(node.target, one)
                    for inner in node.body:
                        self._statement(inner)
            case ast.Assert():
                if self._condition(ast.UnaryOp(ast.Not(), node.test)) is True:
                    raise self._refused(node)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call()):
                self._value(node.value)
            case _:
                raise self._refused(node)

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self._frame.names[target.id] = value
            case ast.Tuple() | ast.List():
                if isinstance(value, Value):
                    values = self._made_by(target, operations.parts, self.program, value)
                else:
                    values = self._items(target, value)
                if len(values) != len(target.elts):
                    raise self._refused(target, "takes another number of values")
                for inner, one in zip(target.elts, values, strict=True):
                    self._assign(inner, one)
            case ast.Subscript():
                holder, key = self._value(target.value), self._value(target.slice)
                if not (isinstance(holder, Made) and isinstance(holder.items, dict | list) and type(key) in (str, int)):
                    raise self._refused(target, "is written to")
                holder.items[key] = value
            case _:
                raise self._refused(target, "is written to")

    def _in_place(self, node: ast.AugAssign) -> Any:
        assert isinstance(node.target, ast.Name)
        left, right = self._frame.names.get(node.target.id), self._value(node.value)
        number = isinstance(left, Value) and not operations.is_row(left.example)
        if not number and not isinstance(left, int | float | str):
            raise self._refused(node, "may write to what the dataset holds")
        return self._calculated(node, node.op, left, right)

    def _items(self, node: ast.AST, value: Any) -> list[Any]:
        """Return what a loop goes through, or what is taken apart."""
        if isinstance(value, Made):
            return list(value.items)
        if type(value) not in (dict, range, list, tuple) or len(value) > _MOST_ITEMS:
            raise self._refused(node)
        self.reads.size(value)
        if type(value) is dict:
            self.reads.also(partial(_has_keys, value, list(value)))
        return list(value) if type(value) in (dict, range) else [self._item(node, value, k) for k in range(len(value))]

    def _holds(self, node: ast.expr) -> bool:
        """Return whether a condition is true that does not depend on the index."""
        return self._truth(node, self._value(node))

    def _condition(self, node: ast.expr) -> bool:
        """Return whether a condition holds on which the class raises; where it differs, of no sample but bad ones."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=inner)):
                return self._condition(inner)
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(ops=[_, _, *_]) as inner):
                operands = [inner.left, *inner.comparators]
                pairs = zip(operands[:-1], inner.ops, operands[1:], strict=True)
                return any(self._condition(ast.UnaryOp(ast.Not(), ast.Compare(a, [op], [b]))) for a, op, b in pairs)
            case ast.BoolOp(op=ast.Or()):
                return any(list(map(self._condition, node.values)))
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(ops=[op])) | ast.Compare(ops=[op]):
                inner = node.operand if isinstance(node, ast.UnaryOp) else node
                assert isinstance(inner, ast.Compare)
                values = self._value(inner.left), self._value(inner.comparators[0])
                if type(op) in _ORDERED and any(isinstance(one, Value) for one in values):
                    self._made_by(node, operations.checked, self.program, _COMPARED[type(op)], values, inner is node)
                    return False
        return self._holds(node)

    def _truth(self, node: ast.AST, value: Any) -> bool:
        if isinstance(value, Made):
            return bool(value.items)
        if isinstance(value, Value):
            raise self._refused(node, "depends on the sample")
        if type(value) in (list, tuple, dict, range):
            return bool(self.reads.size(value))
        kind = type(value)
        if isinstance(value, _PLAIN) or not (hasattr(kind, "__bool__") or hasattr(kind, "__len__")):
            return bool(value)
        raise self._refused(node, "has a truth of its own")

    # --- expressions ----------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise self._refused(node, "is a part of too much")
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute_of(node, self._value(node.value), self._own_name(node.attr))
            case ast.Subscript():
                return self._subscript(node)
            case ast.Tuple():
                return Made(tuple(map(self._element, node.elts)))
            case ast.List():
                return Made(list(map(self._element, node.elts)))
            case ast.Dict():
                if None in node.keys:
                    raise self._refused(node)
                keys = [self._value(key) for key in node.keys if key is not None]
                if not all(type(key) in (str, int) for key in keys):
                    raise self._refused(node)
                return Made(dict(zip(keys, map(self._value, node.values), strict=True)))
            case ast.BinOp():
                return self._calculated(node, node.op, self._value(node.left), self._value(node.right))
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BoolOp():
                value: Any = None
                for one in node.values:
                    value = self._value(one)
                    if self._truth(one, value) is isinstance(node.op, ast.Or):
                        break
                return value
            case ast.Compare():
                return self._compared(node)
            case ast.IfExp():
                return self._value(node.body if self._holds(node.test) else node.orelse)
            case ast.Call():
                return self._call(node)
            case ast.Slice():
                parts = [None if one is None else self._value(one) for one in (node.lower, node.upper, node.step)]
                if any(not (one is None or type(one) is int or isinstance(one, Value)) for one in parts):
                    raise self._refused(node)
                return slice(*parts)
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() if len(node.generators) == 1:
                return self._comprehended(node)
            case _:
                raise self._refused(node)

    def _element(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Starred):
            raise self._refused(node)
        return self._value(node)

    def _name(self, node: ast.Name) -> Any:
        names, function = self._frame.names, self._frame.function
        if node.id in names:
            return names[node.id]
        if node.id in function.__code__.co_varnames:
            raise self._refused(node, "has no value yet")
        if node.id in function.__code__.co_freevars:
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(node.id)]
            return self.reads.item(cell, "", cell.cell_contents, lambda _: cell.cell_contents)
        if node.id in function.__globals__:
            return self.reads.item(function.__globals__, node.id, function.__globals__[node.id])
        known = vars(builtins)
        if node.id in known:
            self.reads.lacks(function.__globals__, node.id)
            return self.reads.item(known, node.id, known[node.id])
        raise self._refused(node, "is not known")

    def _attribute_of(self, node: ast.AST, owner: Any, name: str) -> Any:
        if isinstance(owner, Value | frames.Row):
            find: Callable[..., Any] = functions.attribute if isinstance(owner, Value) else frames.of_row
            return self._made_by(node, find, self.program, owner, name)
        if isinstance(owner, Made):
            raise self._refused(node)
        return self._made_by(node, self._attribute, owner, name)

    def _own_name(self, name: str) -> str:
        """Return what a name with two underscores is in a class."""
        qualified = self._frame.function.__qualname__.split(".")
        private = name.startswith("__") and not name.endswith("__") and len(qualified) > 1
        return f"_{qualified[-2].lstrip('_')}{name}" if private else name

    def _attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute of an object that holds it in plain sight. Raises NotIndexing."""
        if isinstance(owner, ModuleType):
            if name not in vars(owner):
                raise NotIndexing("is not known")
            return self.reads.item(vars(owner), name, vars(owner)[name])
        if is_array(owner) and name in ("shape", "ndim", "dtype", "size"):
            return getattr(owner, name)
        if frames.is_table(owner):
            frames.note(self.reads, owner)
            return frames.attribute(self.reads, owner, name)
        kind: Any = type(owner)
        usual = kind.__getattribute__ is object.__getattribute__ or kind is SimpleNamespace
        if isinstance(owner, type) or not usual:
            raise NotIndexing("is an attribute that a class finds in its own way")
        own = getattr(owner, "__dict__", {})
        self.reads.kind(kind)
        for base in kind.__mro__:
            if name not in vars(base):
                continue
            value = vars(base)[name]
            if hasattr(type(value), "__set__") or hasattr(type(value), "__delete__"):
                raise NotIndexing("is a property")
            if name in own:
                break
            self.reads.item(vars(base), name, value)
            self.reads.lacks(own, name)
            if isinstance(value, staticmethod):
                return value.__func__
            if type(value) is FunctionType:
                return Method(value, owner)
            if hasattr(type(value), "__get__"):
                raise NotIndexing("is found in its own way")
            return value
        if type(own) is not dict or name not in own:
            raise NotIndexing("is not an attribute of the object itself")
        # The dataset itself is not held.
        find = own.get if owner is self._dataset() else partial(_held_by, owner)
        return self.reads.item(own, name, own[name], find)

    def _made_by(self, node: ast.AST, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return what an operation makes; its refusal names the expression."""
        try:
            return make(*arguments)
        except NotIndexing as why:
            if "`" in str(why):
                raise
            raise self._refused(node, str(why)) from None
        except Exception as error:  # the class raises it
            raise self._refused(node, f"raises {type(error).__name__}") from None

    def _subscript(self, node: ast.Subscript) -> Any:
        holder, key = self._value(node.value), self._value(node.slice)
        return self._item(node, holder, key)

    def _item(self, node: ast.AST, holder: Any, key: Any) -> Any:
        key = self._plain_key(node, key)
        if isinstance(holder, Made):
            if isinstance(key, Value) or (isinstance(holder.items, dict) and key not in holder.items):
                raise self._refused(node)
            found = self._made_by(node, operator.getitem, holder.items, key)
            return Made(found) if isinstance(key, slice) else found
        if isinstance(holder, frames.Row):
            return self._made_by(node, frames.part, self.program, holder, key)
        if isinstance(holder, frames.Indexer) and isinstance(holder.owner, frames.Row):
            return self._made_by(node, frames.by_number, self.program, holder.owner, key)
        if isinstance(holder, frames.Indexer) or frames.is_table(holder):
            if differs(key):
                return self._made_by(node, frames.indexed, self.program, holder, key)
            if frames.is_table(holder):
                frames.note(self.reads, holder)
                return self._made_by(node, frames.item, holder, key)
        if isinstance(holder, Value):
            if differs(key):
                raise self._refused(node, "indexes one value by another")
            return self._made_by(node, operations.part, self.program, holder, key)
        if isinstance(holder, UserDict) and type(vars(holder).get("data")) is dict and _is_plain_dictionary(holder):
            holder = vars(holder)["data"]
        if differs(key):
            return self._made_by(node, self._item_by, holder, key)
        if type(holder) in (dict, list, tuple) and not isinstance(key, slice):
            found = self._made_by(node, operator.getitem, holder, key)
            return self.reads.item(holder, key, found, holder.__getitem__)
        if type(holder) in (str, tuple, range):
            return self._made_by(node, operator.getitem, holder, key)
        if is_array(holder):
            found = self._made_by(node, operator.getitem, holder, key)
            if is_array(found) and found.ndim and functions.shares(found, holder):
                return found
        raise self._refused(node, "is an item that is made anew")

    def _plain_key(self, node: ast.AST, key: Any) -> Any:
        if isinstance(key, Made):
            if isinstance(key.items, list) and differs(key):
                raise self._refused(node, "indexes by a list")
            return key.items
        return key

    def _item_by(self, holder: Any, key: Any) -> Value:
        """Return an item of an object of the dataset's that the sample's index says."""
        if isinstance(key, slice):
            step = key.step
            if isinstance(step, Value) or (step is not None and step < 1):
                raise NotIndexing("is a slice with a step of its own")
            if not isinstance(key.start, Value):
                raise NotIndexing("is a slice whose length differs from sample to sample")
            rows = operations.window(self.program, holder, key.start, key.stop)
            return rows if step in (None, 1) else operations.part(self.program, rows, slice(None, None, step))
        if not isinstance(key, tuple):
            return operations.item(self.program, holder, key)
        place = next(number for number, one in enumerate(key) if differs(one))
        before, after = key[:place], key[place + 1 :]
        if not is_array(holder) or differs(after) or any(one != slice(None) for one in before):
            raise NotIndexing("is indexed by several numbers")
        if place:
            if any(one != slice(None) for one in after):
                raise NotIndexing("is indexed by several numbers")
            axes = [place, *(axis for axis in range(holder.ndim) if axis != place)]
            moved = holder.permute(axes) if isinstance(holder, torch.Tensor) else holder.transpose(axes)
            return operations.part(self.program, self._rows_of(moved, key[place]), Ellipsis)
        row = self._rows_of(holder, key[0])
        if isinstance(key[0], slice):
            after = (slice(None), *after)
        return operations.part(self.program, row, after) if len(key) > 1 else row

    def _rows_of(self, holder: Any, key: Any) -> Value:
        return self._item_by(holder, key) if isinstance(key, slice) else operations.item(self.program, holder, key)

    def _calculated(self, node: ast.AST, op: ast.operator, left: Any, right: Any) -> Any:
        calculate = _OPERATORS.get(type(op))
        if calculate is None or isinstance(left, Made) or isinstance(right, Made):
            raise self._refused(node)
        if not (isinstance(left, Value) or isinstance(right, Value)):
            if not (isinstance(left, int | float | str) and isinstance(right, int | float | str)):
                raise self._refused(node, "is made anew for each sample")
            return self._made_by(node, calculate, left, right)
        return self._made_by(node, operations.calculated, self.program, calculate, left, right)

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return not self._truth(node.operand, value)
        if isinstance(node.op, ast.USub) and type(value) in (int, float):
            return -value
        raise self._refused(node)

    def _compared(self, node: ast.Compare) -> bool:
        values = [self._value(one) for one in (node.left, *node.comparators)]
        for op, one, other in zip(node.ops, values[:-1], values[1:], strict=True):
            compare = _COMPARED[type(op)]
            if isinstance(op, ast.Is | ast.IsNot):
                if isinstance(one, Value) or isinstance(other, Value):  # a number or a row is not None
                    if None not in (one, other) or None in [v.example for v in (one, other) if isinstance(v, Value)]:
                        raise self._refused(node)
                    result = isinstance(op, ast.IsNot)
                else:
                    result = compare(one, other)
            else:
                other = other.items if isinstance(other, Made) and not differs(other) else other
                plain = isinstance(one, _COMPARABLE)
                if isinstance(op, ast.In | ast.NotIn):
                    if not plain or type(other) not in (str, list, tuple, dict) or len(other) > _MOST_ITEMS:
                        raise self._refused(node)
                    if type(other) in (list, dict):
                        self.reads.also(partial(_contains, other, one, one in other))
                elif not plain or not isinstance(other, (*_COMPARABLE, tuple)):
                    raise self._refused(node)
                result = self._made_by(node, compare, one, other)
            if not result:
                return False
        return True

    def _comprehended(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> Made:
        (over,) = node.generators
        if over.ifs or over.is_async:
            raise self._refused(node)
        names, made = self._frame.names, list[Any]()
        for one in self._items(over.iter, self._value(over.iter)):
            self._frame.names = dict(names)
            self._assign(over.target, one)
            if isinstance(node, ast.DictComp):
                made.append((self._value(node.key), self._value(node.value)))
            else:
                made.append(self._value(node.elt))
        self._frame.names = names
        if isinstance(node, ast.DictComp):
            if not all(type(key) in (str, int) for key, _ in made):
                raise self._refused(node)
            return Made(dict(made))
        return Made(made)

    # --- calls ----------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
            raise self._refused(node)
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value)
            if isinstance(owner, Value | Made | frames.Row) or _has_methods(owner):
                return self._method(node, owner, node.func.attr, *self._arguments(node))
            called = self._made_by(node.func, self._attribute, owner, self._own_name(node.func.attr))
        else:
            called = self._value(node.func)
        given, named = self._arguments(node)
        if isinstance(called, Method):
            return self._made_by(node, self._call_function, called.function, [called.owner, *given], named)
        if isinstance(called, Value | Made | MethodType):
            raise self._refused(node)
        if (known := functions.known(called)) is not None:
            if known is functions.PURE:
                return self._pure(node, called, given, named)
            return self._made_by(node, known, self.program, given, named)
        if type(called) is FunctionType and called.__module__.partition(".")[0] not in ("torch", "numpy"):
            return self._made_by(node, self._call_function, called, given, named)
        fields = getattr(called, "_fields", ())
        if isinstance(called, type) and called.__bases__ == (tuple,) and _is_named_tuple(called):
            values = {**dict(zip(fields, given, strict=False)), **named}
            if values.keys() == set(fields) and len(given) + len(named) == len(fields):
                return Made(tuple.__new__(called, [values[name] for name in fields]))
        raise self._refused(node)

    def _arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        given = [self._value(one) for one in node.args]
        return given, {str(one.arg): self._value(one.value) for one in node.keywords}

    def _pure(self, node: ast.AST, called: Any, given: list[Any], named: dict[str, Any]) -> Any:
        """Return what a builtin function gives."""
        first = given[0] if given else None
        if called is isinstance or called is torch.is_tensor:
            kinds = torch.Tensor if called is torch.is_tensor else given[1]
            kinds = kinds.items if isinstance(kinds, Made) else kinds
            if isinstance(first, Made):
                raise self._refused(node)
            found = self._made_by(node, isinstance, first.example if isinstance(first, Value) else first, kinds)
            if first is self.program.index and isinstance(np.int64(0), kinds) is not found:
                self.takes_ints_only = True
            return found
        if called in (tuple, list) and len(given) == 1 and isinstance(first, Made):
            return Made(called(first.items))
        if called in (zip, enumerate) and not named:
            return Made(list(map(_as_made, called(*(self._items(node, one) for one in given)))))
        if called is dict and not given:
            return Made(named)
        if called is len and len(given) == 1:
            return self._length(node, first)
        if not all(isinstance(one, _PLAIN) for one in given):
            raise self._refused(node)
        return self._made_by(node, called, *given)

    def _length(self, node: ast.AST, value: Any) -> int:
        """Return what `len` gives."""
        if isinstance(value, Made):
            return len(value.items)
        if isinstance(value, Value) and operations.is_row(value.example) and value.example.ndim:
            return len(value.example)
        if type(value) in (list, dict):
            return self.reads.size(value)
        if type(value) in (tuple, range, str) or is_array(value):
            return len(value)
        method = None if isinstance(value, Value) else self._made_by(node, self._attribute, value, "__len__")
        found = self._call_function(method.function, [value], {}) if isinstance(method, Method) else None
        if type(found) is not int:
            raise self._refused(node)
        return found

    def _method(self, node: ast.Call, owner: Any, name: str, given: list[Any], named: dict[str, Any]) -> Any:
        if isinstance(owner, Value):
            return self._made_by(node, functions.method, self.program, owner, name, given, named)
        if isinstance(owner, frames.Row) or frames.is_table(owner):
            if name != "to_numpy" or given or named:
                raise self._refused(node)
            return self._attribute_of(node, owner, "values")
        if isinstance(owner, Made):
            items = owner.items
            if isinstance(items, list) and name == "append" and len(given) == 1:
                return items.append(given[0])
            if isinstance(items, dict) and name == "update" and len(given) == 1 and isinstance(given[0], Made):
                return items.update(given[0].items)
            if isinstance(items, dict) and name in ("items", "keys", "values") and not given:
                return Made(list(map(_as_made, getattr(items, name)())))
            raise self._refused(node)
        if isinstance(owner, UserDict):
            owner = vars(owner)["data"]
        if isinstance(owner, dict):
            if name not in ("items", "keys", "values") or given:
                raise self._refused(node)
            pairs = [(key, self._item(node, owner, key)) for key in self._items(node, owner)]
            made = {"items": [Made(pair) for pair in pairs], "keys": list(owner), "values": [one for _, one in pairs]}
            return Made(made[name])
        return self._made_by(node, functions.of_constant, owner, name, given)


@dataclass
class _Frame:
    """A call of a function: its variables."""

    function: FunctionType
    names: dict[str, Any]


def _bound(function: FunctionType, wanted: ast.arguments, given: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a function by name. Raises NotIndexing."""
    names = [one.arg for one in (*wanted.posonlyargs, *wanted.args)]
    if wanted.vararg or wanted.kwarg or len(given) > len(names):
        raise NotIndexing("takes any number of arguments")
    defaults = function.__defaults__ or ()
    found = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found.update(function.__kwdefaults__ or {})
    found.update(zip(names, given, strict=False))
    every = [*names, *(one.arg for one in wanted.kwonlyargs)]
    if not named.keys() <= set(every[len(given) :]):
        raise NotIndexing("is called with other arguments")
    found.update(named)
    if found.keys() != set(every):
        raise NotIndexing("lacks an argument")
    if any(not isinstance(one, _PLAIN) for one in defaults):
        raise NotIndexing("has a default that it may change")
    return found


def _is_named_tuple(kind: Any) -> bool:
    home = getattr(kind.__new__, "__globals__", {}).get("__name__", "")
    return str(home).startswith("namedtuple_")


def _held_by(owner: Any, name: str) -> Any:
    return vars(owner).get(name)


def _contains(container: Any, value: Any, found: bool) -> bool:
    return (value in container) is found


def _has_keys(container: dict[Any, Any], keys: list[Any]) -> bool:
    return all(map(operator.is_, container, keys))


def _as_made(value: Any) -> Any:
    return Made(value) if type(value) is tuple else value


def _is_plain_dictionary(holder: Any) -> bool:
    """Return whether a UserDict finds items by their names as a dict does: Python's own, or Transformers' encodings."""
    return type(holder) is UserDict or type(holder).__module__.startswith("transformers.")


def _has_methods(owner: Any) -> bool:
    if isinstance(owner, UserDict):
        return type(vars(owner).get("data")) is dict and _is_plain_dictionary(owner)
    return type(owner) is dict or is_array(owner) or frames.is_table(owner)
