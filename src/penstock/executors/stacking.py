"""Collate functions of the user's that stack the samples of a filled batch by themselves.

The samples that such a function is given lie in one piece of memory already: where it stacks all of them in their
order, torch.stack answers with that piece. Both then share memory, which nobody can see: as soon as torch is asked for
more than a harmless property of a sample or of the batch, and where a sample outlives the call, the samples get memory
of their own. torch's functions are watched by a mode, in the thread
that collates alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from penstock.executors.filling import FilledBatch

#: Batches without an answer after which a function is called without the mode.
_TRIES = 3
#: Properties of a tensor that neither show its memory nor make another tensor on it.
_LOOKS = frozenset(
    [
        *("__len__", "device", "dim", "dtype", "element_size", "is_complex", "is_contiguous", "is_cpu", "is_cuda"),
        *("is_floating_point", "is_quantized", "is_signed", "is_sparse", "itemsize", "layout", "ndim", "ndimension"),
        *("nelement", "numel", "requires_grad", "shape", "size", "stride"),
    ]
)
_ALONE = sys.getrefcount([object()][0]) + 1  # the list's reference, and the one that getrefcount is given


class Stacking:
    """Calls one collate function of the user's, and learns whether it stacks what it is given.

    Threads may share it: what it has learned is a hint.
    """

    def __init__(self) -> None:
        self._misses = 0
        self.answered = False
        """The batch before was stacked so."""

    def collated(self, collate: Callable[[Any], Any], filled: FilledBatch) -> Any:
        """Return what a function returns for the samples of a filled batch. Raises what it raises."""
        if self._misses >= _TRIES:
            return collate(filled.samples_of(filled.columns()))
        columns = filled.columns()
        answers = _Answers(filled.rows, columns)
        try:
            with answers:
                batch = collate(filled.samples_of(columns))
        except BaseException:
            answers.part()
            raise
        self.answered = answers.answered
        self._misses = 0 if self.answered else self._misses + 1
        if any(_is_held(column) for column in columns):
            answers.part()
        return batch


def _is_held(column: Sequence[Any]) -> bool:
    """Return whether anybody but the list of them holds one of some tensors."""
    return any(sys.getrefcount(column[number]) > _ALONE for number in range(len(column)))


class _Answers(TorchFunctionMode):
    """Answers torch.stack of all samples of a field, once a field.

    Args:
        rows: a tensor a field.
        columns: the samples' tensors of each field, in the memory of the rows.
    """

    def __init__(self, rows: Sequence[torch.Tensor], columns: Sequence[list[torch.Tensor]]) -> None:
        super().__init__()
        self._rows, self._columns = rows, columns
        self._samples = {id(sample) for column in columns for sample in column}
        self._shown = False  # the memory of a sample may be known to somebody
        self._shared: set[int] = set()  # the fields that were answered, whose samples lie in the batch
        self.answered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.stack and not self._shown:
            field = self._field(args, named)
            if field is not None:
                self._shared.add(field)
                self.answered = True
                return self._rows[field]
        name = _name(func)
        if name == "is_shared" and self.answered and any(args[0] is rows for rows in self._rows):
            return False  # a stack of torch's lies in memory of this process
        if name not in _LOOKS:
            for tensor in _tensors((args, named)):
                self._note(tensor)
        return func(*args, **named)

    def _field(self, args: tuple[Any, ...], named: dict[str, Any]) -> int | None:
        """Return which field's samples are stacked, in their order, as the batch has them; None: none's."""
        given: Any = args[0] if args else named.get("tensors")
        if type(given) not in (list, tuple) or len(args) > 2 or named.keys() - {"tensors", "dim"}:
            return None
        dim = args[1] if len(args) == 2 else named.get("dim", 0)
        if type(dim) is not int or dim != 0 or torch.is_inference_mode_enabled():
            return None
        for field, column in enumerate(self._columns):
            if len(given) == len(column) and all(one is other for one, other in zip(given, column, strict=True)):
                return None if field in self._shared or any(sample._version for sample in column) else field
        return None

    def _note(self, tensor: torch.Tensor) -> None:
        """Take note that torch is asked for something of a tensor."""
        if id(tensor) in self._samples:
            self.part()
            self._shown = True
        elif any(tensor is rows for rows in self._rows):
            self.part()

    def part(self) -> None:
        """Give the samples of the fields that were answered memory of their own."""
        while self._shared:
            for sample in self._columns[self._shared.pop()]:
                with torch.no_grad():
                    sample.data = sample.clone()


def _name(func: Any) -> str:
    """Return the name of one of torch's functions, or of the property that it gets."""
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", "") if name == "__get__" else name


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments of a function of torch's, and in what these hold.

    A list that begins with a number is one of numbers, and may be long.
    """
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        if not values or not isinstance(values[0], int | float):
            for value in values:
                yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
