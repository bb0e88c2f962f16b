"""Reports: pytorch/pytorch#31771, pytorch/pytorch#11324, kan-bayashi/ParallelWaveGAN#177, huggingface/nanoVLM#124.

A DistributedSampler without set_epoch() gives each epoch in the same order.

A DistributedSampler is the user's, and stays as it is here too. `shard="auto"` with `shuffle=True` and `seed=` in its
place has another order in each epoch, and nothing to call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DistributedSampler, TensorDataset

import penstock
from tests.reports.report import Found


def trouble(loader: Any, *, short: bool) -> Found:
    dataset, epochs = TensorDataset(torch.arange(64)), 3 if short else 10
    sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=0)
    batches: Any = loader(dataset, batch_size=4, sampler=sampler)
    orders = {tuple(int(one) for (batch,) in batches for one in batch) for _ in range(epochs)}
    said = ""
    if issubclass(loader, penstock.DataLoader):
        own: Any = loader(dataset, batch_size=4, shuffle=True, seed=0, shard=(0, 2))
        others = {tuple(int(one) for (batch,) in own for one in batch) for _ in range(epochs)}
        said = f"nothing; with shard= {epochs - len(others)}"
    return Found(epochs - len(orders), epochs, "epochs in the order of an earlier one", said)


def answered(found: Found) -> bool:
    return found.said.endswith("shard= 0")
