"""One `ID.pt` per sample, as the tutorials write them: 8,000 of 3x64x64 float32, batches of 64, shuffled."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import bare
from benchmarks.contestants import Tutorial, dali_epochs, epochs_of, over, penstock_loader, spdl_epochs, torch_loader
from benchmarks.question import Contestant, Options, Question, Role, Running, Setup, Table, Target, made

SHAPE = (3, 64, 64)


def prepare(options: Options) -> Setup:
    """pt/ID.pt as torch.save writes it, npy/ID.npy with the same samples, array.npy with all of them, labels.npy."""
    samples = 512 if options.quick else 8_000
    folder = made(options.cache / f"tensor_files-{samples}", partial(write, samples=samples))
    facts = {"shape": SHAPE, "dtype": "float32", "mb": round(samples * 49_152 / 1e6), "made": "normal random numbers"}
    return Setup(str(folder), samples, facts=facts)


def write(folder: Path, samples: int) -> None:
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


def labels(samples: int) -> dict[str, int]:
    return {name: i % 10 for i, name in enumerate(ids(samples))}


def tutorial(setup: Setup) -> Any:
    return Tutorial(setup.path("pt"), ids(setup.samples), labels(setup.samples))


def folder_of(kind: str, setup: Setup) -> Any:
    import penstock

    names, classes = ids(setup.samples), labels(setup.samples)
    return penstock.TensorFolder(str(setup.path(kind)), ids=names, labels=classes, suffix=f".{kind}")


def bare_loop(setup: Setup) -> Running:
    """C++: openat, pread at an offset known beforehand, close; no labels, no hand-over."""
    offsets = np.zeros(setup.samples, np.int64)
    for i, name in enumerate(ids(setup.samples)):
        path = setup.path("pt", f"{name}.pt")
        with zipfile.ZipFile(path) as archive:
            header = next(info for info in archive.infolist() if info.filename.endswith("/data/0")).header_offset
        with path.open("rb") as file:
            file.seek(header + 26)  # a zip local header: 30 bytes, the lengths of name and extra field at 26 and 28
            lengths = file.read(4)
        offsets[i] = header + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    names = bare.names([f"{name}.pt" for name in ids(setup.samples)])
    row_bytes = 4 * SHAPE[0] * SHAPE[1] * SHAPE[2]
    folder = str(setup.path("pt")).encode()
    return bare.loop(setup, "tensor_files.cc", "tensor_files", folder, *names, offsets, row_bytes)


def dali(setup: Setup) -> Running:
    """DALI's numpy reader on the CPU (its default reader thread and prefetching) on ID.npy files, shuffled; no labels;
    batches are looked at where DALI has them, without a copy to torch."""
    from nvidia.dali import fn

    files = [f"{name}.npy" for name in ids(setup.samples)]
    read = partial(fn.readers.numpy, file_root=str(setup.path("npy")), files=files, shuffle_after_epoch=True)
    return dali_epochs(setup, lambda: [read()])


def spdl(setup: Setup) -> Running:
    """SPDL's Pipeline: one task per batch reads and stacks ID.npy files (spdl.io.load_npy), 2 threads."""
    import spdl.io

    names = [str(setup.path("npy", f"{name}.npy")) for name in ids(setup.samples)]

    def load(rows: Any) -> tuple[Any, Any]:
        out = np.empty((len(rows), *SHAPE), np.float32)
        for place, row in enumerate(rows):
            with open(names[row], "rb") as file:
                out[place] = spdl.io.load_npy(file.read())
        return out, rows % 10

    return spdl_epochs(setup, load)


def grain(setup: Setup) -> Running:
    """Grain's MapDataset: shuffle, numpy.load of ID.npy, 2 reading threads, then batch."""
    import grain

    folder = str(setup.path("npy"))
    options = grain.ReadOptions(num_threads=setup.workers, prefetch_buffer_size=4 * setup.batch)
    rows = grain.MapDataset.range(setup.samples).seed(0).shuffle()
    samples = rows.map(lambda index: (np.load(f"{folder}/id-{index}.npy"), index % 10))
    return over(samples.to_iter_dataset(options).batch(setup.batch))


TORCH = "torch's DataLoader with the tutorial's parameters over its Dataset: worker processes start each epoch."
PERSISTENT = "The same with persistent_workers=True, which the tutorial does not have; aside, as it is no peer."
PT = "penstock.DataLoader over penstock.TensorFolder on the same ID.pt files."
NPY = "penstock.DataLoader over penstock.TensorFolder on ID.npy files."
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, tutorial, persistent_workers=False), TORCH),
    Contestant("torch, persistent", Role.ASIDE, epochs_of(torch_loader, tutorial), PERSISTENT, ("torch",)),
    Contestant("penstock", Role.PENSTOCK, epochs_of(penstock_loader, partial(folder_of, "pt"), seed=0), PT),
    Contestant("penstock .npy", Role.PENSTOCK, epochs_of(penstock_loader, partial(folder_of, "npy"), seed=0), NPY),
    Contestant("bare", Role.BARE, bare_loop),
    Contestant("DALI .npy", Role.PEER, dali, peers=("nvidia-dali-cuda130",)),
    Contestant("SPDL .npy", Role.PEER, spdl, peers=("spdl", "spdl_io")),
    Contestant("Grain .npy", Role.PEER, grain, peers=("grain",)),
)
TARGETS = (
    Target("penstock", 25, "torch"),
    Target("penstock", 0.7, "bare"),
    Target("penstock", 4, "DALI .npy"),
    Target("penstock .npy", 4, "DALI .npy"),
)
TITLE = "ID.pt of 3x64x64 float32, batch 64, shuffled, 2 workers or threads"
QUESTION = Question(
    "tensor_files", "One tensor file per sample", (Table("files", TITLE, CONTESTANTS, TARGETS),), prepare
)
