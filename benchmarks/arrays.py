"""The samples of tensor_files.py as one memory-mapped .npy: 8,000 of 3x64x64 float32, batches of 64, shuffled."""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
from typing import Any

from benchmarks import bare, tensor_files
from benchmarks.contestants import ffcv_epochs
from benchmarks.harness import Contestant, Question, Role, Running, Setup, Table, Target, over
from benchmarks.tensor_files import SHAPE


def tensors(setup: Setup) -> Any:
    """The memory-mapped array and its labels as a torch TensorDataset."""
    import numpy as np
    import torch

    images = np.load(setup.path("array.npy"), mmap_mode="c")
    labels = np.load(setup.path("labels.npy"))
    return torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


def torch_loader(setup: Setup) -> Running:
    """torch.utils.data.DataLoader over a TensorDataset on the memory-mapped array; worker processes kept between
    epochs."""
    import torch

    return over(
        torch.utils.data.DataLoader(
            tensors(setup), batch_size=setup.batch, shuffle=True, num_workers=setup.workers, persistent_workers=True
        )
    )


def torch_in_process(setup: Setup) -> Running:
    """The same with num_workers=0: no processes, often faster for arrays."""
    import torch

    return over(torch.utils.data.DataLoader(tensors(setup), batch_size=setup.batch, shuffle=True, num_workers=0))


def penstock_arrays(setup: Setup) -> Running:
    """penstock.DataLoader over penstock.Arrays on the two .npy paths."""
    import penstock

    dataset = penstock.Arrays(str(setup.path("array.npy")), str(setup.path("labels.npy")))
    return over(penstock.DataLoader(dataset, batch_size=setup.batch, shuffle=True, num_workers=setup.workers, seed=0))


def penstock_tensor_dataset(setup: Setup) -> Running:
    """penstock.DataLoader over torch's TensorDataset, unmodified."""
    import penstock

    return over(
        penstock.DataLoader(tensors(setup), batch_size=setup.batch, shuffle=True, num_workers=setup.workers, seed=0)
    )


def bare_gather(setup: Setup) -> Running:
    """C++: memcpy of each row from the mapped array into recycled batch buffers; no labels, no hand-over."""
    import numpy as np

    images = np.load(setup.path("array.npy"), mmap_mode="r")
    loop = bare.library("arrays.cc", setup.path().parent).gather

    def epoch() -> int:
        order = np.random.permutation(setup.samples)
        return bare.call(
            loop, bare.pointer(images), bare.pointer(order), setup.samples, setup.batch, images[0].nbytes, setup.workers
        )

    return Running(epoch)


def ffcv(setup: Setup) -> Running:
    """FFCV's packed file (NDArrayField and IntField), OrderOption.RANDOM, os_cache, its batches_ahead of 3."""
    import numpy as np
    from ffcv.fields import IntField, NDArrayField
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.transforms import ToTensor
    from ffcv.writer import DatasetWriter

    packed = setup.path().parent / f"arrays-{setup.samples}.beton"
    if not packed.exists():
        images, labels = np.load(setup.path("array.npy"), mmap_mode="r"), np.load(setup.path("labels.npy"))

        class Samples:
            def __len__(self) -> int:
                return len(images)

            def __getitem__(self, index: int) -> tuple[Any, int]:
                return np.asarray(images[index]), int(labels[index])

        unfinished = f"{packed}.{os.getpid()}"
        fields = {"x": NDArrayField(shape=SHAPE, dtype=np.dtype("float32")), "y": IntField()}
        DatasetWriter(unfinished, fields, num_workers=1).from_indexed_dataset(Samples())
        os.rename(unfinished, packed)
    return ffcv_epochs(packed, [NDArrayDecoder(), ToTensor()], setup)


QUESTION = Question(
    "arrays",
    "Samples as rows of one array",
    (
        Table(
            "mapped",
            "one .npy of 3x64x64 float32 rows, batch 64, shuffled, 2 workers or threads",
            (
                Contestant("torch", Role.TORCH, torch_loader, ("torch",)),
                Contestant("torch, 0 workers", Role.ASIDE, torch_in_process, ("torch",)),
                Contestant("penstock", Role.PENSTOCK, penstock_arrays, ("penstock",)),
                Contestant("penstock on TensorDataset", Role.PENSTOCK, penstock_tensor_dataset, ("penstock",)),
                Contestant("bare", Role.BARE, bare_gather),
                Contestant("FFCV packed", Role.PEER, ffcv, ("ffcv", "numba"), peers_venv=True),
            ),
            (Target("penstock", 1, "FFCV packed"),),
        ),
    ),
    tensor_files.prepare,
)
