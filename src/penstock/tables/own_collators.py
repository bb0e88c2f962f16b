"""Users' collators whose source says that they make tensors of the columns of their rows.

What a collate_fn does for each row, `torch.tensor(row["ids"])` in a list, is taken from its syntax tree, and done for a
column at a time; `pad_sequence` of such a list pads it natively. All else of the function, which works on the tensors
of the batch, runs as it is written. One that does anything else with its rows, draws, or calls functions of the user's
is not read.
"""

from __future__ import annotations

import ast
import copy
import weakref
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from penstock.indexing.source_text import tree_of
from penstock.system.libraries import is_users
from penstock.tables.column import NotGathered
from penstock.tables.padding import Batch, there

#: What makes a tensor of one row's values, with the dtype that it gives.
_MAKERS = {"tensor": None, "as_tensor": None, "LongTensor": torch.int64, "FloatTensor": torch.float32}
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_BUILTINS = ("len", "dict", "list", "tuple", "int", "float", "max", "min", "range", "sum", "enumerate")
#: Parts of the names of functions and methods that draw.
_DRAWS = ("rand", "bernoulli", "multinomial", "normal", "poisson", "dropout", "uniform", "exponential", "seed")
#: The options of pad_sequence, with their defaults.
_PADDING: dict[str, bool | float | str] = {"batch_first": False, "padding_value": 0.0, "padding_side": "right"}
_COUNT = -1


class _Part(NamedTuple):
    """An expression that is made of a column."""

    kind: str
    """"values", "lengths", "tensors" or "padded"."""
    column: str
    dtype: torch.dtype | None = None
    bare: bool = False
    """The rows' values are tensors, of which no others are made."""


class OwnCollator:
    """A collate_fn as it makes the batches of gathered columns. Raises NotGathered where it is not read."""

    def __init__(self, collate_fn: Any) -> None:
        function, self._bound = _function_of(collate_fn)
        if function.__code__ not in _read:
            try:
                _read[function.__code__] = _Program(function, bound=self._bound)
            except NotGathered:
                _read[function.__code__] = None
        program = _read[function.__code__]
        if program is None:
            raise NotGathered("it does more than to make tensors of columns")
        self._parts, self._names, self._of = program.parts, program.names, function
        self._held = _values(function, self._names)
        self._call = FunctionType(program.code, {**self._held, "__builtins__": __builtins__}, function.__name__)

    def batch(self, collate_fn: Any, _: Any, batch: Batch) -> Any:
        """Return the batch of some rows. Raises NotGathered, and what the function raises."""
        now = _values(self._of, self._names)
        if any(now[name] is not value for name, value in self._held.items()):
            raise NotGathered
        given = (partial(self._part, batch),)
        return self._call(*((collate_fn, *given) if self._bound else given))

    def _part(self, batch: Batch, number: int, *options: Any) -> Any:
        """Return what one of the expressions makes. options: of pad_sequence."""
        if number == _COUNT:
            return len(batch.rows)
        part = self._parts[number]
        name, tensors = part.column, isinstance(batch.first.get(part.column), torch.Tensor)
        if part.kind == "lengths":
            return batch.lengths(name).tolist()
        if part.kind == "values" and not tensors:
            return batch.objects(name)
        if tensors != (part.kind == "values" or part.bare):
            raise NotGathered
        if not batch.is_list(name):
            if not tensors:
                raise NotGathered
            return [one.clone() for one in batch.as_it_is(name)]
        lengths, column = batch.lengths(name), batch.column(name, listed=True)
        if not lengths.all() or part.dtype not in (None, column.dtype):
            raise NotGathered
        if part.kind == "padded":
            return _padded(batch, name, int(lengths.max()), column.dtype, *options)
        whole = there(column.held.flat(batch.rows, column.dtype, int(lengths.sum())))
        return [one.clone() for one in torch.split(whole, lengths.tolist())]


def _padded(batch: Batch, name: str, width: int, dtype: torch.dtype, first: Any, fill: Any, side: Any) -> torch.Tensor:
    """Return what pad_sequence makes of the tensors of a column."""
    if type(first) is not bool or side not in ("left", "right") or type(fill) not in (int, float):
        raise NotGathered
    if (not dtype.is_floating_point and fill != int(fill)) or dtype is torch.bool:
        raise NotGathered
    made = batch.padded(name, width, fill if dtype.is_floating_point else int(fill), left=side == "left")
    return made if first else made.t().contiguous()


