"""Packing loose files into shards: penstock.pack beside WebDataset's ShardWriter and LitData's optimize."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import photos, tensor_files
from benchmarks.cold import timed
from benchmarks.question import Contestant, Options, Question, Role, Running, Setup, Table, Target

_SHARD = 64 << 20


def prepare(options: Options) -> Setup:
    """The files of `tensor_files` and `photos`; each round packs them into a new folder, which it removes first."""
    loose, images = tensor_files.prepare(options), photos.prepare(options)
    facts = {**loose.facts, **images.facts, "shard_mib": _SHARD >> 20, "loose_photos": images.data}
    return replace(loose, facts=facts)


def files_of(setup: Setup) -> list[tuple[str, str, int]]:
    """The path, the key and the label of each file, in order."""
    if setup.variant == "photos":
        root = Path(setup.facts["loose_photos"])
        found = sorted(root.rglob("*.jpg"))
        classes = sorted({path.parent for path in found})
        return [(str(path), str(path.relative_to(root))[:-4], classes.index(path.parent)) for path in found]
    labels = tensor_files.labels(setup.samples)
    return [(str(setup.path("pt", f"{name}.pt")), name, labels[name]) for name in tensor_files.ids(setup.samples)]


def packing(setup: Setup, pack: Callable[[str], int]) -> Running:
    """Epochs that pack into a folder, which is removed before; what others have written is on the disk by then."""
    out = setup.path().parent / f"packed-{setup.variant}-{pack.__qualname__.partition('.')[0]}"

    def epoch() -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()  # else who syncs waits for what others have left to be written
        return timed(partial(pack, str(out)))

    return Running(epoch)


def penstock_pack(setup: Setup) -> Running:
    """penstock.pack, 2 threads; every shard is synced to the disk before it gets its name, and has its checksums."""
    import penstock

    def pack(out: str) -> int:
        # The folder is listed anew in each round, as in a process of its own.
        if setup.variant == "photos":
            dataset: Any = penstock.ImageFolder(setup.facts["loose_photos"])
        else:
            dataset = tensor_files.folder_of("pt", setup)
        return penstock.pack(dataset, out, shard_size=_SHARD, workers=setup.workers).samples

    pack.__qualname__ = "penstock_pack"
    return packing(setup, pack)


def shard_writer(setup: Setup) -> Running:
    """WebDataset's ShardWriter, one process as it is used: key, bytes of the file, class. Nothing is synced."""
    import webdataset

    files = files_of(setup)
    suffix = "jpg" if setup.variant == "photos" else "pt"

    def pack(out: str) -> int:
        Path(out).mkdir()
        with webdataset.ShardWriter(f"{out}/data-%06d.tar", maxsize=_SHARD, maxcount=10**9, verbose=0) as writer:
            for path, key, label in files:
                writer.write({"__key__": key, suffix: Path(path).read_bytes(), "cls": label})
        return len(files)

    pack.__qualname__ = "shard_writer"
    return packing(setup, pack)


def _read(item: tuple[str, str, int]) -> tuple[bytes, int]:
    """What LitData packs of a file; a function of the module, for its worker processes."""
    return Path(item[0]).read_bytes(), item[2]


def litdata(setup: Setup) -> Running:
    """LitData's optimize, 2 worker processes: the bytes of the file, and the class. Nothing is synced."""
    from litdata import optimize

    files = files_of(setup)

    def pack(out: str) -> int:
        optimize(fn=_read, inputs=files, output_dir=out, chunk_bytes=_SHARD, num_workers=setup.workers, verbose=False)
        return len(files)

    pack.__qualname__ = "litdata"
    return packing(setup, pack)


def bare_copy(setup: Setup) -> Running:
    """One loop of read() and write() of all files into one, in one thread; no headers, no index, nothing is synced."""
    files = [path for path, _, _ in files_of(setup)]

    def pack(out: str) -> int:
        Path(out).mkdir()
        with open(f"{out}/all", "wb", buffering=0) as whole:
            for path in files:
                with open(path, "rb", buffering=0) as file:
                    whole.write(file.read())
        return len(files)

    pack.__qualname__ = "bare_copy"
    return packing(setup, pack)


CONTESTANTS = (
    Contestant("penstock", Role.PENSTOCK, penstock_pack),
    Contestant("bare", Role.BARE, bare_copy),
    Contestant("WebDataset ShardWriter", Role.PEER, shard_writer, peers=("webdataset",)),
    Contestant("LitData optimize", Role.PEER, litdata, peers=("litdata",)),
)
TARGETS = (Target("penstock", 5, "WebDataset ShardWriter"), Target("penstock", 5, "LitData optimize"))
QUESTION = Question(
    "pack",
    "Packing loose files into shards",
    (
        Table("tensors", "ID.pt of 3x64x64 float32 into shards of 64 MiB, warm page cache", CONTESTANTS, TARGETS),
        Table("photos", "photos into shards of 64 MiB, warm page cache", CONTESTANTS, TARGETS),
    ),
    prepare,
)
