"""Reports: Lightning-AI/pytorch-lightning#20550, Lightning-AI/pytorch-lightning#21765,
Lightning-AI/pytorch-lightning#19764.

Lightning resumes in the middle of an epoch: torch's loader has no state, and where `estimated_stepping_batches` was
asked for (OneCycleLR does) Lightning drops the state of a loader that has one, in silence.

The loader's state is in the checkpoint, and the epoch continues after the batch that was trained last; where Lightning
drops it, a warning says so.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.reports.report import Found

SAMPLES, BATCH, STOP = 40, 4, 4


def run(loader: Any, folder: str, *, asks: bool, resumes: bool) -> tuple[list[int], list[str]]:
    """Train for some batches, or on from their checkpoint; return the samples that came, and what was warned of."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
    came: list[int] = []
    path = str(Path(folder) / "stopped.ckpt")

    class Model(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            came.extend(batch[0][:, 0].int().tolist())
            return self.layer(batch[0]).sum()

        def on_train_batch_end(self, *given: Any) -> None:
            if not resumes and len(came) == STOP * BATCH:
                self.trainer.save_checkpoint(path)
                self.trainer.should_stop = True

        def configure_optimizers(self) -> Any:
            if asks:
                assert self.trainer.estimated_stepping_batches
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    torch.manual_seed(0 if not resumes else 1)
    data = loader(TensorDataset(torch.arange(SAMPLES).float()[:, None]), batch_size=BATCH, shuffle=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = lightning.Trainer(
            max_epochs=1,
            max_steps=-1 if resumes else STOP,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Model(), data, ckpt_path=path if resumes else None)
    return came, [str(one.message) for one in caught]


def trouble(loader: Any, *, short: bool) -> Found:
    bad = of = 0
    said = ""
    for asks in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            before, _ = run(loader, folder, asks=asks, resumes=False)
            after, texts = run(loader, folder, asks=asks, resumes=True)
        lost = SAMPLES - len({*before, *after})
        warned = next((text for text in texts if "did not load" in text and "state" in text), "")
        bad, of, said = bad + (0 if warned else lost), of + SAMPLES, said or warned
    return Found(bad, of, "samples that a resumed epoch loses without a word", said)
