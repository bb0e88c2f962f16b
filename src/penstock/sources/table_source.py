"""The adapter of Table: columns of numbers and of images are read natively from the mapped row groups."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.reader import read as read_recipe
from penstock.recipe.steps import Refusal, Step
from penstock.sources.hugging_face import NotNumbers, column_of
from penstock.sources.image_files import foreign_decoder, max_pixels, spec_of
from penstock.sources.native_source import Field, Form, ImageSteps, Memory, NativeSource, RemoteSamples
from penstock.sources.source import Source
from penstock.system.words import counted
from penstock.tables.table import Table


class TableSource(Source):
    """Table's adapter."""

    dataset: Table
    classes = (Table,)

    def name(self, index: int) -> tuple[str, str | None]:
        return self.dataset.name(index % len(self.dataset)), None

    def id(self, index: int) -> str:
        return self.name(index)[0]

    def sizes(self) -> NDArray[np.int64]:
        return self.dataset.sizes()

    def remote(self) -> RemoteSamples | None:
        dataset = self.dataset
        if not dataset.in_blocks:
            return None

        def part_of(indices: Indices) -> Indices:
            return dataset.locate(indices)[0]

        return RemoteSamples(dataset.row_groups, part_of, None, by_client=dataset.row_groups.is_remote)

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        if dataset.in_blocks:
            return Refusal("Table", dataset.row_groups.describe(), "")
        if dataset.image is not None:
            return self._images()
        if dataset.transform is not None:
            return Refusal("Table.transform", "Python calls your function on each row", "the function in collate_fn")
        fields = self._numbers(dataset.columns)
        if isinstance(fields, Refusal):
            return fields
        return NativeSource(
            fields=tuple(fields.values()),
            steps=(self._step(fields),),
            form=Form(keys=tuple(fields)),
            rows=dataset.whole_rows,
            memory=Memory(reads_ahead=True),
            same_dataset=dataset.row_groups.unchanged,
            reusable=dataset.row_groups.unchanged,
        )

    def _images(self) -> NativeSource | Refusal:
        dataset, image = self.dataset, self.dataset.columns[0]
        recipe = foreign_decoder() or read_recipe(dataset.transform, mode="RGB")
        if isinstance(recipe, Refusal):
            return recipe
        fields = self._numbers(dataset.columns[1:])
        if isinstance(fields, Refusal):
            return fields
        groups, everything = dataset.row_groups, np.arange(len(dataset))
        try:
            table = groups.encoded(image, None if dataset.takes_all else dataset.whole_rows(everything))
        except ValueError as error:
            return Refusal(f"column {image!r}", f"it holds {error}", "a column of binary values")
        filler = _native.ImageFileFiller(table, recipe.native, max_pixels())
        return NativeSource(
            fields=(Field(filler, spec_of(recipe)), *fields.values()),
            steps=(self._step({image: None, **fields}), *recipe.steps),
            images=ImageSteps((recipe,), packed_bytes=groups.bytes / len(dataset)),
            read_in_python=lambda position: np.asarray(dataset.read_image(position)),
            form=Form(keys=(image, *fields)),
            same_dataset=groups.unchanged,
        )

    def _numbers(self, names: list[str]) -> dict[str, Field] | Refusal:
        """Return how columns are read; the rows of a table with images are those of the samples only."""
        dataset, fields = self.dataset, {}
        remedy = "columns= without it"
        for name in names:
            kind = str(dataset.schema.field(name).type)
            if any(
                word in kind for word in ("string", "binary", "struct", "map", "date", "time", "decimal", "duration")
            ):
                return Refusal(f"column {name!r}", f"it holds {kind}", remedy)
        table = dataset.row_groups.whole()
        if dataset.image is not None and not dataset.takes_all:
            table = table.select(names).take(dataset.whole_rows(np.arange(len(dataset))))
        for name in names:
            try:
                column = column_of(table, name)
                spec = _native.Spec(column.dtype, list(column.shape))
                chunks = [chunk.reshape(len(chunk), math.prod(column.shape)).view(np.uint8) for chunk in column.chunks]
                fields[name] = Field(_native.ColumnFiller(chunks, column.dtype, spec), spec)
            except (NotNumbers, ValueError) as why:
                return Refusal(f"column {name!r}", f"it holds {why}", remedy)
        return fields

    def _step(self, fields: Mapping[str, Field | None]) -> Step:
        read = "; ".join(
            f"{name}, JPEG decoded (only the pixels used), other formats by Pillow"
            if one is None or one.spec is None
            else f"{name} {one.spec.dtype}{list(one.spec.shape)}"
            for name, one in fields.items()
        )
        rows, files = counted(len(self.dataset), "row"), counted(len(self.dataset.files), "file")
        return Step(f"gather  {rows} of {files}: {read}", "native")
