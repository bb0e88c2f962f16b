"""on_error="replace" in small datasets: one bad sample is always allowed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

import penstock
from penstock.errors import TooManyBadSamples
from penstock.state.quarantine import Replace


class OneBad(Dataset[float]):
    """Some of its samples cannot be read."""

    def __init__(self, bad: set[int], size: int = 100) -> None:
        self.bad = bad
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> float:
        if index in self.bad:
            raise OSError(f"sample {index} is torn")
        return float(index)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [3, 100, 999])
def test_one_bad_sample_of_a_small_dataset_is_replaced(size: int, workers: int) -> None:
    loader = penstock.DataLoader(OneBad({1}, size), 64, num_workers=workers, on_error="replace", seed=1)
    for _ in range(2):
        values = torch.cat(list(loader)).tolist()
        assert len(values) == size
        assert 1.0 not in values
        assert values[:1] + values[2:] == [float(index) for index in range(size) if index != 1]


def test_the_error_of_a_small_dataset_says_how_many_are_allowed() -> None:
    loader = penstock.DataLoader(OneBad({1, 5}), 64, on_error="replace")
    with pytest.raises(
        TooManyBadSamples,
        match=r"2 of 100 samples are bad \(2.000%\), and .*max_share=0.001\) allows 1, as any share above 0 does:",
    ):
        list(loader)
    with pytest.raises(TooManyBadSamples, match=r"1 of 100 .* allows 0:"):
        list(penstock.DataLoader(OneBad({1}), 64, on_error=Replace(0)))
