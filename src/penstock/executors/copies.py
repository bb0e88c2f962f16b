"""Copies of a dataset for worker threads: a copy of its Python objects, which shares the data that they hold.

A worker process has a dataset of its own because it is forked; a worker thread gets one from here. What is copied is
what code changes while it reads a sample: objects, with their attributes; lists, dicts and sets; functions that are
closures, bound methods and partials, so that a transform that calls back its dataset calls the copy; generators of
random numbers. What is shared is data: tensors, arrays (memory-mapped ones too), numbers, strings, bytes and other
immutable values, images that are in memory, and classes, modules and functions that are found by their name. Shared
arrays are read-only in a worker thread's copy, unless processes would share them as well. Two rules keep copies cheap
and safe:

- an array, tensor or bytearray of at most SCRATCH_BYTES that an object holds as an attribute is copied, for code
  writes into such memory while it reads a sample;
- entries of a list, dict or set of at least MANY entries are shared where a thousand of them, spread over it, are
  records: data, or plain containers and objects that hold nothing but data. One of at least LARGE entries is itself
  shared then, unless the dataset is iterable: such a one may shuffle its list of files when it begins.

Objects are copied as pickle and copy.deepcopy copy them (`__deepcopy__`, `copyreg`, `__reduce_ex__`), so that a
`__getstate__` that leaves out an open file leaves it out here too. What these refuse is refused: open files, locks,
sockets, connections to databases, generators.
"""

from __future__ import annotations

import array
import contextlib
import copyreg
import ctypes
import io
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock.errors import InvalidOption
from penstock.executors.plain_data import DATA, DATA_KINDS, are_data, as_shared, is_frame, is_named, some_records

#: Memory up to this size, in bytes, is copied where an object holds it as an attribute.
SCRATCH_BYTES = 1 << 20
#: Entries of a container of so many are shared where they are records,
MANY = 10_000
#: and the container itself where it has so many.
LARGE = 100_000
#: Modules whose objects are made to be used by several processes or threads, or cannot be changed.
_SHARING = (
    "penstock._native",
    "pyarrow",
    *(f"multiprocessing.{name}" for name in ("managers", "queues", "sharedctypes", "synchronize")),
)
_CTYPES = (ctypes.Array, ctypes.Structure, ctypes._SimpleCData)
_NOTHING = object()


class NotCopied(InvalidOption):
    """A dataset holds what cannot be copied for each thread.

    Attributes:
        what: what it is and where it is held, as a part of a sentence.
        closes: it is a file or a connection, or another thing that is closed.
    """

    def __init__(self, what: str, *, closes: bool = False) -> None:
        super().__init__(
            f"worker_method='thread' gives each thread a copy of the dataset, and {what}. A file that is opened "
            "at the first sample, and what __getstate__ leaves out, need no copy; else use worker_method='process', or "
            "share_dataset=True where several threads may use the dataset at once"
        )
        self.what, self.closes = what, closes

    def __reduce__(self) -> tuple[Any, ...]:
        return NotCopied, (self.what,)


