"""One `ID.pt` per sample, as the tutorials write them: 8,000 of 3x64x64 float32, batches of 64, shuffled."""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import bare
from benchmarks.contestants import dali_epochs, tutorial_dataset
from benchmarks.harness import Contestant, Options, Question, Role, Running, Setup, Table, Target, made, over

SHAPE = (3, 64, 64)


def prepare(options: Options) -> Setup:
    """pt/ID.pt as torch.save writes it, npy/ID.npy with the same samples, array.npy with all of them, labels.npy."""
    samples = 512 if options.quick else 8_000
    folder = made(options.cache / f"tensor_files-{samples}", lambda unfinished: write(unfinished, samples))
    facts = {"shape": SHAPE, "dtype": "float32", "mb": round(samples * 49_152 / 1e6), "made": "normal random numbers"}
    return Setup(str(folder), samples, facts=facts)


def write(folder: Path, samples: int) -> None:
    import numpy as np
    import torch

    random = np.random.default_rng(0)
    whole = np.lib.format.open_memmap(folder / "array.npy", "w+", np.float32, (samples, *SHAPE))
    for name in ("pt", "npy"):
        (folder / name).mkdir()
    for i, name in enumerate(ids(samples)):
        whole[i] = random.standard_normal(SHAPE, np.float32)
        torch.save(torch.from_numpy(whole[i].copy()), folder / "pt" / f"{name}.pt")
        np.save(folder / "npy" / f"{name}.npy", whole[i])
    whole.flush()
    np.save(folder / "labels.npy", np.arange(samples) % 10)


def ids(samples: int) -> list[str]:
    return [f"id-{i}" for i in range(samples)]


def torch_loader(setup: Setup) -> Running:
    """torch's DataLoader with the tutorial's parameters over its Dataset: worker processes start each epoch."""
    return tutorial(setup, persistent=False)


def torch_persistent(setup: Setup) -> Running:
    """The same with persistent_workers=True, which the tutorial does not have; aside, as it is no peer."""
    return tutorial(setup, persistent=True)


def tutorial(setup: Setup, persistent: bool) -> Running:
    import torch

    names = ids(setup.samples)
    dataset = tutorial_dataset(setup.path("pt"), names, {name: i % 10 for i, name in enumerate(names)})
    return over(
        torch.utils.data.DataLoader(
            dataset, batch_size=setup.batch, shuffle=True, num_workers=setup.workers, persistent_workers=persistent
        )
    )


def penstock_pt(setup: Setup) -> Running:
    """penstock.DataLoader over penstock.TensorFolder on the same ID.pt files."""
    return penstock_folder(setup, "pt")


def penstock_npy(setup: Setup) -> Running:
    """penstock.DataLoader over penstock.TensorFolder on ID.npy files."""
    return penstock_folder(setup, "npy")


def penstock_folder(setup: Setup, kind: str) -> Running:
    import penstock

    names = ids(setup.samples)
    labels = {name: i % 10 for i, name in enumerate(names)}
    dataset = penstock.TensorFolder(str(setup.path(kind)), ids=names, labels=labels, suffix=f".{kind}")
    return over(penstock.DataLoader(dataset, batch_size=setup.batch, shuffle=True, num_workers=setup.workers, seed=0))


def bare_loop(setup: Setup) -> Running:
    """C++: openat, pread at an offset known beforehand, close; no labels, no hand-over."""
    import zipfile

    import numpy as np

    offsets = np.zeros(setup.samples, np.int64)
    for i, name in enumerate(ids(setup.samples)):
        path = setup.path("pt", f"{name}.pt")
        with zipfile.ZipFile(path) as archive:
            header = next(info for info in archive.infolist() if info.filename.endswith("/data/0")).header_offset
        with path.open("rb") as file:
            file.seek(header + 26)  # a zip local header: 30 bytes, the lengths of name and extra field at 26 and 28
            lengths = file.read(4)
        offsets[i] = header + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    loop = bare.library("tensor_files.cc", setup.path().parent).tensor_files
    names, stride = bare.names([f"{name}.pt" for name in ids(setup.samples)])
    folder = str(setup.path("pt")).encode()
    row_bytes = 4 * SHAPE[0] * SHAPE[1] * SHAPE[2]

    def epoch() -> int:
        order = np.random.permutation(setup.samples)
        return bare.call(
            loop,
            folder,
            names,
            stride,
            bare.pointer(offsets),
            bare.pointer(order),
            setup.samples,
            setup.batch,
            row_bytes,
            setup.workers,
        )

    return Running(epoch)


