"""Collate functions that stack the samples of a filled batch: no copy is made, and nobody can tell."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, get_worker_info

import penstock
from penstock.executors.fetch import Fetch
from penstock.executors.filling import Filling
from penstock.plan import Kept
from penstock.state.delivery import Task
from tests.filled_batches import METHODS, batches, check, images, stacked
from tests.same import assert_same

pytestmark = pytest.mark.native

KEPT: list[Any] = []


# ---- functions that stack, and leave the samples alone ----


def as_dictionary(batch):
    pictures, labels = zip(*batch, strict=True)
    return {"pixel_values": torch.stack(pictures, dim=0), "labels": torch.as_tensor(labels)}


def by_name(batch):
    return torch.stack(tensors=[sample[0] for sample in batch])


def looking(batch):
    shapes = [(image.shape, image.dtype, image.device, image.dim(), len(image)) for image, _ in batch]
    assert len(set(shapes)) == 1
    return torch.stack([image for image, _ in batch])


def computing(batch):
    pictures = torch.stack([image for image, _ in batch])
    return pictures.to(torch.float64), pictures.mean(dim=(2, 3)), pictures * 2


def told(batch):
    pictures = torch.stack([image for image, _ in batch])
    return pictures, pictures.is_shared(), pictures.is_contiguous(), pictures.requires_grad, get_worker_info() is None


# ---- functions that could tell ----


def writing_to_the_batch(batch):
    pictures = torch.stack([image for image, _ in batch])
    pictures.mul_(0.5)
    return pictures, batch[0][0].clone()


def writing_to_a_view(batch):
    pictures = torch.stack([image for image, _ in batch])
    pictures[1:3, 0] = 7
    pictures.transpose(0, 1).select(0, 1).zero_()
    return pictures, [image for image, _ in batch]


def writing_by_numpy(batch):
    pictures = torch.stack([image for image, _ in batch])
    pictures.numpy()[...] = 3
    np.asarray(pictures)[0] = 4
    return pictures, batch[1][0]


def writing_to_a_sample(batch):
    pictures = torch.stack([image for image, _ in batch])
    batch[0][0].zero_()
    batch[1][0].numpy()[...] = 5
    return pictures, batch[0][0], batch[1][0]


def writing_before(batch):
    seen = batch[2][0].numpy()
    batch[0][0].zero_()
    pictures = torch.stack([image for image, _ in batch])
    seen[...] = 1
    return pictures, batch[2][0]


def out_of(batch):
    pictures = torch.stack([image for image, _ in batch])
    torch.add(batch[0][0], 1, out=pictures[0])
    return pictures, batch[0][0]


def reordered(batch):
    return torch.stack([image for image, _ in reversed(batch)])


def part_of_it(batch):
    return torch.stack([image for image, _ in batch[1:]])


def along_another(batch):
    return torch.stack([image for image, _ in batch], 1), torch.stack([image for image, _ in batch], -1)


def into_another(batch):
    out = torch.empty((len(batch), *batch[0][0].shape))
    return torch.stack([image for image, _ in batch], out=out), out is None


def twice(batch):
    one, other = (torch.stack([image for image, _ in batch]) for _ in range(2))
    one.zero_()
    return one, other


def returning_samples(batch):
    return torch.stack([image for image, _ in batch]), [image for image, _ in batch]


def keeping_a_tuple(batch):
    KEPT.append(batch[3])
    return torch.stack([image for image, _ in batch]), torch.stack([image for image, _ in KEPT[-2:]])


def by_default(batch):
    return default_collate([image for image, _ in batch]), [label for _, label in batch]


def in_inference_mode(batch):
    with torch.inference_mode():
        pictures = torch.stack([image for image, _ in batch])
    return pictures.is_inference(), pictures.clone()


FUNCTIONS = [
    *(stacked, as_dictionary, by_name, looking, computing, told, writing_to_the_batch, writing_to_a_view),
    *(writing_by_numpy, writing_to_a_sample, writing_before, out_of, reordered, part_of_it, along_another),
    *(into_another, twice, returning_samples, keeping_a_tuple, by_default, in_inference_mode),
]


@METHODS
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_batches_are_torchs(folder, workers, method, function):
    if function is keeping_a_tuple and method == "thread":
        pytest.skip("threads share what the module keeps, worker processes do not")
    KEPT.clear()
    loader = penstock.DataLoader(
        images(folder), batch_size=8, num_workers=workers, worker_method=method, collate_fn=function
    )
    assert "in one piece" in loader.explain()
    ours = batches(penstock.DataLoader, images(folder), num_workers=workers, worker_method=method, collate_fn=function)
    KEPT.clear()
    theirs = batches(torch.utils.data.DataLoader, images(folder), num_workers=workers, collate_fn=function)
    assert_same(ours, theirs)


# ---- where the batch lies ----


def fetch_of(folder: Path, function: Any) -> Fetch:
    dataset = images(folder)
    return Fetch(
        dataset, batched=True, collate_fn=function, filling=Filling(dataset, Kept(), unseen=False), composes=False
    )


def addresses(folder: Path, function: Any, given: list[int]) -> tuple[int, int, Fetch]:
    """Return where the rows of a batch were filled, where the batch lies, and what made it."""
    fetch = fetch_of(folder, function)
    task = Task(given, 0, 0, range(len(given)))
    filled = fetch.fill(task)
    assert filled is not None
    batch = fetch.collate_filled(task, filled)
    first = next(iter(batch.values())) if isinstance(batch, dict) else batch if torch.is_tensor(batch) else batch[0]
    return filled.rows[0].data_ptr(), first.data_ptr(), fetch


@pytest.mark.parametrize("function", [stacked, as_dictionary, by_name, looking, twice])
@pytest.mark.parametrize("given", [[0, 1, 2, 5], [3], [2, 2, 2]])
def test_a_stack_of_all_samples_is_no_copy(folder, function, given):
    rows, batch, fetch = addresses(folder, function, given)
    assert rows == batch
    assert fetch.keeps_rows


@pytest.mark.parametrize("function", [reordered, along_another, into_another, writing_before])
def test_another_stack_is_one_of_its_own(folder, function):
    rows, batch, fetch = addresses(folder, function, [0, 1, 2, 3])
    assert rows != batch
    assert not fetch.keeps_rows


def test_functions_that_never_stack_are_called_without_the_mode(folder):
    fetch = fetch_of(folder, reordered)
    modes = []

    def depth(batch):
        modes.append(torch._C._len_torch_function_stack())
        return len(batch)

    fetch.collate_fn = depth
    for _ in range(5):
        fetch.load(Task([0, 1], 0, 0, range(2)))
    assert modes == [1, 1, 1, 0, 0]


def test_samples_that_another_thread_writes_before_they_are_stacked(folder):
    def collate(batch):
        thread = threading.Thread(target=lambda: batch[1][0].fill_(2))
        thread.start()
        thread.join()
        return torch.stack([image for image, _ in batch])

    check(images(folder), workers=0, collate_fn=collate)


def test_an_error_leaves_the_samples_as_they_are(folder):
    kept: list[Any] = []

    def collate(batch):
        pictures = torch.stack([image for image, _ in batch])
        kept.append((pictures, batch))
        raise KeyError("mine")

    loader = penstock.DataLoader(images(folder), batch_size=4, collate_fn=collate, num_workers=0)
    with pytest.raises(KeyError, match="mine"):
        next(iter(loader))
    pictures, batch = kept[0]
    before = batch[0][0].clone()
    pictures.zero_()
    assert torch.equal(batch[0][0], before)
    assert before.any()
