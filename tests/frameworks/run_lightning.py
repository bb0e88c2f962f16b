"""Two ranks of Lightning's Trainer over penstock loaders; see test_lightning.py."""

from __future__ import annotations

import json
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import TensorDataset

import penstock
from tests.data import Made
from tests.frameworks.launching import begin

SAMPLES, BATCH = 26, 4
OWN: dict[str, Any] = {"seed": 5, "worker_method": "thread", "on_error": "replace"}


NATIVE = TensorDataset(torch.arange(SAMPLES), torch.zeros(SAMPLES, 3))


def make(dataset: Any = NATIVE, shuffle: bool = True, **options: Any) -> Any:
    return penstock.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, **OWN, **options)


class Recorder(lightning.LightningModule):
    """Keeps the numbers of each batch, by stage and epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen: dict[str, list[list[list[int]]]] = {"train": [], "val": [], "predict": []}
        self.loaders: dict[str, dict[str, Any]] = {}

    def begin(self, stage: str, loader: Any) -> None:
        self.seen[stage].append([])
        self.loaders[stage] = {
            "kept": type(loader) is penstock.DataLoader,
            "own": {name: repr(getattr(loader, name)) for name in OWN},
            "plan": loader.explain().splitlines()[0],
            "workers": [loader.num_workers, loader.persistent_workers],
            "sampler": type(loader.sampler).__name__,
        }

    def step(self, stage: str, batch: Any) -> Any:
        self.seen[stage][-1].append(batch[0].tolist())
        return self.layer(batch[1]).mean()

    def on_train_epoch_start(self) -> None:
        self.begin("train", self.trainer.train_dataloader)

    def on_validation_epoch_start(self) -> None:
        self.begin("val", self.trainer.val_dataloaders)

    def on_predict_epoch_start(self) -> None:
        self.begin("predict", self.trainer.predict_dataloaders)

    training_step = partialmethod(step, "train")
    validation_step = partialmethod(step, "val")
    predict_step = partialmethod(step, "predict")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class WithHooks(Recorder):
    """Makes its own loaders: Lightning then records the arguments instead of reading the attributes."""

    def train_dataloader(self) -> Any:
        return make(num_workers=2)

    def val_dataloader(self) -> Any:
        return make(shuffle=False, num_workers=2)


class Indices(BasePredictionWriter):
    """Keeps which samples Lightning believes that each batch of predictions is of."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.said: list[Any] = []

    def write_on_batch_end(self, trainer: Any, module: Any, prediction: Any, indices: Any, *_: Any) -> None:
        self.said.append(list(indices))


QUIET: dict[str, Any] = {
    "num_sanity_val_steps": 0, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip


def trainer(folder: Path, **options: Any) -> lightning.Trainer:
    gloo = DDPStrategy(process_group_backend="gloo")
    where: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "strategy": gloo, "default_root_dir": folder}
    return lightning.Trainer(max_epochs=2, **where, **QUIET, **options)


def main(folder: Path) -> None:
    begin()
    cases: dict[str, Any] = {}
    fits: dict[str, tuple[Any, dict[str, Any]]] = {
        "workers None": (NATIVE, {}),
        "workers 0": (NATIVE, {"num_workers": 0}),
        "workers 2": (NATIVE, {"num_workers": 2, "prefetch_factor": 3}),
        "persistent": (NATIVE, {"num_workers": 2, "persistent_workers": True}),
        "Python": (Made(lambda index: (torch.tensor(index), torch.zeros(3)), SAMPLES), {"num_workers": 1}),
        "hooks": (None, {}),
        "predict": (NATIVE, {"num_workers": 2}),
        "seeded workers": (NATIVE, {"num_workers": 2}),
    }
    for name, (dataset, options) in fits.items():
        module, writer = Recorder(), Indices()
        if name == "seeded workers":
            lightning.seed_everything(3, workers=True)
        if name == "hooks":
            module = WithHooks()
            trainer(folder).fit(module)
        elif name == "predict":
            trainer(folder, callbacks=[writer]).predict(module, make(shuffle=False, **options))
        else:
            trainer(folder).fit(module, make(dataset, **options), make(dataset, shuffle=False, **options))
        cases[name] = {"seen": module.seen, "loaders": module.loaders, "indices": writer.said}
    (folder / f"found-{torch.distributed.get_rank()}.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
