"""Parquet and Arrow IPC files as a dataset: a sample is a row, a dictionary of the columns that are asked for."""

from __future__ import annotations

import copy
import io
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from penstock._native import crc32c
from penstock.errors import CorruptSample, InvalidOption, pair
from penstock.order.blocks import DEFAULT_WINDOW, Blocks, checked_window
from penstock.order.permutations import Indices
from penstock.storage.cache_folder import DEFAULT_LIMIT, CacheFolder
from penstock.system.cache_folder import folder_of
from penstock.system.deferred import deferred
from penstock.system.words import counted, size_of, there_are
from penstock.tables.column import column_of

if TYPE_CHECKING:
    import pyarrow

    from penstock.tables import arguments, listing, row_groups, values
else:
    arguments, listing, row_groups, values = deferred("penstock.tables", "arguments", "listing", "row_groups", "values")


class Table(Dataset[dict[str, Any]]):
    """The rows of Parquet and Arrow IPC files, on this machine or in an object store.

    A sample is a dictionary from column to value. Numbers and truth values are 0-d tensors of the column's dtype,
    lists of them 1-d tensors; every other value is what pyarrow's `to_pylist()` gives: str, bytes, datetime, Decimal,
    list, dict. Opening reads the footers of the files, and of `filters=` the columns that it names.

    Row groups of Parquet are decoded once, by threads without Python's lock, into a cache folder, which is
    memory-mapped: up to four at once, each with a few MiB of memory. Arrow IPC files on this machine that are not
    compressed are mapped as they are. `shuffle=True` shuffles all rows, or those of a window of row groups where the
    files lie in an object store or their decoded columns do not fit into the cache.

    Args:
        data: a file, a glob, a folder, a URL (s3://bucket/folder/*.parquet, gs://, az://, https://), or a list of
            these. A folder means the .parquet, .arrow and .feather files in it, at any depth, in the order of
            their names.
        columns: the names of the columns, in the order of the sample's keys; None: all.
        filters: rows to keep, as pyarrow has them: a list of (column, operator, value), a list of such lists, or an
            expression. Row groups are left out by their statistics, rows exactly.
        image: the column of encoded images: bytes, or {"bytes": ..., "path": ...} as Hugging Face writes them. Its
            value is the PIL image in mode RGB, and it is the first of a sample.
        transform: called with the image; without image= with the dictionary.
        fill: the value for nulls, for all columns or by column. Without it a null is an error.
        window: how many row groups are shuffled together by `shuffle=True`; None: 8 of those of an object store or that
            do not fit, all of others.
        cache_folder: keeps decoded row groups; made where it does not exist, for this user only; None: one in the
            user's cache folder. Processes may share it.
        cache_limit: bytes that the cache folder may take; None: 64 GiB.

    Attributes:
        files: the paths or URLs of the files.
        columns: the names of the columns.
        schema: a pyarrow.Schema of the columns.

    Raises:
        ImportError: pyarrow is not installed; or obstore, of a URL.
        FileNotFoundError: there is no such file.
        InvalidOption: no file is found; a column is not there, or has another type in another file; there are no rows;
            a wrong argument.
        CorruptSample: a file is not Parquet or Arrow IPC, or damaged; of a row also a null without fill=, and a file
            that has changed.
        StorageError: an object store refuses, or does not answer.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        filters: Any = None,
        *,
        image: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        fill: Any = None,
        window: int | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
    ) -> None:
        if find_spec("pyarrow") is None:
            raise ImportError('Table reads files by pyarrow: pip install "penstock-loader[tables]"')
        if cache_limit is not None and (type(cache_limit) is not int or cache_limit < 1):
            raise InvalidOption(f"cache_limit={cache_limit!r}: it is a number of bytes, 1 or more, or None")
        if transform is not None and not callable(transform):
            raise InvalidOption(f"transform={transform!r} is not callable")
        self.window = None if window is None else checked_window(window)
        self.image, self.transform = image, transform
        opened = listing.files_of(data)
        self.files = [file.place for file in opened]
        schema = arguments.schema_of(opened, columns, image)
        self.columns, self.schema = list(schema.names), schema
        self._fill = arguments.checked_fill(fill, schema)
        parts = [part for number, file in enumerate(opened) for part in file.parts(number, self.columns)]
        parts, why = [part for part in parts if part.samples], "there are no rows"
        rows = [part.samples for part in parts]
        self._rows: NDArray[np.int32] | None = None
        """Of each sample, in its row group; None: all rows are samples."""
        if filters is not None and rows:
            chosen, why = arguments.chosen_rows(opened, parts, filters), "no row meets filters="
            parts = [part for part, found in zip(parts, chosen, strict=True) if len(found)]
            rows, self._rows = [len(found) for found in chosen if len(found)], np.concatenate(chosen)
        self._ends = np.cumsum(rows, dtype=np.int64)
        """The number of samples up to the end of each row group."""
        if not rows:
            raise InvalidOption(f"{self.files[0]}{f' and {len(opened) - 1:,} more' * (len(opened) > 1)}: {why}")
        try:
            cache = CacheFolder(cache_folder or folder_of("tables"), cache_limit or DEFAULT_LIMIT)
        except OSError as error:
            raise pair(InvalidOption, type(error))(
                f"decoded row groups cannot be kept in the cache folder: {error}. Give cache_folder="
            ) from error
        self.row_groups = row_groups.RowGroups(opened, parts, schema, self._fill, cache)
        self._window = self._checked_window()

    # --- which rows -------------------------------------------------------------------------------------------------

    def _checked_window(self) -> int | None:
        """Return the window of row groups; None: all of them are read as one. Raises InvalidOption."""
        groups = self.row_groups
        limit = groups.cache.limit
        if self.window is None and groups.bytes <= limit and not groups.is_remote:
            return None
        window, fits = self.window or DEFAULT_WINDOW, limit // max(1, groups.largest) - 1
        if groups.bytes > limit and fits < (self.window or 1):
            raise InvalidOption(
                f"cache_limit={limit:,} ({size_of(limit)}) does not hold a window of "
                f"{counted(self.window or 1, 'row group')} and the next one, about {size_of(groups.largest)} each once "
                f"decoded: raise it to {((self.window or 1) + 1) * groups.largest:,}, lower window=, choose fewer "
                "columns=, or write smaller row groups"
            )
        return window if groups.bytes <= limit else min(window, fits)

    @property
    def in_blocks(self) -> bool:
        """Whether rows are read row group by row group, of which the cache may hold only some."""
        return self._window is not None

    @cached_property
    def shuffle_blocks(self) -> Blocks | None:
        """The row groups as blocks that shuffle=True shuffles within a window; None: all rows are shuffled together."""
        if self._window is None:
            return None
        sizes = np.diff(self._ends, prepend=0)
        return Blocks(sizes[sizes > 0], self._window, noun="row group")

    @property
    def takes_all(self) -> bool:
        """Whether all rows of the files are samples."""
        return self._rows is None

    def locate(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the row group of each sample, 0 to len - 1, and its row there."""
        parts = np.searchsorted(self._ends, indices, side="right")
        if self._rows is not None:
            return parts, self._rows[indices].astype(np.int64)
        return parts, indices - np.concatenate(([0], self._ends[:-1]))[parts]

    def name(self, index: int) -> str:
        """Return the name of a sample: its file, and the number of its row in the file."""
        parts, rows = self.locate(np.array([index]))
        part = self.row_groups.shards[int(parts[0])]
        return f"{self._short_names[part.file]}:{part.first + int(rows[0])}"

    @cached_property
    def _short_names(self) -> list[str]:
        """The name of each file below the folder that all are in."""
        folders = [place.split("/")[:-1] for place in self.files]
        shared = 0
        for names in zip(*folders, strict=False):
            if len(set(names)) > 1:
                break
            shared += 1
        return ["/".join(place.split("/")[shared:]) for place in self.files]

    def sizes(self) -> NDArray[np.int64]:
        """Return what tells the rows from those of another dataset: hashes, and the rows of each row group."""
        hashes = [f"{self._short_names}{self.schema}".encode(), b"" if self._rows is None else self._rows.tobytes()]
        return np.array([*map(crc32c, hashes), *(part.samples for part in self.row_groups.shards)], np.int64)

    # --- samples ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Any:
        sample = self._samples([index])[0]
        if self.transform is None:
            return sample
        if self.image is None:
            return self.transform(sample)
        sample[self.image] = self.transform(sample[self.image])
        return sample

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[dict[str, Any]]] | None:
        """Returns the samples of a batch, gathered by one pass over each column; None where there is a transform, whose
        random draws are those of each sample, or a subclass makes the samples."""
        one_by_one = self.transform is not None or type(self).__getitem__ is not Table.__getitem__
        return None if one_by_one else self._samples

    def _samples(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples, untransformed."""
        size = len(self)
        given = np.array([operator.index(index) for index in indices], np.int64)
        if len(wrong := given[(given < -size) | (given >= size)]):
            raise IndexError(f"sample index {wrong[0]} is out of range: {there_are(size, 'row')}")
        given = np.where(given < 0, given + size, given)
        columns = self._gather(values.values_of, given)
        samples = [dict(zip(self.columns, values, strict=True)) for values in zip(*columns, strict=True)]
        if self.image is not None:
            for index, sample in zip(given.tolist(), samples, strict=True):
                sample[self.image] = self._image(index, sample[self.image])
        return samples

    def read_image(self, index: int) -> Image.Image:
        """Return the image of a sample in mode RGB, untransformed. Raises CorruptSample."""
        return self._image(
            index, self._gather(values.values_of, np.array([index]))[self.columns.index(self.image or "")][0]
        )

    def _image(self, index: int, value: Any) -> Image.Image:
        try:
            if isinstance(value, dict):
                value = value["bytes"] if value["bytes"] is not None else Path(value["path"]).read_bytes()
            return Image.open(io.BytesIO(value)).convert("RGB")
        except MemoryError:
            raise
        except Exception as error:
            raise self._corrupt(index, f"the image in column {self.image!r} cannot be decoded: {error}") from error

    def collated(self, indices: Indices) -> dict[str, Any]:
        """Return what default_collate makes of the samples at these indices, none of them negative.

        Raises IndexError, CorruptSample, and what it raises.
        """
        if int(indices.max()) >= len(self) or int(indices.min()) < 0:
            raise IndexError(f"{there_are(len(self), 'row')}")
        if not self.in_blocks:
            self.row_groups.check_files()
            self.row_groups.whole()
        return dict(zip(self.columns, self._gather(values.collated, indices), strict=True))

    def _gather(self, gather: Callable[..., Any], indices: Indices) -> list[Any]:
        """Return what `gather` makes of each column at these samples."""
        groups = self.row_groups
        groups.check_files()
        if (whole := groups.whole_if_open()) is not None:
            return self._gathered(gather, whole, self.whole_rows(indices), indices)
        parts, rows = self.locate(indices)
        needed = np.unique(parts).tolist()
        places = [np.flatnonzero(parts == part) for part in needed]
        each = [
            self._gathered(gather, opened.table, rows[place], indices[place])
            for place, opened in zip(places, groups.opened(needed), strict=True)
        ]
        order = np.argsort(np.concatenate(places), kind="stable")
        return [values.joined(one, order) for one in zip(*each, strict=True)]

    @property
    def joins(self) -> bool:
        """Whether the batches of row groups can be joined: their columns hold numbers, lists of numbers, or texts."""
        return all(values.joins(field.type) for field in self.schema)

    def _gathered(self, gather: Callable[..., Any], table: pyarrow.Table, rows: Indices, samples: Indices) -> list[Any]:
        """Return what `gather` makes of each column of a table of row groups at these rows, which are these samples."""
        found = []
        for field in self.schema:
            name = field.name
            try:
                found.append(gather(column_of(table, name), rows, field.type, self._fill.get(name)))
            except values.NullValue as error:
                raise self._corrupt(
                    int(samples[error.position]),
                    f"column {name!r} holds a null. Give fill={{{name!r}: value}}, leave such rows out by filters=, or "
                    "the column by columns=",
                ) from None
        return found

    def _corrupt(self, index: int, why: str) -> CorruptSample:
        parts, rows = self.locate(np.array([index]))
        part = self.row_groups.shards[int(parts[0])]
        place, name = self.files[part.file], self.name(index)
        return CorruptSample(
            f"sample {name!r} (row {part.first + int(rows[0]):,} of {place}): {why}", sample_id=name, path=place
        )

    def whole_rows(self, indices: Indices) -> Indices:
        """Return the rows of samples in the table of all row groups."""
        if self._rows is None:
            return indices
        parts, rows = self.locate(indices)
        samples = np.array([part.samples for part in self.row_groups.shards], np.int64)
        return rows + (np.cumsum(samples) - samples)[parts]

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        """Return a copy for another thread, which reads the same row groups: any number of threads may."""
        memo[id(self)] = made = type(self).__new__(type(self))
        shared = {"row_groups", "_rows", "_ends", "_fill", "schema", "shuffle_blocks"}
        for name, value in self.__dict__.items():
            made.__dict__[name] = value if name in shared else copy.deepcopy(value, memo)
        return made

    def __repr__(self) -> str:
        return f"Table({counted(len(self), 'row')} of {', '.join(self.columns)} in {counted(len(self.files), 'file')})"
