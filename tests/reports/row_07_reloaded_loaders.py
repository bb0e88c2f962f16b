"""Reports: Lightning-AI/pytorch-lightning#21492, Lightning-AI/pytorch-lightning#9502.

`reload_dataloaders_every_n_epochs`: after a resume the loader that is made for an epoch begins with the order of
another one.

With `seed=` the order is a function of (seed, epoch), and Lightning's epoch reaches a loader that is made anew: a
resumed run has the epochs of one that did not stop.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock
from tests.reports.report import Found

SAMPLES, BATCH = 20, 4


def orders(loader: Any, epochs: int, save: str | None, resume: str | None) -> dict[int, list[int]]:
    """Return the order of each epoch of a run that has a new loader in each."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
    came: dict[int, list[int]] = {}

    class Model(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def train_dataloader(self) -> Any:
            data = TensorDataset(torch.arange(SAMPLES).float()[:, None])
            given = {"seed": 3} if issubclass(loader, penstock.DataLoader) else {}
            return loader(data, batch_size=BATCH, shuffle=True, **given)

        def training_step(self, batch: Any, _: int) -> Any:
            came.setdefault(self.current_epoch, []).extend(batch[0][:, 0].int().tolist())
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    torch.manual_seed(3)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        reload_dataloaders_every_n_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), ckpt_path=resume)
    if save is not None:
        trainer.save_checkpoint(save)
    return came


def trouble(loader: Any, *, short: bool) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "stopped.ckpt")
        whole = orders(loader, 4, None, None)
        orders(loader, 2, path, None)
        resumed = orders(loader, 4, None, path)
    other = sum(resumed.get(epoch) != whole[epoch] for epoch in (2, 3))
    return Found(other, 2, "epochs of a resumed run in another order than without the stop")
