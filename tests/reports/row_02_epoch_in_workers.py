"""Reports: starVLA/starVLA#470, NVIDIA-NeMo/Megatron-Bridge#5762, pytorch/pytorch#97326.

`dataset.epoch = n` in the parent does not reach worker processes that persist; where they do not, an epoch that is set
behind iter() (in a hook, or by the sampler as it begins) comes one epoch late.

Numbers, strings and None that have changed are sent to the workers before the first batch of a pass is made, also in
transforms and in a collate function; for a larger change (another transform) they are started anew, with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, Sampler

from tests.reports.report import Found


class Curriculum(Dataset[Any]):
    def __init__(self) -> None:
        self.epoch = -1

    def __len__(self) -> int:
        return 8

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        return self.epoch * 10_000 + index


class Cyclic(Sampler[int]):
    """Tells the dataset its epoch as it begins."""

    def __init__(self, dataset: Curriculum) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        self.dataset.set_epoch(self.dataset.epoch + 1)
        return iter(range(len(self.dataset)))


def trouble(loader: Any, *, short: bool) -> Found:
    epochs = 3
    wrong = seen = 0
    for persistent in (True, False):
        for where in ("before", "behind iter()", "in the sampler"):
            dataset = Curriculum()
            sampler = Cyclic(dataset) if where == "in the sampler" else None
            batches = loader(dataset, batch_size=2, num_workers=2, persistent_workers=persistent, sampler=sampler)
            for epoch in range(epochs):
                if where == "before":
                    dataset.set_epoch(epoch)
                passing = iter(batches)
                if where == "behind iter()":
                    dataset.set_epoch(epoch)
                samples = [int(one) for batch in passing for one in batch]
                wrong += sum(one // 10_000 != epoch for one in samples)
                seen += len(samples)
    return Found(wrong, seen, "samples of another epoch than the one that was set")
