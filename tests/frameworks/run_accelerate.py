"""Two ranks of Accelerate over torch's loader and over ours, which it was told to keep; see test_accelerate.py."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

import penstock
from penstock.frameworks import keep_loaders
from tests.frameworks.launching import begin, end
from tests.sample_datasets import Made, Stream

SAMPLES, BATCH = 27, 4
WANTED: dict[str, Any] = {"seed": 5, "worker_method": "thread", "on_error": "replace"}
OWN = {name: value for name, value in WANTED.items() if name in inspect.signature(penstock.DataLoader).parameters}


def sample(index: int) -> Any:
    return torch.tensor(index), torch.zeros(3)


NUMBERS = TensorDataset(torch.arange(SAMPLES), torch.zeros(SAMPLES, 3))
GIVEN = ("num_workers", "pin_memory", "collate_fn")


def values(batch: Any) -> Any:
    return batch[0].tolist()


def run(loader_class: Any, own: dict[str, Any], dataset: Any, loading: dict[str, Any], config: dict[str, Any]) -> Any:
    """Prepare a loader and a model; return all that a training script could see of it in two epochs."""
    accelerate.utils.set_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=3, dataloader_config=DataLoaderConfiguration(**config)
    )
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


def main(folder: Path) -> None:
    begin()
    plain: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0}
    by_sampler = {"batch_sampler": BatchSampler(SequentialSampler(range(SAMPLES)), BATCH, False), "num_workers": 0}
    cases: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
        ("plain", NUMBERS, plain, {}),
        ("threads", NUMBERS, plain | {"num_workers": 2, "persistent_workers": True}, {}),
        ("shuffled", NUMBERS, plain | {"num_workers": 2, "shuffle": True}, {}),
        ("seedable", NUMBERS, plain | {"shuffle": True}, {"use_seedable_sampler": True}),
        ("drop_last", NUMBERS, plain | {"drop_last": True}, {}),
        ("split", NUMBERS, plain | {"num_workers": 2}, {"split_batches": True}),
        ("uneven", NUMBERS, plain, {"even_batches": False}),
        ("dispatched", NUMBERS, plain, {"dispatch_batches": True}),
        ("Python", Made(sample, SAMPLES), plain | {"num_workers": 1}, {}),
        ("stream", Stream(SAMPLES, sample, shared=False), plain, {"dispatch_batches": False}),
        ("batches by sampler", NUMBERS, by_sampler, {}),
    ]
    results: dict[str, Any] = {}
    for name, dataset, loading, config in cases:
        # What the order is with our seed is ours to say; here it is only that our arguments survive.
        own = {key: value for key, value in OWN.items() if name != "stream" or key != "on_error"}  # refused there
        results[name] = {
            "theirs": run(torch.utils.data.DataLoader, {}, dataset, loading, config),
            "ours": run(penstock.DataLoader, {}, dataset, loading, config),
            "with own": run(penstock.DataLoader, own, dataset, loading, config),
        }
    end(folder / "found", results)


if __name__ == "__main__":
    main(Path(sys.argv[2]))
