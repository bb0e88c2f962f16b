"""Hugging Face's Trainer over Penstock's loaders: it stops in the middle of an epoch, and continues behind that batch.

    python examples/hf_trainer.py [--folder FOLDER]

Trainer makes its own loaders: `penstock.install()` puts Penstock's in the place of torch's.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import penstock


class Sentences(Dataset[dict[str, Any]]):
    """Random tokens, whose first one tells the label."""

    def __init__(self, size: int) -> None:
        self.tokens = torch.randint(2, 100, (size, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": int(tokens[0] >= 50)}


class Recorder(Trainer):
    """Keeps the sum of each batch's tokens, which tells the batches apart."""

    def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), int(inputs["input_ids"].sum())]
        return super().training_step(model, inputs, *arguments)


def trainer(folder: Path, steps: int) -> Recorder:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=5,
        per_device_train_batch_size=16,
        dataloader_num_workers=2,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
    )
    return Recorder(model=BertForSequenceClassification(config), args=arguments, train_dataset=Sentences(256))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="(default: %(default)s)")
    options = parser.parse_args()
    with penstock.install():
        whole = trainer(options.folder / "whole", 16)
        whole.train()
        stopped = trainer(options.folder / "stopped", 5)
        stopped.train()
        resumed = trainer(options.folder / "stopped", 16)
        resumed.train(resume_from_checkpoint=True)
    print(f"resumed behind step 5, trained to step {resumed.state.global_step}")
    print(f"the batches are those of a run that did not stop: {stopped.seen + resumed.seen == whole.seen}")


if __name__ == "__main__":
    main()
