"""The adapter of packed shards: the index tells the native core where each sample lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock._native as _native
from penstock.order.permutations import Indices
from penstock.recipe.originals import replaced_in
from penstock.recipe.reader import read as read_recipe
from penstock.recipe.steps import Refusal, Step
from penstock.sources.image_files import native_images, spec_of
from penstock.sources.labels import label_values
from penstock.sources.native_source import Field, Form, ImageSteps, NativeSource, RemoteSamples
from penstock.sources.shards import Shards
from penstock.sources.source import Source, label_reader, own_transform
from penstock.sources.tensor_folder import replaced_tensor_reading
from penstock.storage.index import ABSENT
from penstock.storage.remote_shards import Range, RemoteShards
from penstock.system.words import counted


class ShardsSource(Source):
    """Shards' adapter."""

    dataset: Shards
    classes = (Shards,)

    def name(self, index: int) -> tuple[str, str | None]:
        dataset = self.dataset
        return dataset.name(index % len(dataset)), dataset.path(index % len(dataset))

    def id(self, index: int) -> str:
        return self.name(index)[0]

    def ids(self) -> bytes | None:
        return self.dataset.index.ids()

    def labels(self) -> NDArray[Any] | None:
        labels = self.dataset.labels
        return None if labels is None else label_values(labels.take(np.arange(len(labels))))

    def native(self, raw: bool) -> NativeSource | Refusal:
        dataset, kind = self.dataset, self.dataset.description.kind
        if kind == "files" or len(dataset.description.parts) > 1:
            return Refusal("Shards", "a sample is made of several files", "shards with one file and a label a sample")
        if kind == "images":
            return self._images(raw)
        if kind == "pixels":
            return self._pixels(raw)
        return self._tensors()

    def _images(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        native = native_images(
            dataset,
            raw,
            self._table(),
            jpeg_index=dataset.index.states,
            packed_bytes=sum(shard.bytes for shard in dataset.files.shards) / max(1, len(dataset)),
            **self._common(),
        )
        if isinstance(native, Refusal):
            return native
        step = self._read_step("; JPEG decoded natively (only the pixels used), other formats by Pillow")
        return replace(native, steps=(step, *native.steps[1:]))

    def _pixels(self, raw: bool) -> NativeSource | Refusal:
        dataset = self.dataset
        # That of the first image, as its row of the index tells it. Images of another mode are read by Python.
        row = dataset.index.rows([0])[0]
        pixels = int(row["width"]) * int(row["height"])
        mode = "L" if int(row["members"]["length"][0]) == _NPY_HEADER + pixels else "RGB"
        recipe = read_recipe(dataset.transform, mode=mode, raw=raw)
        if isinstance(recipe, Refusal):
            return recipe
        if (refusal := replaced_tensor_reading() or replaced_in("PIL.Image", "fromarray")) is not None:
            return refusal
        return NativeSource(
            fields=(Field(_native.PixelFileFiller(self._table(), recipe.native), spec_of(recipe)),),
            steps=(self._read_step(f"; decoded images, mode {mode}"), *recipe.steps),
            images=ImageSteps((recipe,)),
            **self._common(),
        )

    def _tensors(self) -> NativeSource | Refusal:
        dataset = self.dataset
        if (refusal := own_transform(dataset) or replaced_tensor_reading()) is not None:
            return refusal
        return NativeSource(
            fields=(Field(_native.TensorFileFiller(self._table()), None),),
            steps=(self._read_step(""),),
            **self._common(),
        )

    def _common(self) -> dict[str, Any]:
        """Return what is the same whatever the files hold."""
        dataset, encoded = self.dataset, self.dataset.description.kind != "tensors"
        return {
            "read_in_python": (lambda position: np.asarray(dataset.read(position))) if encoded else dataset.read,
            "form": Form(pair=dataset.description.pair),
            "labels": None if dataset.labels is None else label_reader(dataset.labels.take, dataset),
            "remote": self.remote(),
        }

    def _table(self) -> _native.ShardTable:
        dataset = self.dataset
        files = dataset.files
        shards = [(files.path(number), shard.bytes) for number, shard in enumerate(files.shards)]
        # A shard of the cache that is open would take its space after it was deleted.
        most = {"max_open": 0} if isinstance(files, RemoteShards) else {}
        return dataset.index.table(shards, verify=dataset.verify, **most)

    def remote(self) -> RemoteSamples | None:
        dataset, files = self.dataset, self.dataset.files
        if not isinstance(files, RemoteShards):
            return None

        def shard_of(positions: Indices) -> Indices:
            shards: Indices = dataset.index.rows(positions)["shard"].astype(np.int64)
            return shards

        def ranges_of(positions: Indices) -> list[Range]:
            rows = dataset.index.rows(positions)
            return [
                (int(row["shard"]), int(member["offset"]), int(member["offset"]) + int(member["length"]))
                for row in rows
                for member in row["members"]
                if member["suffix"] != ABSENT and row["shard"] < len(files.shards)
            ]

        return RemoteSamples(files, shard_of, ranges_of)

    def _read_step(self, more: str) -> Step:
        dataset = self.dataset
        checked = "CRC-32C compared" if dataset.verify else "checksums not compared (verify=False)"
        shards = counted(len(dataset.files.shards), "shard")
        kept = dataset.files.describe() if isinstance(dataset.files, RemoteShards) else ""
        where = f"{counted(len(dataset), 'sample')} in {shards} of {dataset.root}"
        return Step(f"read    {where}{kept}, {checked}{more}", "native")


#: Bytes that numpy.save writes before the elements of an image.
_NPY_HEADER = 128
