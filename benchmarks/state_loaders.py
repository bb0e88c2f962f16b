"""What the tables of the question `state` share: loaders of three kinds, and units."""

# Each contestant imports its own libraries, which may be missing here.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Measure, Setup

REPEATS = 5
"""How often what takes less than a second is done in a round; its median is the round's figure."""


def us(key: str) -> Measure:
    return Measure(key, "us", higher_is_better=False)


def ms(key: str) -> Measure:
    return Measure(key, "ms", higher_is_better=False)


Make = Callable[..., Any]
"""(dataset, workers, shuffle) -> a loader."""


def loaders(setup: Setup, kind: Any, **more: Any) -> Make:
    def make(dataset: Any, workers: int = 0, shuffle: bool | None = True) -> Any:
        return kind(
            dataset,
            batch_size=setup.batch,
            shuffle=shuffle,
            num_workers=workers,
            persistent_workers=workers > 0,
            **more,
        )

    return make


def torch_loaders(setup: Setup) -> Make:
    import torch

    return loaders(setup, torch.utils.data.DataLoader)


def penstock_loaders(setup: Setup, seed: int | None = None) -> Make:
    import penstock

    return loaders(setup, penstock.DataLoader, seed=seed)


def torchdata_loaders(setup: Setup, snapshot: int) -> Make:
    from torchdata.stateful_dataloader import StatefulDataLoader

    warnings.filterwarnings("ignore", message=".*deprecated")
    return loaders(setup, StatefulDataLoader, snapshot_every_n_steps=snapshot)


class Numbers64:
    """A map-style dataset of so many numbers, which takes no memory."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index