class Copier:
    """Makes one copy of whatever it is given: what two of the things share, their copies share. One thread uses it.

    Args:
        iterable: the dataset is: large containers of its are not shared.
        shared: takes the tensors and arrays that the copy shares, of which arrays are read-only in the copy. None:
            arrays are shared as they are.

    Attributes:
        kinds: the classes of the objects that were copied.
    """

    def __init__(self, *, iterable: bool = False, shared: list[Any] | None = None) -> None:
        self.kinds: set[type] = set()
        self._iterable = iterable
        self._shared = shared
        self._memo: dict[int, Any] = {}
        self._path: list[str] = []
        self._blocks: list[tuple[int, torch.Tensor]] = []
        self._begun: list[Any] = []  # copies that have no state yet

    def copy(self, value: Any, name: str) -> Any:
        """Return the copy of a value. name: what it is called in errors. Raises NotCopied."""
        self._path = [name]
        try:
            return self._copy(value)
        except RecursionError:
            raise NotCopied(f"{name} holds objects nested too deep to be copied") from None
        finally:
            for begun in self._begun:  # a __del__ must not meet an object without its attributes
                with contextlib.suppress(Exception):
                    begun.__class__ = type("Unfinished", (type(begun),), {"__slots__": (), "__del__": _nothing})
            self._begun.clear()

    def _copy(self, value: Any, *, held: bool = False) -> Any:
        """Return the copy of a value. held: as an object's attribute."""
        kind = type(value)
        if kind in DATA or isinstance(value, DATA_KINDS):
            return value
        found = self._memo.get(id(value), _NOTHING)
        if found is not _NOTHING:
            return found
        make = _MAKERS.get(kind)
        if make is not None:
            made = make(self, value)
        elif isinstance(value, (np.ndarray, torch.Tensor, bytearray, array.array)):
            made = self._memory(value, held=held)
        elif isinstance(value, Image.Image) and getattr(value, "fp", None) is None:
            made = value
        elif kind.__module__.startswith(_SHARING) or (isinstance(value, _CTYPES) and hasattr(value, "_wrapper")):
            made = value  # shared by processes, too
        else:
            made = self._object(value)
        return self._noted(value, made)

    def _noted(self, value: Any, made: Any) -> Any:
        """Remember the copy of a value; copy.deepcopy finds it too, where an object copies itself with it."""
        self._memo[id(value)] = made
        self._memo.setdefault(id(self._memo), []).append(value)  # it must live as long as its id is remembered
        return made

    def _part(self, name: str, value: Any, *, held: bool = False) -> Any:
        """Return the copy of a part of what is being copied."""
        self._path.append(name)
        made = self._copy(value, held=held)
        self._path.pop()  # an error keeps it
        return made

    def _refused(self, value: Any, why: object) -> NotCopied:
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return NotCopied(
            f"{''.join(self._path)}, of type {name}, cannot be copied ({why})", closes=hasattr(kind, "close")
        )

    # --- memory -----------------------------------------------------------------------------------------------------

    def _memory(self, value: Any, *, held: bool) -> Any:
        """Return an array or tensor of its own where it is small and held as an attribute, else the same."""
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            made = self._noted(value, np.empty_like(value))
            for position, item in enumerate(value.flat):
                made.flat[position] = self._copy(item)
            return made
        made = self._own_memory(value) if held else None
        return self._share(value) if made is None else made

    def _share(self, value: Any) -> Any:
        """Return memory, or a container of data, that copies share, as the copy has it."""
        return value if self._shared is None else as_shared(value, self._shared)

    def _own_memory(self, value: Any) -> Any:
        """Return a copy of small memory, None of other memory."""
        if type(value) is torch.Tensor:
            return self._tensor(value)
        if type(value) is np.ndarray:
            return self._array(value)
        rows = isinstance(value, (bytearray, array.array))
        return value[:] if rows and len(value) * value[:1].__sizeof__() <= SCRATCH_BYTES else None

    def _tensor(self, value: torch.Tensor) -> torch.Tensor | None:
        if not has_storage(value) or value.requires_grad or in_shared_memory(value):
            return None
        storage = value.untyped_storage()
        if value.is_conj() or value.is_neg() or value.__dict__ or not 0 < storage.nbytes() <= SCRATCH_BYTES:
            return None
        begin, own = self._block(storage.data_ptr(), lambda: _bytes_of(storage))
        offset, odd = divmod(value.data_ptr() - begin, value.element_size())
        if odd:
            return None
        made = torch.empty(0, dtype=value.dtype, device="cpu")
        return made.set_(own.untyped_storage(), offset, value.size(), value.stride())

    def _array(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        root: Any = value
        while type(root.base) is np.ndarray:
            root = root.base
        mine = root.base is None or type(root.base) is torch.Tensor  # not a mapped file's, nor a bytes object's
        if not mine or not value.flags.writeable or not 0 < root.nbytes <= SCRATCH_BYTES or not root.flags.forc:
            return None
        flat = root if root.flags.c_contiguous else root.T
        begin, own = self._block(_address(root), lambda: torch.from_numpy(flat.reshape(-1).view(np.uint8)))
        return np.ndarray(value.shape, value.dtype, own.numpy(), _address(value) - begin, value.strides)

    def _block(self, begin: int, content: Callable[[], torch.Tensor]) -> tuple[int, torch.Tensor]:
        """Return (address, copy) of the memory that holds this: what overlaps in the dataset overlaps in its copy."""
        for address, block in self._blocks:
            if address <= begin < address + len(block):
                return address, block
        original = content()
        self._memo.setdefault(id(self._memo), []).append(original)  # its address must stay its own
        self._blocks.append((begin, original.clone()))
        return self._blocks[-1]

    # --- containers -------------------------------------------------------------------------------------------------

    def _plain(self, value: Any) -> Any:
        """Return a container, or a copy of it with the same entries, where these need no copies; else _NOTHING."""
        parts = [value, value.values()] if isinstance(value, dict) else [value]
        few = some_records(value) if len(value) >= MANY else None
        if few is None and not all(map(are_data, parts)):
            return _NOTHING
        memory: list[Any] = []
        made = value if few and as_shared(few, memory) is few and not memory else self._share(value)
        whole = few and len(value) >= LARGE and not self._iterable
        return value.copy() if made is value and not whole else made

    def _list(self, value: list[Any]) -> Any:
        made = self._plain(value)
        if made is _NOTHING:
            made = self._noted(value, [])
            for position, item in enumerate(value):
                made.append(self._part(f"[{position}]", item))
        return made

    def _dict(self, value: dict[Any, Any]) -> Any:
        made = self._plain(value)
        if made is _NOTHING:
            made = self._noted(value, {})
            for key, item in value.items():
                made[self._copy(key)] = self._part(f"[{key!r:.40}]" if type(key) in DATA else "[...]", item)
        return made

    def _set(self, value: Any) -> Any:
        made = self._plain(value)
        return type(value)(map(self._copy, value)) if made is _NOTHING else made

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        made = []
        for position, item in enumerate(value):
            made.append(self._part(f"[{position}]", item))
        if all(new is old for new, old in zip(made, value, strict=True)):
            return value
        return self._memo.get(id(value), tuple(made))  # one that holds itself was copied on the way

    # --- functions --------------------------------------------------------------------------------------------------

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        if is_named(value) or not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__):
            return value
        cells = tuple(
            self._memo.get(id(cell)) or self._noted(cell, types.CellType()) for cell in value.__closure__ or ()
        )
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells)
        self._noted(value, made)
        for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(made, name, getattr(value, name))
        for name, old, new in zip(value.__code__.co_freevars, value.__closure__ or (), cells, strict=True):
            if _is_empty(new) and not _is_empty(old):
                new.cell_contents = self._part(f"'s {name}", old.cell_contents, held=True)
        made.__defaults__ = self._copy(value.__defaults__)
        made.__kwdefaults__ = self._copy(value.__kwdefaults__)
        made.__dict__.update({name: self._copy(item) for name, item in value.__dict__.items()})
        return made

    def _cell(self, value: types.CellType) -> types.CellType:
        made = self._noted(value, types.CellType())
        if not _is_empty(value):
            made.cell_contents = self._copy(value.cell_contents, held=True)
        return made  # type: ignore[no-any-return]

    def _method(self, value: types.MethodType) -> types.MethodType:
        return types.MethodType(self._copy(value.__func__), self._copy(value.__self__))

    def _builtin_method(self, value: Any) -> Any:
        owner = value.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return value
        own = self._copy(owner)
        return value if own is owner else getattr(own, value.__name__)

    def _weak(self, value: weakref.ref[Any]) -> Any:
        referent = value()
        if referent is None:
            return value
        own = self._copy(referent)
        return value if own is referent else weakref.ref(own)

    # --- objects ----------------------------------------------------------------------------------------------------

    def _stream(self, value: io.BytesIO) -> io.BytesIO:
        made = io.BytesIO(value.getvalue())  # which shares the bytes until one is written to
        made.seek(value.tell())
        return made

    def _object(self, value: Any) -> Any:
        """Return the copy of an object, made as copy.deepcopy makes it."""
        kind = type(value)
        self.kinds.add(kind)
        large = isinstance(value, (dict, list)) and not self._iterable and len(value) >= LARGE
        if large and some_records(value) is not None:
            return value
        itself = getattr(kind, "__deepcopy__", None)
        try:
            if is_frame(value):
                return value.copy(deep=False)  # its own object over the same columns
            if itself is not None:
                return itself(value, self._memo)
            reducer = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except RecursionError:
            raise
        except Exception as error:
            raise self._refused(value, error) from None
        if isinstance(reduced, str):
            return value  # found by its name
        make, arguments, *more = reduced
        own = [self._copy(argument) for argument in arguments]
        try:
            made = make(*own)
        except Exception as error:
            raise self._refused(value, error) from None
        self._noted(value, made)
        state, items, entries = (*more, None, None, None)[:3]
        if state is not None:
            if hasattr(kind, "__del__"):
                self._begun.append(made)
            self._set_state(value, made, state)
            if hasattr(kind, "__del__"):
                self._begun.pop()
        for item in items or ():
            made.append(self._copy(item))
        for key, item in entries or ():
            made[self._copy(key)] = self._copy(item)
        return made

    def _set_state(self, value: Any, made: Any, state: Any) -> None:
        pair = isinstance(state, tuple) and len(state) == 2
        own: Any = tuple(map(self._attributes, state)) if pair else self._attributes(state)
        # Not of the object itself: its __getattr__ may forward to attributes that it does not have yet.
        if hasattr(type(made), "__setstate__"):
            try:
                made.__setstate__(own)
            except Exception as error:
                raise self._refused(value, error) from None
            return
        attributes, slots = own if pair else (own, None)
        if attributes:
            made.__dict__.update(attributes)
        for name, item in (slots or {}).items():
            setattr(made, name, item)

    def _attributes(self, state: Any) -> Any:
        if not isinstance(state, dict):
            return self._copy(state)
        own = {}
        for name, item in state.items():
            own[name] = self._part(f".{name}", item, held=True)
        return own


_MAKERS: dict[type, Callable[[Copier, Any], Any]] = {
    list: Copier._list,
    dict: Copier._dict,
    set: Copier._set,
    frozenset: Copier._set,
    tuple: Copier._tuple,
    types.FunctionType: Copier._function,
    types.CellType: Copier._cell,
    types.MethodType: Copier._method,
    types.BuiltinMethodType: Copier._builtin_method,
    type([].__len__): Copier._builtin_method,
    weakref.ref: Copier._weak,
    io.BytesIO: Copier._stream,
}


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one piece of the processor's memory: sparse, nested and opaque ones are not."""
    return tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested


def in_shared_memory(tensor: torch.Tensor) -> bool:
    """Return whether other processes have a tensor's memory, too."""
    return has_storage(tensor) and tensor.is_shared()  # type: ignore[no-untyped-call]


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is _NOTHING
    except ValueError:
        return True


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _address(value: np.ndarray[Any, Any]) -> int:
    address: int = value.__array_interface__["data"][0]
    return address


def _nothing(unfinished: Any) -> None:
    """Do nothing, as the __del__ of an object without attributes."""
