"""The samples of tensor_files.py as one memory-mapped .npy: 8,000 of 3x64x64 float32, batches of 64, shuffled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.utils.data

from benchmarks import bare, tensor_files
from benchmarks.contestants import epochs_of, ffcv_epochs, penstock_loader, torch_loader
from benchmarks.question import Contestant, Question, Role, Running, Setup, Table, Target


def mapped(setup: Setup) -> Any:
    """The memory-mapped images, and the labels."""
    return np.load(setup.path("array.npy"), mmap_mode="c"), np.load(setup.path("labels.npy"))


def tensors(setup: Setup) -> Any:
    return torch.utils.data.TensorDataset(*map(torch.from_numpy, mapped(setup)))


def arrays(setup: Setup) -> Any:
    import penstock

    return penstock.Arrays(str(setup.path("array.npy")), str(setup.path("labels.npy")))


def bare_gather(setup: Setup) -> Running:
    """C++: memcpy of each row from the mapped array into recycled batch buffers; no labels, no hand-over."""
    images, _ = mapped(setup)
    return bare.loop(setup, "arrays.cc", "gather", images, images[0].nbytes)


def ffcv(setup: Setup) -> Running:
    """FFCV's packed file (NDArrayField and IntField), OrderOption.RANDOM, os_cache, its batches_ahead of 3."""
    from ffcv.fields import NDArrayField
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.transforms import ToTensor

    images, labels = mapped(setup)
    field = NDArrayField(shape=tensor_files.SHAPE, dtype=np.dtype("float32"))
    pipeline = [NDArrayDecoder(), ToTensor()]
    name = f"arrays-{setup.samples}"
    return ffcv_epochs(setup, name, field, lambda i: (np.asarray(images[i]), int(labels[i])), pipeline)


TORCH = """torch.utils.data.DataLoader over a TensorDataset on the memory-mapped array; worker processes kept between
    epochs."""
NO_WORKERS = "The same with num_workers=0: no processes, often faster for arrays."
ARRAYS = "penstock.DataLoader over penstock.Arrays on the two .npy paths."
TENSORS = "penstock.DataLoader over torch's TensorDataset, unmodified."
CONTESTANTS = (
    Contestant("torch", Role.TORCH, epochs_of(torch_loader, tensors), TORCH),
    Contestant("torch, 0 workers", Role.ASIDE, epochs_of(torch_loader, tensors, num_workers=0), NO_WORKERS, ("torch",)),
    Contestant("penstock", Role.PENSTOCK, epochs_of(penstock_loader, arrays, seed=0), ARRAYS),
    Contestant("penstock on TensorDataset", Role.PENSTOCK, epochs_of(penstock_loader, tensors, seed=0), TENSORS),
    Contestant("bare", Role.BARE, bare_gather),
    Contestant("FFCV packed", Role.PEER, ffcv, peers=("ffcv", "numba")),
)
TITLE = "one .npy of 3x64x64 float32 rows, batch 64, shuffled, 2 workers or threads"
TABLES = (Table("mapped", TITLE, CONTESTANTS, (Target("penstock", 1, "FFCV packed"),)),)
QUESTION = Question("arrays", "Samples as rows of one array", TABLES, tensor_files.prepare)
