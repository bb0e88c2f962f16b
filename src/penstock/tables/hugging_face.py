"""The rows of a datasets.Dataset, as the package gives them in each of its formats, of columns gathered at once.

The package takes a slice a row and makes objects of each. Here the columns are gathered for all rows; a column whose
values only the package makes (dates, records, arrays of several dimensions, audio) is asked of it, the others are not.
Neither datasets nor pyarrow is imported: a program that has such a dataset has imported both.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate

from penstock.indexing.equality import same
from penstock.order.permutations import Indices
from penstock.recipe.originals import look_again, own_class, replaced_in_class
from penstock.recipe.patches import original_of
from penstock.sample_notes import torch_batch
from penstock.system.deferred import deferred
from penstock.tables.column import Column, NotGathered, column_of, dtype_of_objects

if TYPE_CHECKING:
    from penstock.indexing import batches, guard
    from penstock.indexing.batches import Reading
else:
    batches, guard = deferred("penstock.indexing", "batches", "guard")

#: The methods of the package that say what a dataset's rows are.
_METHODS = ("__getitem__", "__getitems__", "_getitem")
#: The formats whose values are made here, by their names.
_FORMATS = (None, "numpy", "torch", "custom")
_ORIENTATION = 274  # of EXIF's tags


def dataset_class() -> type | None:
    """Return datasets.Dataset where a program has imported it, else None."""
    found: type | None = own_class("datasets.arrow_dataset", "Dataset")
    return found


def is_dataset(value: object) -> bool:
    """Return whether a value is a datasets.Dataset, of that class exactly."""
    return type(value) is dataset_class()


class DatasetRows:
    """The rows of a dataset as it was when this was made; `state_of` says whether it still is that.

    Any thread may call it. It holds the dataset's table and features, but neither the dataset nor its transform, which
    may lead back to it.

    Raises NotGathered.
    """

    def __init__(self, dataset: Any) -> None:
        self.state = state_of(dataset)
        self.table, self.size = dataset._data.table, len(dataset)
        self._format: str | None = dataset._format_type
        names = self.table.column_names
        if self._format not in _FORMATS or "_getitem" in vars(dataset) or not self.size:
            raise NotGathered(f"the package makes the format {self._format!r}, and rows of an empty dataset")
        if self._format != "custom" and dataset._format_kwargs:
            raise NotGathered("the format has options")
        if len(set(names)) < len(names) or replaced_in_class(type(dataset), " ".join(_METHODS)) is not None:
            raise NotGathered("two columns have one name, or a method was replaced")
        chosen = dataset._format_columns
        self._formatted = [name for name in names if chosen is None or name in chosen]
        self._others = [name for name in names if name not in self._formatted] if dataset._output_all_columns else []
        indices = dataset._indices
        self._held = None if indices is None else indices.table
        self._mapping = None if indices is None else indices.column(0).to_numpy()
        self._features = dataset._info.features
        requires = {} if self._features is None else self._features._column_requires_decoding
        self._decoded = frozenset(name for name in self.names if requires.get(name))
        self._checked: set[bool] = set()

    @property
    def names(self) -> list[str]:
        """The columns of a sample, in order."""
        return self._formatted + self._others

    def column(self, name: str) -> Column:
        return column_of(self.table, name)

    def rows(self, numbers: Indices) -> Indices:
        """Return the rows of the table that these samples are. Raises NotGathered: one is not there."""
        if not len(numbers) or int(numbers.max()) >= self.size or int(numbers.min()) < 0:
            raise NotGathered("a number is negative, or there is no such row")
        if self._mapping is None:
            return numbers
        rows: Indices = (self._mapping[numbers] % self.table.num_rows).astype(np.int64)
        return rows

    # --- what the package returns -----------------------------------------------------------------------------------

    def answer(self, dataset: Any, key: Any) -> Any:
        """Return what `dataset[key]` returns, for a whole number or a list of them. Raises NotGathered."""
        single = type(key) is int
        rows = self.rows(np.array([key] if single else _whole(key), np.int64))
        if single not in self._checked:
            self._check(dataset, key, rows, single=single)
            self._checked.add(single)
        if self._format == "custom":
            found = dataset._format_kwargs["transform"](self._objects(self._formatted, rows))
            found = _first(found) if single else found
        else:
            found = self._values(dataset, key, rows, single=single)
        if self._others:
            if not isinstance(found, MutableMapping):
                raise NotGathered("the transform returns no dictionary")
            more = self._objects(self._others, rows)
            found.update({name: values[0] for name, values in more.items()} if single else more)
        return found

    def _values(self, dataset: Any, key: Any, rows: Indices, *, single: bool) -> dict[str, Any]:
        """Return the values of the columns in the dataset's format, but for "custom"."""
        if self._format is None:
            found = self._objects(self._formatted, rows)
            return {name: values[0] for name, values in found.items()} if single else found
        if single and self._format == "numpy":
            raise NotGathered("one row of the format 'numpy'")
        make = _tensors if self._format == "torch" else _arrays
        values: dict[str, Any] = {}
        for name in self._formatted:
            made = None if name in self._decoded else make(self.column(name), rows)
            if made is not None:
                values[name] = made[0] if single else made
        left = [name for name in self._formatted if name not in values]
        if not left:
            return values
        if len(left) == len(self._formatted):
            raise NotGathered("the package makes all columns")
        more = dataset._getitem(key, format_columns=left, output_all_columns=False)
        return {name: more[name] if name in more else values[name] for name in self._formatted}

    def _check(self, dataset: Any, key: Any, rows: Indices, *, single: bool) -> None:
        """Compare the values with the package's; those that a transform is given. Raises NotGathered."""
        if self._format != "custom":
            made: Any = self._values(dataset, key, rows, single=single)
            expected = dataset._getitem(key, output_all_columns=False)
        else:
            made, numbers = self._objects(self._formatted, rows), [key] if single else key
            options: dict[str, Any] = {"format_type": None, "format_kwargs": {}, "format_columns": self._formatted}
            expected = dataset._getitem(numbers, output_all_columns=False, **options)
        if not same(made, expected):
            _known[dataset] = None, self.state
            raise NotGathered("the package makes other values")

    # --- values as Python's objects ---------------------------------------------------------------------------------

    def _objects(self, names: list[str], rows: Indices) -> dict[str, Any]:
        """Return values in the package's own format, by column."""
        found = {}
        for name in names:
            values = self.column(name).objects(rows)
            found[name] = self._decode(name, values) if name in self._decoded else values
        return found

    def _decode(self, name: str, values: list[Any]) -> list[Any]:
        feature, kind = self._features[name], own_class("datasets.features.image", "Image")
        if type(feature) is kind and replaced_in_class(kind, "decode_example") is None:
            return [_opened(value, feature) for value in values]
        found: list[Any] = self._features.decode_batch({name: values})[name]
        return found

    # --- what default_collate makes of it ---------------------------------------------------------------------------

    @property
    def collates(self) -> bool:
        """Whether default_collate's batches are made of the columns only."""
        return self._format != "custom" and not self._decoded

    def collated(self, numbers: Indices) -> dict[str, Any]:
        """Return what default_collate makes of these samples. Raises NotGathered, and what it raises."""
        rows = self.rows(numbers)
        batch = {name: _collated(self.column(name), rows, self._format) for name in self._formatted}
        batch.update({name: _collated(self.column(name), rows, None) for name in self._others})
        return batch


