"""A StopIteration of a user's function is an error, as in Python's generators; torch's loader ends the epoch there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from torchvision import datasets, transforms

import penstock
from tests.carriers_under_test import PYTHON
from tests.data import Made, Whole, photo_files
from tests.values import flat

ROUTES = {name: executor.options for name, executor in PYTHON.items() if "out of order" not in name}
ROUTES["auto"] = {"num_workers": 1, "worker_method": "auto"}
OURS: Any = penstock.DataLoader


def ends_at_five(index: int) -> int:
    if index == 5:
        next(iter(()))
    return index


def collate(samples: Any) -> Any:
    return torch.tensor([ends_at_five(int(sample)) for sample in samples])


class Ending(Whole):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(torch.tensor([ends_at_five(index) for index in indices]))


CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "__getitem__": (lambda: Made(ends_at_five, 8), {}, "in __getitem__ of sample 5"),
    "__getitems__": (lambda: Ending(int, 8), {}, r"in a batch of samples \[4, 5\]"),
    "collate_fn": (lambda: Made(int, 8), {"collate_fn": collate}, r"in a batch of samples \[4, 5\]"),
}


@pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("case", CASES)
def test_the_epoch_has_an_error_that_names_the_sample(case: str, options: dict[str, Any]) -> None:
    make, given, place = CASES[case]
    loader = OURS(make(), batch_size=2, **given, **options)
    batches = iter(loader)
    assert flat([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=f"StopIteration was raised {place}") as caught:
        next(batches)
    if "Caught" in str(caught.value):  # by a worker process, which sends text
        assert "direct cause" in str(caught.value)
    else:
        assert isinstance(caught.value.__cause__, StopIteration)
    assert flat(batches) == [6, 7] and loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_one_sample_at_a_time(workers: int) -> None:
    batches = iter(OURS(Made(ends_at_five, 8), batch_size=None, num_workers=workers))
    with pytest.raises(RuntimeError, match="StopIteration was raised in __getitem__ of sample 5"):
        flat(batches)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fails", ["transform", "target_transform"])
def test_transforms_of_a_folder(tmp_path: Path, workers: int, fails: str) -> None:
    photo_files(tmp_path / "class", 2)
    given = {"transform": transforms.ToTensor(), fails: lambda _: next(iter(()))}
    with pytest.raises(RuntimeError, match=r"StopIteration was raised in (__getitem__ of sample 0|a batch of samples)"):
        next(iter(OURS(datasets.ImageFolder(tmp_path, **given), num_workers=workers)))


@pytest.mark.parametrize("method", ["process", "thread"])
def test_worker_init_fn(method: str) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iter(OURS(Made(), num_workers=1, worker_method=method, worker_init_fn=lambda _: next(iter(())))))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset_ends_and_its_collate_fn_does_not_end_it(workers: int) -> None:
    assert flat(OURS(Stream(), batch_size=3, num_workers=workers)) == list(range(8))
    batches = iter(OURS(Stream(), batch_size=2, num_workers=workers, collate_fn=collate))
    assert flat([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="StopIteration was raised in collate_fn"):
        next(batches)