def _function_of(collate_fn: Any) -> tuple[FunctionType, bool]:
    """Return the function that a collate_fn is, or its class's __call__, and whether it takes the object."""
    if type(collate_fn) is FunctionType:
        return collate_fn, False
    called = getattr(type(collate_fn), "__call__", None)  # noqa: B004
    if type(called) is FunctionType and is_users(type(collate_fn)) and hasattr(collate_fn, "__dict__"):
        return called, True
    raise NotGathered("it is not a function of the user's")


_read: weakref.WeakKeyDictionary[CodeType, _Program | None] = weakref.WeakKeyDictionary()


def _values(function: FunctionType, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what names outside of a function mean now."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    return {
        name: cells[name].cell_contents if name in cells else function.__globals__.get(name, _ABSENT) for name in names
    }


_ABSENT = object()


class _Program(ast.NodeTransformer):
    """A function's code with calls of its parameter in the place of what is made of columns: `batch(0)`."""

    def __init__(self, function: FunctionType, *, bound: bool) -> None:
        tree = tree_of(function)
        code = function.__code__
        if tree is None or code.co_argcount != 1 + bound or code.co_kwonlyargcount or code.co_flags & 0x2C:
            raise NotGathered  # *args, **kwargs, a generator
        tree = copy.deepcopy(tree)
        self._function, self._bound = function, bound
        self._rows = tree.args.args[-1].arg
        self._self = tree.args.args[0].arg if bound else ""
        self.parts: list[_Part] = []
        self._lists: dict[str, _Part] = {}
        self._note_lists(tree)
        body = [self.visit(statement) for statement in tree.body]
        tree.body = [statement for statement in body if statement is not None]
        if not self.parts:
            raise NotGathered
        self.names = self._checked(tree)
        tree.args = ast.arguments([], [ast.arg(one.arg) for one in tree.args.args], None, [], [], None, [])
        tree.returns = None
        module = ast.fix_missing_locations(ast.Module([tree], []))
        compiled = compile(module, code.co_filename, "exec", dont_inherit=True)
        self.code = next(one for one in compiled.co_consts if isinstance(one, CodeType))

    def _note_lists(self, tree: ast.FunctionDef) -> None:
        """Note the names that are lists of the rows' tensors, and are read by pad_sequence only."""
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        padded = [id(node.args[0]) for node in ast.walk(tree) if self._pads(node) and isinstance(node, ast.Call)]
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, part = statement.targets[0], self._of_rows(statement.value)
                if part is None or part.kind == "lengths" or not isinstance(target, ast.Name):
                    continue
                uses = [one for one in names if one.id == target.id and one is not target]
                if uses and all(id(one) in padded for one in uses):
                    self._lists[target.id] = part

    # --- what is made of columns --------------------------------------------------------------------------------------

    def _pads(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and bool(node.args) and self._value(node.func) is pad_sequence

    def _of_rows(self, node: ast.AST) -> _Part | None:
        """Return what `[... for row in batch]` makes of a column; None: it is something else."""
        if not isinstance(node, ast.ListComp) or len(node.generators) != 1:
            return None
        loop = node.generators[0]
        over = isinstance(loop.iter, ast.Name) and loop.iter.id == self._rows and not loop.ifs and not loop.is_async
        if not over or not isinstance(loop.target, ast.Name):
            return None
        row, one = loop.target.id, node.elt
        if (name := _subscript(one, row)) is not None:
            return _Part("values", name)
        if not isinstance(one, ast.Call) or len(one.args) != 1 or (name := _subscript(one.args[0], row)) is None:
            return None
        called = self._value(one.func)
        if called is len and not one.keywords:
            return _Part("lengths", name)
        for maker, dtype in _MAKERS.items():
            if called is getattr(torch, maker):
                return self._tensors(name, dtype, one.keywords)
        return None

    def _tensors(self, name: str, dtype: torch.dtype | None, keywords: list[ast.keyword]) -> _Part | None:
        for keyword in keywords:
            given = self._value(keyword.value)
            if keyword.arg != "dtype" or not isinstance(given, torch.dtype):
                return None
            dtype = given
        return _Part("tensors", name, dtype)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None or not isinstance(node.target, ast.Name):
            raise NotGathered
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id in self._lists:
            return None
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        part = self._of_rows(node)
        return self.generic_visit(node) if part is None else self._asked(part)

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            given = node.args[0]
            if isinstance(given, ast.Name) and given.id == self._rows:
                return self._call(_COUNT)
        if not self._pads(node):
            return self.generic_visit(node)
        first = node.args[0]
        part = self._lists.get(first.id) if isinstance(first, ast.Name) else self._of_rows(first)
        if part is None or part.kind == "lengths":
            return self.generic_visit(node)
        named = dict(zip(_PADDING, node.args[1:], strict=False)) | {str(one.arg): one.value for one in node.keywords}
        if not named.keys() <= _PADDING.keys() or len(node.args) > 4:
            raise NotGathered
        options = [self.visit(named.get(name, ast.Constant(usual))) for name, usual in _PADDING.items()]
        return self._asked(part._replace(kind="padded", bare=part.kind == "values"), *options)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id == self._rows or node.id in self._lists:
            raise NotGathered
        return node

    def _asked(self, part: _Part, *options: ast.expr) -> ast.Call:
        if part not in self.parts:
            self.parts.append(part)
        return self._call(self.parts.index(part), *options)

    def _call(self, number: int, *options: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(self._rows, ast.Load()), [ast.Constant(number), *options], [])

    # --- what else it does --------------------------------------------------------------------------------------------

    def _value(self, node: ast.AST) -> Any:
        """Return the value of a constant, or of a name outside of the function and attributes of modules."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return -node.operand.value  # type: ignore[operator]
        if isinstance(node, ast.Name):
            found = _values(self._function, (node.id,))[node.id]
            return {"len": len}.get(node.id, _ABSENT) if found is _ABSENT else found
        if isinstance(node, ast.Attribute) and isinstance(module := self._value(node.value), ModuleType):
            return getattr(module, node.attr, _ABSENT)
        return _ABSENT

    def _checked(self, tree: ast.FunctionDef) -> tuple[str, ...]:
        """Return the names that the function takes from outside. Raises NotGathered: it may draw, or call others."""
        nodes = [node for statement in tree.body for node in ast.walk(statement)]
        own = {self._rows, self._self, tree.name}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names: dict[str, None] = {}
        for node in nodes:
            if isinstance(node, ast.Yield | ast.Await | ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
                raise NotGathered
            if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
                raise NotGathered
            if isinstance(node, ast.Attribute) and any(part in node.attr.lower() for part in _DRAWS):
                raise NotGathered
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                raise NotGathered
            if isinstance(node, ast.Call) and self._is_of_users(node.func):
                raise NotGathered
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
                value = self._value(node)
                if value is _ABSENT and node.id not in _BUILTINS and node.id not in ("True", "False", "None"):
                    raise NotGathered
                if value is not _ABSENT and node.id not in _BUILTINS:
                    names[node.id] = None
        for name in names:
            value = _values(self._function, (name,))[name]
            if not isinstance(value, _PLAIN) and not (isinstance(value, ModuleType) or _is_torchs(value)):
                raise NotGathered
        return tuple(names)

    def _is_of_users(self, called: ast.AST) -> bool:
        """Return whether a call may be one of the user's code: a method of the object, or of what it holds."""
        if isinstance(called, ast.Name):
            return called.id == self._self
        root = called
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id == self._self


def _is_torchs(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch" or type(value).__module__ == "builtins"


def _subscript(node: ast.AST, row: str) -> str | None:
    """Return the column that `row["name"]` is; None: it is something else."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == row:
        key = node.slice
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
    return None


def make_of(collate_fn: Any) -> Callable[[Any, Any, Batch], Any] | None:
    """Return what makes the batches of a user's collate_fn of gathered columns; None: it is not read."""
    try:
        return OwnCollator(collate_fn).batch
    except (NotGathered, AttributeError, TypeError, ValueError):
        return None
