"""Reports: huggingface/lerobot#2549, huggingface/datasets#7102.

Rows of a Hugging Face dataset that is shuffled come 20 to 1,000 times slower than in order.

The rows of a batch are gathered by one pass over the Arrow chunks, in any order: docs/results.md, Rows of tables.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

import penstock
from tests.reports.report import Found


def trouble(loader: Any, *, short: bool) -> Found:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    size = 20_000 if short else 200_000
    rows = datasets.Dataset.from_dict({"x": list(range(size)), "y": [index % 7 for index in range(size)]})
    shuffled = rows.shuffle(seed=0).with_format("torch")
    batches: Any = loader(shuffled, batch_size=100, shuffle=True, num_workers=0)
    begun = time.perf_counter()
    assert sum(len(batch["x"]) for batch in batches) == size
    seconds = time.perf_counter() - begun
    said = ""
    if issubclass(loader, penstock.DataLoader):
        said = "native" if "native" in str(batches.explain()) else "Python"
    microseconds = int(seconds / size * 1e6)
    return Found(microseconds, microseconds, "microseconds for a shuffled row", said)


def answered(found: Found) -> bool:
    return found.said == "native"
