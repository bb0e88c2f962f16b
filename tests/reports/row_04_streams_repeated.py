"""Reports: huggingface/nanoVLM#200, huggingface/finetrainers#394, huggingface/datasets#3423, pytorch/pytorch#30599.

Each of several workers goes through all of an iterable dataset: every sample comes as often as there are workers.

The samples come as in torch's loader, with a warning at the first batch that says how many are coming; with
`shard="auto"` each worker, and each rank, gets its own part.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

import penstock
from tests.reports.report import Found


class Stream(IterableDataset[Any]):
    def __init__(self, samples: int, first: int = 0, step: int = 1) -> None:
        self.samples, self.first, self.step = samples, first, step

    def __len__(self) -> int:
        return self.samples

    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(self.samples, self.first + index * self.step, self.step * num_shards)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.samples, self.step))


def trouble(loader: Any, *, short: bool) -> Found:
    size = 400 if short else 10_000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        came = sum(len(batch) for batch in loader(Stream(size), batch_size=50, num_workers=4))
    said = next((str(one.message) for one in caught if "goes through" in str(one.message)), "")
    if issubclass(loader, penstock.DataLoader):
        own: Any = loader(Stream(size), batch_size=50, num_workers=4, shard="auto")
        assert sorted(int(one) for batch in own for one in batch) == list(range(size))
    return Found(came - size, came, "samples that had come before", said.partition(";")[0])


def answered(found: Found) -> bool:
    return f"{found.of:,}" in found.said
