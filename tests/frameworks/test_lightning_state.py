"""Lightning saves where the loader is with its checkpoints, and goes on there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import penstock

lightning = pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

DATA = TensorDataset(torch.arange(40), torch.randn(40, 3))


class Model(lightning.LightningModule):  # type: ignore[name-defined]
    """Notes the samples of each step, and fails at one."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: list[list[int]] = []
        self.fails_at = fails_at

    def training_step(self, batch: Any, number: int) -> Any:
        if len(self.seen) == self.fails_at:
            raise RuntimeError("the machine was lost")
        self.seen.append(batch[0].tolist())
        return self.linear(batch[1]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(
    folder: Path, size: int, *, fails_at: int | None = None, ckpt: Path | None = None, **saving: Any
) -> list[list[int]]:
    """Train for three epochs with checkpoints; return the samples of each step."""
    model = Model(fails_at)
    loader = penstock.DataLoader(DATA, batch_size=size, shuffle=True, seed=7, num_workers=1)
    trainer = lightning.Trainer(
        max_epochs=3,
        logger=False,
        default_root_dir=folder,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(folder, save_top_k=-1, **saving)],
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    with contextlib.nullcontext() if fails_at is None else pytest.raises(RuntimeError, match="the machine was lost"):
        trainer.fit(model, loader, ckpt_path=ckpt)
    return model.seen


def test_training_goes_on_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    whole = fit(tmp_path, 10, filename="{epoch}")
    again = fit(tmp_path, 10, filename="{epoch}", ckpt=tmp_path / "epoch=0.ckpt")
    assert again == whole[4:], "Lightning calls iter() before set_epoch"


def test_training_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"filename": "after-{step}", "every_n_train_steps": 3}
    whole = fit(tmp_path / "whole", 4, **saving)
    assert len(whole) == 30
    before = fit(tmp_path / "lost", 4, fails_at=14, **saving)
    after = fit(tmp_path / "again", 4, ckpt=tmp_path / "lost" / "after-step=12.ckpt", **saving)
    assert before[:12] + after == whole
