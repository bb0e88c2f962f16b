"""Reports: KempnerInstitute/KempnerForge#57, meta-pytorch/data#1439, huggingface/accelerate#4203.

A run that stops and resumes twice in one epoch: the second state counts from the first resume, and samples come twice.

A state is the place in the epoch, whatever was resumed before; also behind the last batch of an epoch.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch.utils.data import TensorDataset

from tests.reports.report import Found

SAMPLES = 60


def trouble(loader: Any, *, short: bool) -> Found:
    dataset = TensorDataset(torch.arange(SAMPLES))
    came: list[int] = []
    state: dict[str, Any] = {}
    torch.manual_seed(3)
    for take in (3, 4, 5, None):  # batches of each run
        batches = loader(dataset, batch_size=4, shuffle=True)
        if state:
            batches.load_state_dict(state)
        # Without a state a program skips what the last run had counted.
        skipped = 0 if hasattr(batches, "state_dict") else len(came) // 4
        came += [int(one) for (batch,) in islice(islice(batches, skipped, None), take) for one in batch]
        state = getattr(batches, "state_dict", dict)()
    return Found(SAMPLES - len(set(came)), SAMPLES, "samples that three resumes of an epoch lose")
