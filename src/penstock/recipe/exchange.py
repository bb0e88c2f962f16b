"""Functions of other packages that do something else for as long as somebody holds a lease on them.

A function stays the same object, and gets other code: programs hold functions by name, pickle, patch and script them.
The end of the last lease gives its own code back. Meanwhile torch.compile traces the function's own code. What stays is
a private global variable of the function's module, which a thread may be about to read.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable
from itertools import compress, repeat
from operator import attrgetter
from types import CodeType
from types import FunctionType as _Function
from typing import Any

from torch.compiler import is_dynamo_compiling

from penstock.system.process_lock import ProcessLock

_code_of = attrgetter("__code__")


class Exchange:
    """Functions that are exchanged together. Any thread may call any method, and hold leases.

    Args:
        find: adds those of them that are imported; called when a lease begins.
    """

    def __init__(self, find: Callable[[Exchange], None]) -> None:
        self._find = find
        self._lock = ProcessLock()
        self._leases: set[int] = set()
        self._exchanged = False
        """True: the functions are exchanged; False: some may be."""
        self._functions: list[_Function] = []
        self._originals: list[_Function] = []
        self._theirs: list[CodeType] = []
        self._ours: list[CodeType] = []

    def __contains__(self, function: object) -> bool:
        return function in self._functions

    def add(self, function: _Function, make: Callable[[_Function], Callable[..., Any]]) -> None:
        """Have a function call what `make` makes of its original, while a lease is open; only within `find`.

        Args:
            function: of Python's, without variables of an enclosing function.
            make: returns what is called, given a function that does what `function` did.
        """
        original = _Function(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
        original.__annotations__ = function.__annotations__
        name = f"_penstock_{function.__qualname__.replace('.', '_')}"
        function.__globals__[name] = (make(original), original, is_dynamo_compiling)
        self._functions.append(function)
        self._originals.append(original)
        self._theirs.append(function.__code__)
        self._ours.append(_call_of(function, name))
        self._exchanged = False

    def meet(self) -> None:
        """Exchange what was imported since the lease began that the caller holds."""
        with self._lock:
            self._find(self)
        self._settle(wait=True)

    def begin(self, lease: int) -> None:
        """Exchange the functions until the lease of this number ends."""
        self._leases.add(lease)
        self.meet()

    def end(self, lease: int) -> None:
        """Give the functions back where no other lease is open. A garbage collection in any line may call this."""
        self._leases.discard(lease)
        self._settle(wait=False)

    def _settle(self, *, wait: bool) -> None:
        """Have the functions as the leases want them, in this thread or the one that is doing that."""
        while self._exchanged != bool(self._leases):
            if not self._lock.acquire(wait=wait):
                return  # who holds the lock looks again
            try:
                if self._leases:
                    self._give()
                    self._exchanged = True
                else:
                    self._exchanged = False
                    if not self._leases:  # a lease that begins from here on waits for the lock
                        self._take_back()
            finally:
                self._lock.release()

    def _give(self) -> None:
        chosen = self._with(self._theirs)
        _set(chosen(self._functions), "__wrapped__", chosen(self._originals))  # where inspect finds the source
        _set(chosen(self._functions), "__code__", chosen(self._ours))

    def _take_back(self) -> None:
        chosen = self._with(self._ours)
        _set(chosen(self._functions), "__code__", chosen(self._theirs))
        attributes = map(vars, chosen(self._functions))
        deque(map(dict.pop, attributes, repeat("__wrapped__"), repeat(None)), maxlen=0)  # type: ignore[arg-type]

    def _with(self, expected: list[CodeType]) -> Callable[[list[Any]], list[Any]]:
        """Return what picks the functions that have these codes out of all. The others are a program's by now."""
        now = list(map(_code_of, self._functions))
        if now == expected:
            return lambda column: column
        chosen = [one is code for one, code in zip(now, expected, strict=True)]
        return lambda column: list(compress(column, chosen))


def _set(functions: list[_Function], name: str, values: list[Any]) -> None:
    """Set an attribute of functions in one step of the interpreter: no interrupt and no thread comes between."""
    deque(map(setattr, functions, repeat(name), values), maxlen=0)


def _call_of(function: _Function, name: str) -> CodeType:
    """Return code that passes all arguments on to one of the functions that a global variable holds.

    Its parameters are those of the function: torch.compile remembers them for each function.
    """
    parameters = inspect.signature(function).parameters.values()
    plain = [one.replace(default=one.empty, annotation=one.empty) for one in parameters]
    passed = ", ".join(_PASSED.get(one.kind, "{0}").format(one.name) for one in plain)
    text = f"def call{inspect.Signature(plain)}: return {name}[{name}[2]()]({passed})"
    made: dict[str, Any] = {}
    exec(compile(text, f"<{__name__}: {function.__qualname__}>", "exec"), made)  # a traceback shows no line of it
    code: CodeType = made["call"].__code__
    return code.replace(co_name=function.__name__, co_qualname=function.__qualname__)


_PASSED: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*{0}",
    inspect.Parameter.VAR_KEYWORD: "**{0}",
    inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
}


class Lease:
    """Keeps functions exchanged until it is closed or dropped; as a context manager, within the block."""

    __slots__ = ("_exchanges", "_modules")

    def __init__(self, *exchanges: Exchange) -> None:
        self._exchanges = exchanges
        self._modules = len(sys.modules)
        for one in exchanges:
            one.begin(id(self))

    def meet(self) -> None:
        """Exchange the functions of modules that were imported meanwhile."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for one in self._exchanges:
                one.meet()

    def close(self) -> None:
        """End the lease. A second call does nothing."""
        exchanges, self._exchanges = self._exchanges, ()
        for one in exchanges:
            one.end(id(self))

    __del__ = close

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()
