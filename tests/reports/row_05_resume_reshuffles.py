"""Reports: huggingface/accelerate#2823, wyim-pgl/transgenic#59, huggingface/accelerate#2016.

A run that stops in the middle of an epoch and resumes draws another order: skipping the batches that were seen skips
other samples, so that some come twice and some never.

`loader.state_dict()` continues the same order behind the batch that was handed out last; so do `skip_first_batches`
of Accelerate, Transformers' Trainer and Lightning (docs/reliability.md, row 25).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch.utils.data import TensorDataset

from tests.reports.report import Found

SAMPLES, BATCH, SEEN = 64, 4, 5


def trouble(loader: Any, *, short: bool) -> Found:
    bad = runs = 0
    for seed in range(2 if short else 20):
        torch.manual_seed(seed)
        dataset = TensorDataset(torch.arange(SAMPLES))
        first = loader(dataset, batch_size=BATCH, shuffle=True)
        before = [int(one) for (batch,) in islice(first, SEEN) for one in batch]
        generator = torch.get_rng_state()
        state: dict[str, Any] = getattr(first, "state_dict", dict)()
        second = loader(dataset, batch_size=BATCH, shuffle=True)
        torch.set_rng_state(generator)  # as frameworks do with a checkpoint
        if state:
            second.load_state_dict(state)
        after = [int(one) for (batch,) in islice(second, 0 if state else SEEN, None) for one in batch]
        bad += SAMPLES - len({*before, *after})
        runs += 1
    return Found(bad, runs * SAMPLES, "samples that the resumed epoch never gives")
