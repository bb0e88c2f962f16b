"""Lightning: training stops in the middle of an epoch, and continues from the checkpoint behind the same batch.

    python examples/lightning_resume.py [--folder FOLDER]

Lightning's checkpoints hold where the loader is; nothing is done for it here.
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import TensorDataset

from penstock import DataLoader


class Regression(lightning.LightningModule):
    """Learns the sum of eight numbers, and keeps the numbers of the samples that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.seen: list[int] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        samples, x = batch
        self.seen += samples.tolist()
        loss: torch.Tensor = (self.layer(x).squeeze(1) - x.sum(1)).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        data = TensorDataset(torch.arange(640), torch.randn(640, 8, generator=torch.Generator().manual_seed(0)))
        return DataLoader(data, batch_size=64, shuffle=True, seed=0, num_workers=2)


def trained(folder: Path, steps: int, resume: str | None = None) -> tuple[Regression, ModelCheckpoint]:
    """Train up to a step; the checkpoint of every step is kept."""
    kept = ModelCheckpoint(folder, every_n_train_steps=1)
    trainer = lightning.Trainer(max_steps=steps, callbacks=[kept], logger=False, enable_progress_bar=False)
    model = Regression()
    trainer.fit(model, ckpt_path=resume)
    return model, kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="(default: %(default)s)")
    options = parser.parse_args()

    stopped, kept = trained(options.folder, 4)
    print(f"stopped after 4 of 10 steps: {len(stopped.seen)} samples")
    resumed, _ = trained(options.folder, 10, kept.best_model_path)
    seen = sorted(stopped.seen + resumed.seen)
    print(f"resumed: {len(resumed.seen)} samples; each of 640 came once: {seen == list(range(640))}")


if __name__ == "__main__":
    main()
