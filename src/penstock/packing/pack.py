"""penstock.pack(): a dataset becomes packed shards, in parallel; a crash at any moment loses no finished shard."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import PIL

import penstock._native as _native
from penstock.cluster.option import Ray, ray_of
from penstock.errors import InvalidOption
from penstock.packing import places, plan as planning, shard_writer
from penstock.packing.contents import Contents, contents_of
from penstock.packing.encoding import QUALITY, Encoding, Measured, measure
from penstock.packing.engines import Engine, PackerEngine, Packing, Progress, ThreadEngine
from penstock.packing.places import BucketPlace, FolderPlace, Place
from penstock.packing.plan import Plan, check_split, names, rows_name, shard_name, unfinished
from penstock.packing.shard_writer import ShardRecord, ShardWork
from penstock.storage.description import Column, Split
from penstock.storage.durable import durably, free_bytes, full_disk_named, out_of_space
from penstock.storage.index import Index, column_of
from penstock.storage.jpeg_index import Photos
from penstock.system.limits import usable_cpus
from penstock.system.urls import is_url
from penstock.system.words import bytes_in

SHARD_SIZE = "256MiB"
SPLIT = "data"
#: Photos of one call of the native core: few enough for Ctrl-C to be seen soon.
_CALL = 64


@dataclass(frozen=True)
class Packed:
    """What pack() made."""

    out: str
    split: str
    samples: int
    shards: int
    bytes: int
    """Of all shards."""
    kept: int
    """Shards that were finished before, and not written again."""

    @classmethod
    def of(cls, place: Place, split: Split, kept: int) -> Packed:
        shards = split.shards
        return cls(place.path, place.split, split.samples, len(shards), sum(shard.bytes for shard in shards), kept)


def pack(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    split: str = SPLIT,
    shard_size: int | str = SHARD_SIZE,
    max_side: int | None = None,
    quality: int | None = None,
    decoded: bool = False,
    states: bool = False,
    to_bytes: Callable[[Any], Any] | None = None,
    workers: int | None = None,
    restart: bool = False,
    engine: Literal["ray"] | Ray | None = None,
    on_measured: Callable[[Measured], None] | None = None,
    on_progress: Callable[[Packing], None] | None = None,
) -> Packed:
    """Pack a map-style dataset into tar shards, with an index beside them, for penstock.Shards.

    After a crash the same call continues where it stopped, and writes the same bytes. docs/shards.md has the format.

    Args:
        dataset: a dataset that Penstock knows (penstock.ImageFolder, TensorFolder and Arrays, torchvision's
            ImageFolder, CIFAR and MNIST, TensorDataset; Subset and ConcatDataset of one kind), whose transforms are not
            applied; or any map-style dataset, with to_bytes.
        out: the folder, which is made, or the URL of one in an object store (s3://, gs://, az://); it is empty, or
            holds other splits.
        split: the name of the split, which the files begin with.
        shard_size: the most bytes of a shard, as a number or a text such as "256MiB".
        max_side: JPEG files whose longer side has more pixels are resized to this length.
        quality: Pillow's quality of the resized JPEG files (90).
        decoded: images become arrays of uint8, which take more bytes and no decoding.
        states: the decoder states of JPEGs are kept beside the index, so that crops need not decode the rows above them
            from the first epoch on. For that each JPEG is read once, without computing its pixels.
        to_bytes: called with a sample; returns bytes, or a dict from the suffix of a file ("jpg") to its bytes.
        workers: threads; None: one a core, or a single one where the dataset is not Penstock's. With engine= packers,
            None: as many as the cluster has free.
        restart: remove the files of an unfinished packing of this split first.
        engine: "ray", or a penstock.Ray: packers, actors of a Ray cluster, write the shards, the same bytes, to a
            folder that all nodes share, or to an object store. None: threads of this process do.
        on_measured: called before the first shard with what max_side and decoded cost and save.
        on_progress: called after each sample, by any thread, one at a time; with engine= after each shard,
            and twice a second.

    Raises:
        InvalidOption: an option out of range; a dataset of an unknown class; a folder that holds something else; Ray is
            not installed.
        ClusterUnreachable, ClusterError: the Ray cluster, or a node of it, cannot do its part.
        WorkerDied: packers end again and again at the same shard.
        DatasetChanged: the source changed since an unfinished packing of it began, or while it is read.
        OutOfSpace: the disk, or the store, is full; finished shards are kept.
        StorageError: the object store refuses, or does not answer.
        SampleError: a file of the source cannot be read.
    """
    encoding = _encoding(max_side, quality, decoded)
    size = _shard_size(shard_size)
    check_split(split)
    writes = _engine(engine, dataset, to_bytes, workers)
    contents = contents_of(dataset, to_bytes)
    if encoding.changes and contents.first.kind != "images":
        raise InvalidOption(f"max_side and decoded are for images in files; the dataset holds {contents.first.kind}")
    if states and (decoded or contents.first.kind != "images"):
        raise InvalidOption("states=True is for JPEG files that stay encoded; these shards would have none")
    place = _place(out, split)
    if states and isinstance(place, BucketPlace):
        raise InvalidOption("states=True needs shards in a local folder: pack into one, and copy it to the store")
    with place.alone():
        job = _Job(place, contents, encoding, restart, states=states)
        return job.run(size, writes, on_measured, Progress(contents.size, on_progress))


def _place(out: str | os.PathLike[str], split: str) -> Place:
    if not is_url(out):
        return FolderPlace(os.path.abspath(out), split)
    if out.partition("://")[0].lower() in ("http", "https", "memory", "file"):
        raise InvalidOption(f"{out}: shards are written to a local folder or to a URL with s3://, gs:// or az://")
    return BucketPlace(out.rstrip("/"), split)


def _engine(engine: object, dataset: Any, to_bytes: Callable[[Any], Any] | None, workers: int | None) -> Engine:
    if workers is not None and workers < 1:
        raise InvalidOption(f"workers must be at least 1, not {workers}")
    cluster = ray_of(engine)
    if cluster is not None:
        return PackerEngine(cluster, dataset, to_bytes, workers)
    if engine is not None:
        raise InvalidOption(f"engine={engine!r}: it must be 'ray', a penstock.Ray, or None for threads of this process")
    return ThreadEngine(workers)


def _encoding(max_side: int | None, quality: int | None, decoded: bool) -> Encoding:
    if quality is not None and max_side is None:
        raise InvalidOption("quality is for JPEG files that max_side makes smaller: give max_side too")
    return Encoding(max_side, QUALITY if quality is None else quality, decoded)


def _shard_size(given: int | str) -> int:
    try:
        size = bytes_in(given)
    except ValueError as error:
        raise InvalidOption(f"shard_size: {error}") from None
    if size < 1024:
        raise InvalidOption(f"shard_size={given!r} is less than any tar file takes: add a unit, such as '{SHARD_SIZE}'")
    return size


class _Job:
    """One packing of one split."""

    def __init__(self, place: Place, contents: Contents, encoding: Encoding, restart: bool, *, states: bool) -> None:
        self._place, self._split, self._contents, self._encoding = place, place.split, contents, encoding
        self._states, self._restart = states, restart

    def run(
        self, size: int, engine: Engine, on_measured: Callable[[Measured], None] | None, progress: Progress
    ) -> Packed:
        """Pack what is not packed yet."""
        place = self._place
        stored = planning.parse(place.read(unfinished(self._split)))
        splits = places.check_out(place)
        if self._restart and self._split not in splits:
            self._place.remove(() if stored is None else names(self._split, stored))
            places.remove_unfinished(self._place)
            stored = None
        plan = self._plan(size, splits.get(self._split), on_measured)
        if self._split in splits:
            return self._finished(splits[self._split], plan)
        if stored is None:
            self._check_space(plan, 0)
            with full_disk_named(place.disk, lambda: plan.total or len(plan.as_json())):
                place.claim(unfinished(self._split), plan.as_json())
        else:
            planning.check_same(stored, plan, place.path)
        if self._contents.labels is not None and not plan.labelled:
            warnings.warn(
                "some names have the same part before their first dot, which WebDataset takes for one sample: members "
                "with labels are left out. penstock.Shards reads all of it right",
                RuntimeWarning,
                stacklevel=4,
            )
        return self._write_all(plan, engine, progress)

    # --- before the first shard

    def _plan(self, size: int, done: Split | None, on_measured: Callable[[Measured], None] | None) -> Plan:
        contents, encoding = self._contents, self._encoding
        share = 1.0
        stamps = np.array([contents.stamp(index) for index in range(contents.size)], np.int64).reshape(-1, 2)
        self._stamps = stamps
        if encoding.changes or contents.first.kind == "files":
            measured = measure(contents, encoding)
            share = measured.share
            if contents.first.kind == "files":
                stamps[:, 0] = measured.bytes[1] // measured.samples
                share = 1.0
            elif on_measured is not None and done is None:
                on_measured(measured)
        options: dict[str, Any] = {"shard_size": size, "kind": contents.first.kind}
        if encoding.changes:
            options |= {"max_side": encoding.max_side, "quality": encoding.quality, "decoded": encoding.decoded}
            options["pillow"] = PIL.__version__
        if self._states:
            options["states"] = True
        return planning.make(contents, options, size, share, stamps)

    def _finished(self, split: Split, plan: Plan) -> Packed:
        """Return what was made by the same call before. Raises InvalidOption where it was another one."""
        if split.source != plan.source or dict(split.options) != dict(plan.options):
            raise InvalidOption(
                f"{self._place.path} holds the split {self._split!r} already, of another source or with other options: "
                "give another folder or another split=. Nothing was changed"
            )
        places.check_shards(self._place, split)
        places.remove_unfinished(self._place)
        return Packed.of(self._place, split, len(split.shards))

    # --- shards

    def _write_all(self, plan: Plan, engine: Engine, progress: Progress) -> Packed:
        records = self._kept(plan)
        kept = len(records)
        progress.samples = sum(record.shard.samples for record in records.values())
        progress.bytes = sum(record.shard.bytes for record in records.values())
        self._check_space(plan, progress.bytes)
        missing = [shard for shard in range(len(plan.ends)) if shard not in records]
        work = ShardWork(self._place, self._contents, self._encoding, plan, self._stamps)
        with full_disk_named(self._place.disk, lambda: self._rest(plan, progress), "by the samples so far about "):
            records |= engine.write(work, missing, progress)
        return self._finish(plan, [records[shard] for shard in range(len(plan.ends))], kept)

    def _check_space(self, plan: Plan, written: int) -> None:
        place = self._place  # a store says that it is full when it is written to
        if plan.total is not None and isinstance(place, FolderPlace) and plan.total - written > free_bytes(place.path):
            raise out_of_space(place.path, plan.total - written)

    def _kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return what is kept of the shards that were finished before."""
        found, sizes = {}, self._place.sizes()
        for shard, (begin, end) in enumerate(zip(plan.begins, plan.ends, strict=True)):
            name = shard_name(self._split, shard)
            if name not in sizes:
                continue
            record = ShardRecord.parse(self._place.read(rows_name(self._split, shard)))
            if record is not None and record.shard.bytes == sizes[name] and record.shard.samples == end - begin:
                found[shard] = record
        return found

    def _rest(self, plan: Plan, progress: Progress) -> int:
        """Return about how many bytes are yet to be written."""
        share = progress.bytes / max(1, progress.samples)
        return int(share * (self._contents.size - sum(one.shard.samples for one in self._kept(plan).values())))

    # --- after the last shard

    def _finish(self, plan: Plan, records: list[ShardRecord], kept: int) -> Packed:
        contents, first = self._contents, self._contents.first
        kind, label = first.kind, first.label
        if kind == "files":
            kind, labelled, table = shard_writer.classified(records)
            label = "int" if labelled else None
        else:
            kind, table = "pixels" if self._encoding.decoded else kind, shard_writer.joined(records)
        place = self._place
        with full_disk_named(place.disk, lambda: 2 * sum(record.rows.nbytes for record in records)):
            split = shard_writer.write_index(
                place, records, kind, table, contents.ids, label=label, texts=contents.texts,
                label_suffix=shard_writer.label_file(contents, 0)[0] if plan.labelled else None,
                pair=first.pair if first.kind != "files" else label is not None, classes=first.classes,
                source=plan.source, options=plan.options,
            )  # fmt: skip
            if self._states:
                split = replace(split, states=self._write_states(split))
            shard_writer.write_description(place, split)
        places.remove_unfinished(place)
        return Packed.of(place, split, kept)

    def _write_states(self, split: Split) -> Column | None:
        """Write the decoder states of all photos; the same photos give the same bytes. Raises OSError.

        None: no photo has any, and nothing is written.
        """
        out, size = self._place.path, split.samples
        slot = Photos(size, (), packed_bytes=sum(shard.bytes for shard in split.shards) / size).slot_bytes(1 << 62)
        if not slot:
            return None
        files = [(os.path.join(out, shard.name), shard.bytes) for shard in split.shards]
        table = Index(out, split).table(files, verify=False)
        path = os.path.join(out, f"{self._split}.states")
        with suppress(_NoStates), durably(path, os.path.join(out, unfinished(self._split, "states.partial"))) as file:
            index = _native.JpegIndex(file.fileno(), size, slot, True)

            def work(begin: int) -> None:
                index.index_files(table, begin, min(begin + _CALL, size))

            with ThreadPoolExecutor(usable_cpus(), "penstock-pack") as pool:
                list(pool.map(work, range(0, size, _CALL)))
            known, _, _, _, error = index.counts()
            if error:
                raise OSError(error, os.strerror(error), path)
            if not known:
                raise _NoStates
        return column_of(path) if known else None


class _NoStates(Exception):
    """No photo has decoder states: the file is dropped."""
