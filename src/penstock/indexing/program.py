"""A program of steps, each of which makes a column: one value of every sample of a batch.

Each step is tried as it is added, on one sample, beside what the class's own operation gives for it. A column of
numbers, tensors or arrays is a tensor whose first dimension is the samples; of other objects it is a list.

Threads: any, a run at a time in each. Memory: steps hold the addresses of arrays, not the arrays: `Reads.same` says
before each run whether these still lie there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import penstock._native as _native
from penstock.indexing.equality import same_bits

Column = Any
"""A tensor, or a list of objects."""
Columns = list[Column]
"""The columns of the steps so far; the first is the indices of the samples, int64."""
Step = Callable[[Columns], Column]


#: The numbers of samples go up to this.
LARGEST_INDEX = 1 << 40
_MOST_STEPS = 100
#: Elements from which on torch takes several threads for an operation, which wait for each other on a busy machine.
_PARALLEL = 32768


class NotIndexing(Exception):
    """A dataset does more than to index what it holds; the message says what."""

    def __init__(self, why: str = "is more than indexing") -> None:
        super().__init__(why)


class Unlike(Exception):
    """The samples of a batch are not like the one that the program was made with."""


@dataclass(slots=True)
class Value:
    """A value that differs from sample to sample."""

    slot: int
    """The number of its column."""
    example: Any
    """Of one sample."""
    root: int
    """The column whose memory it lies in."""
    line: tuple[int, int, int] | None = None
    """A whole number that is column * factor + offset; None: it is another value."""
    bound: int | None = None
    """What a whole number is at most, but for its sign; None: that is not known."""


@dataclass(slots=True)
class Made:
    """A container that the class makes for each sample: a tuple, list or dictionary of values."""

    items: Any


def differs(value: Any) -> bool:
    """Return whether a value, or one within it, differs from sample to sample."""
    if isinstance(value, slice):
        return any(isinstance(one, Value) for one in (value.start, value.stop, value.step))
    if isinstance(value, Made):
        value = list(value.items.values()) if isinstance(value.items, dict) else value.items
    return any(map(differs, value)) if isinstance(value, tuple | list) else isinstance(value, Value)


class Program:
    """What is done for each sample of a batch, as steps for all of them.

    Args:
        index: of the sample that serves as the example.
    """

    def __init__(self, index: int) -> None:
        self._steps: list[tuple[int, Step]] = []
        self._tried = _Watched([torch.tensor([index, index])])
        self._used: list[set[int]] = [set()]
        self._free: set[int] = set()  # steps that no operation of torch's on elements does: gathers and views
        self._needed: set[int] = set()
        self.index = Value(0, index, 0, (0, 1, 0), bound=LARGEST_INDEX)
        self._build: Callable[[Columns], Any] = lambda columns: None

    def add(self, step: Step, example: Any, root: int | None = None, *, fails: bool = True) -> Value:
        """Add a step, and return its value. Raises NotIndexing where it gives another value than the example.

        Args:
            root: the column in whose memory the result lies; None: the step makes new memory.
            fails: the step may fail for a sample, so that it is done even where its value is not used.
        """
        if len(self._tried) > _MOST_STEPS:
            raise NotIndexing("takes too many steps")
        self._tried.used = set()
        try:
            column = step(self._tried)
            alike = _is_alike(column, example)
        except (Unlike, RuntimeError, TypeError, ValueError, IndexError, KeyError, OverflowError):
            alike = False
        if not alike:
            raise NotIndexing("gives other values for a batch than for a sample")
        slot = len(self._tried)
        self._steps.append((slot, step))
        self._tried.append(column)
        self._used.append(self._tried.used)
        if fails:
            self._needed.add(slot)
        if any(_shares(column, list.__getitem__(self._tried, used)) for used in self._used[slot]):
            self._free.add(slot)
        line = (slot, 1, 0) if type(example) is int else None
        return Value(slot, example, slot if root is None else root, line)

    def tried(self, value: Value) -> Column:
        """Return a value's column of the example."""
        return list.__getitem__(self._tried, value.slot)

    def gather(self, array: Any, at: Value, example: Any, window: int | None = None) -> Value:
        """Add the step that copies the rows of an array, or windows of so many, at the numbers that a value says."""
        made = self.add(gathering(array, at.slot, window), example)
        self._free.add(made.slot)
        return made

    def finish(self, build: Callable[[Columns], Any], copied: set[int]) -> int:
        """Set what makes the batch of the columns, and forget the example.

        Return of how many samples at most the program is to be run, so that torch does each step in one thread.

        copied: columns that `build` copies.
        """
        needed = self._needed
        self._tried.used = needed
        build(self._tried)
        touched = set(copied)
        for slot in reversed(range(len(self._used))):
            if slot in needed:
                needed |= self._used[slot]
                touched |= set() if slot in self._free else self._used[slot] | {slot}
        columns = [list.__getitem__(self._tried, slot) for slot in touched]
        most = max((one.numel() // 2 for one in columns if isinstance(one, torch.Tensor)), default=0)
        self._steps = [(slot, step) for slot, step in self._steps if slot in needed]
        self._build, self._columns, self._tried, self.index.example = build, len(self._tried), _Watched(), 0
        return max(1, (_PARALLEL - 1) // max(1, most))

    def run(self, indices: torch.Tensor) -> Any:
        """Return the batch of some samples. Raises what a sample raises that is not like the example."""
        columns: Columns = [None] * self._columns
        columns[0] = indices
        for slot, step in self._steps:
            columns[slot] = step(columns)
        return self._build(columns)


def _shares(one: Column, other: Column) -> bool:
    """Return whether two columns lie in the same memory."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class _Watched(list[Column]):
    """Columns, and which of them were asked for."""

    used: set[int]

    def __getitem__(self, slot: Any) -> Any:
        self.used.add(slot)
        return super().__getitem__(slot)


# --- columns ----------------------------------------------------------------------------------------------------------


def dtype_of(example: Any) -> torch.dtype | None:
    """Return the dtype of a value's column; None: the column is a list."""
    if isinstance(example, torch.Tensor):
        return example.dtype
    if type(example) in _PYTHON:
        return _PYTHON[type(example)]
    if isinstance(example, np.ndarray | np.generic):
        return torch_dtype(example.dtype)
    return None


_PYTHON = {bool: torch.bool, int: torch.int64, float: torch.float64}


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return the dtype of torch's that holds what one of numpy's does; None: there is none."""
    if dtype not in _dtypes:
        try:
            _dtypes[dtype] = torch.from_numpy(np.empty(0, dtype)).dtype
        except (TypeError, ValueError):  # ValueError: of another byte order
            _dtypes[dtype] = None
    return _dtypes[dtype]


_dtypes: dict[np.dtype[Any], torch.dtype | None] = {}


def _is_alike(column: Column, example: Any) -> bool:
    """Return whether a column holds the example twice."""
    dtype = dtype_of(example)
    if dtype is None:
        return type(column) is list and len(column) == 2 and type(column[0]) is type(example)
    if type(column) is not torch.Tensor or column.dtype != dtype:
        return False
    expected = torch.as_tensor(np.asarray(example).copy()) if not isinstance(example, torch.Tensor) else example
    if column.shape != (2, *expected.shape):
        return False
    return all(same_bits(one, expected) for one in column)


def column_of(objects: list[Any], example: Any) -> Column:
    """Return the column of the objects of some samples. Raises Unlike where one is not like the example."""
    kind = type(example)
    if kind is int:
        out = torch.empty(len(objects), dtype=torch.int64)
        if not _native.write_integers(objects, out.data_ptr()):
            raise Unlike
        return out
    if set(map(type, objects)) != {kind}:
        raise Unlike
    if kind in _PYTHON:
        return torch.tensor(objects, dtype=_PYTHON[kind])
    if isinstance(example, np.generic):
        if (dtype := dtype_of(example)) is None:
            return objects
        return torch.from_numpy(np.array(objects)).to(dtype)
    if kind is torch.Tensor or kind is np.ndarray:
        if dtype_of(example) is None:
            return objects
        if any(one.dtype != example.dtype or one.shape != example.shape for one in objects):
            raise Unlike
        if kind is np.ndarray:
            return torch.from_numpy(np.stack(objects))
        if any(one.requires_grad or not one.is_cpu for one in objects):
            raise Unlike
        return torch.stack(objects)
    return objects


def objects_of(columns: Columns, value: Value) -> list[Any]:
    """Return a column as Python objects that are equal to the samples' own as keys, and as indices of lists."""
    column = columns[value.slot]
    return column if type(column) is list else column.tolist()


# --- rows of arrays ---------------------------------------------------------------------------------------------------


def is_array(value: object) -> bool:
    """Return whether a value is an array in memory whose rows can be copied."""
    if isinstance(value, np.ndarray):
        return type(value) in (np.ndarray, np.memmap) and torch_dtype(value.dtype) is not None
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.is_cpu  # type: ignore[attr-defined]
        and value.layout is torch.strided  # type: ignore[attr-defined]
        and not (value.requires_grad or value.is_conj() or value.is_neg() or value.is_quantized)  # type: ignore[attr-defined]
    )


def place_of(array: Any) -> tuple[Any, ...]:
    """Return where an array lies, and how."""
    if isinstance(array, np.ndarray):
        return _native.address(array), array.shape, array.strides, array.dtype
    return array.data_ptr(), array.shape, array.stride(), array.dtype, array.requires_grad


def is_at(array: Any, place: tuple[Any, ...]) -> bool:
    """Return whether an array lies in a place, as `place_of` says it; called for each batch."""
    if isinstance(array, np.ndarray):
        return place_of(array) == place
    address, shape, strides, dtype, grad = place
    alike = array.data_ptr() == address and array.shape == shape and array.stride() == strides
    return alike and array.dtype is dtype and array.requires_grad is grad


def gathering(array: Any, slot: int, window: int | None = None) -> Step:
    """Return the step that copies the rows of an array, or windows of so many rows, at the numbers in a column."""
    if isinstance(array, np.ndarray):
        address, strides, itemsize = _native.address(array), array.strides, array.itemsize
        dtype = torch_dtype(array.dtype)
    else:
        address, itemsize, dtype = array.data_ptr(), array.element_size(), array.dtype
        strides = tuple(stride * itemsize for stride in array.stride())
    shape, count = tuple(array.shape[1:]), len(array)
    if window is not None:
        shape, count, strides = (window, *shape), count - window + 1, (strides[0], *strides)
    if not _is_packed(shape, strides[1:], itemsize):
        if window is not None:
            raise NotIndexing("has rows that are not contiguous in memory")
        return lambda columns: _scattered(array, columns[slot], dtype)
    row = itemsize
    for extent in shape:
        row *= extent
    stride, windows, gather = strides[0], window is not None, _native.gather_rows

    def step(columns: Columns) -> torch.Tensor:
        numbers = columns[slot].contiguous() if slot else columns[0]
        samples = numbers.numel()
        out = torch.empty((samples, *shape), dtype=dtype)
        if gather(address, count, stride, row, numbers.data_ptr(), samples, out.data_ptr(), windows):
            return out
        raise Unlike

    return step


def _scattered(array: Any, numbers: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return rows of an array that are not contiguous in memory."""
    if isinstance(array, torch.Tensor):
        return array.index_select(0, numbers)
    out = torch.empty((len(numbers), *array.shape[1:]), dtype=dtype)
    np.take(array, numbers.numpy(), 0, out.numpy())
    return out


def _is_packed(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
