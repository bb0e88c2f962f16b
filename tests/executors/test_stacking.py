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


def stack(batch, *more, **named):
    return torch.stack([image for image, _ in batch], *more, **named)


def as_dictionary(batch):
    pictures, labels = zip(*batch, strict=True)
    return {"pixel_values": torch.stack(pictures, dim=0), "labels": torch.as_tensor(labels)}


def looking(batch):
    shapes = [(image.shape, image.dtype, image.device, image.dim(), len(image)) for image, _ in batch]
    assert len(set(shapes)) == 1
    return torch.stack([image for image, _ in batch])


def told(batch):
    pictures = stack(batch)
    return pictures, pictures.is_shared(), pictures.is_contiguous(), pictures.requires_grad, get_worker_info() is None


# ---- functions that could tell ----


def writing_to_the_batch(batch):
    pictures = stack(batch)
    pictures.mul_(0.5)
    return pictures, batch[0][0].clone()


def writing_to_a_view(batch):
    pictures = stack(batch)
    pictures[1:3, 0] = 7
    pictures.transpose(0, 1).select(0, 1).zero_()
    return pictures, [image for image, _ in batch]


def writing_by_numpy(batch):
    pictures = stack(batch)
    pictures.numpy()[...] = 3
    np.asarray(pictures)[0] = 4
    return pictures, batch[1][0]


def writing_to_a_sample(batch):
    pictures = stack(batch)
    batch[0][0].zero_()
    batch[1][0].numpy()[...] = 5
    return pictures, batch[0][0], batch[1][0]


def writing_before(batch):
    seen = batch[2][0].numpy()
    batch[0][0].zero_()
    pictures = stack(batch)
    seen[...] = 1
    return pictures, batch[2][0]


def out_of(batch):
    pictures = stack(batch)
    torch.add(batch[0][0], 1, out=pictures[0])
    return pictures, batch[0][0]


def into_another(batch):
    out = torch.empty((len(batch), *batch[0][0].shape))
    return stack(batch, out=out), out is None


def twice(batch):
    one, other = stack(batch), stack(batch)
    one.zero_()
    return one, other


def keeping_a_tuple(batch):
    KEPT.append(batch[3])
    return stack(batch), stack(KEPT[-2:])


def in_inference_mode(batch):
    with torch.inference_mode():
        pictures = stack(batch)
    return pictures.is_inference(), pictures.clone()


FUNCTIONS: dict[str, Any] = {
    "by name": lambda batch: torch.stack(tensors=[sample[0] for sample in batch]),
    "computing": lambda batch: [(made := stack(batch)).to(torch.float64), made.mean(dim=(2, 3)), made * 2],
    "reordered": lambda batch: stack(reversed(batch)),
    "part of it": lambda batch: stack(batch[1:]),
    "along another": lambda batch: (stack(batch, 1), stack(batch, -1)),
    "returning samples": lambda batch: (stack(batch), [image for image, _ in batch]),
    "by default": lambda batch: (default_collate([image for image, _ in batch]), [label for _, label in batch]),
}
for _one in (
    *(stacked, as_dictionary, looking, told, writing_to_the_batch, writing_to_a_view, writing_by_numpy),
    *(writing_to_a_sample, writing_before, out_of, into_another, twice, keeping_a_tuple, in_inference_mode),
):
    FUNCTIONS[_one.__name__.replace("_", " ")] = _one


@METHODS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_are_torchs(folder, workers, method, name):
    function = FUNCTIONS[name]
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


@pytest.mark.parametrize("name", ["stacked", "as dictionary", "by name", "looking", "twice"])
@pytest.mark.parametrize("given", [[0, 1, 2, 5], [3], [2, 2, 2]])
def test_a_stack_of_all_samples_is_no_copy(folder, name, given):
    rows, batch, fetch = addresses(folder, FUNCTIONS[name], given)
    assert rows == batch
    assert fetch.keeps_rows


@pytest.mark.parametrize("name", ["reordered", "along another", "into another", "writing before"])
def test_another_stack_is_one_of_its_own(folder, name):
    rows, batch, fetch = addresses(folder, FUNCTIONS[name], [0, 1, 2, 3])
    assert rows != batch
    assert not fetch.keeps_rows


def test_functions_that_never_stack_are_called_without_the_mode(folder):
    fetch = fetch_of(folder, FUNCTIONS["reordered"])
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
        return stack(batch)

    check(images(folder), workers=0, collate_fn=collate)


def test_an_error_leaves_the_samples_as_they_are(folder):
    kept: list[Any] = []

    def collate(batch):
        pictures = stack(batch)
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
