"""The batch that default_collate would make of a class's samples, made by its program; and whether two are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from penstock.indexing.equality import same
from penstock.indexing.guard import Reads
from penstock.indexing.program import LARGEST_INDEX, Columns, Made, NotIndexing, Program, Unlike, Value, dtype_of
from penstock.indexing.reading import Reader

_Build = Callable[[Columns], Any]


@dataclass(frozen=True)
class Reading:
    """What makes the batches of a dataset in the place of its class."""

    run: Callable[[torch.Tensor], Any]
    """Returns the collated batch of some samples. Raises what a sample raises that is not like the example."""
    reads: Reads
    """What this was read from."""
    attributes: dict[str, Any]
    """Of the dataset."""
    row_bytes: int
    """Of the tensors of a sample."""
    takes_ints_only: bool
    """The class tells Python's whole numbers from numpy's."""
    at_once: int = LARGEST_INDEX
    """Samples of which a batch is made at a time, at most, so that torch does each step in one of its threads."""

    def batch(self, indices: torch.Tensor) -> Any:
        """Return the batch of some samples, as `run` does."""
        count, most = indices.numel(), self.at_once
        if count <= most or torch.get_num_threads() == 1:
            return self.run(indices)
        places = (slice(begin, begin + most) for begin in range(0, count, most))
        return assembled(((self.run(indices[part]), part) for part in places), count)


def read(dataset: Any, index: int) -> Reading:
    """Return what a dataset's `__getitem__` does. Raises NotIndexing.

    index: of a sample that is there, which serves as the example.
    """
    if torch.Tensor.__getitem__ is not torch._C.TensorBase.__getitem__:
        raise NotIndexing("torch.Tensor.__getitem__ was replaced")
    reader = Reader(dataset, index)
    builder = _Builder(reader.program)
    build = builder.of(reader.sample)
    try:
        expected = default_collate([dataset[index], dataset[index]])
    except Exception as error:  # the class's own, of each batch
        raise NotIndexing(f"its samples cannot be collated: {type(error).__name__}") from None
    at_once = reader.program.finish(build, builder.copied)
    made = reader.program.run(torch.tensor([index, index]))
    if not same(made, expected):
        raise NotIndexing("its samples are collated in another way")
    row_bytes = _bytes_of(made) // 2
    return Reading(reader.program.run, reader.reads, vars(dataset), row_bytes, reader.takes_ints_only, at_once)


def _bytes_of(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, dict | list | tuple):
        return sum(map(_bytes_of, batch.values() if isinstance(batch, dict) else batch))
    return 0


Places = slice | list[int]


def assembled(parts: Iterable[tuple[Any, Places]], count: int) -> Any:
    """Return one batch of several of the same structure, each with the places of its samples. Raises Unlike."""
    room: Any = None
    first: Any = None
    for made, places in parts:
        if room is None:
            first, room = made, _room(made, count)
        _put(room, made, places)
    return _closed(room, first)


def _room(made: Any, count: int) -> Any:
    if isinstance(made, torch.Tensor):
        layout = torch.contiguous_format if made.is_contiguous() else torch.channels_last
        return torch.empty((count, *made.shape[1:]), dtype=made.dtype, memory_format=layout)
    if isinstance(made, dict):
        return {key: _room(one, count) for key, one in made.items()}
    return [""] * count if _are_strings(made) else [_room(one, count) for one in made]


def _put(room: Any, made: Any, places: Places) -> None:
    if isinstance(room, torch.Tensor):
        if not isinstance(made, torch.Tensor) or (made.dtype, made.shape[1:]) != (room.dtype, room.shape[1:]):
            raise Unlike
        room[places] = made
    elif isinstance(room, dict):
        if not isinstance(made, dict) or list(made) != list(room):
            raise Unlike
        for key, one in room.items():
            _put(one, made[key], places)
    elif _are_strings(made):
        for place, one in zip(range(len(room))[places] if isinstance(places, slice) else places, made, strict=True):
            room[place] = one
    else:
        for one, part in zip(room, made, strict=True):
            _put(one, part, places)


def _closed(room: Any, first: Any) -> Any:
    """Return what was assembled, its containers of the same classes as the first part's."""
    if isinstance(room, torch.Tensor):
        return room
    if isinstance(room, dict):
        return {key: _closed(one, first[key]) for key, one in room.items()}
    values = room if _are_strings(first) else list(map(_closed, room, first))
    return values if isinstance(first, list) else tuple.__new__(type(first), values)


def _are_strings(made: Any) -> bool:
    return bool(made) and isinstance(made[0], str)


class _Builder:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._roots: set[int] = {0}  # columns whose memory the batch has
        self.copied: set[int] = set()

    def of(self, sample: Any, *, listed: bool = True) -> _Build:
        """Return what makes, of the columns, the batch of samples like this one.

        listed: strings come as a list, as where the sample is one, or lies in a dictionary; False: as a tuple.
        """
        if isinstance(sample, Value):
            return self._column(sample, list if listed else tuple)
        if not isinstance(sample, Made):
            if type(sample) not in (bool, int, float, str, np.ndarray, torch.Tensor):
                raise NotIndexing(f"returns a {type(sample).__name__}")
            kind: Any = list if listed else tuple
            return lambda columns: default_collate(kind([sample]) * len(columns[0]))
        items = sample.items
        if not items:
            raise NotIndexing("returns nothing")
        if isinstance(items, dict):
            keyed = [(key, self.of(one)) for key, one in items.items()]
            return lambda columns: {key: build(columns) for key, build in keyed}
        builds = [self.of(one, listed=False) for one in items]
        if type(items) in (list, tuple):
            return lambda columns: [build(columns) for build in builds]
        named = type(items)
        return lambda columns: tuple.__new__(named, [build(columns) for build in builds])

    def _column(self, value: Value, strings: type) -> _Build:
        slot, example, root = value.slot, value.example, value.root
        if dtype_of(example) is None:
            if isinstance(example, str):
                return lambda columns: strings(columns[slot])
            return lambda columns: default_collate(columns[slot])
        layout, strides = torch.contiguous_format, torch.empty((2, *getattr(example, "shape", ()))).stride()
        if isinstance(example, torch.Tensor) and (stacked := torch.stack([example, example])).stride() != strides:
            layout, strides = torch.channels_last, stacked.stride()
            if stacked.ndim != 4 or torch.empty(stacked.shape, memory_format=layout).stride() != strides:
                raise NotIndexing("returns a tensor of a layout of its own")
        tried = [self._program.tried(one) for one in (value, Value(root, None, root))]
        whole = all(isinstance(one, torch.Tensor) for one in tried) and tried[0].numel() == tried[1].numel()
        if whole and root not in self._roots:
            self._roots.add(root)
            if tried[0].stride() != strides:
                self.copied.add(slot)

            def build(columns: Columns) -> torch.Tensor:
                column = columns[slot]  # strides of dimensions of one element are compared, too
                return column if column.stride() == strides else column.clone(memory_format=layout)  # type: ignore[no-any-return]

            return build
        self.copied.add(slot)
        return lambda columns: columns[slot].clone(memory_format=layout)
