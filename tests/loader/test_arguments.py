"""Arguments that torch falls over, said in words and by the exceptions that torch raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from tests.sample_datasets import Made, Stream

TORCH: Any = torch.utils.data.DataLoader
OURS: Any = penstock.DataLoader
ROWS = TensorDataset(torch.arange(8.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": "2"}, "num_workers must be an integer, or None for the default, not '2'"),
        ({"num_workers": 2.0}, "num_workers must be an integer, or None for the default, not 2.0"),
        ({"num_workers": [1]}, r"num_workers must be an integer, .* not \[1\]"),
        ({"timeout": "1"}, "timeout must be a number of seconds, not '1'"),
        ({"timeout": None}, "timeout must be a number of seconds, not None"),
        ({"num_workers": 1, "prefetch_factor": "2"}, "prefetch_factor must be an integer, .* not '2'"),
        ({"num_workers": 1, "prefetch_factor": 2.5}, "prefetch_factor must be an integer, .* not 2.5"),
        ({"batch_size": "4"}, "batch_size must be an int or None, which batches nothing, not '4' of type str"),
        ({"batch_size": 4.0}, "batch_size must be .* not 4.0 of type float"),
        ({"batch_size": np.int64(4)}, r"batch_size must be .* not np.int64\(4\) of type int64"),
    ],
)
def test_what_is_no_number(options: dict[str, Any], words: str) -> None:
    kind: Any = TypeError  # of torch's iterator, where its loader takes it: no workers are started for that
    try:
        TORCH(ROWS, **options)
    except Exception as error:
        kind = type(error)
    with pytest.raises(kind, match=words):
        OURS(ROWS, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": True}, {"num_workers": np.int64(1)}, {"num_workers": torch.tensor(1)}, {"batch_size": None},
        {"num_workers": 1, "timeout": 5.5}, {"num_workers": 1, "timeout": np.float32(5)},
        {"num_workers": 1, "prefetch_factor": np.int64(2)},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_a_number(options: dict[str, Any]) -> None:
    assert len(list(OURS(ROWS, **options))) == len(list(TORCH(ROWS, **options)))


def test_a_shuffle_of_nothing(tmp_path: Path) -> None:
    folder = penstock.TensorFolder(tmp_path, [])
    for dataset, name in ((folder, "TensorFolder has no samples"), (Made(size=0), "Made has no samples")):
        with pytest.raises(ValueError, match="num_samples=0"):
            TORCH(dataset, shuffle=True)
        for options in ({}, {"seed": 3}):
            with pytest.raises(ValueError, match="shuffle=True needs one at least") as caught:
                OURS(dataset, shuffle=True, **options)
            assert isinstance(caught.value, penstock.InvalidOption)
            assert name in str(caught.value)
        assert list(OURS(dataset)) == list(TORCH(dataset)) == []
    assert list(OURS(Stream(0))) == []
