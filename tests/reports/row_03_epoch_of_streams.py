"""Reports: ByteDance-Seed/VeOmni#940, huggingface/datasets#6673.

`dataset.set_epoch(n)` of an iterable dataset does not reach worker processes that persist: each epoch has the order of
the first.

The same as for map-style datasets: the epoch is sent before each pass begins, and the workers go through the stream
from its start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from tests.reports.report import Found


class Shuffled(IterableDataset[Any]):
    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        order = list(range(40))
        random.Random(self._epoch).shuffle(order)
        yield from order[info.id :: info.num_workers]


def trouble(loader: Any, *, short: bool) -> Found:
    epochs = 2 if short else 5
    stream = Shuffled()
    batches: Any = loader(stream, batch_size=4, num_workers=2, persistent_workers=True)
    orders = []
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        orders.append(tuple(int(one) for batch in batches for one in batch))
    assert all(sorted(order) == list(range(40)) for order in orders)
    return Found(epochs - len(set(orders)), epochs, "epochs in the order of an earlier one")
