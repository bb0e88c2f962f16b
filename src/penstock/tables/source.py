"""The adapter of Table: columns of numbers are gathered natively from the mapped row groups."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.steps import Refusal, Step
from penstock.sources.hugging_face import NotNumbers, column_of
from penstock.sources.native_source import Field, Form, Memory, NativeSource, RemoteSamples
from penstock.sources.source import Source
from penstock.system.words import counted
from penstock.tables.table import Table
from penstock.tables.values import is_list, is_number


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
            return Refusal("Table", "the cache may hold only some of its row groups", "window=None and local files")
        if dataset.transform is not None or dataset.image is not None:
            return Refusal("Table", "Python decodes the images, or calls the transform", "")
        for field in dataset.schema:
            if not (is_number(field.type) or is_list(field.type)):
                return Refusal(f"column {field.name!r}", f"it holds {field.type}", "columns= of numbers")
        table, fields = dataset.whole(), {}
        for name in dataset.columns:
            try:
                column = column_of(table, name)
            except NotNumbers as why:
                return Refusal(f"column {name!r}", f"it holds {why}", "columns= without it")
            spec = _native.Spec(column.dtype, list(column.shape))
            chunks = [chunk.reshape(len(chunk), math.prod(column.shape)).view(np.uint8) for chunk in column.chunks]
            fields[name] = Field(_native.ColumnFiller(chunks, column.dtype, spec), spec)
        shapes = ", ".join(f"{name} {one.spec.dtype}{list(one.spec.shape)}" for name, one in fields.items() if one.spec)
        rows, files = counted(len(dataset), "row"), counted(len(dataset.files), "file")
        return NativeSource(
            fields=tuple(fields.values()),
            steps=(Step(f"gather  {rows} of {files}: {shapes}", "native"),),
            form=Form(keys=tuple(fields)),
            rows=dataset.whole_rows,
            memory=Memory(reads_ahead=True),
            same_dataset=dataset.row_groups.unchanged,
            reusable=dataset.row_groups.unchanged,
        )