def dali(setup: Setup) -> Running:
    """DALI's numpy reader on the CPU (its default reader thread and prefetching) on ID.npy files, shuffled; no labels;
    batches are looked at where DALI has them, without a copy to torch."""
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(batch_size=setup.batch, num_threads=setup.workers, device_id=None)
    with pipeline:
        files = [f"{name}.npy" for name in ids(setup.samples)]
        pipeline.set_outputs(fn.readers.numpy(file_root=str(setup.path("npy")), files=files, shuffle_after_epoch=True))
    pipeline.build()

    return dali_epochs(pipeline, setup)


def spdl(setup: Setup) -> Running:
    """SPDL's Pipeline: one task per batch reads and stacks ID.npy files (spdl.io.load_npy), 2 threads."""
    import numpy as np
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    folder = str(setup.path("npy"))
    names = ids(setup.samples)
    batches = -(-setup.samples // setup.batch)

    def source() -> Iterator[Any]:
        while True:
            order = np.random.permutation(setup.samples)
            yield from (order[i * setup.batch : (i + 1) * setup.batch] for i in range(batches))

    def load(rows: Any) -> tuple[Any, Any]:
        out = np.empty((len(rows), *SHAPE), np.float32)
        for place, row in enumerate(rows):
            with open(f"{folder}/{names[row]}.npy", "rb") as file:
                out[place] = spdl.io.load_npy(file.read())
        return out, rows % 10

    pipeline = (
        PipelineBuilder()
        .add_source(source())
        .pipe(load, concurrency=setup.workers)
        .add_sink(4)
        .build(num_threads=setup.workers)
    )
    pipeline.start()

    def epoch() -> int:
        count = 0
        for _ in range(batches):
            x, y = pipeline.get_item()
            x[0, 0, 0, 0].item()
            count += len(y)
        return count

    return Running(epoch)


def grain(setup: Setup) -> Running:
    """Grain's MapDataset: shuffle, numpy.load of ID.npy, 2 reading threads, then batch."""
    import grain
    import numpy as np

    folder = str(setup.path("npy"))

    def load(index: int) -> tuple[Any, int]:
        return np.load(f"{folder}/id-{index}.npy"), index % 10

    options = grain.ReadOptions(num_threads=setup.workers, prefetch_buffer_size=4 * setup.batch)
    rows = grain.MapDataset.range(setup.samples).seed(0).shuffle().map(load)
    dataset = rows.to_iter_dataset(options).batch(setup.batch)

    def epoch() -> int:
        count = 0
        for x, y in dataset:
            x[0, 0, 0, 0].item()
            count += len(y)
        return count

    return Running(epoch)


QUESTION = Question(
    "tensor_files",
    "One tensor file per sample",
    (
        Table(
            "files",
            "ID.pt of 3x64x64 float32, batch 64, shuffled, 2 workers or threads",
            (
                Contestant("torch", Role.TORCH, torch_loader, ("torch",)),
                Contestant("torch, persistent", Role.ASIDE, torch_persistent, ("torch",)),
                Contestant("penstock", Role.PENSTOCK, penstock_pt, ("penstock",)),
                Contestant("penstock .npy", Role.PENSTOCK, penstock_npy, ("penstock",)),
                Contestant("bare", Role.BARE, bare_loop),
                Contestant("DALI .npy", Role.PEER, dali, ("nvidia-dali-cuda130",), peers_venv=True),
                Contestant("SPDL .npy", Role.PEER, spdl, ("spdl", "spdl_io"), peers_venv=True),
                Contestant("Grain .npy", Role.PEER, grain, ("grain",), peers_venv=True),
            ),
            (
                Target("penstock", 25, "torch"),
                Target("penstock", 0.7, "bare"),
                Target("penstock", 4, "DALI .npy"),
                Target("penstock .npy", 4, "DALI .npy"),
            ),
        ),
    ),
    prepare,
)
