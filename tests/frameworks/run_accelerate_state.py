"""Two ranks of Accelerate, stopped in the middle of an epoch ("save"), or gone on with ("load")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import TensorDataset

import penstock
from penstock.frameworks import keep_loaders
from tests.data import Made, Placed
from tests.frameworks.launching import begin, end

SAMPLES, BATCH, EPOCHS = 43, 4, 3
#: The state is saved in this epoch, after so many steps: in its middle, and when a dispatcher has met its end.
EPOCH, STEPS = 1, (2, 5)
#: The samples of each step of each epoch.
Seen = list[list[list[int]]]


class Counting(Made):
    """What only Python can read, and which samples it was asked for."""

    def __init__(self) -> None:
        super().__init__(self.get, SAMPLES)
        self.read: list[int] = []

    def get(self, index: int) -> Any:
        self.read.append(index)
        return (torch.tensor(index),)


def numbers(batches: Any) -> list[list[int]]:
    """Return the samples of each step."""
    return [batch[0].tolist() for batch in batches]


@dataclass(frozen=True)
class Case:
    """How a loader is made and prepared."""

    dataset: Callable[[], Any] | None = None
    """None: one that native threads read."""
    loading: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    prepared: bool = True

    def begin(self, seed: int = 3) -> tuple[Any, Any, Any]:
        """Return an accelerator, the loader, whose state it saves, and the dataset."""
        accelerate.utils.set_seed(seed)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**self.config))
        dataset = TensorDataset(torch.arange(SAMPLES)) if self.dataset is None else self.dataset()
        loader: Any = penstock.DataLoader(dataset, **{"batch_size": BATCH, "num_workers": 0, **self.loading})
        if self.prepared:
            loader = keep_loaders(accelerator).prepare(loader)
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader, dataset

    def whole(self) -> Seen:
        """Return what epochs give that nothing interrupts."""
        _, loader, _ = self.begin()
        return [numbers(loader) for _ in range(EPOCHS)]

    def saved(self, folder: Path, epoch: int = EPOCH, steps: tuple[int, ...] = STEPS) -> Seen:
        """Save the state after each of these steps of an epoch, in FOLDER/<step>; return what came before the last."""
        accelerator, loader, _ = self.begin()
        seen: Seen = [numbers(loader) for _ in range(epoch)]
        if 0 in steps:
            accelerator.save_state(str(folder / "0"))
        seen.append([])
        for batch in loader:
            seen[-1].append(batch[0].tolist())
            if len(seen[-1]) in steps:
                accelerator.save_state(str(folder / str(len(seen[-1]))))
            if len(seen[-1]) == max(steps):
                break
        return seen

    def gone_on(self, folder: Path, epochs: int = EPOCHS - EPOCH) -> tuple[Seen, list[int]]:
        """Load a state; return what comes after it, and which samples were read in the first of these epochs."""
        accelerator, loader, dataset = self.begin(seed=4)
        accelerator.load_state(str(folder))
        first = numbers(loader)
        read = list(getattr(dataset, "read", ()))
        return [first, *(numbers(loader) for _ in range(epochs - 1))], read


stream = partial(Placed, SAMPLES, lambda index: (torch.tensor(index),))
SEEDED = {"shuffle": True, "seed": 5}
CASES = {
    "not prepared": Case(loading={**SEEDED, "shard": "auto"}, prepared=False),
    "not prepared, Python": Case(Counting, {**SEEDED, "shard": "auto"}, prepared=False),
    "in sequence": Case(),
    "seeded": Case(loading=SEEDED),
    "threads": Case(loading={**SEEDED, "num_workers": 2, "persistent_workers": True}),
    "Python": Case(Counting, SEEDED),
    "Python threads": Case(Counting, {**SEEDED, "worker_method": "thread", "num_workers": 1, "share_dataset": True}),
    "drop_last": Case(loading={**SEEDED, "drop_last": True}),
    "split": Case(loading=SEEDED, config={"split_batches": True}),
    "weighted": Case(loading={"sampler": penstock.Weighted([1.0] * SAMPLES), "seed": 5}),
    "seedable": Case(loading={"shuffle": True}, config={"use_seedable_sampler": True}),
    "both": Case(loading=SEEDED, config={"use_seedable_sampler": True}),
    "dispatched": Case(loading=SEEDED, config={"dispatch_batches": True}),
    "dispatched, split": Case(loading=SEEDED, config={"dispatch_batches": True, "split_batches": True}),
    "dispatched stream": Case(stream, config={"dispatch_batches": True}),
    "dispatched stream, split": Case(stream, config={"dispatch_batches": True, "split_batches": True}),
}


def main(verb: str, folder: Path) -> None:
    begin()
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        if verb == "save":
            results[name] = case.whole(), case.saved(folder / name)
        else:
            results[name] = {step: case.gone_on(folder / name / str(step)) for step in STEPS}
    end(folder / verb, results)
