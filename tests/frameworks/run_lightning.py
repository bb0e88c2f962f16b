"""Two ranks of Lightning's Trainer over penstock loaders; started by test_lightning.py.

    python run_lightning.py FOLDER

Each rank writes FOLDER/<rank>.json: for each case what its trainer's loaders were, and every batch that they gave.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import Dataset, TensorDataset

import penstock

SAMPLES, BATCH = 26, 4
WANTED: dict[str, Any] = {"seed": 5, "worker_method": "thread", "on_error": "replace"}
OWN = {name: value for name, value in WANTED.items() if name in inspect.signature(penstock.DataLoader).parameters}


class Numbers(Dataset[Any]):
    """What only Python can read."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index), torch.zeros(3)


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

    def training_step(self, batch: Any) -> Any:
        return self.step("train", batch)

    def validation_step(self, batch: Any) -> Any:
        return self.step("val", batch)

    def predict_step(self, batch: Any) -> Any:
        return self.step("predict", batch)

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


def trainer(folder: Path, **options: Any) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(90, exit=True)  # a rank that waits in vain for the other ends, and says where
    torch.set_num_threads(1)
    cases: dict[str, Any] = {}
    rank = 0
    fits: list[tuple[str, Any, dict[str, Any]]] = [
        ("workers None", NATIVE, {}),
        ("workers 0", NATIVE, {"num_workers": 0}),
        ("workers 2", NATIVE, {"num_workers": 2, "prefetch_factor": 3}),
        ("persistent", NATIVE, {"num_workers": 2, "persistent_workers": True}),
        ("Python", Numbers(), {"num_workers": 1}),
    ]
    for name, dataset, options in fits:
        module, runner = Recorder(), trainer(folder)
        runner.fit(module, make(dataset, **options), make(dataset, shuffle=False, **options))
        cases[name] = {"seen": module.seen, "loaders": module.loaders}
        rank = runner.global_rank

    module = WithHooks()
    trainer(folder).fit(module)
    cases["hooks"] = {"seen": module.seen, "loaders": module.loaders}

    module, writer = Recorder(), Indices()
    trainer(folder, callbacks=[writer]).predict(module, make(shuffle=False, num_workers=2))
    cases["predict"] = {"seen": module.seen, "loaders": module.loaders, "indices": writer.said}

    lightning.seed_everything(3, workers=True)
    module = Recorder()
    trainer(folder).fit(module, make(num_workers=2), make(shuffle=False, num_workers=2))
    cases["seeded workers"] = {"seen": module.seen, "loaders": module.loaders}

    (folder / f"{rank}.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
