"""Two ranks of Accelerate over torch's loader and over ours, which it was told to keep; see test_accelerate.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

import penstock
from penstock.frameworks import keep_loaders
from tests.data import Made, Stream
from tests.frameworks.launching import begin, end

SAMPLES, BATCH = 27, 4
OWN: dict[str, Any] = {"seed": 5, "worker_method": "thread", "on_error": "replace"}


def sample(index: int) -> Any:
    return torch.tensor(index), torch.zeros(3)


NUMBERS = TensorDataset(torch.arange(SAMPLES), torch.zeros(SAMPLES, 3))
GIVEN = ("num_workers", "pin_memory", "collate_fn")


def values(batch: Any) -> Any:
    return batch[0].tolist()


def run(loader_class: Any, own: dict[str, Any], dataset: Any, loading: dict[str, Any], config: dict[str, Any]) -> Any:
    """Prepare a loader and a model; return all that a training script could see of it in two epochs."""
    accelerate.utils.set_seed(0)
    loading_config = DataLoaderConfiguration(**config)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3, dataloader_config=loading_config)
    if loader_class is penstock.DataLoader:
        keep_loaders(accelerator)
    given = loader_class(dataset, **loading, **own)
    model, loader = accelerator.prepare(torch.nn.Linear(3, 1), given)
    even = config.get("even_batches", True)  # else the ranks have unequal numbers of batches, and would wait in vain
    seen: dict[str, Any] = {"epochs": [], "gathered": [], "ends": [], "remainders": [], "synchronised": []}
    for epoch in range(2):
        if not isinstance(dataset, IterableDataset):
            loader.set_epoch(epoch + 1)
        seen["epochs"].append([])
        seen["gathered"].append([])
        for batch in loader:
            if even:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch[1]).mean())
                    seen["synchronised"].append(accelerator.sync_gradients)
            seen["epochs"][-1].append(values(batch))
            seen["ends"].append(loader.end_of_dataloader)
            seen["remainders"].append(loader.remainder)
            if even and "batch_size" in loading:
                seen["gathered"][-1] += values(accelerator.gather_for_metrics(batch))
    skipped = accelerator.skip_first_batches(loader, 2)
    seen["skipped"] = [values(batch) for batch in skipped]
    seen["lengths"] = [len(each) for each in (loader, skipped) if not isinstance(dataset, IterableDataset)]
    what = [
        {
            "ours": type(each.base_dataloader) is penstock.DataLoader,
            "own": {name: repr(getattr(each.base_dataloader, name)) for name in own},
            "as given": all(getattr(each, name) == getattr(given, name) for name in GIVEN),
            "plan": each.base_dataloader.explain().splitlines()[0],
        }
        for each in (loader, skipped)
        if loader_class is penstock.DataLoader
    ]
    return {"seen": seen, "what": what}


PLAIN: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0}
BY_SAMPLER = {"batch_sampler": BatchSampler(SequentialSampler(range(SAMPLES)), BATCH, False), "num_workers": 0}
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "plain": (NUMBERS, PLAIN, {}),
    "threads": (NUMBERS, PLAIN | {"num_workers": 2, "persistent_workers": True}, {}),
    "shuffled": (NUMBERS, PLAIN | {"num_workers": 2, "shuffle": True}, {}),
    "seedable": (NUMBERS, PLAIN | {"shuffle": True}, {"use_seedable_sampler": True}),
    "drop_last": (NUMBERS, PLAIN | {"drop_last": True}, {}),
    "split": (NUMBERS, PLAIN | {"num_workers": 2}, {"split_batches": True}),
    "uneven": (NUMBERS, PLAIN, {"even_batches": False}),
    "dispatched": (NUMBERS, PLAIN, {"dispatch_batches": True}),
    "Python": (Made(sample, SAMPLES), PLAIN | {"num_workers": 1}, {}),
    "stream": (Stream(SAMPLES, sample, shared=False), PLAIN, {"dispatch_batches": False}),
    "batches by sampler": (NUMBERS, BY_SAMPLER, {}),
}


def main(verb: str, folder: Path) -> None:
    begin()
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        # What the order is with our seed is ours to say; here it is only that our arguments survive.
        own = {key: value for key, value in OWN.items() if name != "stream" or key != "on_error"}  # refused there
        results[name] = {
            "theirs": run(torch.utils.data.DataLoader, {}, *case),
            "ours": run(penstock.DataLoader, {}, *case),
            "with own": run(penstock.DataLoader, own, *case),
        }
    end(folder / verb, results)
