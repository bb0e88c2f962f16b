"""Attributes of other packages that are set to functions of ours for as long as somebody holds a lease on them.

They are set as a program itself would set them, and the end of the last lease puts the originals back. A function of
ours does something else only in threads that work for a loader. To all others, to torch.compile, torch.jit and inspect,
it is the original: it calls it, has its signature and names its file and line.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from torch.compiler import is_dynamo_compiling

from penstock import call_counts
from penstock.call_counts import CallMeter
from penstock.system.locks import ProcessLock

#: Packages whose modules are not searched for functions that they have imported by name.
_NOT_SEARCHED = frozenset({*sys.stdlib_module_names, "numpy", "torch"}) - {"__main__"}
_originals: dict[int, tuple[Any, Any]] = {}
"""By id() of a function or static method of ours: it, and the one that it replaces."""


def wrap(
    original: Any, instead: Callable[..., Any], active: Callable[[], bool], home: tuple[str, str] | None = None
) -> Any:
    """Return a function that calls `instead` in threads where `active()`, and the original elsewhere.

    torch.compile follows the original.

    home: a module and the name that the function has there, where pickle finds it; None: that of the original.
    """
    made: Any = _choosing(original, instead, active, is_dynamo_compiling)
    if type(original) is FunctionType:  # else it has no source
        theirs = original.__code__
        code = made.__code__.replace(
            co_filename=theirs.co_filename,
            co_firstlineno=theirs.co_firstlineno,
            co_name=theirs.co_name,
            **({"co_qualname": theirs.co_qualname} if sys.version_info >= (3, 11) else {}),
        )
        made = FunctionType(code, original.__globals__, original.__name__, None, made.__closure__)
    _originals[id(made)] = made, original
    functools.update_wrapper(made, original)
    if home is not None:
        made.__module__, made.__qualname__ = home
    return made


def _choosing(original: Any, instead: Any, active: Any, compiling: Any) -> Any:
    # Of closed-over names only: it gets the original's globals, file and first line.
    return lambda *args, **named: (original if compiling() or not active() else instead)(*args, **named)


def original_of(function: Any) -> Any:
    """Return what a function (or static method) of ours replaces, or None where it is none of ours."""
    return _originals.get(id(function), (None, None))[1]


class Patches:
    """Attributes that are set together. Any thread may call any method, and hold leases.

    Args:
        find: adds those of them whose modules are imported; called when a lease begins.
    """

    def __init__(self, find: Callable[[Patches], None]) -> None:
        self._find = find
        self._lock = ProcessLock()
        self._leases: set[int] = set()
        self._applied: bool | None = False
        """Whether the attributes are ours; None: some may be."""
        self._added: set[tuple[Any, str]] = set()
        self._owners: list[Any] = []
        self._names: list[str] = []
        self._theirs: list[Any] = []
        self._ours: list[Any] = []
        self._functions: dict[int, tuple[Any, Any]] = {}
        self._searched: set[str] = set()
        self._modules = 0
        self._met = 0

    def __contains__(self, attribute: tuple[Any, str]) -> bool:
        return attribute in self._added

    def add(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]], active: Callable[[], bool]) -> None:
        """Have a function in a class, or a static method, be another while a lease is open; only within `find`.

        Args:
            make: returns what is called in threads where `active()`, given the original.
        """
        attribute = vars(owner)[name]
        static = isinstance(attribute, staticmethod)
        original = attribute.__func__ if static else attribute
        ours: Any = wrap(original, make(original), active)
        if static:
            ours = staticmethod(ours)
            _originals[id(ours)] = ours, attribute
        self.add_value(owner, name, attribute, ours)

    def add_function(self, original: Any, ours: Any, *modules: ModuleType, found_in: str | None = None) -> None:
        """Have a function of a module be another while a lease is open; only within `find`.

        Modules of programs that have imported it by any name are searched for. Pickle finds the original where it then
        says that it is from, as long as another stands where it is offered.

        modules: of its package, those that offer it.
        found_in: a module where pickle finds the original; None: the module that defines it, and keeps it.
        """
        if id(original) not in self._functions:
            self._functions[id(original)] = original, ours
            if found_in is None:
                home = original.__globals__ if type(original) is FunctionType else vars(original.__self__)
                found_in = home["__name__"]
            self.add_value(original, "__module__", original.__module__, found_in)
            for module in modules:
                self.add_value(module, original.__name__, original, ours)

    def add_value(self, owner: Any, name: str, theirs: Any, ours: Any, *, searched: bool = False) -> None:
        """Have an attribute be another object while a lease is open; only within `find`.

        searched: modules of programs that have imported it by any name are searched for.
        """
        if (owner, name) not in self._added:
            if searched:
                self._functions[id(theirs)] = theirs, ours
            self._added.add((owner, name))
            self._owners.append(owner)
            self._names.append(name)
            self._theirs.append(theirs)
            self._ours.append(ours)
            self._applied = None

    def _search(self) -> None:
        """Add what modules of programs call the functions."""
        if not self._functions:
            return
        imported = {"__main__"}  # a notebook goes on to import
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            imported |= sys.modules.keys() - self._searched
            self._searched |= imported
        for module in imported:
            if module.partition(".")[0] in _NOT_SEARCHED or not isinstance(sys.modules.get(module), ModuleType):
                continue
            held = vars(sys.modules[module])
            if not self._functions.keys().isdisjoint(map(id, list(held.values()))):
                for name, value in list(held.items()):
                    if id(value) in self._functions:
                        self.add_value(sys.modules[module], name, *self._functions[id(value)])

    def meet_imported(self) -> None:
        """Set what was imported since the lease began that the caller holds."""
        if len(sys.modules) != self._met:
            self._meet()

    def _meet(self) -> None:
        self._met = len(sys.modules)
        with self._lock:
            self._find(self)
            self._search()
        self._settle(wait=True)

    def begin(self, lease: int) -> None:
        """Set the attributes until the lease of this number ends."""
        self._leases.add(lease)
        self._meet()

    def end(self, lease: int) -> None:
        """Put the originals back where no other lease is open. A garbage collection in any line may call this."""
        self._leases.discard(lease)
        self._settle(wait=False)

    def _settle(self, *, wait: bool) -> None:
        """Have the attributes as the leases want them, in this thread or the one that is doing that."""
        while self._applied is not bool(self._leases):
            if not self._lock.acquire(wait=wait):
                return  # who holds the lock looks again
            try:
                self._applied = None
                if self._leases:
                    self._set(self._theirs, self._ours)
                    self._applied = True
                else:  # a lease that begins from here on waits for the lock
                    self._set(self._ours, self._theirs)
                    self._applied = False
            finally:
                self._lock.release()

    def _set(self, before: list[Any], values: list[Any]) -> None:
        """Set the attributes that are what they are expected to be; the others are a program's by now.

        It is one step of the interpreter: no interrupt and no other thread comes between.
        """
        now = [
            owner.__module__ if type(owner) in (FunctionType, BuiltinFunctionType) else vars(owner).get(name)
            for owner, name in zip(self._owners, self._names, strict=True)
        ]
        expected = [one is value for one, value in zip(now, before, strict=True)]
        deque(map(setattr, *(compress(column, expected) for column in (self._owners, self._names, values))), maxlen=0)


class Lease:
    """Keeps attributes set until it is closed or dropped; as a context manager, within the block."""

    __slots__ = ("_patches",)

    def __init__(self, *patches: Patches) -> None:
        self._patches = patches
        for one in patches:
            one.begin(id(self))

    def meet(self) -> None:
        """Set the attributes of modules that were imported meanwhile."""
        for one in self._patches:
            one.meet_imported()

    def close(self) -> None:
        """End the lease. A second call does nothing."""
        patches, self._patches = self._patches, ()
        for one in patches:
            one.end(id(self))

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():  # when Python ends, the globals of this module may be gone
            self.close()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()


# --- which threads and processes work for a loader: there calls of the user's code are answered natively --------------


class _ThreadState(threading.local):
    native = False
    """Whether this thread works for a loader."""


this_thread = _ThreadState()


def in_worker() -> bool:
    """Return whether the calling thread works for a loader."""
    return this_thread.native


@contextmanager
def working(calls: CallMeter | None = None) -> Iterator[None]:
    """Let this thread work for a loader: calls are answered natively while a lease on the functions is open.

    calls: counts them for that loader.
    """
    counting = call_counts.this_thread
    before, sink = this_thread.native, counting.sink
    try:
        this_thread.native = True
        counting.sink = None if calls is None else calls.of_this_thread()
        yield
    finally:
        this_thread.native, counting.sink = before, sink


def work_in_this_process() -> None:
    """Do so in all threads, for the life of a process that is a loader's own."""
    _ThreadState.native = this_thread.native = True