def state_of(dataset: Any) -> tuple[Any, ...]:
    """Return what says whether a dataset is what it was; where it does, its transform may be another."""
    chosen, indices = dataset._format_columns, dataset._indices
    return (
        id(dataset._data.table),
        None if indices is None else id(indices.table),
        dataset._format_type,
        bool(dataset._format_kwargs),
        None if chosen is None else tuple(chosen),
        dataset._output_all_columns,
        id(dataset._info.features),
        *(id(original_of(method) or method) for method in map(partial(getattr, type(dataset)), _METHODS)),
    )


def _whole(key: list[Any]) -> list[int]:
    if not key or not set(map(type, key)) <= {int, np.int64}:
        raise NotGathered("an index of another type")
    return list(map(int, key))


def _first(batch: Any) -> Any:
    """Return the row of a transform's batch of one, as the package does, with its error."""
    try:
        return {key: values[0] for key, values in batch.items()}
    except Exception as error:
        raise TypeError(
            f"Custom formatting function must return a dict of sequences to be able to pick a row, but got {batch}"
        ) from error


def _opened(value: Any, feature: Any) -> Any:
    """Return the image of a feature, decoded when something looks at its pixels, where the package's own is no other.

    The package decodes at once, so that no file stays open; bytes in memory are none.
    """
    if value is None:
        return None
    if feature.mode is None and value["bytes"] is not None:
        image = Image.open(io.BytesIO(value["bytes"]))
        if image.getexif().get(_ORIENTATION) is None:
            return image
    return feature.decode_example(value)


# --- numbers and texts in formats of arrays ---------------------------------------------------------------------------


