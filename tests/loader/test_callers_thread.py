"""A pass in the caller's thread is torch's to whoever looks: attributes, draws, calls of the sampler, warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data as tud
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import penstock
from tests.data import Made, rows
from tests.same import assert_same

#: What programs read of torch's iterators: values, and those of which the type counts.
VALUES = """_shared_seed _pg _dataset_kind _IterableDataset_len_called _auto_collation _drop_last _num_workers
_world_size _rank _pin_memory _pin_memory_device _timeout _base_seed _persistent_workers _num_yielded _profile_name"""
OBJECTS = "_dataset _index_sampler _collate_fn _dataset_fetcher"


class Counting(tud.Sampler[Any]):
    """Batches that are drawn from torch's global generator by an iterator that is begun each time it is asked for."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def __iter__(self) -> Iterator[list[int]]:
        self.begun.append(int(torch.randint(0, 1000, ())))
        self.left = 3
        return self

    def __next__(self) -> list[int]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return torch.randint(0, 10, (2,)).tolist()

    def __len__(self) -> int:
        return 3


class Stream(tud.IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))

    def __len__(self) -> int:
        return 2  # too few

    def __repr__(self) -> str:
        return "Stream"


CASES: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda kind: kind(Made(size=10), 3, shuffle=True, drop_last=True),
    "drawing": lambda kind: kind(Made(lambda index: torch.rand(2), 10), 3, shuffle=True),
    "rows": lambda kind: kind(rows(10), 3, shuffle=True),
    "generator": lambda kind: kind(rows(10), 3, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "singles": lambda kind: kind(Made(size=5), None),
    "weighted": lambda kind: kind(Made(size=10), 3, sampler=tud.WeightedRandomSampler([1.0] * 10, 10)),
    "batch_sampler": lambda kind: kind(Made(size=10), batch_sampler=Counting()),
    "stream": lambda kind: kind(Stream(), 2),
    "stream of singles": lambda kind: kind(Stream(), None, collate_fn=str),
    "pipe": lambda kind: kind(IterableWrapper(range(10)).shuffle(), 3, shuffle=True),
    "map pipe": lambda kind: kind(SequenceWrapper([*range(10)]).shuffle(), 3),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*Data[Pp]ipe")
def test_a_pass_is_torchs_to_whoever_looks(case: str) -> None:
    def seen(kind: Any) -> list[Any]:
        torch.manual_seed(5)
        loader = CASES[case](kind)
        found: list[Any] = []
        if case.startswith("stream"):
            len(loader)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(2):
                batches: Any = iter(loader)
                assert isinstance(batches, tud.dataloader._BaseDataLoaderIter)
                found += [str(getattr(batches, name)) for name in VALUES.split()]
                found += [type(getattr(batches, name)).__name__ for name in OBJECTS.split()]
                found += [list(batches), batches._num_yielded]
        found += [sorted({str(one.message) for one in warned}), torch.rand(()).item()]
        return [*found, getattr(loader.batch_sampler, "begun", None)]

    assert_same(seen(penstock.DataLoader), seen(tud.DataLoader))


def test_the_profiler_has_torchs_name_for_next() -> None:
    def names(kind: Any) -> set[str]:
        batches = iter(kind(Made(size=4), 2, num_workers=0))
        with torch.autograd.profiler.profile() as profile:
            next(batches)
        return {event.key for event in profile.key_averages() if "DataLoader" in event.key}

    assert names(penstock.DataLoader) == names(tud.DataLoader) != set()


@pytest.mark.parametrize("costly", [False, True])
def test_calls_are_answered_whatever_other_loaders_of_the_class_showed(costly: bool, tmp_path: Any) -> None:
    path = tmp_path / "tensor.pt"
    torch.save(torch.arange(3), path)

    class Mixed(Made):
        pass

    for _ in range(3):  # its samples are light
        list(penstock.DataLoader(Mixed(size=8), 2, num_workers=0))
    loader: Any = penstock.DataLoader(Mixed(lambda index: torch.load(path) if costly else index, 8), 2, num_workers=0)
    for _ in range(2):
        batches = list(loader)
    answered = [torch.arange(3).repeat(2, 1)] * 4
    assert_same(batches, answered if costly else [torch.tensor([k, k + 1]) for k in (0, 2, 4, 6)])
    assert (loader.stats().calls["torch.load"].answered >= 14) if costly else (loader.stats().calls == {})