def _numbers(column: Column, rows: Indices) -> tuple[torch.Tensor, Any] | None:
    """Return numbers one row behind another, as the formats convert them, and the lengths of lists, else None."""
    return None if column.dtype is None else column.numbers(rows, dtype_of_objects(column.dtype))


def _tensors(column: Column, rows: Indices) -> Any:
    """Return the values of a column in the format "torch"; None: the package makes them."""
    if column.is_text:
        found = _arrays(column, rows)  # which drops zeros behind a text
        return None if found is None else found.tolist()
    numbers = _numbers(column, rows)
    if numbers is None:
        return None
    flat, lengths = numbers
    if lengths is None:
        return flat
    if (lengths == lengths[0]).all():
        return flat.reshape(len(rows), int(lengths[0])) if lengths[0] else None
    return [row.clone() for row in torch.split(flat, lengths.tolist())]


def _arrays(column: Column, rows: Indices) -> Any:
    """Return the values of a column in the format "numpy"; None: the package makes them."""
    if column.is_text:
        texts = column.objects(rows)
        return None if None in texts else np.asarray(texts)
    numbers = _numbers(column, rows)
    if numbers is None:
        return None
    flat, lengths = numbers[0].numpy(), numbers[1]
    if lengths is None:
        return flat
    if (lengths == lengths[0]).all():
        return flat.reshape(len(rows), int(lengths[0]))
    if column.dtype in (torch.int64, torch.float32):  # the package's are views of the table's memory
        flat.flags.writeable = False
    found = np.empty(len(rows), object)
    found[:] = np.split(flat, np.cumsum(lengths)[:-1])
    return found


def _collated(column: Column, rows: Indices, kind: str | None) -> Any:
    """Return what default_collate makes of the values of a column in a format."""
    if kind is not None:
        made = (_tensors if kind == "torch" else _arrays)(column, rows)
        if made is None:
            raise NotGathered("a column that the package makes")
        return made if isinstance(made, torch.Tensor) else default_collate(list(made))
    stored = column.dtype
    if stored is None or stored is torch.uint64 or column.is_list:
        values = column.objects(rows)
        return values if column.is_text and None not in values else default_collate(values)
    dtype = stored if stored is torch.bool else torch.float64 if stored.is_floating_point else torch.int64
    made = column.flat(rows, dtype, len(rows))
    return default_collate(column.objects(rows)) if made is None else made


# --- which rows belong to which dataset -------------------------------------------------------------------------------

_known: weakref.WeakKeyDictionary[Any, tuple[DatasetRows | None, tuple[Any, ...]]] = weakref.WeakKeyDictionary()
"""By dataset: its rows, or None, and what it was then."""


def reading_of(
    dataset: Any, table: Any, index: int, collated: Callable[[Any, Indices], Any], same_still: Callable[[Any], bool]
) -> Reading:
    """Return what makes the batches of a dataset of columns as default_collate does, where its class need not be asked.

    Args:
        table: of the columns.
        index: of a sample that is there, which serves as the example.
        collated: returns the batch of some samples of the dataset. Raises NotGathered, and what default_collate raises.
        same_still: returns whether the dataset is what it was.

    Raises NotGathered where its samples must be made one by one, and what its samples raise.
    """
    held = weakref.ref(dataset)  # the reading is kept for as long as the dataset

    def run(numbers: torch.Tensor) -> Any:
        return collated(held(), numbers.numpy())

    reads = guard.Reads()
    reads.also(lambda: same_still(held()))
    if not same(run(torch.tensor([index, index])), torch_batch(dataset, [index, index])):
        raise NotGathered("its samples are collated in another way")
    return batches.Reading(run, reads, vars(dataset), table.nbytes // max(1, table.num_rows), takes_ints_only=True)


def collated_rows(dataset: Any, index: int) -> Reading:
    """Return what gathers the batches of a datasets.Dataset. Raises NotGathered, and what its samples raise."""
    rows = rows_of(dataset)
    if rows is None or not rows.collates:
        raise NotGathered("the package makes its rows")
    collated, state = rows.collated, rows.state
    return reading_of(
        dataset, rows.table, index, lambda _, numbers: collated(numbers), lambda now: state_of(now) == state
    )


def rows_of(dataset: Any) -> DatasetRows | None:
    """Return the rows of a datasets.Dataset as it is now; None: the package makes them."""
    state, found = state_of(dataset), _known.get(dataset)
    if found is not None and found[1] == state:
        return found[0]
    look_again()
    try:
        rows = DatasetRows(dataset)
    except NotGathered:
        rows = None
    _known[dataset] = rows, state
    return rows
